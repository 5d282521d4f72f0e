"""`sci_stream.reconstruct` takes arrays as researchers have them, and refuses those that it cannot
use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import subprocess
import sys
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import sci_stream
from sci_stream.errors import ConfigError, DataError, InputError
from sci_stream.model import BayerPhase
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.white import white_level
from sci_stream.recon.denoisers.weights import save_ffdnet
from sci_stream.reports import Start
from tests.calibration.moved_masks import Rig
from tests.recon.networks import random_weights

B, H, W = 4, 32, 40


@pytest.fixture
def masks() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, (B, H, W))


@pytest.fixture
def x(make_video) -> np.ndarray:
    return make_video(B, H, W)


@pytest.fixture
def y(masks: np.ndarray, x: np.ndarray) -> np.ndarray:
    return (masks * x).sum(0)


def solve(y, masks, **options):
    return sci_stream.reconstruct(
        y, masks, **{"solver": "tv", "iterations": 6, "device": "cpu", **options}
    )


def test_reconstruct_single_snapshot_returns_video_near_truth(y, masks, x) -> None:
    result = solve(y, masks, truth=x, iterations=12)
    assert isinstance(result.video, np.ndarray)
    assert (result.video.shape, result.video.dtype) == ((B, H, W), np.float32)
    assert result.psnr_db == result.report.psnr_db > 24
    assert result.report.iterations == 12
    assert len(result.reports) == 1
    assert np.abs(result.video - x).mean() < 0.05


def test_reconstruct_normalised_measurement_keeps_its_scale(y, masks) -> None:
    assert solve(y, masks).white == 1.0
    assert solve(y * 0.4, masks).white == 1.0  # a dark scene stays dark
    assert solve(y * 200, masks * 200).white == 200.0  # masks on another scale, y = Σ masks·x


def test_reconstruct_of_masks_on_any_scale_gives_the_same_video(y, masks) -> None:
    expected = solve(y, masks, white=1.0).video
    np.testing.assert_allclose(solve(y, masks * 255, white=1.0).video, expected, atol=1e-5)
    np.testing.assert_allclose(solve(y * 3, masks * 0.2, white=3.0).video, expected, atol=1e-5)


def test_reconstruct_counts_fills_the_range(y, masks) -> None:
    for counts in ((y * 211).astype(np.uint16), y * 211.0, (y * 50).astype(np.int64)):
        result = solve(counts, masks)
        assert 0.8 < np.percentile(result.video, 99) < 1.3
        assert result.white == pytest.approx(
            counts.max() / y.max() * np.percentile(y / masks.sum(0).clip(1), 99.5), rel=0.1
        )


@pytest.mark.parametrize("scale", [1.0, 255.0, 17.5])
def test_reconstruct_with_truth_fits_the_scale(y, masks, x, scale) -> None:
    result = solve(y * scale, masks, truth=x)
    assert result.white == pytest.approx(scale, rel=1e-5)
    as_bytes = solve(y * scale, masks, truth=np.rint(x * 255).astype(np.uint8))
    assert as_bytes.psnr_db == pytest.approx(result.psnr_db, abs=0.05)
    with pytest.raises(
        InputError, match=r"expected 0–1 or 0–255.*Divide them by their white level"
    ):
        solve(y * scale, masks, truth=np.rint(x * 4095).astype(np.uint16))


@pytest.mark.parametrize(
    ("top", "dtype", "white"),
    [(1, "u1", 1), (200, "u1", 255), (255, "u2", 255), (1.7, "f4", 1), (200, "f4", 255)],
)
def test_white_of_the_truth_follows_from_its_range(top, dtype, white) -> None:
    assert white_level(np.array([0, top], dtype)) == white


def test_reconstruct_torch_tensors_returns_same_video_in_torch(y, masks) -> None:
    expected = solve(y, masks).video
    for dtype in (torch.float32, torch.float64):
        result = solve(torch.tensor(y, dtype=dtype, requires_grad=True), torch.tensor(masks))
        assert isinstance(result.video, torch.Tensor)
        np.testing.assert_allclose(result.video.numpy(), expected, atol=1e-5)


def test_reconstruct_series_starts_warm_and_counts_progress(masks, make_video) -> None:
    x = make_video(3 * B, H, W).reshape(3, B, H, W)
    y = np.einsum("bhw,nbhw->nhw", masks, x)
    seen: list[tuple[int, int]] = []
    result = solve(
        y, masks, truth=x.reshape(-1, H, W), progress=lambda done, total: seen.append((done, total))
    )
    assert result.video.shape == (3, B, H, W)
    assert seen == [(i, 18) for i in range(1, 19)]
    assert [report.start_reason for report in result.reports[:1]] == ["first"]
    assert Start.WARM in {report.start for report in result.reports[1:]}
    assert result.psnr_db == pytest.approx(np.mean([report.psnr_db for report in result.reports]))


def test_reconstruct_stream_equals_series_and_reads_on_demand(masks, make_video) -> None:
    x = make_video(3 * B, H, W).reshape(3, B, H, W)
    y = np.einsum("bhw,nbhw->nhw", masks, x)
    read: list[int] = []

    def camera():
        for seq, snapshot in enumerate(y):
            read.append(seq)
            yield snapshot

    stream = sci_stream.reconstruct_stream(
        camera(), masks, solver="tv", iterations=6, device="cpu", white=1.0
    )
    first = next(stream)
    assert read == [0]
    videos = np.stack([first.video, *(result.video for result in stream)])
    np.testing.assert_array_equal(videos, solve(y, masks, white=1.0).video)


def test_reconstruct_with_calibration_uses_dark_frame_and_scale(y, masks, x) -> None:
    calibration = Calibration(
        masks.astype(np.float32), np.full((), 64, np.float32), full_scale_dn=500.0
    )
    result = solve((64 + 500 * y).round().astype(np.uint16), calibration, truth=x)
    assert result.white == 500.0
    np.testing.assert_allclose(result.video, solve(y, masks, truth=x).video, atol=0.02)
    with pytest.raises(InputError, match="part of the calibration"):
        solve(y, calibration, white=1.0)


def test_reconstruct_bayer_mosaic_keeps_colours_apart(masks, x) -> None:
    colours = np.ones((H, W))
    colours[::2, ::2] = 0.3  # little red light
    result = solve(
        (masks * x * colours).sum(0), masks, bayer="RGGB", truth=x * colours, iterations=12
    )
    assert result.psnr_db > 22
    assert result.video[:, ::2, ::2].mean() < 0.5 * result.video[:, 1::2, ::2].mean()
    assert solve((masks * x).sum(0), masks, bayer=BayerPhase.RGGB).video.shape == (B, H, W)


def test_reconstruct_without_noise_explains_measurement_exactly(y, masks) -> None:
    noisy = y + 0.1 * np.random.default_rng(1).standard_normal(y.shape)
    exact = solve(noisy, masks, white=1.0, noise=0.0).report.residual
    weighed = solve(noisy, masks, white=1.0, noise=0.1).report.residual
    assert exact < 0.5 * weighed


def test_reconstruct_accepts_any_callable_as_denoiser(y, masks, x) -> None:
    calls: list[tuple[tuple[int, ...], float]] = []

    def blur(images: torch.Tensor, sigma: float) -> torch.Tensor:
        calls.append((tuple(images.shape), sigma))
        kernel = torch.full((1, 1, 3, 3), 1 / 9)
        padded = torch.nn.functional.pad(images.unsqueeze(1), (1, 1, 1, 1), "reflect")
        return torch.lerp(images, torch.nn.functional.conv2d(padded, kernel).squeeze(1), 0.3)

    result = solve(y, masks, solver=blur, truth=x, sigmas=(0.1, 0.02))
    assert result.psnr_db > 18
    assert {shape[1:] for shape, _ in calls} == {(H, W)}
    assert all(type(sigma) is float and 0 < sigma <= 0.1 for _, sigma in calls)


def test_reconstruct_accepts_network_blind_function_and_numpy(y, masks) -> None:
    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = torch.nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, images: torch.Tensor, sigma: float) -> torch.Tensor:
            assert images.ndim == 4
            assert not self.training
            return images - 0.01 * sigma * self.convolution(images)

    assert np.isfinite(solve(y, masks, solver=Network()).video).all()
    assert np.isfinite(solve(y, masks, solver=torch.nn.AvgPool2d(3, 1, 1)).video).all()
    same = solve(
        y, masks, solver=lambda images: images
    ).video  # returns its input: the solver takes a copy
    np.testing.assert_allclose(
        solve(y, masks, solver=lambda images, _sigma: images.numpy() + 0).video, same
    )


def nan(images, sigma):
    return images * torch.nan


@pytest.mark.parametrize(
    ("denoiser", "message"),
    [
        (
            lambda images: images[:, 1:],
            r"returned another shape; expected \(\d, 32, 40\); got \(\d, 31, 40\)",
        ),
        (nan, r"'nan' returned NaN or infinity; .*1280 such values of 1280 at sigma"),
        (
            lambda _: None,
            "did not return images; expected a torch tensor or a NumPy array; got NoneType",
        ),
        (
            lambda: None,
            r"cannot be called; expected a callable that accepts \(images, sigma\) or \(images\)",
        ),
        (3, "The solver 'int' is invalid; expected a name"),
    ],
)
def test_reconstruct_refuses_a_bad_denoiser(y, masks, denoiser, message) -> None:
    with pytest.raises(InputError, match=message):
        solve(y, masks, solver=denoiser)


def poked(array: np.ndarray, value: float) -> np.ndarray:
    changed = array.astype(np.float64)
    changed[..., 3, 4] = value
    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y, m: (y[0], m), r"y has an invalid shape; expected \(H, W\)"),
        (lambda y, m: (y[:0], m), "y has an invalid shape"),
        (
            lambda y, m: (y[:, 1:], m),
            r"y and the masks differ in size; expected y of 32×40.*got y of shape \(1, 32, 39\)",
        ),
        (lambda y, m: (y, m[0]), r"The masks have an invalid shape; expected \(B, H, W\)"),
        (lambda y, m: (y, m - 1), r"negative values.*got -1 to 0.*masks\.clip\(0\)"),
        (lambda y, m: (y, m * 0), "Empty masks.*4 of 4 masks are 0 or NaN everywhere.* 0"),
        (
            lambda y, m: (y, m * np.array([1, 1, 0, 1])[:, None, None]),
            "1 of 4 masks are 0 or NaN everywhere, such as number 2",
        ),
        (lambda y, m: (y, m * np.nan), "4 of 4 masks are 0 or NaN everywhere"),
        (
            lambda y, m: (y * 0, m),
            "y is dark: the scale of y cannot.*got y from 0 to 0. Pass white",
        ),
        (lambda y, m: (-1 - y, m), "y is dark.*y is negative: pass it as the camera gave it"),
        (lambda y, m: (y * np.nan, m), "No pixel is valid; expected pixels with finite values"),
        (lambda y, m: (y + 1j, m), "y does not hold real numbers.*complex128"),
        (lambda _, m: (["a"], m), "y does not hold real numbers"),
    ],
)
def test_reconstruct_refuses_bad_arrays(y, masks, change, message) -> None:
    with pytest.raises(InputError, match=message):
        solve(*change(y, masks))


FRAMES_LAST = {
    "transposed": lambda masks: masks.transpose(0, 2, 1),
    "frames last": lambda masks: np.moveaxis(masks, 0, -1),
    "both": lambda masks: masks.T,
}


@pytest.mark.parametrize("change", FRAMES_LAST.values(), ids=FRAMES_LAST)
def test_masks_of_another_order_are_turned_with_a_note(y, masks, change, tmp_path) -> None:
    expected = solve(y, masks).video
    with pytest.warns(sci_stream.DataWarning, match="the masks (are|have)") as warned:
        video = solve(y, change(masks)).video
    with pytest.warns(sci_stream.DataWarning, match="the masks (are|have)"):
        (streamed,) = sci_stream.reconstruct_stream([y], change(masks), solver="tv", iterations=6)
    np.testing.assert_array_equal(video, expected)
    assert streamed.video.shape == video.shape
    np.savez(tmp_path / "a.npz", y=y, masks=change(masks))
    (note,) = sci_stream.load_measurement(tmp_path / "a.npz").assumed
    assert {str(one.message) for one in warned} == {note.replace(" of a.npz", "")}


def test_snapshots_are_turned_to_masks_of_a_rig(y, masks, x) -> None:
    calibration = Calibration(masks.astype(np.float32))
    with pytest.warns(sci_stream.DataWarning, match="the snapshots are transposed"):
        video = solve(y.T, calibration).video
    np.testing.assert_array_equal(video, solve(y, calibration).video)


def test_frames_last_are_solved_and_scored_as_frames_first(y, masks, x) -> None:
    last = [np.moveaxis(array, 0, -1) for array in (np.stack([y, y]), masks, x)]
    with pytest.warns(sci_stream.DataWarning, match="have their frames last") as warned:
        result = solve(*last[:2], truth=last[2])
    assert len(warned) == 3
    assert result.psnr_db == pytest.approx(solve(np.stack([y, y]), masks, truth=x).psnr_db)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda y, m: (poked(y, np.nan), m), "y"),
        (lambda y, m: (np.ma.masked_greater(y, np.sort(y, axis=None)[-2]), m), "y"),
        (lambda y, m: (y, poked(m, np.inf)), "the masks"),
    ],
)
def test_reconstruct_leaves_out_invalid_pixels(y, masks, change, name) -> None:
    with pytest.warns(UserWarning, match=f"1 pixels of {name} are NaN or infinite: left out"):
        result = solve(*change(y, masks))
    assert np.isfinite(result.video).all()
    assert np.abs(result.video - solve(y, masks).video).mean() < 0.01


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_stream_leaves_out_invalid_pixels(y, masks, bad: int, value: float) -> None:
    snapshots = [y, y, y]
    snapshots[bad] = poked(y, value)
    with pytest.warns(
        sci_stream.DataWarning, match="1 pixels of y are NaN or infinite: left out"
    ) as warned:
        results = list(
            sci_stream.reconstruct_stream(snapshots, masks, solver="tv", iterations=6, device="cpu")
        )
    assert len(warned) == 1
    assert all(np.abs(one.video - solve(y, masks).video).mean() < 0.01 for one in results)


def test_reconstruct_takes_arrays_as_networks_do(y, masks) -> None:
    np.testing.assert_array_equal(solve(y[None, None], masks[None]).video[0], solve(y, masks).video)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"truth": np.zeros((B + 1, H, W))},
            r"truth does not fit.*expected 1 × 4 frames of 32×40.*\(5, 32, 40\)",
        ),
        ({"truth": np.zeros((H, W, B + 1))}, "The truth does not fit"),
        ({"truth": np.zeros((B, H, W))}, "The truth is dark: the scale of y cannot"),
        ({"iterations": 0}, "iterations is invalid"),
        ({"iterations": 2.5}, "iterations is invalid"),
        ({"white": 0}, "white is invalid; expected a finite number > 0; got 0"),
        ({"white": "255"}, "white is invalid; expected a finite number > 0; got '255'"),
        ({"noise": "3"}, "noise is invalid; expected a finite number ≥ 0; got '3'"),
        ({"noise": -1}, "noise is invalid; expected a finite number ≥ 0; got -1"),
        ({"bayer": "RGBG"}, "Unknown Bayer phase"),
        ({"sigmas": (0.01, 0.1)}, "noise levels of the solver"),
        ({"solver": "median"}, r"Unknown solver.*'median'"),
        (
            {"solver": lambda x: x, "weights": "a.pth"},
            "'<lambda>' takes no weights",
        ),
        ({"device": "tpu"}, "Unknown compute device"),
    ],
)
def test_reconstruct_refuses_bad_options(y, masks, options, message) -> None:
    with pytest.raises((InputError, ConfigError), match=message):
        solve(y, masks, **options)


def test_stream_refuses_the_bad_snapshot_when_it_arrives(y, masks) -> None:
    stream = sci_stream.reconstruct_stream(
        [y, y[1:]], masks, solver="tv", iterations=4, device="cpu"
    )
    next(stream)
    with pytest.raises(InputError, match="differ in size"):
        next(stream)


def test_import_of_the_package_loads_neither_torch_nor_zmq() -> None:
    program = "import sys, sci_stream; sys.exit('torch' in sys.modules or 'zmq' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", program], check=False).returncode == 0
    assert {"reconstruct", "open"} <= set(dir(sci_stream))
    with pytest.raises(AttributeError, match="nothing"):
        _ = sci_stream.nothing


@pytest.fixture
def filmed() -> tuple[np.ndarray, np.ndarray]:
    """Return five snapshots of the simulated camera, normalised, and its masks."""
    camera = Rig(width_px=96, height_px=96, mask="random", scene="fast")
    return np.stack(
        [camera.calibration.measurement(camera.snapshot().counts) for _ in range(5)]
    ), camera.calibration.phi


def test_weak_grey_masks_on_fine_texture_are_right() -> None:
    rng = np.random.default_rng(0)
    masks = 0.5 + 0.3 * rng.random((8, 96, 96))
    rows, columns = np.mgrid[:96, :96]
    scene = 0.5 + 0.3 * np.sin(rows * columns / 40) + 0.1 * rng.standard_normal((96, 96))
    y = (masks * scene.clip(0)).sum(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not solve(y, masks).defects
    with pytest.raises(DataError, match="explain nothing"):
        solve(y, 0.5 + 0.3 * rng.random(masks.shape))


@pytest.mark.parametrize("seed", range(6))
def test_masks_of_another_draw_are_refused_on_a_small_sensor(seed: int, make_video) -> None:
    rng = np.random.default_rng(seed)
    masks, other = (rng.random((2, 4, 64, 64)) < 0.5).astype(np.float32)
    y = (masks * make_video(4, 64, 64)).sum(0)
    assert not solve(y, masks).defects
    with pytest.raises(DataError, match="explain nothing"):
        solve(y, other)


def test_other_masks_raise_or_give_the_snapshot_as_video(filmed) -> None:
    y, masks = filmed
    other = np.random.default_rng(9).permutation(masks.ravel()).reshape(masks.shape)
    with pytest.raises(DataError, match="explain nothing"):
        solve(y[0], other, white=1.0)
    with pytest.warns(sci_stream.MaskMismatchWarning, match="explain nothing"):
        result = solve(y[0], other, white=1.0, on_mismatch="snapshot")
    assert (result.video == result.video[0]).all()
    assert result.report.start_reason == "mismatch"
    assert "explain nothing" in result.faults[0]
    unchecked = solve(y[0], other, white=1.0, check_masks=False)
    assert not (unchecked.video == unchecked.video[0]).all()


def test_right_masks_give_no_warning(filmed) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = solve(*filmed, white=1.0)
    assert result.faults == ()


def test_saturated_snapshot_raises(filmed) -> None:
    y, masks = filmed
    with pytest.raises(DataError, match="all are saturated"):
        solve(np.full(y.shape[1:], 255, np.uint8), masks)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda masks: masks.transpose(0, 2, 1), "transposed"),
        (lambda masks: masks[:, ::-1], "upside down"),
        (lambda masks: 1 - masks, "dark where the masks are open"),
        (lambda masks: 1 - np.rot90(masks, 1, (1, 2)), "and inverted"),
        (lambda masks: np.roll(masks, (2, -5), (1, 2)), r"moved by \(\+5, -2\) px"),
    ],
)
def test_masks_given_in_another_form_are_brought_to_y(filmed, change, words) -> None:
    y, masks = filmed
    right = solve(y[0], masks, white=1.0)
    with pytest.warns(sci_stream.DataWarning, match=f"{words}.*done here"):
        repaired = solve(y[0], change(masks), white=1.0)
    inside = (..., slice(12, -12), slice(12, -12))
    assert np.abs(repaired.video - right.video)[inside].mean() < 0.01


def test_masks_of_another_camera_are_named_and_no_black_level() -> None:
    generator = np.random.default_rng(0)
    taken, passed = (generator.random((2, 8, 96, 96)) < 0.5).astype(np.float32)
    columns, rows = np.meshgrid(np.arange(96), np.arange(96))
    scene = [np.exp(-((columns - 20 - 5 * b) ** 2 + (rows - 48) ** 2) / 150) for b in range(8)]
    y = (taken * (0.2 + 0.7 * np.array(scene, np.float32))).sum(0)
    with pytest.raises(DataError, match="The masks explain nothing"):
        sci_stream.reconstruct(y, passed, iterations=2, solver="tv")


def test_three_snapshots_that_look_like_colours_are_asked_about(y, masks) -> None:
    colours = np.stack([y * gain for gain in (1.0, 0.8, 0.5)])
    with pytest.warns(sci_stream.DataWarning, match="are they red, green and blue"):
        solve(colours, masks, white=1.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the three snapshots differ in brightness")
        solve(colours, masks, white=1.0, bayer="RGGB")  # a mosaic has its colours


def test_truth_in_colour_is_refused_with_the_remedy(y, masks, x) -> None:
    coloured = np.stack([x] * 3, axis=1)
    with pytest.raises(InputError, match=r"pass truth\[:, 0\] with y\[0\]"):
        solve(np.stack([y] * 3), masks, truth=coloured)


def test_solve_that_diverges_raises_or_says_so(y, masks, tmp_path) -> None:
    weights = random_weights(layers=3, channels=8)
    large = dataclasses.replace(weights, kernels=tuple(1e15 * k for k in weights.kernels))
    save_ffdnet(large, tmp_path / "large.safetensors")
    options = {"solver": "ffdnet", "weights": tmp_path / "large.safetensors"}
    with pytest.raises(DataError, match=r"snapshot 0 diverged to NaN.*choose another one"):
        solve(y, masks, **options)
    with pytest.warns(sci_stream.MaskMismatchWarning, match="snapshot 0 diverged"):
        result = solve(y, masks, on_mismatch="snapshot", **options)
    assert result.report.start_reason == "diverged"
    assert np.isfinite(result.video).all()


@pytest.mark.rig
def test_reconstruct_works_in_a_process_forked_after_a_solve() -> None:
    program = (
        "import multiprocessing, numpy as np, sci_stream, torch\n"
        "torch.set_num_threads(2)\n"
        "masks = (np.random.default_rng(0).random((4, 64, 64)) < .5).astype('f4')\n"
        "def solve(seed):\n"
        "    y = (masks * np.random.default_rng(seed).random((4, 64, 64))).sum(0).astype('f4')\n"
        "    return sci_stream.reconstruct(y, masks, solver='tv', iterations=2, "
        "check_masks=False).video.mean()\n"
        "first = solve(1)\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "    assert abs(pool.map(solve, [1, 2])[0] - first) < 1e-4\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=120)


@pytest.mark.usefixtures("one_thread")
def test_dwelling_stage_is_corrected_from_one_snapshot() -> None:
    """The last mask has twice the light: its frame would be twice as bright."""
    rig = Rig(width_px=128, height_px=128, mask="moving", mask_closed=0.0, bayer="none", truth=True)
    phi, snapshot = rig.calibration.phi, rig.snapshot()
    truth = np.asarray(snapshot.truth, np.float32)
    gains = np.array([1.0] * 7 + [2.0], np.float32)[:, None, None]
    y = (gains * phi * truth / truth.max()).sum(0)
    corrected, as_it_is = solve(y, phi), solve(y, phi, check_masks=False)
    true, brightness = truth.mean((1, 2)), (lambda video: video.mean((1, 2)) / video.mean())
    assert np.abs(brightness(as_it_is.video) / true * true.mean() - 1).max() > 0.3
    assert np.abs(brightness(corrected.video) / true * true.mean() - 1).max() < 0.1
    assert corrected.video.shape == phi.shape
    np.testing.assert_allclose(
        corrected.frame_times[:, 1], gains[:, 0, 0] / gains.sum(), atol=0.015
    )
    (streamed,) = sci_stream.reconstruct_stream([y], phi, solver="tv", iterations=6, device="cpu")
    np.testing.assert_array_equal(streamed.video, corrected.video)
    np.testing.assert_allclose(as_it_is.frame_times[:, 1], 1 / 8)


def test_result_is_saved_in_all_formats_in_colour(y, masks, tmp_path) -> None:
    result = solve(y, masks, bayer="RGGB", iterations=2)
    for name in ("v.npz", "v.html", "v.png", "v.gif", "v.tif"):
        assert result.save(tmp_path / name).is_file()
    with np.load(tmp_path / "v.npz") as saved:
        assert saved["video"].shape == (1, B, H, W, 3)
    page = (tmp_path / "v.html").read_text()
    assert page.count("data:image/jpeg;base64,") >= 2
    assert "http" not in page
    with pytest.raises(InputError, match="Cannot determine the format"):
        result.save(tmp_path / "v.avi")


def test_result_is_shown_in_a_notebook_with_its_faults(y, masks, monkeypatch) -> None:
    display = pytest.importorskip("IPython.display")
    shown: list[str] = []
    monkeypatch.setattr(display, "display", lambda page: shown.append(page.data))
    with pytest.warns(sci_stream.DataWarning):
        result = solve(y + 0.5, masks, iterations=2)
    result.show()
    assert html.escape(html.escape(result.faults[0])) in shown[0]
    assert shown[0].startswith("<div><iframe srcdoc=")
    assert result._repr_html_() == shown[0]
    assert repr(result).startswith(f"<Reconstructed: video {B}×{H}×{W}, 2 iterations")
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(ConfigError, match='pip install "ipykernel"'):
        result.show()


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "state",
    [
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: _default_dtype(torch.float16),
        lambda: _default_dtype(torch.float64),
        lambda: torch.device("meta"),
        torch.inference_mode,
    ],
)
def test_solve_does_not_depend_on_the_torch_state_of_its_caller(y, masks, state) -> None:
    plain = solve(y, masks, solver="ffdnet-lite", iterations=2).video
    with state():
        np.testing.assert_array_equal(
            solve(y, masks, solver="ffdnet-lite", iterations=2).video, plain
        )
        (streamed,) = sci_stream.reconstruct_stream(
            [y], masks, solver="ffdnet-lite", iterations=2, device="cpu"
        )
    np.testing.assert_array_equal(streamed.video, plain)


@pytest.mark.parametrize(("factor", "bits"), [(16, np.uint16), (4, np.uint16), (1 / 16, np.uint8)])
def test_counts_on_another_scale_are_a_defect(filmed, factor: float, bits: type) -> None:
    y, masks = filmed
    calibration = Calibration(masks, full_scale_dn=400.0, bit_depth=12)
    counts = np.round(400 * y[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(counts, calibration)
    with pytest.warns(sci_stream.DataWarning, match=f"pass y \\* {1 / factor:.6g}"):
        solve(np.round(counts * factor).astype(bits), calibration)


@pytest.mark.filterwarnings("ignore::sci_stream.DataWarning")
@pytest.mark.parametrize("size", [(2, 2), (1, 2), (4, 4), (2, 7)])
def test_reconstruct_of_few_pixels_gives_a_video(size: tuple[int, int]) -> None:
    draw = np.random.default_rng(0)
    few_masks = 0.1 + draw.random((2, *size))
    few_pixels = (few_masks * draw.random((2, *size))).sum(0)
    assert solve(few_pixels, few_masks, iterations=2).video.shape == (2, *size)
    series = solve(np.stack([few_pixels] * 3), few_masks, iterations=2)
    assert series.video.shape == (3, 2, *size)


def test_solver_is_accepted_by_its_earlier_name(y, masks) -> None:
    by_name = sci_stream.reconstruct(y, masks, solver="tv", iterations=2, device="cpu")
    earlier = sci_stream.reconstruct(y, masks, denoiser="tv", iterations=2, device="cpu")
    np.testing.assert_array_equal(by_name.video, earlier.video)
