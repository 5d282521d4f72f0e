"""The cold start: better than ȳ where something moves, equal to ȳ where nothing does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sci_stream.optics.forward import forward, gram_diag, inverse_gram
from sci_stream.recon.algorithms.gap import cold_start
from sci_stream.recon.initialization import gaussian_prior as field_model
from sci_stream.recon.initialization.lmmse import LeaveOneOutError, LmmseEstimator
from sci_stream.recon.metrics import psnr

B, H, W = 8, 64, 72


def textured(seed: int = 0) -> torch.Tensor:
    """Return a picture with structure at all scales, (2H, 2W), 0–1."""
    noise = torch.randn(2 * H, 2 * W, generator=torch.Generator().manual_seed(seed))
    down, right = torch.fft.fftfreq(2 * H).unsqueeze(1), torch.fft.rfftfreq(2 * W)
    falling = 1 / (down.square() + right.square()).sqrt().clamp_min(0.02) ** 1.5
    picture = torch.fft.irfft2(torch.fft.rfft2(noise) * falling, s=noise.shape)
    return (0.5 + 0.15 * picture / picture.std()).clamp(0, 1)


def scene(speed: int) -> torch.Tensor:
    """Return frames of a picture that moves by this many pixels a frame along columns, (1, B, H,
    W).
    """
    picture = textured()
    return torch.stack([picture[20 : 20 + H, 4 + t * speed :][:, :W] for t in range(B)]).unsqueeze(
        0
    )


def masks_like(video: torch.Tensor, *, grey: bool = False) -> torch.Tensor:
    random = torch.rand(video.shape, generator=torch.Generator().manual_seed(1))
    return 0.1 + 0.7 * random if grey else (random < 0.5).float()


def errors_of(video: torch.Tensor, *, grey: bool = False) -> tuple[LeaveOneOutError, torch.Tensor]:
    """Return the leave-one-out errors of a video's measurement, and ȳ."""
    phi = masks_like(video, grey=grey)
    y, r_inv = forward(phi, video), inverse_gram(gram_diag(phi))
    return LmmseEstimator(phi, r_inv).leave_one_out(y, r_inv, None), cold_start(y, phi, r_inv)


@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize("speed", [1, 3])
def test_moving_scene_starts_better_than_still_image(speed: int, grey: bool) -> None:
    truth = scene(speed)
    errors, still = errors_of(truth, grey=grey)
    assert psnr(errors.cold(still).video, truth) > psnr(still, truth) + (0.8 if grey else 3)


@pytest.mark.parametrize("grey", [False, True])
def test_static_scene_starts_near_still_image(grey: bool) -> None:
    truth = scene(0)
    errors, still = errors_of(truth, grey=grey)
    alone = errors.refined(torch.full_like(truth, float(truth.mean()))).video
    assert psnr(errors.cold(still).video, truth) > psnr(alone, truth) + (4 if grey else 12)


def test_partly_moving_scene_blends_both_starts() -> None:
    truth = torch.cat([scene(0)[..., : W // 2], scene(3)[..., W // 2 :]], dim=-1)
    errors, still = errors_of(truth)
    start = errors.cold(still).video
    left, right = (..., slice(0, W // 2 - 8)), (..., slice(W // 2 + 8, None))
    assert psnr(start[left], truth[left]) > 36
    assert psnr(start[right], truth[right]) > psnr(still[right], truth[right]) + 3


def test_disabled_linear_start_is_the_still_image() -> None:
    errors, still = errors_of(scene(2))
    assert torch.equal(errors.cold(still, linear=False).video, still)


def test_leave_one_out_error_ranks_guesses() -> None:
    truth = scene(2)
    errors, _ = errors_of(truth)
    found = []
    for level in (0.0, 0.05, 0.15):
        noise = level * torch.randn(truth.shape, generator=torch.Generator().manual_seed(2))
        found.append(float(errors.refined(truth + noise).error.mean()))
    assert found[0] < 1e-9
    assert found[0] < found[1] < found[2]


def test_truth_wins_over_any_other_guess() -> None:
    truth = scene(3)
    errors, still = errors_of(truth)
    blended = errors.blended(errors.refined(truth), errors.cold(still))
    measured = masks_like(truth).any(1, keepdim=True).expand_as(truth)
    torch.testing.assert_close(blended.video[measured], truth[measured], atol=1e-4, rtol=0)


@settings(max_examples=25, deadline=None)
@given(
    planes=st.integers(1, 4),
    b=st.integers(1, 12),
    h=st.integers(1, 23),
    w=st.integers(1, 23),
    blind=st.floats(0, 1),
    seed=st.integers(0, 2**31),
)
def test_any_size_and_masks_give_finite_frames(
    planes: int, b: int, *, h: int, w: int, blind: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    phi = (torch.rand(planes, b, h, w, generator=generator) < 0.5).float()
    valid = torch.rand(planes, h, w, generator=generator) >= blind
    r_inv = inverse_gram(gram_diag(phi), valid)
    y = forward(phi, torch.rand(planes, b, h, w, generator=generator))
    still = cold_start(y, phi, r_inv)
    guess = LmmseEstimator(phi, r_inv).leave_one_out(y, r_inv, None).cold(still)
    assert guess.video.shape == phi.shape
    assert bool(guess.video.isfinite().all())
    assert bool((guess.error >= 0).all())
    unmeasured = (r_inv == 0).unsqueeze(1).expand_as(phi)
    assert torch.equal(guess.video[unmeasured], still[unmeasured]), (
        "where nothing valid was measured ȳ stays"
    )


def test_dark_measurement_stays_dark() -> None:
    errors, still = errors_of(torch.zeros(1, B, H, W))
    assert torch.equal(errors.cold(still).video, torch.zeros(1, B, H, W))


def test_estimate_of_a_plane_does_not_depend_on_the_others() -> None:
    video = torch.cat([scene(1), 0.4 * scene(3)])
    phi = masks_like(video)
    y, r_inv = forward(phi, video), inverse_gram(gram_diag(phi))
    still = cold_start(y, phi, r_inv)
    together = LmmseEstimator(phi, r_inv).leave_one_out(y, r_inv, None).refined(still).video
    for plane in (slice(0, 1), slice(1, 2)):
        own = LmmseEstimator(phi[plane], r_inv[plane]).leave_one_out(y[plane], r_inv[plane], None)
        alone = own.refined(still[plane]).video
        torch.testing.assert_close(together[plane], alone, atol=1e-5, rtol=0)


def test_planes_move_together() -> None:
    video = torch.cat([scene(1), 0.4 * scene(3)])
    phi = masks_like(video)
    y, r_inv = forward(phi, video), inverse_gram(gram_diag(phi))
    errors = LmmseEstimator(phi, r_inv).leave_one_out(y, r_inv, None)
    moves = errors.moving(errors.cold(cold_start(y, phi, r_inv)))
    assert moves.shape == y.shape
    assert torch.equal(moves[0], moves[1])


def test_memory_is_bounded_without_changing_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    errors, still = errors_of(scene(2))
    whole = errors.cold(still).video
    monkeypatch.setattr(field_model, "_PIXELS_AT_ONCE", {"cpu": 1})
    torch.testing.assert_close(errors.cold(still).video, whole, atol=1e-5, rtol=0)


@pytest.mark.gpu
def test_gpu_equals_cpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    video = scene(2)
    phi = masks_like(video)
    y, r_inv = forward(phi, video), inverse_gram(gram_diag(phi))
    still = cold_start(y, phi, r_inv)
    here = LmmseEstimator(phi, r_inv).leave_one_out(y, r_inv, None).cold(still).video
    linear = LmmseEstimator(phi.cuda(), r_inv.cuda())
    on_gpu = linear.leave_one_out(y.cuda(), r_inv.cuda(), None).cold(still.cuda()).video
    torch.testing.assert_close(on_gpu.cpu(), here, atol=1e-3, rtol=0)


@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize("speed", [1, 2, 4])
def test_start_error_is_estimated_from_prediction_errors(speed: int, grey: bool) -> None:
    truth = scene(speed)
    errors, still = errors_of(truth, grey=grey)
    cold = errors.cold(still)
    moves = errors.moving(cold)
    estimated = (
        float(errors.start_error(errors.without_texture(cold, moves), moves).around.mean()) ** 0.5
    )
    true = float((cold.video - truth).square().mean().sqrt())
    assert 0.6 * true < estimated < 1.4 * true


def test_start_error_is_found_behind_masks_that_hardly_differ() -> None:
    truth = scene(2)
    phi = 0.35 + 0.3 * masks_like(truth)
    y, r_inv = forward(phi, truth), inverse_gram(gram_diag(phi))
    errors = LmmseEstimator(phi, r_inv).leave_one_out(y, r_inv, None)
    cold = errors.cold(cold_start(y, phi, r_inv))
    estimated = float(errors.start_error(cold, errors.moving(cold)).around.mean()) ** 0.5
    true = float((cold.video - truth).square().mean().sqrt())
    assert 0.5 * true < estimated < 2 * true


@pytest.mark.parametrize("grey", [False, True])
def test_static_texture_hardly_counts_as_error(grey: bool) -> None:
    errors, still = errors_of(scene(0), grey=grey)
    cold = errors.cold(still)
    moves = errors.moving(cold)
    guesses = (cold, errors.without_texture(cold, moves))
    plain, without = (
        float(errors.start_error(guess, moves).around.mean()) ** 0.5 for guess in guesses
    )
    assert without < 0.6 * plain


def test_known_noise_is_not_taken_for_texture() -> None:
    """A still scene: the noise of y is as large an error of ȳ as before, while fine texture is
    none.
    """
    truth = scene(0)
    phi = masks_like(truth)
    noise = torch.full((1, H, W), 0.2**2)
    y = forward(phi, truth) + 0.2 * torch.randn(1, H, W, generator=torch.Generator().manual_seed(3))
    r_inv = inverse_gram(gram_diag(phi))
    linear, still = LmmseEstimator(phi, r_inv), cold_start(y, phi, r_inv)
    true = float((still - truth)[(r_inv > 0).unsqueeze(1).expand_as(truth)].square().mean()) ** 0.5
    estimated = []
    for known in (noise, None):
        errors = linear.leave_one_out(y, r_inv, known)
        guess = errors.without_texture(errors.cold(still, linear=False), torch.zeros(1, H, W))
        estimated.append(
            float(errors.start_error(guess, torch.zeros(1, H, W)).around.mean()) ** 0.5
        )
    assert estimated[0] == pytest.approx(true, rel=0.3)
    assert estimated[1] < 0.5 * true


def test_errors_at_known_motion_are_not_texture() -> None:
    errors, still = errors_of(scene(0))
    cold = errors.cold(still)
    everywhere = torch.ones(1, H, W)
    torch.testing.assert_close(errors.without_texture(cold, everywhere).error, cold.error)
    left = everywhere * (torch.arange(W) < W // 2)
    halves = errors.without_texture(cold, left).error
    torch.testing.assert_close(halves[..., : W // 2], cold.error[..., : W // 2])
    assert not halves[..., W // 2 :].any()
