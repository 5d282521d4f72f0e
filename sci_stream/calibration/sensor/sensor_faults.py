"""Find what has changed on the sensor since its calibration: two taps, lag, gains of pixels.

None of these shows in one snapshot, since some scene would look the same. Over several, the scene
moves on and the sensor does not.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import numpy as np

from sci_stream.calibration.diagnosis import MAX_BLUR_PX2
from sci_stream.calibration.evidence.defect import Defect
from sci_stream.calibration.evidence.uncoded_light import UncodedLight, ring_mean
from sci_stream.calibration.sensor.dust import Dust
from sci_stream.calibration.sensor.paced import Paced
from sci_stream.model import F32, F64, Array, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import NO_CORRECTION, MaskCorrection
from sci_stream.optics.sensor_errors import LIGHT, NO_SENSOR_ERRORS, SensorErrors

# Figures and thresholds: six simulated scenes of 128 px, eight right or faulty snapshots each.
# The middle of the sensor suffices, and costs little.
_MAX_PX = 384
# Looks for lag: behind masks that move, a scene that pans seems to have an excess of 0.12 in nine
# looks, and none in 12.
_LOOKS = 14
# Fewer looks show no lag.
_FEWEST = 12
# Snapshots in a row that must show a fault: chance shows one for a moment.
_HOLDS = 2
# A look is followed by so many times its duration without one: it takes 5 % of the time at most.
_PAUSES = 20
_TINY = 1e-6
# Weight of the latest estimate of lag that is corrected.
_NEWEST = 0.3
# A smaller change of light that no mask codes, as a share of it, is not worth another correction.
_OTHER_LIGHT = 0.05
# An error that is corrected stays so until snapshots show less than this share of it. Scenes that
# show nothing say nothing.
_STAYS = 0.5
# They must exclude the error by so many standard errors.
_EXCLUDES = 3.0

_OF_LIGHT = {"two_taps", "stray_light", "black_level"}
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
# Three quarters of the looks have a larger excess: two of 156 right rigs (slow texture, a fan) had
# 0.02 at times, 12 with lag of 10 % have 0.032 and more (drawn rigs 4000 to 4239).
_LEAST_EXCESS = 0.03
# A larger estimate has another cause.
_MAX_LAG = 0.5

# Gains of pixels are measured where the scene differs between two snapshots. There, the differences
# of y from its value by the frames of the neighbours have the gains in common, and little texture.
# A surface in another light has its texture in common, too. It does not fill the picture, so the
# gains are measured in blocks.
# So many looks are compared in pairs: all begin after a fault, soon after its onset.
_LOOKS_AT_PIXELS = 6
# The two snapshots differ by this share of the brighter one.
_CHANGED = 0.1
# Darker pixels do not count, in units of white.
_DARK = 0.05
# Larger differences are edges. With 0.15, texture of one scene exceeded small gains of another.
_EDGE = 0.1
# Side of a block. Smaller sensors show no fault.
_BLOCK_PX = 16
# A block counts from so many pixels on, over all pairs of snapshots.
_BLOCK_PIXELS = 200
# It takes so many blocks.
_FEWEST_BLOCKS = 12
# Three quarters of the blocks have more in common, as a standard deviation: right ones up to 0.0102
# in one of 130 drawn rigs.
_LEAST_COMMON = 0.0105
# They have a larger share of the squared differences in common. Both hold in 46 of 80 drawn rigs
# with gains of 5 %, and in none of 80 right ones (4000 to 4039, 4080 to 4119).
_LEAST_SHARE = 0.05
# Of that share, looks this far apart have as much as all, or more than this part of it (0.66 and
# more of gains). Texture that moves slowly has less and less in common: 0.4 in a slow scene.
_FAR = 4
_OF_FAR = 0.6


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
    """Light of the scene, in units of white, without detail."""
    level: float
    """Median of the picture."""
    rest: F32
    """Deviation of y from the value by the frames of the neighbours, relative to that value."""


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
        self._looks_paced = Paced(_PAUSES if paced else 0)
        # A look for dust takes less time, and it needs many.
        self._dust_paced = Paced(_PAUSES if paced else 0)
        height, width = calibration.shape
        rows, columns = (_middle(size) for size in (height, width))
        self._window = (..., rows, columns)
        self._phi = calibration.phi[self._window]
        self._step = 1 if calibration.bayer is None else 2
        self._possible = min(calibration.shape) >= _BLOCK_PX
        if self._possible:
            self._light = np.maximum(self._mean(self._phi.sum(0)), _TINY)
        self._pictures = deque[_Picture](maxlen=3)
        self._lags = deque[tuple[float, float]](maxlen=_LOOKS)
        self._looks = deque[_Look](maxlen=_LOOKS_AT_PIXELS)
        self._uncoded = UncodedLight(calibration)
        # Of each look with those before it, (looks, 3, rows, columns) of blocks: sums of products,
        # squares and pixels.
        self._pairs = deque[F64](maxlen=_LOOKS_AT_PIXELS)
        self._dust = Dust(calibration, correct=correct)
        self._names: list[str] = []
        """Names of the faults that the last snapshot showed."""
        self._lasting: list[Defect] = []
        """Faults but dust that snapshots in a row showed."""
        self._held = 0
        """Snapshots in a row that showed these."""
        self._estimates: dict[str, float] = {}
        """Errors that the faults of the last snapshot have, by field of `SensorErrors`."""
        self.defects: list[Defect] = []
        """The faults that the snapshots show; empty if the sensor is as calibrated."""
        self.errors = NO_SENSOR_ERRORS
        """The errors to correct: those of the faults."""

    @property
    def shows_light(self) -> bool:
        """Whether the snapshots show light that no mask codes."""
        return any(defect.name in _OF_LIGHT for defect in self.defects)

    def forget(self) -> None:
        """Forget all snapshots."""
        self._pictures.clear()
        self._lags.clear()
        self._uncoded.forget()
        self._forget_pixels()
        self._dust.begin_anew()
        self._lasting = []
        self.defects = []
        self.errors = NO_SENSOR_ERRORS

    def begin_anew(self) -> None:
        """Forget what many looks show: something has changed. Few looks show that by themselves."""
        self._dust.begin_anew()

    def _forget_pixels(self) -> None:
        for known in (self._looks, self._pairs):
            known.clear()

    def add(
        self,
        id_: SnapshotId,
        counts: Array,
        video: Array,
        corrected: SensorErrors = NO_SENSOR_ERRORS,
        *,
        solved: Array | None = None,
        masks: MaskCorrection = NO_CORRECTION,
    ) -> bool:
        """Add each snapshot, (H, W) DN, and its video, (B, H, W); return whether the faults are
        others now.

        ``corrected`` are the errors that the solve took out of the counts, and ``solved`` the
        counts without them; None for no errors. The video is behind ``masks`` of this correction.
        """
        if not self._possible:
            return False
        self._see(id_, video, corrected.lag)
        light = counts if solved is None else solved
        self._looks_paced(lambda: self._look(light, video, corrected, masks))
        self._dust_paced(lambda: self._look_for_dust(light, corrected))
        self._estimates = {}
        shown = self._uncoded_light()
        if not shown or self._correct:
            # Light and offsets that are not corrected show as gains of pixels, too.
            shown += [*(self._lines() or self._gains()), *self._lag()]
        names = [defect.name for defect in shown]
        self._held = self._held + 1 if names == self._names else 1
        self._names = names
        known = [defect.name for defect in self.defects]
        if self._held >= _HOLDS:
            self._lasting = shown
            self._renew()
        if len(self._dust.specks) != len(self.errors.specks):
            self._forget_pixels()
        self.errors = self.errors._replace(specks=self._dust.specks)
        # Dust has lasted before it is known.
        self.defects = [*self._lasting, *self._dust.defects]
        return known != [defect.name for defect in self.defects]

    def _renew(self) -> None:
        """Renew the errors to correct but dust, slowly where they are known."""
        if not self._correct:
            return
        known = self.errors._asdict()
        specks = known.pop("specks")
        renewed = dict(self._estimates)
        if known["lag"] and "lag" in renewed:
            renewed["lag"] = known["lag"] + _NEWEST * (renewed["lag"] - known["lag"])
        change = max(abs(renewed.get(name, 0.0) - known[name]) for name in LIGHT)
        if change > _OTHER_LIGHT * max(abs(known[name]) for name in LIGHT):
            # The next picture is brighter or darker without lag.
            self._pictures.clear()
            self._lags.clear()
        else:
            renewed |= {name: known[name] for name in LIGHT}
        others = [bool(renewed.get(name)) != bool(value) for name, value in known.items()]
        if any(others):
            self._forget_pixels()
            self._uncoded.forget()
            self._dust.begin_anew()
        self.errors = SensorErrors(**renewed, specks=specks)

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
        backwards = _fading(third, second, first)
        if not math.isnan(backwards):
            self._lags.append((lag, lag - max(0.0, backwards)))

    def _look(
        self, solved: Array, video: Array, corrected: SensorErrors, masks: MaskCorrection
    ) -> None:
        """Compare pixels and parts of the sensor."""
        if masks.displacement.blur_px2 > MAX_BLUR_PX2:
            # Such masks modulate less than their corrected ones, as behind light that none codes.
            self._uncoded.forget()
        else:
            self._uncoded.add(solved, video, masks, corrected)
        y = self._calibration.measurement(solved)[self._window]
        frames = np.asarray(video[self._window], np.float32)
        expected = np.einsum("bhw,bhw->hw", self._phi, ring_mean(frames, self._step))
        rest = (y - expected) / np.maximum(expected, _DARK)
        # Light that no mask codes is smooth, gains of pixels are not.
        rest = rest - ring_mean(rest[np.newaxis].astype(np.float32), self._step)[0]
        # Frames change at the start of a run, while they become better; y does not.
        picture = self._mean(np.nan_to_num(y)) / self._light
        level = max(float(np.median(picture)), _TINY)
        now = _Look(np.asarray(picture, np.float32), level, rest)
        self._pairs.append(np.array([_common(now, other) for other in self._looks]))
        self._looks.append(now)

    def _look_for_dust(self, solved: Array, corrected: SensorErrors) -> None:
        y = self._calibration.measurement(solved)
        self._dust.add(y * corrected.transmission(y.shape))

    def _mean(self, image: F32) -> F32:
        """Return the mean of each pixel and its eight neighbours of one colour."""
        ring = ring_mean(image[np.newaxis], self._step)[0]
        return np.asarray((image + 8 * ring) / 9, np.float32)

    def _uncoded_light(self) -> list[Defect]:
        fit = self._uncoded.fit(self.errors)
        if fit is None:
            return []
        self._estimates.update(fit.light)
        left = fit.light.get("left", 0.0)
        upper = fit.light.get("upper", 0.0)
        white_dn = self._calibration.full_scale_dn
        if left or upper:
            offset = max(left, upper, key=abs)
            sides = ("left", "right") if offset == left else ("upper", "lower")
            text = (
                f"the {sides[int(offset < 0)]} half of the picture is {abs(offset) * white_dn:.0f} "
                "DN brighter than its masks let light through: two taps of the sensor with "
                f"different black levels, or light on one half; {self._done('subtracted')}take "
                "dark frames again"
            )
            return [self._defect("two_taps", text)]
        if fit.brightest <= 0:
            text = (
                f"y is {-fit.darkest * white_dn:.0f} DN darker than its masks let light through: "
                f"another black level; {self._done('added')}take dark frames again"
            )
            return [self._defect("black_level", text)]
        span = f"{fit.darkest * white_dn:.0f} to {fit.brightest * white_dn:.0f} DN"
        text = (
            f"{span} of y are light of no mask: stray light, or another black level; "
            f"{self._done('subtracted')}shield the sensor, or take dark frames again"
        )
        return [self._defect("stray_light", text)]

    def _lines(self) -> list[Defect]:
        lines = self._uncoded.lines
        white_dn = self._calibration.full_scale_dn
        for axis, name in enumerate(("column", "row")):
            offset_dn = lines.spread(axis) * white_dn
            noise_dn = lines.noise(axis) * white_dn
            if offset_dn:
                text = (
                    f"each {name} of the sensor has an offset of its own, ± {offset_dn:.0f} DN, "
                    "which the dark frame does not have; take dark frames again"
                )
            elif noise_dn:
                text = (
                    f"each {name} of the sensor has an offset of ± {noise_dn:.0f} DN, another one "
                    "in each snapshot: noise of the readout; look at the camera's supply, cable "
                    "and temperature"
                )
            else:
                continue
            return [Defect(f"{name}_offsets", text)]
        return []

    def _lag(self) -> list[Defect]:
        lag = self._measured_lag()
        if not lag:
            return []
        self._estimates["lag"] = lag
        text = (
            f"each snapshot still shows {lag:.0%} of the one before: image lag of the sensor, or "
            f"an exposure that is not cleared; {self._done('subtracted')}let the camera reset the "
            "sensor before each exposure"
        )
        return [self._defect("image_lag", text)]

    def _measured_lag(self) -> float:
        """Return the lag where the scene rests after a change; the known one if it never rests."""
        known = self.errors.lag
        lags = np.array([pair for pair in self._lags if np.isfinite(pair[0])])
        if len(lags) < _FEWEST:
            return known
        with_motion, lag = (float(value) for value in np.median(lags, 0))
        least = float(np.quantile(lags[:, 1], 0.25))
        if _LEAST_LAG < with_motion < _MAX_LAG and least >= _LEAST_EXCESS:
            return lag
        return known if lag > _STAYS * known else 0.0

    def _done(self, how: str) -> str:
        return f"{how}; " if self._correct else ""

    def _defect(self, name: str, text: str) -> Defect:
        return Defect(name, text, corrected=self._correct)

    def _gains(self) -> list[Defect]:
        if len(self._looks) < _LOOKS_AT_PIXELS:
            return []
        # Looks that are no longer there began each list.
        latest = [pairs[-place:] for place, pairs in enumerate(self._pairs) if place]
        common, squares, pixels = np.concatenate(latest).sum(0)
        shows = pixels >= _BLOCK_PIXELS
        if shows.sum() < _FEWEST_BLOCKS:
            return []
        low, middle = np.quantile(common[shows] / pixels[shows], (0.25, 0.5))
        share = np.quantile(common[shows] / squares[shows], 0.25)
        if low < _LEAST_COMMON**2 or share < _LEAST_SHARE:
            return []
        far, far_squares, _ = np.concatenate([pairs[: 1 - _FAR] for pairs in latest]).sum(0)
        lasts = far[shows].sum() / (far_squares[shows].sum() + _TINY)
        if lasts < _OF_FAR * common[shows].sum() / squares[shows].sum():
            return []
        text = (
            f"the gains of the pixels are off by {math.sqrt(middle):.0%} or more since the "
            "calibration: the sensor has changed, or there is dirt on it; calibrate again"
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


def _common(a: _Look, b: _Look) -> F64:
    """Return the sums of products and of squares of two rests, and the number of pixels, of each
    block, where the scene differs.
    """
    # A scene in another light is the same scene.
    as_bright = np.float32(a.level / b.level) * b.picture
    brighter = np.maximum(a.picture, as_bright)
    chosen = np.abs(a.picture - as_bright) > _CHANGED * brighter
    chosen &= np.minimum(a.picture, b.picture) > _DARK
    chosen &= np.maximum(np.abs(a.rest), np.abs(b.rest)) < _EDGE
    squares = (a.rest**2 + b.rest**2) / 2
    parts = np.stack((chosen * a.rest * b.rest, chosen * squares, chosen))
    rows, columns = (size // _BLOCK_PX for size in chosen.shape)
    whole = parts[:, : rows * _BLOCK_PX, : columns * _BLOCK_PX]
    return np.asarray(whole.reshape(3, rows, _BLOCK_PX, columns, -1).sum((2, 4)), np.float64)
