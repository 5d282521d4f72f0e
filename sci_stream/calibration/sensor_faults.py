"""Find what has changed on the sensor since its calibration: two taps, lag, gains of pixels.

None of these shows in one snapshot, since some scene would look the same. Over several, the scene
moves on and the sensor does not.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.calibration.evidence.mask_match import local_contrast
from sci_stream.model import F32, F64, Array, Flags, SnapshotId
from sci_stream.optics.calibration import Calibration

# Figures and thresholds: six simulated scenes of 128 px, eight right or faulty snapshots each.
# The middle of the sensor suffices, and costs little.
_MAX_PX = 384
_LOOKS = 7
# Fewer looks show no fault.
_FEWEST = 6
# Snapshots in a row that must show a fault: chance shows one for a moment.
_HOLDS = 2
# A look is followed by so many times its duration without one: it takes 5 % of the time at most.
_PAUSES = 20
_TINY = 1e-6

# Strips along each side, of which a tap has two.
_STRIPS = 4
# The strips of a tap with an offset have lost more contrast of the masks: 0.045 to 0.08 with an
# offset of 60 DN; right ones up to 0.04 behind one scene of 40.
_LEAST_DROP = 0.042
# The contrasts of the other two strips differ less, relative to the drop.
_AGREE = 0.5
# The smaller offset of a tap's strips is at least this share of the larger one.
_LIKENESS = 0.4
# The offset varies less from look to look, relative to itself.
_STEADY = 0.3
# The picture jumps where the halves meet, by so many usual jumps between columns or rows: 60 DN
# jump by 1.5 to 8 (four scenes, grey and mosaic).
_LEAST_JUMP = 1.0
# Jumps are differences of means over so many pixels of a colour.
_JUMP_PX = 2

# Image lag is measured in cells of one colour cell, where the scene changes once, from a first
# snapshot to a second one, and then rests.
_CELL_PX = 2
# The change is larger, in units of white.
_LEAST_CHANGE = 0.1
# From the second snapshot to the third, the scene changes by a smaller share of that change.
_STILL = 0.4
# Within the second snapshot, it varies by a smaller share.
_STILL_BEFORE = 0.25
# Within the third one, by an even smaller share.
_STILL_AFTER = 0.12
# Share of the cells that must show it: where the snapshot decides little, a warm start keeps up to
# a quarter of the video before, in 0.3 % of the cells of a slow scene.
_LEAST_CELLS = 0.0075
# Motion that a solve smooths looks like lag, and the same backwards in time: 15 % both ways in one
# scene, where lag of 10 % exceeds the estimate backwards by 5 to 11 %.
# Lag of 10 % was estimated as 8.6 to 10.4 %, no lag as 2 % at most, behind four masks as 4.7 %.
_LEAST_LAG = 0.06
# A larger estimate has another cause.
_MAX_LAG = 0.5

# Gains of pixels are measured where a pixel rests within each of two snapshots, and is brighter in
# one of them. There, the differences from its neighbours have two things in common: the gains of
# the pixels, and the texture of a surface in another light. Such a surface does not fill the
# picture, so the gains are measured in blocks.
# The frames of a pixel that rests differ by less, in units of white.
_STILL_PIXEL = 0.04
# The two snapshots differ by this share of the brighter one.
_CHANGED = 0.2
# Darker pixels do not count, in units of white.
_DARK = 0.05
# Nor do pixels that differ more from their neighbours, relative to these: edges.
_OUTLIER = 0.5
# Side of a block.
_BLOCK_PX = 16
# A block counts from so many pixels on, over all pairs of snapshots.
_BLOCK_PIXELS = 64
# It takes so many blocks.
_FEWEST_BLOCKS = 10
# Gains of 5 % were measured as 3 to 5 % in the median block. Right gains were measured as 1.5 % at
# most, but as 8 % in one scene.
_LEAST_GAINS = 0.028
# In that scene, they explained a fifth of the squared differences from the neighbours.
_LEAST_SHARE = 0.25
# Larger differences than these are texture.
_MAX_DIFFERENCES = 0.1
# Gains are alike all over the sensor: the quarter of the blocks had 0.77 to 0.96 of the middle one,
# and 0.1 in a splash of 96 px with right gains.
_ALIKE = 0.5


class _Picture(NamedTuple):
    """The mean of the frames of a snapshot in cells, and by how much each cell varies."""

    id: SnapshotId
    mean: F32
    varies: F32


class _Look(NamedTuple):
    """A snapshot at the pixels of the window."""

    picture: F32
    is_still: Flags
    rest: F32
    """Deviation of y from the value by the frames of the neighbours, relative to that value."""
    contrast: F64
    """(2, strips): of columns and of rows."""
    level: F64
    """As ``contrast``: mean of y, in units of white."""
    jumps: tuple[float, float]
    """From the left to the right half, and from the upper to the lower one, in usual jumps."""


class SensorFaults:
    """Compare snapshots of one calibration and their videos.

    ``paced``: look at pixels and halves in a twentieth of the time. Results then depend on the
    clock.
    """

    def __init__(self, calibration: Calibration, *, paced: bool = True) -> None:
        self._calibration = calibration
        self._pauses = _PAUSES if paced else 0
        height, width = calibration.shape
        rows, columns = (_middle(size) for size in (height, width))
        self._window = (..., rows, columns)
        self._phi = calibration.phi[self._window]
        self._step = 1 if calibration.bayer is None else 2
        self._pictures = deque[_Picture](maxlen=3)
        self._lags = deque[tuple[float, float]](maxlen=_LOOKS)
        self._looks = deque[_Look](maxlen=_LOOKS)
        # (3, rows, columns) of blocks: sums over pairs of snapshots of products, squares, pixels.
        self._pairs = deque[F64](maxlen=_LOOKS)
        self._look_at_s = -math.inf
        self._names: list[str] = []
        """Names of the faults that the last snapshot showed."""
        self._held = 0
        """Snapshots in a row that showed these."""
        self.defects: list[Defect] = []
        """The faults that the snapshots show; empty if the sensor is as calibrated."""

    def forget(self) -> None:
        """Forget all snapshots."""
        for known in (self._pictures, self._lags, self._looks, self._pairs):
            known.clear()
        self.defects = []

    def add(self, id_: SnapshotId, counts: Array, video: Array) -> bool:
        """Add each snapshot, (H, W) DN, and its video, (B, H, W); return whether the faults are
        others now.
        """
        self._see(id_, video)
        began_s = time.monotonic()
        if began_s >= self._look_at_s:
            self._look(counts, video)
            ended_s = time.monotonic()
            self._look_at_s = ended_s + self._pauses * (ended_s - began_s)
        # An offset of one half shows as gains of its pixels, too.
        shown = self._taps() or [*self._lag(), *self._gains()]
        names = [defect.name for defect in shown]
        self._held = self._held + 1 if names == self._names else 1
        self._names = names
        was_known = names == [defect.name for defect in self.defects]
        if self._held < _HOLDS:
            return False
        self.defects = shown
        return not was_known

    def _see(self, id_: SnapshotId, video: Array) -> None:
        """Compare consecutive snapshots, which show lag."""
        cells = _cells(np.asarray(video[self._window], np.float32))
        self._pictures.append(_Picture(id_, cells.mean(0), np.ptp(cells, 0)))
        if len(self._pictures) < 3:
            return
        first, second, third = self._pictures
        if not first.id.seq + 2 == second.id.seq + 1 == third.id.seq:
            return
        lag = _fading(first, second, third)
        backwards = max(0.0, np.nan_to_num(_fading(third, second, first)))
        self._lags.append((lag, lag - backwards))

    def _look(self, counts: Array, video: Array) -> None:
        """Compare pixels and halves of the sensor."""
        y = self._calibration.measurement(counts)[self._window]
        frames = np.asarray(video[self._window], np.float32)
        expected = np.einsum("bhw,bhw->hw", self._phi, ring_mean(frames, self._step))
        rest = (y - expected) / np.maximum(expected, _DARK)
        # Light that no mask codes is smooth, gains of pixels are not.
        rest = rest - ring_mean(rest[np.newaxis].astype(np.float32), self._step)[0]
        contrast, level = local_contrast(y, self._phi, self._calibration.bayer, _STRIPS)
        is_still = _eroded(np.ptp(frames, 0) < _STILL_PIXEL)
        light = self._phi.sum(0)
        lit = y / np.maximum(light, _DARK * light.max())
        jumps = (_jump(lit.mean(0), self._step), _jump(lit.mean(1), self._step))
        now = _Look(frames.mean(0), is_still, rest, contrast, level, jumps)
        if self._looks:
            self._pairs.append(np.sum([_common(now, other) for other in self._looks], 0))
        self._looks.append(now)

    def _taps(self) -> list[Defect]:
        if len(self._looks) < _FEWEST:
            return []
        contrast = np.stack([look.contrast for look in self._looks], 1)
        level = np.stack([look.level for look in self._looks], 1)
        sides = (("left", "right"), ("upper", "lower"))
        for along, names in enumerate(sides):
            for name, order in zip(names, (slice(None), slice(None, None, -1)), strict=True):
                offset = _offset(contrast[along][:, order], level[along][:, order])
                jump = float(np.median([look.jumps[along] for look in self._looks]))
                if not offset or jump * (1 if order.step else -1) < _LEAST_JUMP:
                    continue
                offset_dn = offset * self._calibration.full_scale_dn
                text = (
                    f"the {name} half of the picture is {offset_dn:.0f} DN brighter than its masks "
                    "let light through: two taps of the sensor with different black levels, or "
                    "light on one half; take dark frames again"
                )
                return [Defect("two_taps", text)]
        return []

    def _lag(self) -> list[Defect]:
        lags = np.array([pair for pair in self._lags if np.isfinite(pair[0])])
        if len(lags) < _FEWEST:
            return []
        lag, excess = np.median(lags, 0)
        least = min(excess, np.quantile(lags[:, 0], 0.25))
        if not _LEAST_LAG < lag < _MAX_LAG or least < _LEAST_LAG / 2:
            return []
        text = (
            f"each snapshot still shows {lag:.0%} of the one before: image lag of the sensor, or "
            "an exposure that is not cleared; let the camera reset the sensor before each exposure"
        )
        return [Defect("image_lag", text)]

    def _gains(self) -> list[Defect]:
        if len(self._pairs) < _FEWEST:
            return []
        common, squares, pixels = np.sum(self._pairs, 0)
        shows = pixels >= _BLOCK_PIXELS
        if shows.sum() < _FEWEST_BLOCKS:
            return []
        low, middle = np.quantile(common[shows] / pixels[shows], (0.25, 0.5))
        differences = np.quantile(squares[shows] / pixels[shows], 0.25)
        least = max(_LEAST_GAINS**2, _LEAST_SHARE * differences)
        if low < _ALIKE * middle or middle < least or differences > _MAX_DIFFERENCES**2:
            return []
        spread = float(np.sqrt(middle))
        text = (
            f"the gains of the pixels are off by {spread:.0%} since the calibration: the sensor "
            "has changed, or there is dirt on it; calibrate again"
        )
        return [Defect("pixel_gains", text)]


def _fading(before: _Picture, now: _Picture, after: _Picture) -> float:
    """Return which part of ``before`` is in ``now`` where ``after`` stands still; NaN if few cells
    show it.
    """
    change = before.mean - now.mean
    fading = now.mean - after.mean
    size = np.abs(change)
    shows = (
        (size > _LEAST_CHANGE)
        & (np.abs(fading) < _STILL * size)
        & (now.varies < _STILL_BEFORE * size)
        & (after.varies < _STILL_AFTER * size)
    )
    if shows.mean() < _LEAST_CELLS:
        return math.nan
    return float((change * fading)[shows].sum() / (size[shows] ** 2).sum())


def ring_mean(frames: F32, step: int) -> F32:
    """Return the mean of the eight neighbours of one colour, (B, H, W)."""
    kernel = torch.full((1, 1, 3, 3), 1 / 8)
    kernel[0, 0, 1, 1] = 0
    padded = functional.pad(torch.from_numpy(frames).unsqueeze(1), (step,) * 4, mode="reflect")
    return np.asarray(functional.conv2d(padded, kernel, dilation=step)[:, 0].numpy())


def _middle(size: int) -> slice:
    """Return the middle of a side, from an even pixel on."""
    length = min(size, _MAX_PX) // 2 * 2
    start = (size - length) // 4 * 2
    return slice(start, start + length)


def _cells(frames: F32) -> F32:
    """Return the means over cells of 2×2 pixels, (B, h, w)."""
    b, height, width = frames.shape
    cells = frames.reshape(b, height // _CELL_PX, _CELL_PX, width // _CELL_PX, _CELL_PX)
    return np.asarray(cells.mean((2, 4)), np.float32)


def _eroded(flags: Flags) -> Flags:
    """Return the pixels whose neighbours all have the flag; none at the edge."""
    inside = np.zeros_like(flags)
    inside[1:-1, 1:-1] = (
        flags[1:-1, 1:-1] & flags[:-2, 1:-1] & flags[2:, 1:-1] & flags[1:-1, :-2] & flags[1:-1, 2:]
    )
    return inside


def _common(a: _Look, b: _Look) -> F64:
    """Return the sums of products and of squares of two rests, and the number of pixels, of each
    block, where another part of the scene stands still.
    """
    brighter = np.maximum(a.picture, b.picture)
    chosen = a.is_still & b.is_still
    chosen &= np.abs(a.picture - b.picture) > _CHANGED * brighter
    chosen &= np.minimum(a.picture, b.picture) > _DARK
    chosen &= np.maximum(np.abs(a.rest), np.abs(b.rest)) < _OUTLIER
    first = chosen * a.rest
    second = chosen * b.rest
    parts = np.stack((first * second, (first**2 + second**2) / 2, chosen))
    rows, columns = (size // _BLOCK_PX for size in chosen.shape)
    whole = parts[:, : rows * _BLOCK_PX, : columns * _BLOCK_PX]
    return np.asarray(whole.reshape(3, rows, _BLOCK_PX, columns, -1).sum((2, 4)), np.float64)


def _jump(profile: F32, step: int) -> float:
    """Return by how much a profile jumps in its middle, in usual jumps."""
    width = _JUMP_PX * step
    means = np.convolve(profile, np.full(width, 1 / width), "valid")
    jumps = means[width:] - means[:-width]
    return float(jumps[len(jumps) // 2] / (np.median(np.abs(jumps)) + _TINY))


def _offset(contrast: F64, level: F64) -> float:
    """Return the offset of the first half of the strips, (looks, strips), in units of white; 0 if
    there is none.
    """
    clean = contrast[:, 2:]
    scale = clean.mean(1, keepdims=True)
    drops = scale - contrast[:, :2]
    drop = np.median(drops, 0)
    unlike = float(np.median(np.abs(np.diff(clean))))
    if drop.min() < _LEAST_DROP or unlike > _AGREE * drop.mean():
        return 0.0
    offsets = drops / scale * level[:, :2]
    of_strips = np.median(offsets, 0)
    of_looks = offsets.mean(1)
    offset = float(np.median(of_looks))
    if of_strips.min() < _LIKENESS * of_strips.max() or of_looks.std() > _STEADY * offset:
        return 0.0
    return offset
