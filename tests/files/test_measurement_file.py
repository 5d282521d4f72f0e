"""Measurements and masks are read from all common file formats."""

from __future__ import annotations

from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
import scipy.io

from sci_stream.errors import CalibrationError, FileFormatError, InputError
from sci_stream.files.arrays import MASKS as MASK_NAMES
from sci_stream.files.arrays import read_one
from sci_stream.files.mask_files import write_masks
from sci_stream.files.measurement_file import COLOURS, load_measurement
from sci_stream.files.media import require_video
from sci_stream.model import BayerPhase
from sci_stream.optics.bayer import sample_colours
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.calibration_file import save_calibration
from sci_stream.recording.writer import RecordingWriter

N, B, H, W = 2, 3, 6, 8
RANDOM = np.random.default_rng(0)
Y = RANDOM.integers(0, 200, (N, H, W)).astype(np.uint16)
MASKS = RANDOM.integers(0, 2, (B, H, W)).astype(np.uint8)
TRUTH = RANDOM.random((N * B, H, W)).astype(np.float32)


def frames_last(array: np.ndarray) -> np.ndarray:
    return np.moveaxis(array, 0, -1)


def save(path: Path, **arrays: np.ndarray) -> Path:
    match path.suffix:
        case ".npy":
            (array,) = arrays.values()
            np.save(path, array)
        case ".npz":
            np.savez(path, **arrays)
        case ".mat":
            scipy.io.savemat(path, {name: frames_last(array) for name, array in arrays.items()})
        case ".h5":
            with h5py.File(path, "w") as file:
                for name, array in arrays.items():
                    file[f"entry/{name}"] = array
                file["entry/units"] = "DN"
        case ".tif":
            (array,) = arrays.values()
            assert cv2.imwritemulti(str(path), list(array))
    return path


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("all.mat", ("meas", "mask", "orig")),
        ("all.npz", ("y", "masks", "truth")),
        ("all.npz", ("measurement", "phi", "gt")),
        ("all.h5", ("meas", "mask", "orig")),
    ],
)
def test_one_file_may_hold_everything(
    tmp_path: Path, name: str, keys: tuple[str, str, str]
) -> None:
    found = load_measurement(
        save(tmp_path / name, **dict(zip(keys, (Y, MASKS, TRUTH), strict=True)))
    )
    np.testing.assert_array_equal(found.y, Y)
    np.testing.assert_array_equal(found.masks, MASKS)
    np.testing.assert_array_equal(found.truth, TRUTH)


@pytest.mark.parametrize("suffix", [".npy", ".tif", ".mat", ".h5", ".npz"])
def test_masks_and_truth_may_be_in_files_of_their_own(tmp_path: Path, suffix: str) -> None:
    y = save(tmp_path / f"y{suffix}", y=Y)
    masks = save(tmp_path / f"m{suffix}", masks=MASKS)
    truth = save(tmp_path / ("t.npy" if suffix == ".tif" else f"t{suffix}"), truth=TRUTH)
    found = load_measurement(y, masks, truth)
    np.testing.assert_array_equal(found.y, Y)
    np.testing.assert_array_equal(found.masks, MASKS)
    np.testing.assert_array_equal(found.truth, TRUTH)


def test_folder_of_images_holds_masks_in_natural_order(tmp_path: Path) -> None:
    for index in range(B):
        cv2.imwrite(str(tmp_path / f"mask{index + 8}.png"), MASKS[index])
    found = load_measurement(save(tmp_path / "y.npy", y=Y[0]), tmp_path)
    assert found.y.shape == (1, H, W)
    np.testing.assert_array_equal(found.masks, MASKS)


@pytest.mark.parametrize("y_last", [False, True])
@pytest.mark.parametrize("masks_last", [False, True])
def test_frames_last_are_moved_to_the_front(tmp_path: Path, y_last: bool, masks_last: bool) -> None:
    y = save(tmp_path / "y.npy", y=frames_last(Y) if y_last else Y)
    masks = save(tmp_path / "m.npy", m=frames_last(MASKS) if masks_last else MASKS)
    truth = save(tmp_path / "t.npy", t=frames_last(TRUTH) if masks_last else TRUTH)
    found = load_measurement(y, masks, truth)
    np.testing.assert_array_equal(found.y, Y)
    np.testing.assert_array_equal(found.masks, MASKS)
    np.testing.assert_array_equal(found.truth, TRUTH)


def test_calibration_serves_as_masks(tmp_path: Path) -> None:
    calibration = Calibration(MASKS.astype(np.float32), full_scale_dn=50.0)
    save_calibration(tmp_path / "calibration.h5", calibration)
    found = load_measurement(save(tmp_path / "y.npy", y=Y), tmp_path / "calibration.h5")
    assert isinstance(found.masks, Calibration)
    assert found.masks.hash == calibration.hash


def test_recording_brings_its_calibration(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        for seq in (0, 2):
            writer.write_reconstruction(series.reconstruction(seq))
        writer.close({"acquired": 2, "closed": True})
    found = load_measurement(tmp_path / "run.h5")
    assert found.masks.hash == series.calibration.hash
    np.testing.assert_array_equal(
        np.asarray(found.y), np.stack([series.counts(0), series.counts(2)])
    )
    other = load_measurement(save(tmp_path / "y.npy", y=series.counts(0)), tmp_path / "run.h5")
    assert other.masks.hash == series.calibration.hash


def test_unusable_files_are_refused(tmp_path: Path, series) -> None:
    y = save(tmp_path / "y.npy", y=Y)
    with pytest.raises(InputError, match=r"y\.npy holds no masks.*--mask FILE"):
        load_measurement(y)
    with pytest.raises(FileFormatError, match=r"absent\.mat was not found"):
        load_measurement(tmp_path / "absent.mat")
    with pytest.raises(FileFormatError, match=r"absent\.npy was not found"):
        load_measurement(y, tmp_path / "absent.npy")
    with pytest.raises(
        FileFormatError,
        match=r"holds no snapshots; expected an array named meas or .*; got b .*, a ",
    ):
        load_measurement(save(tmp_path / "ab.npz", a=Y, b=MASKS))
    for name in ("cut.npy", "cut.npz", "cut.h5", "cut.mat", "cut.tif"):
        (tmp_path / name).write_bytes(b"nothing of use")
        with pytest.raises(FileFormatError, match=name):
            load_measurement(tmp_path / name, y)
    RecordingWriter(tmp_path / "video.h5", series.info, series.calibration, raw=False).close({})
    with pytest.raises(FileFormatError, match="holds no raw snapshots"):
        load_measurement(tmp_path / "video.h5")
    np.save(tmp_path / "pickle.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(FileFormatError, match=r"pickle\.npy holds Python objects"):
        load_measurement(tmp_path / "pickle.npy", y)
    for name, reason in (("y.csv", "another format"), ("y.h5", "an empty file")):
        (tmp_path / name).write_text("1, 2, 3" if name == "y.csv" else "")
        with pytest.raises(
            FileFormatError, match=rf"{name} cannot be read; expected \.mat .*; got {reason}"
        ):
            load_measurement(tmp_path / name, y)


@pytest.mark.parametrize("bigtiff", [False, True])
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.97])
def test_cut_tiff_is_refused(tmp_path: Path, capfd, kept: float, bigtiff: bool) -> None:
    tifffile = pytest.importorskip("tifffile")
    with tifffile.TiffWriter(tmp_path / "y.tif", bigtiff=bigtiff) as writer:
        for _ in range(6):
            writer.write(RANDOM.random((H, W)).astype(np.float32), contiguous=False)
    masks = save(tmp_path / "m.npy", m=MASKS)
    assert load_measurement(tmp_path / "y.tif", masks).y.shape == (6, H, W)
    data = (tmp_path / "y.tif").read_bytes()
    (tmp_path / "y.tif").write_bytes(data[: int(kept * len(data))])
    with pytest.raises(FileFormatError, match=r"y\.tif (is damaged|cannot be read as an image)"):
        load_measurement(tmp_path / "y.tif", masks)
    assert capfd.readouterr().err == ""  # OpenCV's own messages are not shown


def test_tiff_of_four_frames_that_became_colours_is_explained(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(
        tmp_path / "m.tif",
        np.zeros((4, H, W), np.uint8),
        photometric="rgb",
        planarconfig="separate",
    )
    with pytest.raises(
        CalibrationError, match=r"not a stack of frames.*got 6×8×4.*photometric='minisblack'"
    ):
        load_measurement(save(tmp_path / "y.npy", y=Y), tmp_path / "m.tif")


def test_names_may_have_further_words(tmp_path: Path) -> None:
    found = load_measurement(
        save(tmp_path / "a.mat", meas_bayer=Y, mask_bayer=MASKS, orig_bayer=TRUTH)
    )
    np.testing.assert_array_equal(found.y, Y)
    assert found.is_mosaic


def test_variables_name_arrays_of_other_names(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", frames=Y, codes2=MASKS, other=MASKS)
    found = load_measurement(path, variables={"y": "frames", "masks": "other"})
    np.testing.assert_array_equal(found.masks, MASKS)
    with pytest.raises(FileFormatError, match=r"no array named 'absent'.*frames \(2×6×8 uint16\)"):
        load_measurement(path, variables={"y": "absent"})


def test_truth_of_the_first_snapshots_is_kept(tmp_path: Path) -> None:
    found = load_measurement(save(tmp_path / "a.mat", meas=Y, mask=MASKS, orig=TRUTH[:B]))
    np.testing.assert_array_equal(found.truth, TRUTH[:B])


def test_truth_of_four_axes_may_be_in_the_order_of_matlab(tmp_path: Path) -> None:
    series = TRUTH.reshape(-1, *MASKS.shape)
    for order in ((0, 1, 2, 3), (2, 3, 1, 0)):
        scipy.io.savemat(tmp_path / "t.mat", {"orig": series.transpose(order)})
        found = load_measurement(
            save(tmp_path / "y.npy", y=Y), save(tmp_path / "m.npy", m=MASKS), tmp_path / "t.mat"
        )
        np.testing.assert_array_equal(np.reshape(found.truth, TRUTH.shape), TRUTH)


def test_of_more_masks_the_first_are_used(tmp_path: Path) -> None:
    more = np.concatenate([MASKS, MASKS[:2]])
    found = load_measurement(save(tmp_path / "a.npz", y=Y, masks=more, gt=TRUTH))
    np.testing.assert_array_equal(found.masks, MASKS)
    assert found.assumed == ("the first 3 of 5 masks belong to a snapshot",)


def test_number_of_masks_shows_in_the_snapshot(tmp_path: Path) -> None:
    masks = (RANDOM.random((12, 48, 64)) < 0.5).astype(np.uint8)
    y = (masks[:5] * np.linspace(40, 200, 48 * 64).reshape(48, 64)).sum(0)
    found = load_measurement(save(tmp_path / "a.npz", y=y, masks=masks))
    assert len(found.masks) == 5


def test_matlab_suffix_of_another_program_keeps_its_axes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.mat", "w") as file:
        file["y"], file["masks"] = Y, MASKS
    np.testing.assert_array_equal(load_measurement(tmp_path / "a.mat").y, Y)


def test_transposed_arrays_are_turned_where_the_sizes_show_it(tmp_path: Path) -> None:
    turned = Y.transpose(0, 2, 1)
    found = load_measurement(save(tmp_path / "a.npz", y=turned, masks=MASKS))
    np.testing.assert_array_equal(found.masks, MASKS.transpose(0, 2, 1))
    assert "masks of a.npz are transposed" in found.assumed[0]
    found = load_measurement(save(tmp_path / "b.npz", y=turned, masks=MASKS, truth=TRUTH))
    np.testing.assert_array_equal(found.y, Y)
    found = load_measurement(save(tmp_path / "c.npz", y=Y, masks=MASKS.T))
    np.testing.assert_array_equal(found.masks, MASKS)


def test_jpeg_is_refused_but_for_the_truth(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "m.jpg"), MASKS[0])
    y = save(tmp_path / "y.npy", y=Y)
    with pytest.raises(FileFormatError, match="JPEG, which removes the code of the masks"):
        load_measurement(y, tmp_path / "m.jpg")


def test_grey_images_saved_in_colour_and_hidden_files_are_read(tmp_path: Path) -> None:
    for index, mask in enumerate(MASKS):
        cv2.imwrite(str(tmp_path / f"{index}.png"), np.repeat(mask[..., None] * 200, 3, axis=2))
    (tmp_path / "._1.png").write_bytes(b"\0\5\26\7")
    found = load_measurement(save(tmp_path / "y.npy", y=Y), tmp_path)
    np.testing.assert_array_equal(found.masks, MASKS * 200)


def test_imagej_stack_of_one_page_is_read_whole(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "m.tif", MASKS.astype(np.uint8), imagej=True)
    found = load_measurement(save(tmp_path / "y.npy", y=Y), tmp_path / "m.tif")
    np.testing.assert_array_equal(found.masks, MASKS)


def test_virtual_dataset_over_its_own_file_is_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for n, frame in enumerate(Y):
            file[f"frame{n}"] = frame
        layout = h5py.VirtualLayout(Y.shape, Y.dtype)
        for n in range(len(Y)):
            layout[n] = h5py.VirtualSource(".", f"frame{n}", Y.shape[1:])
        file.create_virtual_dataset("meas", layout)
        file["mask"] = MASKS
    np.testing.assert_array_equal(load_measurement(tmp_path / "a.h5").y, Y)


def test_packed_masks_of_a_maker_are_read_back(tmp_path: Path) -> None:
    masks = RANDOM.integers(0, 2, (30, H, W)).astype(np.uint8) * 255
    write_masks(tmp_path / "masks", masks, "dlp")
    np.testing.assert_array_equal(read_one(tmp_path / "masks", MASK_NAMES, "masks"), masks)


def test_packed_values_of_netcdf_are_on_their_scale(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["y"] = Y.astype(np.int16)
        file["y"].attrs.update({"scale_factor": 0.5, "add_offset": 3.0, "_FillValue": Y[0, 0, 0]})
        file["masks"] = MASKS
    expected = Y * 0.5 + 3.0
    expected[Y[0, 0, 0] == Y] = np.nan
    np.testing.assert_array_equal(load_measurement(tmp_path / "a.nc").y, expected)


@pytest.mark.parametrize(
    ("names", "gaps"),
    [
        (["pos_0.5", "pos_0.75", "pos_1.0", "pos_1.25"], 0),
        (["pos_-2", "pos_-1", "pos_+0", "pos_+1"], 0),
        (["p 2,25", "p 2,5", "p 2,75"], 0),
        (["mask-1", "mask-2", "mask-3", "mask-10"], 1),
        (["run1.8", "run1.9", "run1.10", "run1.11"], 0),
        (["f_000", "f_001", "f_003"], 1),
    ],
)
def test_images_are_in_the_order_of_their_numbers(
    tmp_path: Path, names: list[str], gaps: int
) -> None:
    masks = RANDOM.integers(0, 255, (len(names), H, W)).astype(np.uint8)
    for name, mask in zip(names, masks, strict=True):
        cv2.imwrite(str(tmp_path / f"{name}.png"), mask)
    notes: list[str] = []
    np.testing.assert_array_equal(read_one(tmp_path, MASK_NAMES, "masks", note=notes.append), masks)
    order, *missing = notes
    assert order.endswith(f"in this order: {names[0]}.png to {names[-1]}.png")
    assert len(missing) == gaps


def test_images_of_several_depths_are_refused(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "0.png"), MASKS[0].astype(np.uint16))
    cv2.imwrite(str(tmp_path / "1.png"), MASKS[1])
    with pytest.raises(CalibrationError, match=r"different depths.*1 of uint16, 1 of uint8"):
        read_one(tmp_path, MASK_NAMES, "masks")


@pytest.mark.parametrize("suffix", [".cine", ".mraw", ".cihx", ".CIH"])
def test_formats_of_high_speed_cameras_name_their_converter(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a{suffix}").write_bytes(b"CI, and more")
    with pytest.raises(FileFormatError, match=r"high-speed camera\. Save it as 16-bit TIFF in Ph"):
        load_measurement(tmp_path / f"a{suffix}")
    with pytest.raises(FileFormatError, match=r"high-speed camera\. Save it as 16-bit TIFF in Ph"):
        require_video(tmp_path / f"a{suffix}")


def test_three_snapshots_that_look_like_colours_are_asked_about(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    masks = rng.integers(0, 2, (4, 16, 20)).astype(float)
    moments = (masks * rng.random((3, 4, 16, 20))).sum(1)
    colours = np.stack([moments[0] * gain for gain in (1.0, 0.8, 0.5)])
    for y, is_asked in ((colours, True), (moments, False), (np.stack([moments[0]] * 3), False)):
        np.savez(tmp_path / "y.npz", y=y, masks=masks)
        notes = load_measurement(tmp_path / "y.npz").assumed
        assert (COLOURS in notes) == is_asked


COLOURED = np.random.default_rng(3).random((4, 3, 16, 20))
RGB_LAST = np.moveaxis(COLOURED, 1, -1)
GREY = RGB_LAST @ np.array([0.299, 0.587, 0.114])


@pytest.mark.parametrize(
    ("seen", "truth", "what"),
    [
        (COLOURED.swapaxes(0, 1), COLOURED, "one snapshot of each colour"),
        (GREY[None], COLOURED, "grey values"),
        (GREY[None], RGB_LAST, "grey values"),
        (GREY[None], COLOURED.transpose(2, 3, 1, 0), "grey values"),
        (sample_colours(RGB_LAST, BayerPhase.GRBG)[None], COLOURED, "a GRBG mosaic"),
    ],
)
def test_truth_in_colour_is_taken_as_y_shows_it(
    seen: np.ndarray, truth: np.ndarray, what: str, tmp_path: Path
) -> None:
    masks = np.random.default_rng(0).integers(0, 2, (4, 16, 20)).astype(float)
    path = save(tmp_path / "a.npz", y=(masks * seen).sum(1), masks=masks, truth=truth)
    found = load_measurement(path)
    assert found.truth is not None
    np.testing.assert_allclose(found.truth.reshape(seen.shape), seen, atol=1e-6)
    assert f"truth is in colour: taken as {what}" in found.assumed
