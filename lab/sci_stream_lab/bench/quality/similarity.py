"""SSIM as defined by Wang et al. in 2004."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

# The window and constants of 2004. Published codes differ (uniform windows, padding, downsampling),
# and so do their values.
_SSIM_SIZE = 11
_SSIM_SIGMA = 1.5
# Wang et al. (2004): K₁ = 0.01 and K₂ = 0.03 at a range of 1.
_SSIM_C1 = 0.01**2
_SSIM_C2 = 0.03**2


def ssim_per_frame(x: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    r"""Return the structural similarity of every frame, (…, H, W) → (…) float64.

    Means, variances and covariance under an 11×11 Gaussian window with σ = 1.5, K₁ = 0.01, K₂ =
    0.03, dynamic range 1; the mean over positions where the window fits, without padding and
    without downsampling.

    Raises
    ------
    ValueError
        If the shapes differ or a frame is smaller than the window.

    References
    ----------
    Wang, Bovik, Sheikh, Simoncelli, "Image quality assessment: from error visibility to structural
    similarity", IEEE TIP 13 (2004), Eq. (13) and the reference implementation ``ssim_index.m``.
    """
    if x.shape != truth.shape:
        raise ValueError(
            f"expected frames and truth of one shape, got {tuple(x.shape)} and {tuple(truth.shape)}"
        )
    if min(x.shape[-2:]) < _SSIM_SIZE:
        raise ValueError(
            f"SSIM needs frames of at least {_SSIM_SIZE}×{_SSIM_SIZE} pixels, got {tuple(x.shape)}"
        )
    a, b = (t.reshape(-1, 1, *t.shape[-2:]).double() for t in (x, truth))
    mean_a, mean_b = _window_mean(a), _window_mean(b)
    var_a = _window_mean(a * a) - mean_a * mean_a
    var_b = _window_mean(b * b) - mean_b * mean_b
    cov = _window_mean(a * b) - mean_a * mean_b
    luminance = (2 * mean_a * mean_b + _SSIM_C1) / (mean_a * mean_a + mean_b * mean_b + _SSIM_C1)
    structure = (2 * cov + _SSIM_C2) / (var_a + var_b + _SSIM_C2)
    return (luminance * structure).mean((-3, -2, -1)).reshape(x.shape[:-2])


def ssim(x: torch.Tensor, truth: torch.Tensor) -> float:
    """Return the mean over frames of `ssim_per_frame`."""
    return float(ssim_per_frame(x, truth).mean())


def _window_mean(image: torch.Tensor) -> torch.Tensor:
    """Average under the Gaussian window, (N, 1, H, W) → (N, 1, H − 10, W − 10); separable, rows
    then columns.
    """
    offset = torch.arange(_SSIM_SIZE, dtype=image.dtype, device=image.device) - _SSIM_SIZE // 2
    window = torch.exp(-offset.square() / (2 * _SSIM_SIGMA**2))
    window = window / window.sum()
    return F.conv2d(F.conv2d(image, window.view(1, 1, 1, -1)), window.view(1, 1, -1, 1))
