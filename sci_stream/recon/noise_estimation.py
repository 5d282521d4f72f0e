r"""Estimate the noise of a snapshot from the snapshot alone, as a variance a + b·y.

A measurement differs from Φx by the noise of the sensor, by quantisation, and by masks that have shifted or blurred
since they were calibrated. All of these have the same effect where the scene is smooth and still: a window in which the
scene is a plane x = c₀ + c₁Δrow + c₂Δcolumn is measured as (c₀ + c₁Δrow + c₂Δcolumn)·Σφ, and the residual of a least
squares fit of that is noise. Texture and motion also contribute, so the smoothest windows decide: in each class of
brightness a low quantile of the residual variance, corrected for the χ² distribution that it has for noise alone.

Read noise and quantisation do not depend on brightness; errors of the masks do, which is how b separates them. An
error that leaves Σφ as it is, such as a phase error of a pattern that moves, is invisible to windows of still scene and
falsifies only what moves. So where something moves, the part b·y counts `MOVING_MISMATCH` times.

References
----------
Estimation of signal-dependent noise from the smoothest blocks of an image: X. Liu, M. Tanaka, M. Okutomi, "Practical
signal-dependent noise parameter estimation from a single noisy image", IEEE Trans. Image Process. 23 (2014). The model
a + b·y: A. Foi et al., "Practical Poissonian-Gaussian noise modeling and fitting for single-image raw-data", IEEE
Trans. Image Process. 17 (2008).
Figures: research/real-light.md.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

_WINDOW_PX = 5
_STRIDE_PX = 3
_CLASSES = 8
# Per class. With fewer windows the smoothest one is likely to contain texture.
_FEWEST_WINDOWS = 30

# Of the windows of a class. With 0.2, texture and motion all over the image are taken for noise: up to 3 dB are lost on
# noise-free clips. With 0.02, noise of 1 % is found 3 to 50 % too high in eleven clips, most where all is textured
# (research/real-light.md).
_QUANTILE = 0.02
# The same quantile of χ²/n with n = 22 degrees of freedom, of 25 pixels less three coefficients.
_CHI2_QUANTILE = 0.474

MOVING_MISMATCH = 8.0
"""Variance of mask errors where something moves, in units of that where nothing does. Tuned on the real capture, whose
dark moving parts are free of false texture from 8 on, and on five scenes behind masks that are off, where 12 gives the
same within 0.2 dB; 12 costs 0.2 dB in a noise-free clip that is textured everywhere (research/real-light.md)."""

_TINY = 1e-12


class NoiseEstimate(NamedTuple):
    """n² = a + b·y, (P, H, W), ≥ 0, and b, (), ≥ 0, which errors of the masks cause, or shot noise."""

    variance: torch.Tensor
    slope: torch.Tensor


def estimate_noise(y: torch.Tensor, phi: torch.Tensor, r_inv: torch.Tensor) -> NoiseEstimate:
    """Estimate the variance of the noise of a measurement at each pixel.

    No value is copied to the host.

    Parameters
    ----------
    y
        (P, H, W), the measurement by planes; the four of a mosaic share one noise model.
    phi
        (P, B, H, W), the masks.
    r_inv
        (P, H, W), 0 at pixels without a valid measurement: windows with such a pixel do not count.

    Returns
    -------
    New tensors; of y's own unit squared. 0 throughout where too few windows are smooth by chance: in images of fewer
    than about 50 × 50 pixels, or with an invalid pixel in each window.
    """
    rows, columns = ((size - _WINDOW_PX) // _STRIDE_PX + 1 for size in y.shape[-2:])
    if len(y) * max(rows, 0) * max(columns, 0) < _CLASSES * _FEWEST_WINDOWS:
        return NoiseEstimate(torch.zeros_like(y), y.new_zeros(()))
    brightness, variance = _windows(y, phi.sum(1), (r_inv > 0).to(y.dtype))
    mean, floor, known = _lower_envelope(brightness, variance)
    offset, slope = _line(mean, floor, known)
    return NoiseEstimate(y.clamp_min(0.0).mul(slope).add_(offset), slope)


def _windows(y: torch.Tensor, opened: torch.Tensor, valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean of y and the residual variance of a plane, (windows,) both; infinite where pixels are invalid."""
    size = _WINDOW_PX
    at = torch.arange(size, dtype=y.dtype, device=y.device) - size // 2
    down, right = (grid.reshape(-1, 1) for grid in torch.meshgrid(at, at, indexing="ij"))

    def cut(image: torch.Tensor) -> torch.Tensor:
        return F.unfold(image.unsqueeze(1), size, stride=_STRIDE_PX).transpose(0, 1).flatten(1)

    values, light, valid = cut(y), cut(opened), cut(valid)
    columns = torch.stack((light, light * down, light * right))
    left = values - (_projected(columns, values) * columns).sum(0)
    variance = left.square().sum(0) / (size * size - 3)
    whole = valid.amin(0) > 0
    return torch.where(whole, values.mean(0), torch.inf), torch.where(whole, variance, torch.inf)


def _projected(columns: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the least squares coefficients of columns, (3, n, windows), for values, (n, windows); (3, 1, windows)."""
    normal = torch.einsum("inw,jnw->ijw", columns, columns)
    # A ridge far below what single precision resolves, for windows that no mask opens.
    ridge = 1e-6 * normal.diagonal().mean(-1).clamp_min(_TINY)
    return _solve_3x3(normal, torch.einsum("inw,nw->iw", columns, values), ridge).unsqueeze(1)


def _solve_3x3(normal: torch.Tensor, right: torch.Tensor, ridge: torch.Tensor) -> torch.Tensor:
    """Solve (normal + ridge·1) x = right, (3, 3, N), (3, N) and (N,), for positive definite matrices; return (3, N).

    By elimination, element by element: libraries of linear algebra cannot be recorded on a GPU.
    """
    (aa, ab, ac), (_, bb, bc), (_, _, cc) = normal.unbind()
    aa, bb, cc = aa + ridge, bb + ridge, cc + ridge
    f, g, h = right
    to_b, to_c = ab / aa, ac / aa
    bb, bc, cc, g, h = bb - to_b * ab, bc - to_b * ac, cc - to_c * ac, g - to_b * f, h - to_c * f
    to_c = bc / bb
    z = (h - to_c * g) / (cc - to_c * bc)
    y = (g - bc * z) / bb
    return torch.stack(((f - ab * y - ac * z) / aa, y, z))


def _lower_envelope(
    brightness: torch.Tensor, variance: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return mean brightness, noise variance, and 1 where both are known, by class of brightness, (classes,)."""
    each = len(brightness) // _CLASSES
    order = brightness.argsort()
    classes = order[: each * _CLASSES].view(_CLASSES, each)
    variance = variance[classes].sort(dim=1).values
    floor = variance[:, int(_QUANTILE * variance.shape[1])] / _CHI2_QUANTILE
    mean = brightness[classes].mean(1)
    known = mean.isfinite() & floor.isfinite()
    return torch.where(known, mean, 0.0), torch.where(known, floor, 0.0), known.to(mean.dtype)


def _line(mean: torch.Tensor, floor: torch.Tensor, known: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Fit floor = a + b·mean with a, b ≥ 0 by least squares of relative errors; return a and b, ()."""
    weight = known / (floor + 0.1 * floor.mean() + _TINY).square()
    total = weight.sum().clamp_min(_TINY)
    x, v = (weight * mean).sum() / total, (weight * floor).sum() / total
    spread = (weight * (mean - x).square()).sum().clamp_min(_TINY)
    slope = ((weight * (mean - x) * (floor - v)).sum() / spread).clamp_min(0.0)
    offset = v - slope * x
    # A line that would be negative in the dark goes through zero instead.
    slope = torch.where(offset < 0, v / x.clamp_min(_TINY), slope)
    return offset.clamp_min(0.0), slope
