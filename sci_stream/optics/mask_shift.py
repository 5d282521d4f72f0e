"""Shift masks on the sensor by their displacement since calibration.

Mask elements are about as large as pixels, so a calibrated mask is not band-limited: shifting it by a fraction of a
pixel with an interpolating (Fourier, cubic) kernel gives masks with errors of a third of their contrast at half a
pixel. The true kernel depends on the shape of the elements and the blur of the optics, which are unknown; but it can be
measured, as a few weights along each axis.
"""

from __future__ import annotations

import torch

from sci_stream.optics.displacement import TAPS_RADIUS, Displacement

# A pixel with more than this much weight outside the calibrated area has no usable mask.
_NEGLIGIBLE = 0.1


def shift_masks(phi: torch.Tensor, displacement: Displacement) -> torch.Tensor:
    """Return the masks displaced on the sensor, (B, H, W) → the same, a new tensor, in 0–1.

    Beyond the border of the calibrated area, masks are continued with their outermost pixels.
    """
    reach_x, reach_y = (abs(base) + TAPS_RADIUS for base in displacement.base_px)
    padded = torch.nn.functional.pad(phi.unsqueeze(0), (reach_x, reach_x, reach_y, reach_y), mode="replicate")[0]
    height, width = phi.shape[-2:]
    across = _weighted(padded, displacement.x, reach_x - displacement.base_px[0], -1, width)
    return _weighted(across, displacement.y, reach_y - displacement.base_px[1], -2, height).clamp_(0.0, 1.0)


def invalid_pixels(displacement: Displacement, shape: tuple[int, int]) -> torch.Tensor:
    """Return the pixels whose masks lay outside the sensor when they were calibrated, (H, W) bool."""
    rows, columns = (
        _beyond(weights, base, length)
        for weights, base, length in zip(
            (displacement.y, displacement.x), reversed(displacement.base_px), shape, strict=True
        )
    )
    return rows.unsqueeze(1) | columns


def _beyond(weights: tuple[float, ...], base: int, length: int) -> torch.Tensor:
    """Return the positions along an axis with more than `_NEGLIGIBLE` of the weights outside, (length,) bool."""
    position = torch.arange(length)
    outside = torch.zeros(length)
    for i, weight in enumerate(weights, -TAPS_RADIUS):
        source = position - base - i
        outside += abs(weight) * ((source < 0) | (source >= length))
    return outside > _NEGLIGIBLE


def _weighted(image: torch.Tensor, weights: tuple[float, ...], start: int, dim: int, length: int) -> torch.Tensor:
    """Sum slices of ``length`` along an axis: weight i applies to the slice that begins i before ``start``."""
    terms = [
        (weight, image.narrow(dim, start - i, length))
        for i, weight in enumerate(weights, -TAPS_RADIUS)
        if weight != 0.0
    ]
    total = torch.zeros_like(terms[0][1])
    for weight, part in terms:
        total.add_(part, alpha=weight)
    return total
