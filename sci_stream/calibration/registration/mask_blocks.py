"""Masks in small blocks of the sensor, with a halo in which they can be displaced."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sci_stream.calibration.registration.scene_fit import TINY, Pixels
from sci_stream.model import F32, Array, Flags
from sci_stream.optics import bayer
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.displacement import TAPS_RADIUS, Displacement
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.optics.mask_shift import mask_changes, mask_gains, reshaped_masks, weighted_slices

# 64 measurements for six unknowns: smaller blocks leave too few degrees of freedom, in larger ones
# scenes are not planes.
BLOCK_PX = 8
SEARCH_PX = 3
"""Pixels in each direction by which the masks are displaced in a search."""

# A fit costs 0.04 s on one CPU core at any sensor size, a search 0.11 s
# (lab/research/shift-tracking.md); both grow with the number of blocks, the error falls with its
# square root.
_BLOCKS = 512
_HALO_PX = SEARCH_PX + TAPS_RADIUS + 1
# Pixels that derivatives of masks reach to either side; beyond the halo, masks are continued.
_SLOPE_PX = 2
# Texture of the sum of all masks, of that of independent ones: 1 of random ones, below 0.1 of those
# by `masks make --kind balanced`. A snapshot of an even sum shows nothing of the masks where the
# scene is at rest.
_EVEN = 0.25
_TILE_PX = 16
TAPS = tuple(i for i in range(-TAPS_RADIUS, TAPS_RADIUS + 1) if i)
"""Displacements of the weights that a fit finds, in pixels."""


class MaskBlocks:
    """The masks of one calibration in about `_BLOCKS` blocks, spread evenly over the sensor.

    Tensors of N blocks are in the order of the planes of a mosaic, then of the places.
    """

    def __init__(self, calibration: Calibration, device: torch.device) -> None:
        self.device = device
        self._size = _block_px(calibration)
        self.planes = 1 if calibration.bayer is None else 4
        top, left = _places(calibration.shape, self._size, _BLOCKS // self.planes)
        self._rows = top[:, None, None] + np.arange(self._size)[None, :, None]
        self._columns = left[:, None, None] + np.arange(self._size)[None, None, :]
        side = np.arange(self._size + 2 * _HALO_PX) - _HALO_PX
        wide = calibration.phi[
            :, top[:, None, None] + side[None, :, None], left[:, None, None] + side[None, None, :]
        ]
        self._even = torch.from_numpy(np.ascontiguousarray(wide.swapaxes(0, 1))).to(device)
        self._calibrated = self._even
        self._phi = self._even
        self._black = 0.0
        self._good = calibration.good

    def __len__(self) -> int:
        return self.planes * len(self._rows)

    @property
    def repetition(self) -> float:
        """Correlation of the masks with those of another place."""
        return _correlation(self._calibrated, _elsewhere(self._calibrated))

    def halves(self) -> list[tuple[MaskBlocks, MaskBlocks]]:
        """Return the blocks of each half of the picture, left, right, upper and lower, with those
        of the other one.
        """
        pairs = []
        for place in (self._columns[:, 0, 0], self._rows[:, 0, 0]):
            first = self._part(place < np.median(place))
            second = self._part(place >= np.median(place))
            pairs += [(first, second), (second, first)]
        return pairs

    def _part(self, blocks: Flags) -> MaskBlocks:
        part = copy.copy(self)
        part._rows = self._rows[blocks]
        part._columns = self._columns[blocks]
        part._calibrated = self._calibrated[torch.from_numpy(blocks)]
        part._phi = self._phi[torch.from_numpy(blocks)]
        return part

    def light(self, gains: Sequence[float]) -> None:
        """Take the masks under this light, empty if it is even; call `correct` next."""
        light = self._even.new_tensor(gains or (1.0,)).view(-1, 1, 1)
        self._calibrated = self._even * light

    def unlit(self) -> MaskBlocks:
        """Return the same blocks under even light; call `correct` next."""
        blocks = copy.copy(self)
        blocks.light(())
        return blocks

    def correct(self, correction: MaskCorrection) -> None:
        """Take the masks with these errors of each, and this black level, from now on."""
        masks = reshaped_masks(self._calibrated, correction)
        self._phi = masks.mul_(mask_gains(masks, correction))
        self._black = correction.black

    def corrected(self, correction: MaskCorrection) -> MaskBlocks:
        """Return the same blocks with this correction."""
        blocks = copy.copy(self)
        blocks.correct(correction)
        return blocks

    def thinned(self, pixels: Pixels, most: int) -> tuple[MaskBlocks, Pixels]:
        """Return about this number of the blocks, evenly, and their pixels."""
        some = slice(None, None, max(1, len(self._phi) // (most // self.planes)))
        blocks = copy.copy(self)
        blocks._phi = self._phi[some]
        return blocks, Pixels(
            *(part.view(self.planes, -1, part.shape[-1])[:, some].flatten(0, 1) for part in pixels)
        )

    def take(self, y: F32, valid: Flags) -> Pixels:
        """Return the pixels of the blocks, less the black level."""
        known = torch.from_numpy((valid & self._good)[self._rows, self._columns]).to(
            self.device, torch.float32
        )
        blocks = torch.from_numpy(y[self._rows, self._columns] - np.float32(self._black)).to(
            self.device
        )
        return Pixels(self._flat(blocks * known), self._flat(known))

    def displaced(self, at: Displacement) -> Tensor:
        """Return the displaced masks of the blocks, (N, B, p)."""
        return self._displaced(self._phi, at)

    def displaced_elsewhere(self, at: Displacement) -> Tensor:
        """Return for each block the displaced masks of a third of the sensor further on."""
        return self._displaced(_elsewhere(self._phi), at)

    def tap_changes(self, at: Displacement, video: Tensor) -> list[Tensor]:
        """Return the changes of y, (N, p), by the weights of a displacement, x, then y, behind a
        scene, (N, B, p).
        """
        columns = []
        for axis in (0, 1):
            part = self._filtered(self._phi, at, 1 - axis)
            dim = -1 - axis
            base = at.base_px[axis]
            shifted_y = [
                (self._flat(part.narrow(dim, _HALO_PX - base - i, self._size)) * video).sum(1)
                for i in (0, *TAPS)
            ]
            columns += [shifted - shifted_y[0] for shifted in shifted_y[1:]]
        return columns

    def error_changes(self, at: MaskCorrection, video: Tensor) -> list[Tensor]:
        """Return the changes of y, (N, B, p) each, by the errors of each mask."""
        # Displaced first, and with a narrow margin: derivatives of the whole blocks took a third of
        # a check.
        margin = min(_SLOPE_PX, _HALO_PX - TAPS_RADIUS - max(map(abs, at.displacement.base_px)))
        inner = slice(margin, -margin)
        across = self._filtered(self._calibrated, at.displacement, 0, margin)
        masks = self._filtered(across, at.displacement, 1, margin)
        return [self._flat(change[..., inner, inner]) * video for change in mask_changes(masks, at)]

    def _displaced(self, phi: Tensor, at: Displacement) -> Tensor:
        return self._flat(self._filtered(self._filtered(phi, at, 0), at, 1))

    def _flat(self, blocks: Tensor) -> Tensor:
        """Reorder (places, …, h, w) to (N, …, p), the planes of a mosaic first."""
        if self.planes == 4:
            blocks = bayer.split(blocks).flatten(0, 1)
        return blocks.flatten(-2)

    def _filtered(self, phi: Tensor, at: Displacement, axis: int, margin: int = 0) -> Tensor:
        """Displace extended blocks along one axis (0: x, 1: y), which consumes the halo except for
        a margin.
        """
        weights, base = (at.x, at.base_px[0]) if axis == 0 else (at.y, at.base_px[1])
        return weighted_slices(
            phi, weights, _HALO_PX - base - margin, -1 - axis, self._size + 2 * margin
        )


def show_displacements(calibration: Calibration) -> bool:
    """Return whether a displacement shows: the sensor is large enough, and the masks do not add up
    evenly.
    """
    if (
        min(calibration.shape) < _block_px(calibration) + 2 * _HALO_PX + 2
        or calibration.n_frames == 1
    ):
        return False
    separate = float(np.sqrt(sum(_texture(mask) ** 2 for mask in calibration.phi)))
    return _texture(calibration.phi.sum(axis=0)) > _EVEN * separate


def _elsewhere(phi: Tensor) -> Tensor:
    """Return the masks of a third of the sensor further on for each block."""
    return phi.roll(len(phi) // 3, 0)


def _correlation(a: Tensor, b: Tensor) -> float:
    """Return the mean correlation of images, (…, h, w) both."""
    a, b = (images - images.mean((-2, -1), keepdim=True) for images in (a, b))
    norms = a.square().sum((-2, -1)) * b.square().sum((-2, -1))
    return float(((a * b).sum((-2, -1)) / (norms.sqrt() + TINY)).mean())


def _texture(image: Array) -> float:
    """Return the standard deviation within tiles in the middle of an image: of (H, W), at most 512
    pixels a side.
    """
    height, width = (min(size, 512) // _TILE_PX * _TILE_PX for size in image.shape)
    top = (image.shape[0] - height) // 2
    left = (image.shape[1] - width) // 2
    tiles = image[top : top + height, left : left + width].reshape(
        -1, _TILE_PX, width // _TILE_PX, _TILE_PX
    )
    return float(tiles.std(axis=(1, 3)).mean())


def _block_px(calibration: Calibration) -> int:
    """Side of a block on the sensor: doubled for a mosaic,
    whose planes have half the resolution.
    """
    return BLOCK_PX if calibration.bayer is None else 2 * BLOCK_PX


def _places(
    shape: tuple[int, int], size: int, most: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Spread at most `most` blocks with halo evenly over the sensor; return the top left pixel of
    each, even.
    """
    free = [extent - size - 2 * _HALO_PX for extent in shape]
    step = max(1.0, math.sqrt((free[0] + size) * (free[1] + size) / most))
    axes = [
        np.linspace(0, length, max(1, math.floor((length + step) / max(step, size))))
        for length in free
    ]
    top, left = (((_HALO_PX + 1) // 2 * 2 + axis.astype(np.intp) // 2 * 2) for axis in axes)
    grid = np.meshgrid(top, left, indexing="ij")
    return grid[0].ravel(), grid[1].ravel()
