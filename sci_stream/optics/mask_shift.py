"""Shift masks on the sensor by their displacement since calibration.

Mask elements are about as large as pixels, so a calibrated mask is not band-limited: shifting it by
a fraction of a pixel with an interpolating (Fourier, cubic) kernel gives masks with errors of a
third of their contrast at half a pixel. The true kernel depends on the shape of the elements and
the blur of the optics, which are unknown; but it can be measured, as a few weights along each axis.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor

from sci_stream.optics.displacement import RIGID, TAPS_RADIUS, Displacement
from sci_stream.optics.mask_errors import MaskCorrection, MaskError
from sci_stream.optics.mask_warp import source_of, warped_masks

# A pixel with more than this much weight outside the calibrated area has no usable mask.
_NEGLIGIBLE = 0.1


def shift_masks(phi: Tensor, displacement: Displacement) -> Tensor:
    """Return the masks displaced on the sensor, (B, H, W) → the same, a new tensor, in 0–1.

    Beyond the border of the calibrated area, masks are continued with their outermost pixels.
    """
    if displacement.linear != RIGID:
        phi = warped_masks(phi, displacement.linear)
    reach_x, reach_y = (abs(base) + TAPS_RADIUS for base in displacement.base_px)
    padded = torch.nn.functional.pad(
        phi.unsqueeze(0), (reach_x, reach_x, reach_y, reach_y), mode="replicate"
    )[0]
    height, width = phi.shape[-2:]
    across = weighted_slices(padded, displacement.x, reach_x - displacement.base_px[0], -1, width)
    return weighted_slices(
        across, displacement.y, reach_y - displacement.base_px[1], -2, height
    ).clamp_(0.0, 1.0)


def invalid_pixels(displacement: Displacement, shape: tuple[int, int]) -> Tensor:
    """Return the pixels whose masks lay outside the sensor when they were calibrated, (H,
    W) bool.
    """
    rows, columns = (
        _beyond(weights, base, length)
        for weights, base, length in zip(
            (displacement.y, displacement.x), reversed(displacement.base_px), shape, strict=True
        )
    )
    shifted = rows.unsqueeze(1) | columns
    if displacement.linear == RIGID:
        return shifted
    along = zip(source_of(shape, displacement.linear), shape, strict=True)
    outside = [(place < 0) | (place > length - 1) for place, length in along]
    return shifted | outside[0] | outside[1]


def _beyond(weights: tuple[float, ...], base: int, length: int) -> Tensor:
    """Return the positions along an axis with more than `_NEGLIGIBLE` of the weights outside,
    (length,) bool.
    """
    position = torch.arange(length)
    outside = torch.zeros(length)
    for i, weight in enumerate(weights, -TAPS_RADIUS):
        source = position - base - i
        outside += abs(weight) * ((source < 0) | (source >= length))
    return outside > _NEGLIGIBLE


def weighted_slices(
    image: Tensor, weights: tuple[float, ...], start: int, dim: int, length: int
) -> Tensor:
    """Sum slices of ``length`` along an axis: weight i applies to the slice that begins i before
    ``start``.
    """
    terms = [
        (weight, image.narrow(dim, start - i, length))
        for i, weight in enumerate(weights, -TAPS_RADIUS)
        if weight != 0.0
    ]
    total = torch.zeros_like(terms[0][1])
    for weight, part in terms:
        total.add_(part, alpha=weight)
    return total


# First and second derivative of a sampled image, exact for polynomials of degree 4: masks are
# coarse, and a difference of neighbours alone finds a fifth too little of their slope at a blur of
# half a pixel.
_SLOPE = (1 / 12, -8 / 12, 0.0, 8 / 12, -1 / 12)
_CURVATURE = (-1 / 12, 16 / 12, -30 / 12, 16 / 12, -1 / 12)


def corrected_masks(phi: Tensor, correction: MaskCorrection) -> Tensor:
    """Return masks with a correction, (B, H, W) → the same, a new tensor, ≥ 0."""
    phi = reshaped_masks(phi, correction)
    if not correction.displacement.is_none:
        phi = shift_masks(phi, correction.displacement)
    return phi.mul_(mask_gains(phi, correction))


def reshaped_masks(phi: Tensor, correction: MaskCorrection) -> Tensor:
    """Return masks shifted and blurred each by itself, (…, B, H, W) → the same, a new tensor,
    ≥ 0.
    """
    if not correction.masks:
        return phi.clone()
    right, down, blur, _ = phi.new_tensor(correction.masks).unbind(1)
    across = _filtered(phi, _interpolation(right, blur), dim=-1)
    return _filtered(across, _interpolation(down, blur), dim=-2).clamp_min_(0.0)


def mask_gains(like: Tensor, correction: MaskCorrection) -> Tensor:
    """Return the factor of each mask with its light, (B or 1, 1, 1), on the device of ``like``."""
    gains = like.new_tensor([1 + mask.gain for mask in correction.masks] or [1.0])
    return (gains * like.new_tensor(correction.light or (1.0,))).view(-1, 1, 1)


def mask_changes(phi: Tensor, correction: MaskCorrection) -> list[Tensor]:
    """Return the derivatives of corrected masks, (…, B, H, W), by each field of their `MaskError`,
    in their order.

    Exact for `reshaped_masks`: a step of Newton's method with others, which are near for small
    shifts, may lead uphill.
    """
    masks = correction.masks or (MaskError(),) * phi.shape[-3]
    right, down, blur, gain = phi.new_tensor(masks).unbind(1)
    slope, curvature = (phi.new_tensor(weights) for weights in (_SLOPE, _CURVATURE))
    moved_x, moved_y = (shift.unsqueeze(1) * curvature - slope for shift in (right, down))
    spread = (curvature / 2).expand(len(blur), -1)
    kernel_y = _interpolation(down, blur)
    across = _filtered(phi, _interpolation(right, blur), -1)
    along = _filtered(phi, kernel_y, -2)
    changes = [
        _filtered(along, moved_x, -1),
        _filtered(across, moved_y, -2),
        _filtered(along, spread, -1).add_(_filtered(across, spread, -2)),
    ]
    light = (1 + gain).view(-1, 1, 1)
    return [*(change.mul_(light) for change in changes), _filtered(across, kernel_y, -2)]


def _interpolation(shift_px: Tensor, blur_px2: Tensor) -> Tensor:
    """Return the five weights that displace an image by less than a pixel and blur it, (B,) both →
    (B, 5).
    """
    slope, curvature = (shift_px.new_tensor(weights) for weights in (_SLOPE, _CURVATURE))
    spread = (shift_px.square() + blur_px2).unsqueeze(1) / 2
    # To the right is against the slope.
    return (
        shift_px.new_tensor((0.0, 0.0, 1.0, 0.0, 0.0))
        - shift_px.unsqueeze(1) * slope
        + spread * curvature
    )


def _filtered(phi: Tensor, weights: Tensor, dim: int) -> Tensor:
    """Return Σ_i weights[b, i] φ_b(r + i − 2) along an axis, −1 or −2; masks are continued with
    their last pixels.
    """
    images = phi.reshape(-1, *phi.shape[-3:])
    length = phi.shape[dim]
    padded = F.pad(images, (2, 2, 0, 0) if dim == -1 else (0, 0, 2, 2), mode="replicate")
    # A grouped convolution takes twice to nine times as long on a CPU.
    first, *others = weights.T.unsqueeze(-1).unsqueeze(-1)
    total: Tensor = padded.narrow(dim, 0, length) * first
    for i, factors in enumerate(others, 1):
        total.addcmul_(padded.narrow(dim, i, length), factors)
    return total.view(phi.shape)
