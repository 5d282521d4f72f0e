"""The warm start: better than a cold one where motion is predictable, as good where it is not."""

from __future__ import annotations

import pytest
import torch

from sci_stream.optics.forward import forward, gram_diag, inverse_gram
from sci_stream.recon.algorithms.gap import cold_start
from sci_stream.recon.initialization import warm_start
from sci_stream.recon.initialization.lmmse import InitialGuess, LeaveOneOutError, LmmseEstimator
from sci_stream.recon.initialization.optical_flow import box_mean, gradient
from sci_stream.recon.initialization.warm_start import (
    VERDICTS,
    Prediction,
    extrapolate,
    predict,
    refine,
    verdict,
)
from sci_stream.recon.measurement import Measurement
from sci_stream.recon.metrics import psnr

B, H, W = 8, 64, 72
VELOCITY = (0.7, -0.5)


def scene(
    first: int, *, dy: float = VELOCITY[0], dx: float = VELOCITY[1], seed: int = 0
) -> torch.Tensor:
    """Return frames ``first`` … ``first + B − 1`` of a moving pattern, (1, B, H, W)."""
    rows, columns = torch.meshgrid(torch.arange(float(H)), torch.arange(float(W)), indexing="ij")
    waves = torch.rand(6, 3, generator=torch.Generator().manual_seed(seed)).sub(0.5)
    frames = []
    for t in range(first, first + B):
        r, c = rows - t * dy, columns - t * dx
        frames.append(
            0.5
            + 0.08 * sum(torch.sin(1.2 * a * r + 1.2 * b * c + 9 * p) for a, b, p in waves.tolist())
        )
    return torch.stack(frames).unsqueeze(0)


def contrasty(video: torch.Tensor) -> torch.Tensor:
    return ((video - 0.5) * 3 + 0.5).clamp(0, 1)


def coded(video: torch.Tensor, *, grey: bool = False, seed: int = 1) -> Measurement:
    """Return a video's measurement through random masks, binary or grey as of blurring optics."""
    random = torch.rand(video.shape, generator=torch.Generator().manual_seed(seed))
    phi = 0.1 + 0.7 * random if grey else (random < 0.5).float()
    return Measurement(forward(phi, video), phi, inverse_gram(gram_diag(phi)))


def still_of(measured: Measurement) -> torch.Tensor:
    return cold_start(measured.y, measured.phi, measured.r_inv)


def cold_of(measured: Measurement, *, linear: bool = True) -> tuple[InitialGuess, LeaveOneOutError]:
    errors = LmmseEstimator(measured.phi, measured.r_inv).leave_one_out(
        measured.y, measured.r_inv, None
    )
    return errors.cold(still_of(measured), linear=linear), errors


def predicted(past: torch.Tensor, measured: Measurement, *, linear: bool = True) -> Prediction:
    cold, errors = cold_of(measured, linear=linear)
    return predict(past, cold, measured, errors)


def verdict_on(prediction: Prediction) -> str:
    return VERDICTS[int(verdict(prediction.figures))]


def test_frame_is_extrapolated_along_its_motion() -> None:
    flow = torch.tensor(VELOCITY).view(2, 1, 1).expand(2, H, W)
    ahead = extrapolate(scene(0)[:, -1], flow, B)
    assert psnr(ahead[..., 8:-8, 8:-8], scene(B)[..., 8:-8, 8:-8]) > 35


def test_extrapolation_keeps_fine_texture() -> None:
    rows, columns = torch.meshgrid(torch.arange(float(H)), torch.arange(float(W)), indexing="ij")

    def fine(t: float) -> torch.Tensor:  # four pixels from crest to crest
        return 0.5 + 0.3 * torch.sin(torch.pi / 2 * (columns - t)) + 0.0 * rows

    flow = torch.tensor([0.0, 0.5]).view(2, 1, 1).expand(2, H, W)
    half_way = extrapolate(fine(0.0).unsqueeze(0), flow, 1)[0, 0]
    inside = (..., slice(8, -8))
    assert float(half_way[inside].std()) > 0.8 * float(
        fine(0.5)[inside].std()
    )  # linearly 0.71 of it is left


def test_measurement_corrects_a_wrong_velocity() -> None:
    true = torch.tensor(VELOCITY).view(2, 1, 1)
    flow = true.expand(2, H, W) + torch.tensor([-0.25, 0.2]).view(2, 1, 1)
    measured, last = coded(scene(B)), scene(0)[:, -1]
    with_slopes = torch.cat((gradient(last).flatten(0, 1), last))
    errors = [float((flow - true)[:, 12:-12, 12:-12].abs().mean())]
    for stride, radius in ((2, 8), (2, 4), (1, 4)):
        image = with_slopes if stride > 1 else last
        flow = refine(flow, image, measured.thinned(stride), stride=stride, radius=radius)
        errors.append(float((flow - true)[:, 12:-12, 12:-12].abs().mean()))
    assert errors[-1] < 0.4 * errors[0]
    assert errors[-1] < 0.1


@pytest.mark.parametrize(("white", "gain_db"), [(False, 3), (True, 2)])
@pytest.mark.parametrize("grey", [False, True])
def test_steady_motion_starts_far_better_than_cold(grey: bool, white: bool, gain_db: float) -> None:
    truth = scene(B)
    measured = coded(truth, grey=grey)
    noise = 0.02 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(2))
    if not white:  # as after a denoiser: errors of neighbouring pixels are correlated
        noise = box_mean(4 * noise[0], 1).unsqueeze(0)
    for linear in (True, False):
        prediction = predicted(scene(0) + noise, measured, linear=linear)
        assert verdict_on(prediction) == "warm"
        cold_db = psnr(cold_of(measured, linear=linear)[0].video, truth)
        assert psnr(prediction.start.video, truth) > cold_db + gain_db
    assert psnr(prediction.start.video, truth) > psnr(still_of(measured), truth) + 6


def test_estimated_error_follows_true_error_conservatively() -> None:
    truth = scene(B)
    measured = coded(truth)
    cold = cold_of(measured)[0].video
    promised = []
    for level in (0.01, 0.02, 0.03):
        noise = level * torch.randn(truth.shape, generator=torch.Generator().manual_seed(2))
        prediction = predicted(scene(0) + noise, measured)
        true = float(
            torch.linalg.vector_norm(prediction.start.video - truth)
            / torch.linalg.vector_norm(cold - truth)
        )
        promised.append(float(prediction.figures[0]))
        assert true < promised[-1] <= 1
    assert promised[0] < promised[1] < promised[2]


@pytest.mark.parametrize("seed", [3, 4, 5])
@pytest.mark.parametrize("grey", [False, True])
def test_other_scene_is_a_cut(seed: int, grey: bool) -> None:
    measured = coded(contrasty(scene(B)), grey=grey)
    assert verdict_on(predicted(contrasty(scene(0, seed=seed)), measured)) == "cut"
    assert verdict_on(predicted(contrasty(scene(0)), measured)) == "warm"


def test_reversed_motion_is_not_extrapolated() -> None:
    truth = scene(0, dy=-VELOCITY[0], dx=-VELOCITY[1])
    measured = coded(truth)
    assert psnr(predicted(scene(-B), measured).start.video, truth) > psnr(still_of(measured), truth)


def test_static_scene_starts_no_worse_than_still_image() -> None:
    truth = scene(0, dy=0.0, dx=0.0)
    measured = coded(truth)
    blurred = truth + 0.03 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(2))
    prediction = predicted(blurred, measured)
    assert verdict_on(prediction) == "no_gain"
    assert psnr(prediction.start.video, truth) > 40


def test_only_predicted_half_uses_the_prediction() -> None:
    truth = scene(B)
    past = scene(0)
    past[..., W // 2 :] = scene(0, seed=3)[..., W // 2 :]
    measured = coded(truth)
    start, still = predicted(past, measured).start.video, still_of(measured)
    left, right = (..., slice(8, W // 2 - 12)), (..., slice(W // 2 + 12, -8))
    assert psnr(start[left], truth[left]) > psnr(still[left], truth[left]) + 4
    assert psnr(start[right], truth[right]) > psnr(still[right], truth[right]) - 1


def test_planes_of_a_mosaic_move_together() -> None:
    truth = torch.cat([scene(B) * share for share in (1.0, 0.6, 0.6, 0.3)])
    past = torch.cat([scene(0) * share for share in (1.0, 0.6, 0.6, 0.3)])
    measured = coded(truth)
    start, still = predicted(past, measured).start.video, still_of(measured)
    for plane in range(4):
        assert psnr(start[plane], truth[plane]) > psnr(still[plane], truth[plane]) + 5


def test_memory_is_bounded_without_changing_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = coded(scene(B))
    whole = predicted(scene(0), measured).start.video
    monkeypatch.setattr(warm_start, "_PIXELS_AT_ONCE", {"cpu": 1})
    torch.testing.assert_close(predicted(scene(0), measured).start.video, whole, atol=1e-5, rtol=0)


def test_start_without_valid_pixels_is_the_still_image() -> None:
    measured = coded(scene(B))
    blind = Measurement(measured.y, measured.phi, torch.zeros_like(measured.r_inv))
    torch.testing.assert_close(predicted(scene(0), blind).start.video, still_of(blind))


@pytest.mark.parametrize("shape", [(1, 20, 24), (2, 3, 5), (3, 31, 17), (50, 8, 9)])
def test_any_number_of_frames_and_size_works(shape: tuple[int, int, int]) -> None:
    video = torch.rand((1, *shape), generator=torch.Generator().manual_seed(6))
    prediction = predicted(video, coded(video))
    assert prediction.start.video.shape == video.shape
    assert bool(prediction.start.video.isfinite().all())
    assert 0 <= float(prediction.figures[0]) <= 1
