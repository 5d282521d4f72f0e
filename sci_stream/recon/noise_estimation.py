r"""Estimate the noise of a snapshot from the snapshot alone, as a variance a + b·y.

A measurement differs from Φx by the noise of the sensor, by quantisation, and by masks that have
shifted or blurred since they were calibrated. All of these have the same effect where the scene is
smooth and still: a window in which the scene is a plane x = c₀ + c₁Δrow + c₂Δcolumn is measured as
(c₀ + c₁Δrow + c₂Δcolumn)·Σφ, and the residual of a least squares fit of that is noise. Texture and
motion are in the residual as well. But they are seen through the masks, and noise is not: texture
that stays leaves a variance proportional to (Σφ)² in y, texture that changes from frame to frame
one proportional to Σφ², and both vary from pixel to pixel as the masks do. So the squared residuals
of all windows are explained together by

    E r_p² = (a + b ȳ_w) A_p + s_w² T_p

with one a and one b ≥ 0 for the image (b by place: below), and one s_w² ≥ 0 for each window. A is
1, and T the sum of (Σφ)² and Σφ², each divided by its mean over the image; both less the share of
the fitted plane. The estimate is that of maximum likelihood, by Fisher's scoring: each step is a
regression with the weights 1/(E r_p²)², so that windows without texture decide wherever there are
some.

Read noise and quantisation do not depend on brightness; errors of the masks do, which is how b
separates them. The shot noise behind binary masks varies with Σφ as changing texture does, and is
found at half of its standard deviation. An error that leaves Σφ as it is, such as a phase error of
a pattern that moves, is invisible to windows of still scene and falsifies only what moves. So where
something moves, the part b·y counts `MOVING_MISMATCH` times.

Masks are often worse at the border: an error of their scale or of their rotation displaces them in
proportion to the distance ρ from the centre. So b is b₀ (1 + g (ρ²/⟨ρ²⟩ − 1)), where 0 ≤ g ≤ 1 is
estimated with the rest.

References
----------
The model a + b·y: A. Foi et al., "Practical Poissonian-Gaussian noise modeling and fitting for
single-image raw-data", IEEE Trans. Image Process. 17 (2008). Components of variance by Fisher's
scoring: D. A. Harville, "Maximum likelihood approaches to variance component estimation and to
related problems", J. Am. Stat. Assoc. 72 (1977). Figures: lab/research/real-light.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sci_stream.optics.calibration import BLIND_SHARE

_WINDOW_PX = 5
_STRIDE_PX = 3
# Of larger images this many windows are used, evenly spread: more would not make the estimate
# better.
_MAX_WINDOWS = 4096
# With fewer, chance decides how much of their residual is texture.
_MIN_WINDOWS = 240

# Where fewer windows are open throughout, windows do without pixels that no mask opens: behind two
# random binary masks one of 1000 windows is open throughout, behind three 35 are.
_WHOLE_WINDOWS = 32
# A window does without so many. With up to 25, texture is taken for noise: still scenes behind two
# masks lose 1.5 dB (three tuning scenes).
_MAX_CLOSED = 3

# From a fraction of the mean residual, below the noise: n is then within 2 % of its limit, with
# noise of 0 to 8 % of white on published and real sets. From above, where most of a residual is
# texture, eight steps are not enough.
_SCORING_STEPS = 5
_START = 1e-3
# In windows of noise alone, half of the s_w² are above 0 by chance and explain a part of the noise.
# The inverse of the rest: 1.25 to 1.4 behind published, shifting and measured masks with B = 8
# and 14.
_TAKEN_FOR_TEXTURE = 1.3

# Variance that no window is below, relative to the mean of all residuals. Windows that a plane fits
# exactly, as black ones without noise, would outweigh all others, up to the limit of float32.
_MIN_VARIANCE = 1e-6

# Share of a window's information on noise that is left once its texture is eliminated. Behind masks
# that add up evenly, texture varies as noise does, and rounding errors are all that is left.
_MIN_INFORMATION = 1e-4

MOVING_MISMATCH = 8.0
"""Variance of mask errors where something moves, in units of that where nothing does. Tuned on the
real capture, whose
dark moving parts are free of false texture from 8 on, and on five scenes behind masks that are off,
where 12 gives the
same within 0.2 dB; 12 costs 0.2 dB in a noise-free clip that is textured everywhere
(lab/research/real-light.md)."""

_TINY = 1e-12


class NoiseEstimate(NamedTuple):
    """n² = a + b·y, (P, H, W), ≥ 0, and b, (H, W), ≥ 0, which errors of the masks cause, or shot
    noise.
    """

    variance: Tensor
    slope: Tensor


class CodedWindows(NamedTuple):
    """Masks in windows, as the noise estimate needs them; computed once for all snapshots.

    ``planes``, (3, 25, windows): an orthonormal basis of still planes as measured; ``noisy`` and
    ``textured``, (25, windows): A and T; ``seen``, (25, windows): 0 at pixels that no mask opens,
    which a window does without, else 1; ``shares``, (25, windows): the same, of sum 1, or 0 in
    windows that are not used; ``eccentricity``, (H, W), and ``far``, (windows,): ρ²/⟨ρ²⟩ − 1, 0 in
    the mean of the image.
    """

    planes: Tensor
    noisy: Tensor
    textured: Tensor
    seen: Tensor
    shares: Tensor
    eccentricity: Tensor
    far: Tensor


def coded_windows(phi: Tensor) -> CodedWindows | None:
    """Cut masks, (P, B, H, W), into windows; None where an image has too few of them."""
    n_rows, n_columns = (max(0, (size - _WINDOW_PX) // _STRIDE_PX + 1) for size in phi.shape[-2:])
    if len(phi) * n_rows * n_columns < _MIN_WINDOWS:
        return None
    at = torch.arange(_WINDOW_PX, dtype=phi.dtype, device=phi.device) - _WINDOW_PX // 2
    down, right = (grid.reshape(-1, 1) for grid in torch.meshgrid(at, at, indexing="ij"))
    opened = phi.sum(1)
    exposure = phi.square().sum(1)
    still, changing = (part / part.mean().clamp_min(_TINY) for part in (opened.square(), exposure))
    rows, columns = (torch.arange(size).to(phi) - (size - 1) / 2 for size in phi.shape[-2:])
    distance = rows.square().unsqueeze(1) + columns.square()
    eccentricity = distance / distance.mean() - 1.0
    is_open = (exposure > BLIND_SHARE * exposure.mean()).to(phi.dtype)
    light, coded, far, seen = _cut(
        torch.stack((opened, still + changing, eccentricity.expand_as(opened), is_open))
    )
    few_are_whole = seen.amin(0).sum() < _WHOLE_WINDOWS
    seen = torch.where(few_are_whole, seen, 1.0)
    light = light * seen
    planes = torch.stack(_orthonormal(light, light * down, light * right))
    # h, the diagonal of the projection H onto planes: (1 − H)² has the diagonal 1 − h, and ΣH² = h
    # along each row.
    fitted = planes.square().sum(0)
    textured = (coded * (1 - 2 * fitted) + coded.mean(0) * fitted).clamp_min_(0.0)
    used = (1 - seen).sum(0) <= _MAX_CLOSED
    shares = seen * used / seen.sum(0).clamp_min(1.0)
    noisy = (1 - fitted) * seen * used
    textured = textured * seen * used
    return CodedWindows(planes, noisy, textured, seen, shares, eccentricity, far.mean(0))


def estimate_noise(y: Tensor, masks: CodedWindows | None, r_inv: Tensor) -> NoiseEstimate:
    """Estimate the variance of the noise of a measurement at each pixel; no value is copied to the
    host.

    Parameters
    ----------
    y
        (P, H, W), the measurement by planes; the four of a mosaic share one noise model.
    masks
        The masks that coded it.
    r_inv
        (P, H, W), 0 at pixels without a valid measurement: windows with such a pixel do not count,
        unless the masks close it.

    Returns
    -------
    New tensors; of y's own unit squared. 0 throughout where too few windows are smooth by chance:
    in images of fewer than about 50 × 50 pixels, or with a bad pixel in each window.
    """
    if masks is None:
        return NoiseEstimate(torch.zeros_like(y), y.new_zeros(y.shape[-2:]))
    values, valid = _cut(torch.stack((y, r_inv)))
    brightness = (values * masks.shares).sum(0)
    fitted = (masks.planes * (masks.planes * values).sum(1, keepdim=True)).sum(0)
    squared = torch.addcmul(fitted, masks.seen, values, value=-1).square()
    whole = torch.where(masks.seen > 0, valid, 1.0).amin(0) > 0
    parts = torch.stack((masks.noisy, squared, masks.textured)).mul_(whole)
    brightness = brightness.clamp_min(0.0) * whole
    offset, slope, growth = _variance_components(brightness, parts, masks.far)
    by_place = _TAKEN_FOR_TEXTURE * slope * (1.0 + growth * masks.eccentricity)
    return NoiseEstimate(y.clamp_min(0.0) * by_place + _TAKEN_FOR_TEXTURE * offset, by_place)


def _cut(images: Tensor) -> Tensor:
    """Cut images into windows, (n, P, H, W) → (n, 25, windows)."""
    size = _WINDOW_PX
    stride = max(_STRIDE_PX, math.ceil((images[0].numel() / _MAX_WINDOWS) ** 0.5))
    corners = images.unfold(2, size, stride).unfold(
        3, size, stride
    )  # (n, P, rows, columns, 5, 5), a view
    return corners.permute(0, 4, 5, 1, 2, 3).reshape(len(images), size * size, -1)


def _orthonormal(*columns: Tensor) -> list[Tensor]:
    """Orthonormalise columns, (n, windows) each, by Gram and Schmidt: fast on a GPU for many."""
    basis: list[Tensor] = []
    for column in columns:
        for q in basis:
            column = column - q * (q * column).sum(0)  # noqa: PLW2901 - the column's remainder
        # Where no mask opens, columns are 0, and stay so.
        basis.append(column / column.square().sum(0).sqrt().clamp_min(_TINY))
    return basis


def _variance_components(
    brightness: Tensor, parts: Tensor, eccentricity: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the maximum likelihood estimates of a, b₀ and g, (), as the module describes.

    ``brightness``, (windows,), and ``parts``, A, r² and T, (3, 25, windows), are 0 where a pixel of
    a window is invalid; ``eccentricity``, (windows,), is ρ²/⟨ρ²⟩ − 1. Each operation on windows is
    one for as many of their quantities as possible: a GPU spends its time on the number of
    operations here, not on their size.
    """
    noisy, _, textured = parts
    # (2, 3, 25, windows): A and T, each times A, r² and T.
    products = parts[::2].unsqueeze(1) * parts
    in_all, squared, of_texture = parts.sum(1)
    noise = (_START * squared.sum() / in_all.sum().clamp_min(_TINY)).expand_as(brightness)
    texture = (squared - noise * in_all).clamp_min(0.0) / of_texture.clamp_min(_TINY)
    outwards = brightness * eccentricity
    outwards_squared = outwards.square()
    growth = brightness.new_ones(
        ()
    )  # from 0 it could not leave 0 where the brightness alone explains nothing
    least = _MIN_VARIANCE * squared.sum() / in_all.sum().clamp_min(_TINY) + _TINY
    for _ in range(_SCORING_STEPS):
        weight = torch.addcmul(torch.addcmul(least, noise, noisy), texture, textured).pow_(-2)
        normal = (weight * products).sum(2)
        # s_w² is eliminated from the normal equations of the windows that have any.
        ratios = normal[1, :2] / normal[1, 2].clamp_min(_TINY)
        weighted = torch.addcmul(normal[0, :2], ratios[0] * (texture > 0), normal[1, :2], value=-1)
        weighted = weighted * (weighted[0] > _MIN_INFORMATION * normal[0, 0])
        offset, slope = _line(torch.addcmul(brightness, growth, outwards), weighted)
        noise = torch.addcmul(offset, slope, brightness)
        information, score = weighted
        remainder = torch.dot(torch.addcmul(score, information, noise, value=-1), outwards)
        grown = (slope.square() * torch.dot(information, outwards_squared)).clamp_min_(_TINY)
        growth = (slope * remainder / grown).clamp_(0.0, 1.0)
        noise = torch.addcmul(noise, slope * growth, outwards)
        texture = torch.addcmul(ratios[1], noise, ratios[0], value=-1).clamp_min_(0.0)
    return offset, slope, growth


def _line(x: Tensor, weighted: Tensor) -> tuple[Tensor, Tensor]:
    """Fit n² = a + b·x with a, b ≥ 0 by least squares; return a and b, ().

    ``x``, (n,); ``weighted``, (2, n): weights, and each n² times its weight.
    """
    (total, of_value), (of_x, of_both) = weighted.sum(1), weighted @ x
    total = total.clamp_min(_TINY)
    mean = of_x / total
    value = of_value / total
    centred = x - mean
    around = weighted * centred
    spread = torch.dot(around[0], centred).clamp_min_(_TINY)
    slope = around[1].sum() / spread
    through_zero = of_both / torch.addcmul(spread, mean, of_x)
    slope = torch.where(slope * mean > value, through_zero, slope).clamp_min_(0.0)
    return torch.addcmul(value, slope, mean, value=-1).clamp_min_(0.0), slope
