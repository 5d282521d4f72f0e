"""The noise of a snapshot is estimated from the snapshot alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

from sci_stream.model import Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.forward import forward, gram_diag, inverse_gram
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.noise_estimation import coded_windows, estimate_noise
from sci_stream.recon.settings import default_settings

P, B, H, W = 1, 8, 128, 128


def masks(seed: int = 0) -> torch.Tensor:
    return (torch.rand(P, B, H, W, generator=torch.Generator().manual_seed(seed)) < 0.5).float()


def smooth_scene() -> torch.Tensor:
    """Return frames (P, B, H, W) with a gradient of brightness, all equal."""
    ramp = torch.linspace(0.1, 0.9, W).expand(P, B, H, W)
    return ramp.contiguous()


def noise(seed: int = 1) -> torch.Tensor:
    return torch.randn(P, H, W, generator=torch.Generator().manual_seed(seed))


def estimated(y: torch.Tensor, phi: torch.Tensor) -> torch.Tensor:
    return estimate_noise(y, coded_windows(phi), inverse_gram(gram_diag(phi))).variance


def test_exact_measurement_has_no_noise() -> None:
    phi = masks()
    y = forward(phi, smooth_scene())
    assert float(estimated(y, phi).sqrt().max()) < 1e-3 * float(y.mean())


@pytest.mark.parametrize("sd", [0.01, 0.05, 0.2])
def test_constant_noise_is_found(sd: float) -> None:
    phi = masks()
    found = estimated(forward(phi, smooth_scene()) + sd * noise(), phi).sqrt()
    assert 0.85 * sd < float(found.mean()) < 1.15 * sd


@pytest.mark.parametrize("sd", [0.01, 0.05])
def test_noise_behind_two_masks_is_found(sd: float) -> None:
    phi = masks()[:, :2]
    found = estimated(forward(phi, smooth_scene()[:, :2]) + sd * noise(), phi).sqrt()
    assert 0.8 * sd < float(found.mean()) < 1.2 * sd


def test_bad_pixels_behind_two_masks_are_left_out() -> None:
    phi = masks()[:, :2]
    y = forward(phi, smooth_scene()[:, :2])
    bad = torch.rand(y.shape, generator=torch.Generator().manual_seed(2)) < 0.01
    r_inv = inverse_gram(gram_diag(phi), ~bad)
    found = estimate_noise(torch.where(bad, 3.0, y), coded_windows(phi), r_inv).variance
    assert float(found[~bad].sqrt().max()) < 1e-3 * float(y.mean())


@pytest.mark.parametrize("weigh", [True, False])
def test_report_states_the_noise_relative_to_the_measurement(weigh: bool) -> None:
    phi, cpu, sd = masks(), torch.device("cpu"), 0.05
    y = (forward(phi, smooth_scene()) + sd * noise())[0].numpy()
    calibration = Calibration(phi[0].numpy())
    settings = dataclasses.replace(default_settings(cpu, "identity"), weigh_noise=weigh)
    engine = Engine(calibration, make_denoiser("identity", cpu), cpu, settings)
    _, report = engine.reconstruct(Snapshot(SnapshotId("noisy", 0, 0), y, calibration.hash, B, 0))
    if not weigh:
        assert report.noise is report.mismatch is None
        return
    assert report.noise is not None
    assert report.mismatch is not None
    assert report.noise == pytest.approx(sd / float((y**2).mean() ** 0.5), rel=0.15)
    assert report.mismatch < report.noise / 2


def test_shot_noise_grows_with_brightness() -> None:
    phi = masks()
    exact = forward(phi, smooth_scene())
    found = estimated(exact + (0.01 * exact).sqrt() * noise(), phi)
    dark, bright = found[exact < 1.0].mean(), found[exact > 3.0].mean()
    assert 2.0 < float(bright / dark) < 8.0
    # Behind binary masks shot noise varies with Σφ as changing texture does, so that a part is
    # taken for texture.
    assert 0.2 * 0.01 * exact.mean() < float(found.mean()) < 0.012 * exact.mean()


def test_texture_everywhere_is_not_taken_for_noise() -> None:
    phi = masks()
    texture = 0.1 * torch.rand(H, W, generator=torch.Generator().manual_seed(3))
    exact = forward(phi, smooth_scene() + texture)
    assert (
        float(estimated(exact, phi).mean().sqrt()) < 0.02
    )  # of 0.13 that the texture leaves around planes
    assert float(estimated(exact + 0.1 * noise(), phi).mean().sqrt()) == pytest.approx(0.1, rel=0.3)


def test_masks_that_have_moved_count_as_noise() -> None:
    phi = masks()
    y = forward(phi.roll(1, -1), smooth_scene())
    error = (y - forward(phi, smooth_scene())).square().mean()
    assert 0.25 * error < float(estimated(y, phi).mean()) < 1.5 * error


def test_mask_errors_grow_with_brightness_unlike_read_noise() -> None:
    phi = masks()
    r_inv = inverse_gram(gram_diag(phi))
    moved = estimate_noise(forward(phi.roll(1, -1), smooth_scene()), coded_windows(phi), r_inv)
    noisy = estimate_noise(forward(phi, smooth_scene()) + 0.2 * noise(), coded_windows(phi), r_inv)
    brightness = float(forward(phi, smooth_scene()).mean())
    assert float(moved.slope.mean()) * brightness > 0.8 * float(moved.variance.mean())
    assert float(noisy.slope.mean()) * brightness < 0.3 * float(noisy.variance.mean())


def test_masks_that_are_worse_at_the_border_count_more_there() -> None:
    phi = F.avg_pool2d(masks(), 3, 1, 1)
    rows, columns = (
        torch.linspace(-1.01, 1.01, length) for length in (H, W)
    )  # two thirds of a pixel at the edges
    scaled = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], -1).expand(P, H, W, 2)
    y = forward(
        F.grid_sample(phi, scaled, padding_mode="border", align_corners=True), smooth_scene()
    )
    r_inv = inverse_gram(gram_diag(phi))
    found, moved = (
        estimate_noise(y, coded_windows(phi), r_inv),
        estimate_noise(forward(phi.roll(1, -1), smooth_scene()), coded_windows(phi), r_inv),
    )
    assert float(found.slope[H // 2, W // 2]) < 0.2 * float(found.slope.mean())
    assert float(found.slope[0, 0]) > 2 * float(found.slope.mean())
    assert float(moved.slope.max()) < 1.5 * float(moved.slope.mean()), (
        "those that have moved count alike everywhere"
    )


def test_textured_moving_object_is_not_taken_for_noise() -> None:
    phi, scene = masks(), smooth_scene()
    texture = torch.rand(40, 40, generator=torch.Generator().manual_seed(3))
    for frame in range(B):
        scene[:, frame, 30:70, 20 + 4 * frame : 60 + 4 * frame] = texture
    sd = 0.02
    found = estimated(forward(phi, scene) + sd * noise(), phi).sqrt()
    assert float(found.mean()) < 1.3 * sd


def test_noise_is_estimated_for_all_planes_together() -> None:
    phi = torch.cat([masks(seed) for seed in range(4)])
    scene = smooth_scene().expand(4, B, H, W)
    y = forward(phi, scene) + 0.05 * torch.randn(
        4, H, W, generator=torch.Generator().manual_seed(5)
    )
    assert float(estimated(y, phi).sqrt().mean()) == pytest.approx(0.05, rel=0.15)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (4, 64), (5, 5), (40, 40)])
def test_small_image_has_no_noise(height: int, width: int) -> None:
    phi = masks()[..., :height, :width]
    found = estimated(forward(phi, smooth_scene()[..., :height, :width]), phi)
    assert found.shape == (P, height, width)
    assert float(found.abs().max()) == 0.0


def test_invalid_pixels_are_left_out() -> None:
    phi = masks()
    y = forward(phi, smooth_scene())
    r_inv = inverse_gram(gram_diag(phi))
    y[:, 40:60] = 1e3
    r_inv[:, 40:60] = 0.0
    assert float(estimate_noise(y, coded_windows(phi), r_inv).variance[:, :40].sqrt().max()) < 0.01
    assert (
        float(estimate_noise(y, coded_windows(phi), torch.zeros_like(r_inv)).variance.abs().max())
        == 0.0
    )


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.01])
@pytest.mark.parametrize("n_frames", [2, 8])
def test_masks_that_add_up_evenly_give_a_finite_estimate(n_frames: int, noise: float) -> None:
    """Behind them texture varies as noise does: the two look alike."""
    rng = np.random.default_rng(1)
    masks = (rng.random((n_frames, 128, 128)).argsort(0) == 0).astype(np.float32)
    rows, columns = np.mgrid[:128, :128]
    film = np.stack([0.5 + 0.5 * np.sin((columns - 3 * b) / 2 + rows) for b in range(n_frames)])
    y = (masks * film).sum(0) + noise * rng.standard_normal((128, 128))
    phi = torch.from_numpy(masks)[None]
    measured = torch.from_numpy(np.round(255 * y).clip(0) / 255).float()[None]
    estimate = estimate_noise(measured, coded_windows(phi), inverse_gram(gram_diag(phi)))
    assert estimate.variance.isfinite().all()
    assert estimate.slope.isfinite().all()
