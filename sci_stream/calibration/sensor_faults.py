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

from sci_stream.calibration.dust import Dust
from sci_stream.calibration.evidence.defect import Defect
from sci_stream.calibration.evidence.mask_match import compare
from sci_stream.model import F32, F64, Array, BayerPhase, Flags, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.sensor_errors import NO_SENSOR_ERRORS, SensorErrors

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
# Weight of the latest estimate of an error that is corrected.
_NEWEST = 0.3
# An error that is corrected stays so until snapshots show less than this share of it. Scenes that
# show nothing say nothing.
_STAYS = 0.5
# They must exclude the error by so many standard errors.
_EXCLUDES = 3.0

# An offset of one half shows twice: its masks have less contrast, and the picture jumps where the
# halves meet. Figures: 56 rigs of 96 to 256 px, right ones and with 60 DN on one half, which are
# 0.06 to 0.2 of the mean of y.
# Looks that are compared. A scene that passes then has no edge where the halves meet.
_HALVES = 30
# So many blocks along each side have a contrast each; their differences give its error.
_CONTRASTS = 8
# Motion and texture change the contrast of a half by as much, whatever its blocks say.
_BIAS = 0.02
# The contrast alone must show the offset by so many standard errors, the jump by so many.
_LEAST_SIGN = (2.5, 1.0)
# Both together must show it by so many: right rigs by at most 2.9, with 60 DN 3.2 to 10.
_LEAST_OFFSET = 4.0
# They differ by at most so many errors: a scene may have an edge where the halves meet.
_AGREE = 3.0
# Jumps are differences of means over so many pixels of a colour.
_JUMP_PX = 2
# Jumps of a scene are alike but for the largest tenth, which are edges.
_JUMPS = 0.9

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
# scene, where lag of 10 % exceeds the estimate backwards by 5 to 11 %. The excess is corrected:
# behind four masks, right snapshots seem to have 4.5 % of lag, and an excess of 0 ± 1.2 %.
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
    lag: float
    """Lag that the video is without."""


class _Look(NamedTuple):
    """A snapshot at the pixels of the window."""

    picture: F32
    is_still: Flags
    rest: F32
    """Deviation of y from the value by the frames of the neighbours, relative to that value."""


class _Halves(NamedTuple):
    """A snapshot by halves of the window."""

    level: float
    """Mean of y, in units of white."""
    contrast: F64
    """(2, n, n): sums of blocks whose ratio is an offset that no mask codes, see `_uncoded`."""
    jumps: tuple[F64, F64]
    """Of the brightness, from each column and each row to the next one, as such an offset."""


class SensorFaults:
    """Compare snapshots of one calibration and their videos.

    ``paced``: look at pixels and halves in a twentieth of the time. Results then depend on the
    clock. ``correct``: estimate the errors that `errors` has, so that they are corrected.
    """

    def __init__(
        self, calibration: Calibration, *, paced: bool = True, correct: bool = False
    ) -> None:
        self._calibration = calibration
        self._correct = correct
        self._pauses = _PAUSES if paced else 0
        height, width = calibration.shape
        rows, columns = (_middle(size) for size in (height, width))
        self._window = (..., rows, columns)
        self._phi = calibration.phi[self._window]
        self._step = 1 if calibration.bayer is None else 2
        self._pictures = deque[_Picture](maxlen=3)
        self._lags = deque[tuple[float, float]](maxlen=_LOOKS)
        self._looks = deque[_Look](maxlen=_LOOKS)
        self._halves = deque[_Halves](maxlen=_HALVES)
        # (3, rows, columns) of blocks: sums over pairs of snapshots of products, squares, pixels.
        self._pairs = deque[F64](maxlen=_LOOKS)
        self._dust = Dust(calibration, correct=correct)
        self._look_at_s = -math.inf
        self._names: list[str] = []
        """Names of the faults that the last snapshot showed."""
        self._held = 0
        """Snapshots in a row that showed these."""
        self._estimates: dict[str, float] = {}
        """Errors that the faults of the last snapshot have, by field of `SensorErrors`."""
        self.defects: list[Defect] = []
        """The faults that the snapshots show; empty if the sensor is as calibrated."""
        self.errors = NO_SENSOR_ERRORS
        """The errors to correct: those of the faults."""

    def forget(self) -> None:
        """Forget all snapshots."""
        for known in (self._pictures, self._lags, self._halves):
            known.clear()
        self._forget_pixels()
        self._dust.forget()
        self.defects = []
        self.errors = NO_SENSOR_ERRORS

    def _forget_pixels(self) -> None:
        for known in (self._looks, self._pairs):
            known.clear()

    def add(
        self,
        id_: SnapshotId,
        counts: Array,
        video: Array,
        corrected: SensorErrors = NO_SENSOR_ERRORS,
        solved: Array | None = None,
    ) -> bool:
        """Add each snapshot, (H, W) DN, and its video, (B, H, W); return whether the faults are
        others now.

        ``corrected`` are the errors that the solve took out of the counts, and ``solved`` the
        counts without them; None for no errors.
        """
        self._see(id_, video, corrected.lag)
        began_s = time.monotonic()
        if began_s >= self._look_at_s:
            self._look(counts, counts if solved is None else solved, video, corrected)
            ended_s = time.monotonic()
            self._look_at_s = ended_s + self._pauses * (ended_s - began_s)
        self._estimates = {}
        shown = self._taps()
        if not shown or self.errors.left or self.errors.upper:
            # An offset of one half that is not corrected shows as gains of its pixels, too.
            shown += [*self._lag(), *self._gains(), *self._dust.defects]
        names = [defect.name for defect in shown]
        self._held = self._held + 1 if names == self._names else 1
        self._names = names
        was_known = names == [defect.name for defect in self.defects]
        if self._held < _HOLDS:
            return False
        self.defects = shown
        self._renew()
        return not was_known

    def _renew(self) -> None:
        """Renew the errors to correct, slowly where they are known."""
        if not self._correct:
            return
        known = self.errors._asdict()
        before = known.pop("specks")
        renewed = {}
        for name, latest in self._estimates.items():
            change = _NEWEST * (latest - known[name]) if known[name] else latest
            renewed[name] = known[name] + change
        others = [bool(renewed.get(name)) != bool(value) for name, value in known.items()]
        if any(others):
            self._forget_pixels()
            self._dust.forget()
        elif len(before) != len(self._dust.specks):
            self._forget_pixels()
        self.errors = SensorErrors(**renewed, specks=self._dust.specks)

    def _see(self, id_: SnapshotId, video: Array, corrected_lag: float) -> None:
        """Compare consecutive snapshots, which show lag."""
        cells = _cells(np.asarray(video[self._window], np.float32))
        self._pictures.append(_Picture(id_, cells.mean(0), np.ptp(cells, 0), corrected_lag))
        if len(self._pictures) < 3:
            return
        first, second, third = self._pictures
        if not first.id.seq + 2 == second.id.seq + 1 == third.id.seq:
            return
        if bool(first.lag) != bool(third.lag) or bool(second.lag) != bool(third.lag):
            return
        lag = _fading(first, second, third) + corrected_lag
        backwards = max(0.0, np.nan_to_num(_fading(third, second, first)))
        self._lags.append((lag, lag - backwards))

    def _look(self, counts: Array, solved: Array, video: Array, corrected: SensorErrors) -> None:
        """Compare pixels and halves of the sensor."""
        self._look_at_halves(self._calibration.measurement(counts)[self._window])
        whole = self._calibration.measurement(solved)
        self._dust.add(whole * corrected.transmission(whole.shape))
        y = whole[self._window]
        frames = np.asarray(video[self._window], np.float32)
        expected = np.einsum("bhw,bhw->hw", self._phi, ring_mean(frames, self._step))
        rest = (y - expected) / np.maximum(expected, _DARK)
        # Light that no mask codes is smooth, gains of pixels are not.
        rest = rest - ring_mean(rest[np.newaxis].astype(np.float32), self._step)[0]
        is_still = _eroded(np.ptp(frames, 0) < _STILL_PIXEL)
        now = _Look(frames.mean(0), is_still, rest)
        if self._looks:
            self._pairs.append(np.sum([_common(now, other) for other in self._looks], 0))
        self._looks.append(now)

    def _look_at_halves(self, y: F32) -> None:
        contrast = _uncoded(y, self._phi, self._calibration.bayer)
        light = self._phi.sum(0)
        open_to_light = np.maximum(light, _DARK * light.max())
        lit = y / open_to_light / float((1 / open_to_light).mean())
        jumps = (_jumps(lit.mean(0), self._step), _jumps(lit.mean(1), self._step))
        self._halves.append(_Halves(float(y.mean()), contrast, jumps))

    def _taps(self) -> list[Defect]:
        if len(self._halves) < _FEWEST:
            return []
        sums = np.sum([look.contrast for look in self._halves], 0)
        level = float(np.mean([look.level for look in self._halves]))
        sides = (("left", "right"), ("upper", "lower"))
        for axis, names in enumerate(sides):
            known = (self.errors.left, self.errors.upper)[axis]
            offset, error = _difference(sums if axis == 0 else sums.swapaxes(1, 2))
            error = math.hypot(error, _BIAS * level)
            jump, jump_error = _middle_jump(np.mean([look.jumps[axis] for look in self._halves], 0))
            signs = np.array([offset / error, jump / jump_error]) * np.sign(offset)
            agrees = abs(jump - offset) < _AGREE * math.hypot(error, jump_error)
            weights = np.array([1 / error**2, 1 / jump_error**2])
            offset = float(weights @ (offset, jump) / weights.sum())
            missing = abs(known) - offset * math.copysign(1.0, known)
            excess = missing * math.sqrt(weights.sum())
            is_over = agrees and missing > _STAYS * abs(known) and excess > _EXCLUDES
            if not agrees or (signs < _LEAST_SIGN).any() or np.hypot(*signs) < _LEAST_OFFSET:
                if not known or is_over:
                    continue
                offset = known
            self._estimates[("left", "upper")[axis]] = offset
            offset_dn = abs(offset) * self._calibration.full_scale_dn
            text = (
                f"the {names[int(offset < 0)]} half of the picture is {offset_dn:.0f} DN brighter "
                "than its masks let light through: two taps of the sensor with different black "
                f"levels, or light on one half; {self._done('subtracted')}take dark frames again"
            )
            return [self._defect("two_taps", text)]
        return []

    def _lag(self) -> list[Defect]:
        known = self.errors.lag
        lags = np.array([pair for pair in self._lags if np.isfinite(pair[0])])
        lag = known
        if len(lags) >= _FEWEST:
            with_motion, lag = (float(value) for value in np.median(lags, 0))
            least = min(lag, float(np.quantile(lags[:, 0], 0.25)))
            if not _LEAST_LAG < with_motion < _MAX_LAG or least < _LEAST_LAG / 2:
                lag = known if lag > _STAYS * known else 0.0
        if not lag:
            return []
        self._estimates["lag"] = lag
        text = (
            f"each snapshot still shows {lag:.0%} of the one before: image lag of the sensor, or "
            f"an exposure that is not cleared; {self._done('subtracted')}let the camera reset the "
            "sensor before each exposure"
        )
        return [self._defect("image_lag", text)]

    def _done(self, how: str) -> str:
        return f"{how}; " if self._correct else ""

    def _defect(self, name: str, text: str) -> Defect:
        return Defect(name, text, corrected=self._correct)

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


def _uncoded(y: F32, phi: F32, bayer: BayerPhase | None) -> F64:
    """Return for each block, (2, n, n), sums whose ratio is the light that no mask codes.

    Such light lowers the contrast of the masks, the more the darker the place is.
    """
    r, t, level, usable = compare(y, phi, bayer)
    weight = np.where(usable, 1 / np.maximum(level, _DARK * level.mean()) ** 2, 0.0)
    sums = np.stack([weight * t * level * (t - r), weight * t * t])
    for axis in (1, 2):
        edges = np.linspace(0, sums.shape[axis], _CONTRASTS, endpoint=False).astype(int)
        sums = np.add.reduceat(sums, edges, axis)
    return sums


def _difference(sums: F64) -> tuple[float, float]:
    """Return by how much the left half is brighter, by `_uncoded`, and the standard error."""
    offsets = []
    variance = 0.0
    for half in np.split(sums, 2, axis=2):
        uncoded, light = half
        total = max(float(light.sum()), _TINY)
        offset = float(uncoded.sum()) / total
        variance += float(np.square(uncoded - offset * light).sum()) / total**2
        offsets.append(offset)
    return offsets[0] - offsets[1], math.sqrt(variance)


def _jumps(profile: F64, step: int) -> F64:
    """Return by how much a profile falls at each place."""
    width = _JUMP_PX * step
    means = np.convolve(profile, np.full(width, 1 / width), "valid")
    return np.asarray(means[:-width] - means[width:])


def _middle_jump(jumps: F64) -> tuple[float, float]:
    """Return the middle one of jumps, and the standard error by the others."""
    usual = float(np.quantile(np.abs(jumps), _JUMPS)) / 1.645
    return float(jumps[len(jumps) // 2]), usual + _TINY
