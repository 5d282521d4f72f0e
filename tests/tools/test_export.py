"""Exports contain the values of a recording where the format can, else images."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace

import cv2
import h5py
import numpy as np
import pytest

from sci_stream import errors as extras
from sci_stream.errors import ConfigError, FileFormatError, InputError, StorageError
from sci_stream.imaging.demosaic import demosaic_values
from sci_stream.imaging.rendering import render, render_counts
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import StageTimes
from sci_stream.optics.mask_errors import MaskCorrection, MaskError
from sci_stream.recording.series import RecordedSeries
from sci_stream.recording.writer import RecordingWriter
from sci_stream.tools.export import ExportOptions, export

SEQS = (0, 1, 3)
LONG_FIRST = MaskCorrection(masks=(MaskError(gain=1.0), MaskError(), MaskError()))


@pytest.fixture
def recorded(tmp_path: Path, series) -> Path:
    with RecordingWriter(
        tmp_path / "run.h5", series.info, series.calibration, error=True
    ) as writer:
        for seq in SEQS:
            writer.write_reconstruction(
                series.reconstruction(seq, counts=None if seq == 1 else series.counts(seq))
            )
        writer.close({"acquired": 4, "closed": True})
    return tmp_path / "run.h5"


def films(path: Path, form: str = "rgb24") -> list[np.ndarray]:
    av = pytest.importorskip("av")
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format=form) for frame in container.decode(video=0)]


def pictures(series) -> np.ndarray:
    return np.concatenate(
        [render(series.video(seq), series.info.bayer, ToneSettings()) for seq in SEQS]
    )


def colours(series) -> np.ndarray:
    """Return the frames, (n, H, W, 3), in the precision of the recording."""
    videos = [series.video(seq) for seq in SEQS]
    return np.concatenate(
        [demosaic_values(video, series.info.bayer).astype(video.dtype) for video in videos]
    )


def test_lossless_video_equals_the_live_page(recorded: Path, series) -> None:
    done = export(recorded, recorded.with_name("film.mkv"), ExportOptions(form="ffv1"))
    assert (done.snapshots, done.frames, done.left_out) == (3, 9, 1)
    assert np.array_equal(films(done.path), pictures(series))


@pytest.mark.parametrize("name", ["film.mp4", "film.mkv"])
def test_video_contains_all_frames_in_colour(recorded: Path, series, name: str) -> None:
    done = export(recorded, recorded.with_name(name), ExportOptions())
    played = np.stack(films(done.path))
    assert played.shape == (9, 16, 24, 3)
    # Noise is the worst there is for H.264; its means survive.
    assert np.abs(played.mean((1, 2)) - pictures(series).mean((1, 2))).max() < 12


def test_png_files_are_named_after_snapshot_and_frame(recorded: Path, series) -> None:
    done = export(recorded, recorded.with_name("folder"), ExportOptions(form="png"))
    names = [f"{seq:08d}_{b:03d}.png" for seq in SEQS for b in range(3)]
    assert sorted(path.name for path in done.path.iterdir()) == names
    for name, picture in zip(names, pictures(series), strict=True):
        assert np.array_equal(cv2.imread(str(done.path / name))[..., ::-1], picture)


def test_tiff_contains_values_with_ome_metadata(recorded: Path, series) -> None:
    tifffile = pytest.importorskip("tifffile")
    done = export(recorded, recorded.with_name("stack.ome.tif"), ExportOptions())
    with tifffile.TiffFile(done.path) as file:
        assert file.is_ome
        assert file.series[0].axes == "TYXS"
        assert np.array_equal(file.asarray(), colours(series).astype(np.float32))
        assert (
            'TimeIncrement="0.000333333333"' in file.ome_metadata
        )  # three frames in an exposure of 1 ms
        assert series.info.calibration_hash in file.ome_metadata


def test_tiff_and_zarr_have_times_and_name_missing_snapshots(tmp_path: Path, series) -> None:
    tifffile, zarr = pytest.importorskip("tifffile"), pytest.importorskip("zarr")
    started_ns, period_ns = 1_767_323_045_000_000_000, 33_000_000
    info = dataclasses.replace(series.info, chunks={"ExposureTime": "us"})
    with RecordingWriter(tmp_path / "run.h5", info, series.calibration) as writer:
        for seq in SEQS:
            times = StageTimes(acquired_ns=started_ns + seq * period_ns)
            made = series.reconstruction(
                seq, times=times, chunks={"ExposureTime": 24_000.0} if seq == 0 else {}
            )
            report = dataclasses.replace(
                made.report, masks_at=LONG_FIRST.to_text if seq == SEQS[-1] else ""
            )
            writer.write_reconstruction(dataclasses.replace(made, report=report))
        writer.close({"acquired": 4, "closed": True})
    expected = [
        0.0,
        0.008,
        0.016,
    ]  # as the camera says; else by the exposure of the calibration, 1 ms
    expected += [0.033, 0.033 + 0.001 / 3, 0.033 + 0.002 / 3, 0.099, 0.0995, 0.09975]
    export(tmp_path / "run.h5", tmp_path / "run.ome.tif", ExportOptions())
    with tifffile.TiffFile(tmp_path / "run.ome.tif") as file:
        metadata = tifffile.xml2dict(file.ome_metadata)["OME"]["Image"]
    assert metadata["AcquisitionDate"] == "2026-01-02T03:04:05.000000Z"
    planes = metadata["Pixels"]["Plane"]
    assert [plane["DeltaT"] for plane in planes] == pytest.approx(expected, abs=1e-7)
    assert len(planes) == 9
    assert "missing_seqs = 2;" in metadata["Description"]
    export(tmp_path / "run.h5", tmp_path / "run.zarr", ExportOptions())
    notes = zarr.open_group(tmp_path / "run.zarr", mode="r").attrs["sci_stream"]
    assert notes["times_s"] == pytest.approx(expected, abs=1e-7)
    assert (notes["missing_seqs"], notes["acquisition_date"]) == (
        "2",
        "2026-01-02T03:04:05.000000Z",
    )


def test_zarr_contains_values_with_ome_metadata(recorded: Path, series) -> None:
    zarr = pytest.importorskip("zarr")
    done = export(recorded, recorded.with_name("stack.zarr"), ExportOptions())
    group = zarr.open_group(done.path, mode="r", zarr_format=3)
    assert np.array_equal(group["0"][:], np.moveaxis(colours(series), -1, 1))
    (multiscale,) = group.attrs["ome"]["multiscales"]
    assert [axis["name"] for axis in multiscale["axes"]] == ["t", "c", "y", "x"]
    assert multiscale["datasets"][0]["coordinateTransformations"][0]["scale"] == [
        0.000333333333,
        1.0,
        1.0,
        1.0,
    ]
    assert group.attrs["sci_stream"]["bayer"] == "GBRG, demosaiced"


def test_hdf5_contains_notes_times_and_axes(tmp_path: Path, series) -> None:
    info = dataclasses.replace(series.info, rig_toml="[experiment]\npixel_size_um = 5.5\n")
    with RecordingWriter(tmp_path / "run.h5", info, series.calibration) as writer:
        for seq in (0, 1, 4):
            writer.write_reconstruction(series.reconstruction(seq))
        writer.close({})
    export(tmp_path / "run.h5", tmp_path / "video.h5", ExportOptions())
    with h5py.File(tmp_path / "video.h5") as file:
        entry, video = file["entry"], file["entry/video"]
        assert (entry.attrs["missing_seqs"], entry.attrs["bayer"]) == ("2-3", "GBRG, demosaiced")
        assert entry["start_time"].asstr()[()] == "1970-01-01T00:00:00.000010Z"
        assert video["data"].attrs["long_name"] == "reconstructed video (0-1)"
        assert (video["seq"][:].tolist(), video["time"].shape) == ([0, 1, 4], (3, 3))
        assert video["time"][0] == pytest.approx([0, 0.001 / 3, 0.002 / 3], abs=1e-8)
        assert (list(video.attrs["axes"]), video["x"][1]) == (["seq", ".", "y", "x", "."], 5.5)
    export(tmp_path / "run.h5", tmp_path / "coded.h5", ExportOptions(stored="raw"))
    with h5py.File(tmp_path / "coded.h5") as file:
        assert file["entry/video/data"].attrs["long_name"] == "coded snapshots (DN)"
        assert file["entry"].attrs["bayer"] == "GBRG"


def test_size_of_a_pixel_is_exported(tmp_path: Path, series) -> None:
    tifffile, zarr = pytest.importorskip("tifffile"), pytest.importorskip("zarr")
    info = dataclasses.replace(series.info, rig_toml="[experiment]\npixel_size_um = 5.5\n")
    with RecordingWriter(tmp_path / "run.h5", info, series.calibration) as writer:
        writer.write_reconstruction(series.reconstruction(0))
        writer.close({})
    export(tmp_path / "run.h5", tmp_path / "run.ome.tif", ExportOptions())
    with tifffile.TiffFile(tmp_path / "run.ome.tif") as file:
        text = file.ome_metadata
    assert 'PhysicalSizeX="5.5" PhysicalSizeXUnit="µm" PhysicalSizeY="5.5"' in text
    export(tmp_path / "run.h5", tmp_path / "run.zarr", ExportOptions(pictures=True))
    (multiscale,) = zarr.open_group(tmp_path / "run.zarr", mode="r").attrs["ome"]["multiscales"]
    assert [axis.get("unit") for axis in multiscale["axes"][1:]] == [
        None,
        "micrometer",
        "micrometer",
    ]
    assert multiscale["datasets"][0]["coordinateTransformations"][0]["scale"][1:] == [1.0, 5.5, 5.5]


@pytest.mark.filterwarnings("ignore")  # of their own dependencies
def test_exports_are_valid_to_other_tools(recorded: Path) -> None:
    """The OME schema, by ome-types, and the OME-Zarr specification, by ome-zarr-models."""
    ome_types, ome_zarr = pytest.importorskip("ome_types"), pytest.importorskip("ome_zarr_models")
    tifffile, zarr = pytest.importorskip("tifffile"), pytest.importorskip("zarr")
    export(recorded, recorded.with_name("stack.tif"), ExportOptions())
    with tifffile.TiffFile(recorded.with_name("stack.tif")) as file:
        found = ome_types.from_xml(file.ome_metadata, validate=True)
    (image,) = found.images
    assert image.acquisition_date is not None
    times = [plane.delta_t for plane in image.pixels.planes]
    assert len(times) == 9
    for pictured in (False, True):
        export(
            recorded,
            recorded.with_name("stack.zarr"),
            ExportOptions(pictures=pictured, replace=True),
        )
        group = ome_zarr.open_ome_zarr(zarr.open_group(recorded.with_name("stack.zarr"), mode="r"))
        assert type(group).__module__.startswith("ome_zarr_models.v05")


@pytest.mark.parametrize("name", ["stack.tif", "stack.zarr"])
def test_tiff_and_zarr_contain_images_on_request(recorded: Path, series, name: str) -> None:
    done = export(recorded, recorded.with_name(name), ExportOptions(pictures=True))
    if name.endswith("tif"):
        got = pytest.importorskip("tifffile").imread(done.path)
    else:
        got = np.moveaxis(
            pytest.importorskip("zarr").open_group(done.path, mode="r")["0"][:], 1, -1
        )
    assert np.array_equal(got, pictures(series))


def test_coded_snapshots_are_exported(recorded: Path, series) -> None:
    tifffile = pytest.importorskip("tifffile")
    done = export(recorded, recorded.with_name("coded.tif"), ExportOptions(stored="raw"))
    with tifffile.TiffFile(done.path) as file:
        assert np.array_equal(file.asarray(), np.stack([series.counts(0), series.counts(3)]))
        assert 'TimeIncrement="0.033"' in file.ome_metadata
    done = export(recorded, recorded.with_name("coded"), ExportOptions(form="png", stored="raw"))
    shown = cv2.imread(str(done.path / "00000003.png"), cv2.IMREAD_UNCHANGED)
    assert np.array_equal(shown, render_counts(series.counts(3)))


def test_estimated_error_is_exported_in_colour(recorded: Path) -> None:
    done = export(recorded, recorded.with_name("error.npy"), ExportOptions(stored="error"))
    assert (done.snapshots, done.left_out) == (2, 2), "one came without its coded snapshot"
    with RecordedSeries(recorded) as series:
        assert series.info.bayer is not None
        expected = [demosaic_values(frames, series.info.bayer) for frames in series.error]
    assert np.allclose(np.load(done.path).reshape(2, 3, 4, 6, 3), expected, atol=1e-6)


def test_range_is_inclusive_and_progress_is_reported(recorded: Path) -> None:
    calls: list[tuple[int, int]] = []
    options = ExportOptions(form="png", first=1, last=3)
    done = export(
        recorded, recorded.with_name("folder"), options, lambda i, n: calls.append((i, n))
    )
    assert done.frames == 6
    assert calls == [(1, 2), (2, 2)]


def test_existing_output_is_replaced_only_on_request(recorded: Path) -> None:
    out = recorded.with_name("film.mp4")
    out.write_text("precious")
    with pytest.raises(StorageError, match=r"film\.mp4 exists.*--force"):
        export(recorded, out, ExportOptions())
    assert out.read_text() == "precious"
    export(recorded, out, ExportOptions(replace=True))
    assert len(films(out)) == 9
    folder = recorded.with_name("stack.zarr")
    export(recorded, folder, ExportOptions())
    export(recorded, folder, ExportOptions(replace=True, first=3))


def test_export_never_replaces_its_source(recorded: Path) -> None:
    second = recorded.with_name("run_001.h5")
    shutil.copy(recorded, second)
    for out, why in (
        (recorded, "a source"),
        (second, "a source"),
        (recorded.parent, "is a folder"),
    ):
        for form in ("gif", "png", "hdf5"):
            with pytest.raises(StorageError, match=why):
                export(second, out, ExportOptions(form=form, replace=True))
    assert second.read_bytes() == recorded.read_bytes()


def test_failed_export_keeps_the_old_file(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = recorded.with_name("film.mp4")
    out.write_text("precious")
    before = sorted(recorded.parent.iterdir())

    def refused(*_: object) -> None:
        raise StorageError("the disk is gone")

    monkeypatch.setattr("sci_stream.files.video_output.write_film", refused)
    with pytest.raises(StorageError, match="gone"):
        export(recorded, out, ExportOptions(replace=True))
    assert sorted(recorded.parent.iterdir()) == before
    assert out.read_text() == "precious"


def test_full_disk_ends_an_export_with_an_error(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def measure(_done: int, _total: int) -> None:
        sizes.extend(path.stat().st_size for path in recorded.parent.glob(".video.npy*"))

    done = export(recorded, recorded.with_name("video.npy"), ExportOptions(), measure)
    assert sizes[0] < done.path.stat().st_size, (
        "a memory map of a file with holes ends the process on a full disk"
    )
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 30, free=0)
    )  # HDF5 would end it, too
    with pytest.raises(
        StorageError, match=r"video\.h5 cannot be written; got 0.0 MiB free on its disk"
    ):
        export(recorded, recorded.with_name("video.h5"), ExportOptions())
    assert sorted(path.name for path in recorded.parent.iterdir()) == ["run.h5", "video.npy"]


def test_invalid_export_is_refused(recorded: Path, tmp_path: Path, series, monkeypatch) -> None:
    with pytest.raises(InputError, match=r"format of .*out; expected .*\.mp4.*no suffix"):
        export(recorded, tmp_path / "out", ExportOptions())
    with pytest.raises(InputError, match="in that range; expected seq from 0 to 3"):
        export(recorded, tmp_path / "out.mp4", ExportOptions(first=9))
    with pytest.raises(StorageError, match="nowhere does not exist"):
        export(recorded, tmp_path / "nowhere" / "out.mp4", ExportOptions())
    (tmp_path / "text.h5").write_text("not a recording")
    with pytest.raises(FileFormatError, match=r"text\.h5"):
        export(tmp_path / "text.h5", tmp_path / "out.mp4", ExportOptions())
    RecordingWriter(tmp_path / "raw.h5", series.info, series.calibration, video=False).close({})
    with pytest.raises(InputError, match=r"no reconstructed video to export.*sci-stream replay"):
        export(tmp_path / "raw.h5", tmp_path / "out.mp4", ExportOptions())

    def absent(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(extras.importlib, "import_module", absent)
    for name in ("out.tif", "out.zarr", "out.mp4"):
        with pytest.raises(ConfigError, match=r"not installed.*pip install \"sci-stream\["):
            export(recorded, tmp_path / name, ExportOptions())


def test_folder_that_cannot_be_written_is_named(recorded: Path) -> None:
    # Root writes anywhere, save where the file system itself refuses: /proc takes no new files.
    if not Path("/proc/self").is_dir():
        pytest.skip("needs a Linux /proc")
    with pytest.raises(StorageError, match="/proc/self/film"):
        export(recorded, Path("/proc/self/film.mp4"), ExportOptions())
