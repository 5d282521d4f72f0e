"""Find hot, warm and dead pixels by what they differ from their neighbours in many snapshots.

One snapshot shows pixels that no scene can make so bright. A warm pixel is only a little brighter
than its neighbours, but in each snapshot. Texture differs from its surroundings, too, and moves on.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from torch.nn import functional

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.calibration.evidence.uncoded_light import ring_mean
from sci_stream.model import F32, Array, Flags
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import NO_CORRECTION, MaskCorrection
from sci_stream.optics.mask_shift import corrected_masks

# Snapshots that are compared.
_SNAPSHOTS = 7
# Fewer snapshots show no defects.
_FEWEST = 4
# The median difference of a defect from its neighbours has three bounds. Of 16,384 right pixels, at
# most one passes them in six of seven scenes and 20 in one; of 167 warm ones, 117 to 157 do. It
# exceeds this share of the mean brightness.
_LEAST_SHARE = 0.06
# It exceeds the differences of most pixels around by this factor.
_STANDS_OUT = 6.0
# It exceeds its spread from snapshot to snapshot by this factor.
_STEADY = 3.0
# A smaller share of the pixels is texture that stays, 0.0025 in drops behind a mosaic.
_FEW = 0.004
# A larger share is another fault.
_MAX_SHARE = 0.03
_AROUND_PX = 7
# A dead pixel has at most this share of the light that its neighbours promise, in each snapshot,
# where they promise more than this share of the mean brightness.
_DEAD = 0.1
_PROMISED = 0.3
# Up to 0.0009 of the pixels of right rigs are single and so dark in four snapshots, beside things
# with edges; 0.0021 and more where 0.3 % are dead. Among neighbours, right rigs have up to 0.0023.
# Saturated ones that differ from their neighbours are as rare.
_FEW_AT_ENDS = 0.0015
# Defects are spread: they are counted in squares of this side.
_SQUARE_PX = 15
# Letters on a bursting balloon looked like defects, and filled a sixth of such a square; 1 % of
# defects exceed this share in one square of a thousand.
_MAX_OF_SQUARE = 0.04
# Masks that change by this share of their light are others, which need looks of their own. A shift
# by 0.1 px changes masks by 0.056, gains of 10 % by 0.032.
_OTHER_MASKS = 0.05
_MAD = 1.4826
_TINY = 1e-6


class PixelDefects:
    """Differences of pixels from those that the frames of their neighbours would make."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._step = 1 if calibration.bayer is None else 2
        self._rests = deque[F32](maxlen=_SNAPSHOTS)
        self._dark = deque[Flags](maxlen=_SNAPSHOTS)
        self._saturated = deque[Flags](maxlen=_SNAPSHOTS)
        self._correction = NO_CORRECTION
        self._phi = calibration.phi
        self._phi_of_looks = calibration.phi

    def forget(self) -> None:
        """Forget all snapshots."""
        self._rests.clear()
        self._dark.clear()
        self._saturated.clear()

    def add(
        self, counts: Array, video: Array, correction: MaskCorrection = NO_CORRECTION
    ) -> Flags | None:
        """Add a snapshot and its video, (B, H, W), behind masks with this correction; return the
        defect pixels, None if not known.
        """
        if min(counts.shape) <= 2 * self._step * _AROUND_PX:
            return None
        self._correct(correction.of_masks.lit(()))
        y = self._calibration.measurement(counts) - np.float32(correction.black)
        frames = ring_mean(np.asarray(video, np.float32), self._step)
        if correction.light:
            frames *= np.array(correction.light, np.float32).reshape(-1, 1, 1)
        promised = np.einsum("bhw,bhw->hw", self._phi, frames)
        mean = max(float(y.mean()), _TINY)
        self._rests.append((y - promised) / mean)
        self._dark.append((y < _DEAD * promised) & (promised > _PROMISED * mean))
        self._saturated.append(counts >= (self._calibration.saturation_dn or np.inf))
        if len(self._rests) < _FEWEST:
            return None
        rests = np.stack(self._rests)
        rest = np.median(rests, 0)
        spread = _MAD * np.median(np.abs(rests - rest), 0)
        size = np.abs(rest).astype(np.float32)
        around = torch.from_numpy(size)[None, None]
        largest = functional.max_pool2d(around, 3, 1, 1)[0, 0].numpy()
        defects = (size >= largest) & (size > _LEAST_SHARE) & (size > _STEADY * spread)
        defects &= size > _STANDS_OUT * _usual_around(size)
        defects = self._spread(defects)
        hot = defects & np.all(self._saturated, axis=0)
        dead = self._spread(np.all(self._dark, axis=0))
        known = np.zeros_like(dead)
        for pixels, few in ((defects, _FEW), (hot, _FEW_AT_ENDS), (dead, _FEW_AT_ENDS)):
            if few < self._single(pixels).mean() and pixels.mean() < _MAX_SHARE:
                known |= pixels
        return known if known.any() else None

    def _single(self, pixels: Flags) -> Flags:
        """Return those of the pixels that have no neighbour of their colour among them."""
        alike = pixels[np.newaxis].astype(np.float32)
        return np.asarray(pixels & (ring_mean(alike, self._step)[0] == 0))

    def _spread(self, defects: Flags) -> Flags:
        """Return those of the defects that are not beside many others."""
        alike = torch.from_numpy(defects.astype(np.float32))[None]
        share = functional.avg_pool2d(alike, _SQUARE_PX, 1, _SQUARE_PX // 2)[0].numpy()
        return np.asarray(defects & (share <= _MAX_OF_SQUARE) & self._calibration.good)

    def _correct(self, correction: MaskCorrection) -> None:
        """Take the masks with this correction, and forget the looks behind others."""
        if correction == self._correction:
            return
        self._correction = correction
        self._phi = corrected_masks(
            torch.from_numpy(self._calibration.phi.copy()), correction
        ).numpy()
        change = np.abs(self._phi - self._phi_of_looks).mean()
        if change > _OTHER_MASKS * self._phi.mean():
            self.forget()
            self._phi_of_looks = self._phi


def defects_of(pixels: Flags | None) -> list[Defect]:
    """Return that so many pixels, (H, W), are left out; none for None."""
    if pixels is None:
        return []
    text = (
        f"{int(pixels.sum())} pixels are brighter or darker than their neighbours in each "
        "snapshot: left out; calibrate again at the temperature of the run"
    )
    return [Defect("warm_pixels", text, corrected=True)]


def _usual_around(image: F32) -> F32:
    """Return the larger of the medians of the pixels along the row and the column of each."""
    reach = _AROUND_PX // 2
    parts = []
    for axis in (0, 1):
        shifted = [np.roll(image, offset, axis) for offset in range(-reach, reach + 1) if offset]
        parts.append(np.median(shifted, 0))
    return np.asarray(np.maximum(*parts), np.float32)
