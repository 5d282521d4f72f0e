"""`sci-stream solve` reconstructs files in one process and writes the video in any format."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

import sci_stream
from sci_stream.cli import main
from sci_stream.errors import InputError, StorageError
from sci_stream.files.measurement_file import Measurements
from sci_stream.model import BayerPhase
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.calibration_file import save_calibration
from sci_stream.tools.solve import SolveOptions, solve_file
from tests.calibration.moved_masks import Rig

N, B, H, W = 2, 4, 24, 32
OPTIONS = SolveOptions(solver="tv", iterations=3, device="cpu")


@pytest.fixture(scope="module")
def data() -> Measurements:
    row, column, time = np.mgrid[:H, :W, : N * B]
    x = 0.5 + 0.4 * np.moveaxis(np.sin((column + time) / 4) * np.cos(row / 5), -1, 0)
    masks = np.random.default_rng(0).integers(0, 2, (B, H, W))
    return Measurements(np.einsum("bhw,nbhw->nhw", masks, x.reshape(N, B, H, W)), masks, x)


@pytest.fixture(scope="module")
def expected(data: Measurements) -> sci_stream.Reconstructed:
    return sci_stream.reconstruct(
        data.y, data.masks, solver="tv", iterations=3, device="cpu", truth=data.truth
    )


def test_values_equal_those_of_reconstruct(data, expected, tmp_path: Path) -> None:
    frames = expected.video.reshape(N * B, H, W)
    done = solve_file(data, tmp_path / "v.npy", OPTIONS)
    assert done.psnr_db == pytest.approx(expected.psnr_db)
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), expected.video)
    solve_file(data, tmp_path / "v.h5", OPTIONS)
    with h5py.File(tmp_path / "v.h5") as file:
        np.testing.assert_array_equal(file["video"][()], expected.video)
        assert json.loads(file["report"][()])["snapshots"] == N
    tifffile, zarr = pytest.importorskip("tifffile"), pytest.importorskip("zarr")
    solve_file(data, tmp_path / "v.tif", OPTIONS)
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "v.tif"), frames)
    solve_file(data, tmp_path / "v.zarr", OPTIONS)
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "v.zarr", mode="r")["0"][:], frames)


def test_channels_are_solved_by_themselves_and_saved_as_colour(data, tmp_path: Path) -> None:
    gains = (1.0, 0.8, 0.5)
    colours = Measurements(np.stack([data.y[0] * gain for gain in gains]), data.masks)
    options = dataclasses.replace(OPTIONS, channels=True, white=1.0)
    solve_file(colours, tmp_path / "v.npy", options)
    video = np.load(tmp_path / "v.npy")
    assert video.shape == (1, B, H, W, 3)
    for channel, snapshot in enumerate(colours.y):
        alone = sci_stream.reconstruct(
            snapshot, data.masks, solver="tv", iterations=3, device="cpu", white=1.0
        )
        np.testing.assert_allclose(video[0, ..., channel], alone.video, atol=1e-5)
    solve_file(colours, tmp_path / "v.png", options)
    assert cv2.imread(str(tmp_path / "v.png")).std(axis=2).max() > 0
    with pytest.raises(InputError, match="expected three snapshots of each moment"):
        solve_file(data, None, options)


@pytest.mark.parametrize("name", ["film.mp4", "film.mkv", "film.gif"])
def test_films_show_all_frames_with_values_as_they_are(
    data, expected, tmp_path: Path, name: str
) -> None:
    av = pytest.importorskip("av")
    solve_file(data, tmp_path / name, OPTIONS)
    with av.open(str(tmp_path / name)) as film:
        shown = np.stack([frame.to_ndarray(format="gray") for frame in film.decode(video=0)])
    assert shown.shape == (N * B, H, W)
    assert np.abs(shown - expected.video.reshape(N * B, H, W).clip(0, 1) * 255).mean() < 3


def test_gif_of_a_mosaic_is_in_colour(data, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    solve_file(
        data,
        tmp_path / "film.gif",
        SolveOptions(solver="tv", iterations=2, bayer="RGGB", device="cpu"),
    )
    with av.open(str(tmp_path / "film.gif")) as film:
        assert len([frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]) == N * B


def test_picture_shows_snapshot_and_frames(data, expected, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"A picture shows one snapshot, and there are 2.*--first and --last"
    ):
        solve_file(data, tmp_path / "p.png", OPTIONS)
    first = SolveOptions(solver="tv", iterations=3, device="cpu", last=0)
    solve_file(data, tmp_path / "p.png", first)
    picture = cv2.imread(str(tmp_path / "p.png"), cv2.IMREAD_UNCHANGED)
    assert picture.shape == (2 * H + 4, 3 * W + 8)  # five tiles in two rows
    frame = picture[:H, W + 4 : 2 * W + 4]
    np.testing.assert_allclose(frame, expected.video[0, 0].clip(0, 1) * 255, atol=1)


def test_range_and_progress_are_counted_in_iterations(data, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    options = SolveOptions(solver="tv", iterations=3, device="cpu", first=1)
    done = solve_file(data, tmp_path / "v.npy", options, lambda i, n: seen.append((i, n)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert (len(done.reports), np.load(tmp_path / "v.npy").shape) == (1, (1, B, H, W))
    with pytest.raises(
        InputError, match="These snapshots do not exist; expected 0 to 1; got 0 to 7"
    ):
        solve_file(data, None, SolveOptions(last=7))


def test_bad_output_is_refused_before_solving(data, tmp_path: Path) -> None:
    (tmp_path / "v.npy").write_text("precious")
    with pytest.raises(StorageError, match=r"exists.*--force"):
        solve_file(data, tmp_path / "v.npy", OPTIONS)
    assert (tmp_path / "v.npy").read_text() == "precious"
    with pytest.raises(
        InputError, match=r"Cannot determine the format of .*v\.avi; expected .*\.mp4.*got \.avi"
    ):
        solve_file(data, tmp_path / "v.avi", OPTIONS)
    with pytest.raises(StorageError, match="nowhere does not exist"):
        solve_file(data, tmp_path / "nowhere" / "v.npy", OPTIONS)


def nan_at(array: np.ndarray, index: tuple[int, ...]) -> np.ndarray:
    changed = np.array(array, np.float64)
    changed[index] = np.nan
    return changed


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (lambda y: y[0, 0], r"y has an invalid shape; expected \(H, W\), or .*; got \(32,\)"),
        (lambda y: y[np.newaxis], r"y has an invalid shape; .*; got \(1, 2, 24, 32\)"),
        (lambda y: y[:0], r"y has an invalid shape; .*; got \(0, 24, 32\)"),
        (lambda y: y + 1j, "y does not hold real numbers; .*got dtype complex128"),
    ],
)
def test_solve_refuses_bad_snapshots(data, y, message: str) -> None:
    with pytest.raises(InputError, match=message):
        solve_file(Measurements(y(data.y), data.masks), None, OPTIONS)


def test_solve_refuses_nan_in_a_snapshot_that_is_read_later(data) -> None:
    calibration = Calibration(data.masks.astype(np.float32), full_scale_dn=1.0)
    with pytest.raises(InputError, match="snapshot 1 contains NaN"):
        solve_file(Measurements(list(nan_at(data.y, (1, 0, 0))), calibration), None, OPTIONS)


def run(monkeypatch, capsys, *arguments: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["sci-stream", "solve", *map(str, arguments)])
    try:
        main()
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    said = capsys.readouterr()
    return status, said.out, said.err


def test_command_solves_arrays_with_masks_from_another_file(
    data, tmp_path: Path, monkeypatch, capsys
) -> None:
    np.save(tmp_path / "y.npy", data.y)
    np.save(tmp_path / "masks.npy", np.moveaxis(data.masks, 0, -1))  # frames last
    np.save(tmp_path / "x.npy", data.truth)
    common = (
        tmp_path / "y.npy",
        "--mask",
        tmp_path / "masks.npy",
        "--solver",
        "tv",
        "--device",
        "cpu",
    )
    status, out, _ = run(monkeypatch, capsys, *common, "--truth", tmp_path / "x.npy", "--json")
    report = json.loads(out)
    assert (status, report["snapshots"], report["frames"], report["solver"]) == (
        0,
        N,
        N * B,
        "tv",
    )
    assert report["psnr_db"] > 20
    assert report["solves"][1]["iterations"] == 12
    status, _, said = run(monkeypatch, capsys, *common, "--iterations", 2, "-o", tmp_path / "v.npy")
    assert (status, "white: 1 in the unit" in said, f"wrote {tmp_path / 'v.npy'}" in said) == (
        0,
        True,
        True,
    )
    for source in ("y.npy", "masks.npy"):
        status, _, said = run(monkeypatch, capsys, *common, "--force", "-o", tmp_path / source)
        assert (status, "is a source of this output" in said) == (3, True)
    status, _, said = run(monkeypatch, capsys, tmp_path / "y.npy")
    assert (status, said.count("\n")) == (2, 1)
    assert "holds no masks" in said


def test_command_warns_of_masks_that_do_not_fit(tmp_path: Path, monkeypatch, capsys) -> None:
    camera = Rig(width_px=96, height_px=96, mask="random")
    np.save(tmp_path / "y.npy", camera.calibration.measurement(camera.snapshot().counts))
    other = Rig(width_px=96, height_px=96, mask="random", seed=5).calibration.phi
    np.save(tmp_path / "masks.npy", other)
    files = (
        tmp_path / "y.npy",
        "--mask",
        tmp_path / "masks.npy",
        "--solver",
        "tv",
        "--device",
        "cpu",
    )
    status, _, said = run(monkeypatch, capsys, *files, "--iterations", 2, "-o", tmp_path / "v.npy")
    assert (
        status,
        "warning: the masks explain nothing of the snapshots" in said,
        "nothing written: the video would be made up" in said,
    ) == (7, True, True)
    assert not (tmp_path / "v.npy").exists()
    status, out, _ = run(monkeypatch, capsys, *files, "--iterations", 2, "--json")
    assert (status, json.loads(out)["defects"][0]["name"]) == (7, "mask_match")
    status, _, _ = run(
        monkeypatch, capsys, *files, "--iterations", 2, "--no-check-masks", "-o", tmp_path / "v.npy"
    )
    assert (status, (tmp_path / "v.npy").exists()) == (0, True)


@pytest.mark.parametrize(
    "change",
    [
        lambda masks: masks.transpose(0, 2, 1),
        lambda masks: masks[:, ::-1],
        lambda masks: np.roll(masks, 1, 2),
        lambda masks: 1 - masks,
    ],
    ids=["transposed", "upside down", "moved", "inverted"],
)
def test_command_corrects_masks_in_the_words_of_reconstruct(
    change, tmp_path: Path, monkeypatch, capsys
) -> None:
    camera = Rig(width_px=96, height_px=96, mask="random")
    y = camera.calibration.measurement(camera.snapshot().counts)
    masks = change(camera.calibration.phi)
    options = {"solver": "tv", "iterations": 2}
    with pytest.warns(sci_stream.DataWarning, match="done here") as warned:
        result = sci_stream.reconstruct(y, masks, **options)
    np.save(tmp_path / "y.npy", y)
    np.save(tmp_path / "masks.npy", masks)
    files = (tmp_path / "y.npy", "--mask", tmp_path / "masks.npy", "--solver", "tv")
    status, _, said = run(monkeypatch, capsys, *files, "--iterations", 2, "-o", tmp_path / "v.npy")
    assert status == 0
    np.testing.assert_allclose(np.load(tmp_path / "v.npy")[0], result.video, atol=1e-4)
    words = said.replace(" of y.npy fit", " fit")
    (correction,) = [str(one.message) for one in warned if "done here" in str(one.message)]
    assert words.count("done here") == 1
    assert re.sub(r"-?0\.0\d", "0", correction) in re.sub(r"-?0\.0\d", "0", words)


def test_command_solves_counts_with_a_calibration(
    data, tmp_path: Path, monkeypatch, capsys
) -> None:
    save_calibration(
        tmp_path / "c.h5", Calibration(data.masks.astype(np.float32), full_scale_dn=500.0)
    )
    np.save(tmp_path / "y.npy", (data.y * 500).astype(np.uint16))
    arguments = (
        tmp_path / "y.npy",
        "--mask",
        tmp_path / "c.h5",
        "--solver",
        "tv",
        "--device",
        "cpu",
        "--json",
    )
    status, out, _ = run(monkeypatch, capsys, *arguments)
    assert (status, json.loads(out)["white"]) == (0, 500.0)


def test_command_solves_a_mosaic_with_a_calibration(
    data, tmp_path: Path, monkeypatch, capsys
) -> None:
    calibration = Calibration(
        data.masks.astype(np.float32), full_scale_dn=500.0, bayer=BayerPhase.RGGB
    )
    save_calibration(tmp_path / "c.h5", calibration)
    np.savez(tmp_path / "y.npz", meas_bayer=(data.y * 500).astype(np.uint16))
    arguments = (
        "--mask",
        tmp_path / "c.h5",
        "--solver",
        "tv",
        "--device",
        "cpu",
        "--iterations",
        2,
    )
    assert run(monkeypatch, capsys, tmp_path / "y.npz", *arguments)[0] == 0


def test_command_names_an_unknown_denoiser_as_it_was_given(
    data, tmp_path: Path, monkeypatch, capsys
) -> None:
    np.savez(tmp_path / "all.npz", y=data.y, masks=data.masks)
    status, _, said = run(monkeypatch, capsys, tmp_path / "all.npz", "--solver", "a:b:c")
    assert (status, said.count("\n")) == (2, 1)
    assert "got 'a:b:c'" in said  # and not a symbol for :b:
