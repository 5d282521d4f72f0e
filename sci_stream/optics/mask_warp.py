"""Turn, magnify and shear masks, by cubic splines."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor

from sci_stream.optics.displacement import Linear

# Masks are continued by mirrors so far beyond their border: the spline forgets a pixel by a factor
# of 3.7 with each.
_MARGIN = 16


def source_of(shape: tuple[int, int], linear: Linear) -> tuple[Tensor, Tensor]:
    """Return row and column of the calibrated masks that each pixel shows, (H, W) both."""
    x_right, x_down, y_right, y_down = linear
    rows, columns = (torch.arange(size, dtype=torch.float64) for size in shape)
    down = (rows - (shape[0] - 1) / 2).unsqueeze(1)
    right = columns - (shape[1] - 1) / 2
    row = rows.unsqueeze(1) - (y_right * right + y_down * down)
    column = columns - (x_right * right + x_down * down)
    return row, column


def warped_masks(phi: Tensor, linear: Linear) -> Tensor:
    """Return masks, (…, H, W), after rotation, magnification and shear; see `Displacement`."""
    height, width = phi.shape[-2:]
    margin = min(_MARGIN, height - 1, width - 1)
    padded = F.pad(phi.reshape(1, -1, height, width), (margin,) * 4, mode="reflect")[0]
    # The values of all masks at a place lie together, which makes the sums three times as fast.
    spline = _coefficients(_coefficients(padded, -1), -2).flatten(1).T.contiguous()
    stride = width + 2 * margin
    places = [place.to(phi.device) + margin for place in source_of((height, width), linear)]
    sizes = (height + 2 * margin, stride)
    first = [
        place.floor().clamp(1, size - 3).long() for place, size in zip(places, sizes, strict=True)
    ]
    weights = [
        _weights((place - start).clamp(0, 1).to(phi.dtype))
        for place, start in zip(places, first, strict=True)
    ]
    corner = ((first[0] - 1) * stride + first[1] - 1).flatten()
    total = torch.zeros(height * width, spline.shape[1], dtype=phi.dtype, device=phi.device)
    for i, of_row in enumerate(weights[0]):
        for j, of_column in enumerate(weights[1]):
            taken = spline.index_select(0, corner + i * stride + j)
            total.addcmul_(taken, (of_row * of_column).view(-1, 1))
    return total.T.reshape(phi.shape)


def _coefficients(images: Tensor, dim: int) -> Tensor:
    """Return the coefficients of the cubic spline through images along an axis."""
    size = images.shape[dim]
    angle = 2 * torch.pi * torch.arange(size // 2 + 1, device=images.device) / size
    response = ((2 + angle.cos()) / 3).view(*(-1 if axis == dim % 3 else 1 for axis in range(3)))
    coefficients: Tensor = torch.fft.irfft(torch.fft.rfft(images, dim=dim) / response, size, dim)
    return coefficients


def _weights(share: Tensor) -> list[Tensor]:
    """Return the weights of the four coefficients around a place, by its distance to the second."""
    other = 1 - share
    near = share.square() * (share / 2 - 1)
    far = other.square() * (other / 2 - 1)
    return [other**3 / 6, 2 / 3 + near, 2 / 3 + far, share**3 / 6]
