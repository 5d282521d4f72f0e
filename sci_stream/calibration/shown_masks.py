"""Tell from several snapshots which masks an exposure shows, how long, and when.

In a block of a few pixels a scene changes nearly linearly while the masks pass
(`sci_stream.calibration.registration`). If the exposure shows other masks than planned, or at
other times, it does not, and the masks explain less of the snapshot. Each `ShownExposure` is a
supposition: two masks are exchanged, a pulse is lost, the exposure is longer or shorter than the
cycle, a pattern is dark or shown twice. The one that explains most is named. No solve is needed,
which could hide it: a warm start keeps the order of the video before.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.calibration.registration.scene_fit import certainty
from sci_stream.model import F64

# The mean of so many snapshots decides on an order.
_LOOKS = 8
# Fewer do not decide.
_FEWEST = 6
# A look is followed by so many times its duration without one: it takes 5 % of the time at most.
_PAUSES = 20
# More masks have too many exposures to compare; a look at those of 8, 16 and 24 masks takes 0.09,
# 0.24 and 0.25 s of a busy core (256 × 256 pixels).
_MAX_FRAMES = 24
# More masks have too many pairs.
_MAX_PAIRED = 16
# Least mean gain over the blocks, in the logarithm of the variance. Right masks had at most 0.02;
# exchanged ones 0.017 to 0.044 (fans, moving discs, B = 6 and 8, 96 to 256 px).
_LEAST_GAIN = 0.008
# Least gain in units of its standard error: right masks had at most 3.2, but for one of 160 rigs (a
# fan) that had 4.3; exchanged ones 4.9 to 10.
_CERTAIN = 4.6
# Its least excess over all other orders in such units.
_CLEAR = 3.0
# No block decides alone on an order, or on the light.
_MAX_GAIN = 1.0
_MAX_GAIN_LIGHT = 4.0
# So many snapshots in a row decide on the light of the masks.
_FEWEST_LIGHT = 2
# Least gain in each of them. Of six rigs, right ones lost 0.02 and more, those with an exposure of
# 0.8 or 1.25 cycles, or with a pattern that is dark or shown twice, gained 0.18 and more.
_LEAST_GAIN_LIGHT = 0.05
# Frames by which exposures begin late.
_LATE = (1.0, -1.0, 0.5, -0.5)
# Lengths of exposures, in cycles, in steps of so many frames.
_LENGTHS = (0.5, 1.5)
_STEP_FRAMES = 0.5
# A lamp that pulses within exposures changes the light so much, in so many periods an exposure.
_DEPTH = 0.3
_PERIODS = (1.0, 1.5, 2.0, 3.0)
_PHASES = 4
# A mask has some light: of less, nothing could be recovered.
_LEAST_LIGHT = 0.05


class ShownExposure(NamedTuple):
    """An exposure as it may be.

    ``courses``, (2, B): for each mask the integrals over the time that it is shown, of 1 and of
    time, which runs from −1 in the first frame to 1 in the last. ``text`` names the fault.
    ``corrects`` is False where the masks are left as they are.
    """

    courses: F64
    text: str
    corrects: bool = True

    @property
    def light(self) -> tuple[float, ...]:
        """The light of each mask relative to that of the calibration."""
        return tuple(self.courses[0].clip(_LEAST_LIGHT).tolist())


class ShownMasks:
    """Compare `ShownExposure` by snapshots; ``defects`` are those that the last ones show.

    ``orders``, (n, 2, B), and ``lights``, (m, 2, B): courses of exposures that differ in the order
    of the masks, and in their light; the planned one first.
    """

    def __init__(self, n_frames: int, *, paced: bool) -> None:
        planned = ShownExposure(_courses(_frames(range(n_frames)), n_frames), "")
        self._orders = [planned, *_orders(n_frames)]
        self._lights = [planned, *_lights(n_frames)]
        lamps = _lamps(planned.courses)
        self.orders: F64 = np.stack([one.courses for one in self._orders])
        self.lights: F64 = np.stack([*(one.courses for one in self._lights), *lamps])
        self._possible = 2 < n_frames <= _MAX_FRAMES
        self._pauses = _PAUSES if paced else 0
        self._began_s = 0.0
        self._rests_until_s = -math.inf
        self.begin_anew()

    def begin_anew(self) -> None:
        """Suppose the planned exposure, and forget all snapshots."""
        self._shown = 0
        self.forget()

    def forget(self) -> None:
        """Forget all snapshots."""
        self._of_orders = deque[F64](maxlen=_LOOKS)
        self._of_lights = deque[F64](maxlen=_FEWEST_LIGHT)
        self._order = 0

    @property
    def light(self) -> tuple[float, ...]:
        """The light of each mask that the exposures show; empty if it is as planned."""
        shown = self._lights[self._shown]
        return shown.light if self._shown and shown.corrects else ()

    @property
    def defects(self) -> list[Defect]:
        """The difference of the exposures from the plan."""
        defects = []
        if self._shown:
            shown = self._lights[self._shown]
            defects.append(Defect("uneven_exposure", shown.text, corrected=shown.corrects))
        if self._order:
            defects.append(Defect("mask_order", self._orders[self._order].text))
        return defects

    def is_due(self) -> bool:
        """Return whether to `add` the next snapshot, and begin to count its time."""
        self._began_s = time.monotonic()
        return self._possible and self._began_s >= self._rests_until_s

    def add(self, of_orders: F64, of_lights: F64) -> bool:
        """Add the logarithm of the variance that the `orders`, and the `lights`, leave in each
        block of a snapshot, (n, N) and (m, N); return whether the defects are others now.
        """
        ended_s = time.monotonic()
        self._rests_until_s = ended_s + self._pauses * (ended_s - self._began_s)
        # A lamp that pulses looks like other orders, too: the one that explains most counts.
        lamps = of_lights[len(self._lights) :]
        of_lamp = of_lights[0] - lamps[lamps.mean(1).argmin()]
        gains = np.vstack([of_orders[0] - of_orders, of_lamp])
        self._of_orders.append(gains.clip(-_MAX_GAIN, _MAX_GAIN))
        self._of_lights.append(of_lights)
        before = self.defects
        shown = self._light_shown()
        if shown != self._shown:
            self.forget()
            self._shown = shown
        self._order = self._order_shown()
        return before != self.defects

    def _light_shown(self) -> int:
        """Return the exposure by the light of the masks."""
        if len(self._of_lights) < _FEWEST_LIGHT:
            return self._shown
        misfits = np.array(self._of_lights)
        gains = (misfits[:, [self._shown]] - misfits).clip(-_MAX_GAIN_LIGHT, _MAX_GAIN_LIGHT)
        count = len(self._lights)
        best = int(gains[:, :count].mean((0, 2)).argmax())
        gain = gains[:, best]
        if best == self._shown or gain.mean(1).min() < _LEAST_GAIN_LIGHT:
            return self._shown
        # The lamp that explains most of each look.
        lamps = gains[:, count:].mean(2).argmax(1) + count
        excess = gain - gains[np.arange(len(gains)), lamps]
        is_clear = best == 0 or certainty(excess.mean(0)) >= _CERTAIN
        return best if is_clear and certainty(gain.mean(0)) >= _CERTAIN else self._shown

    def _order_shown(self) -> int:
        """Return the exposure by the order of the masks; 0 for the planned one."""
        if len(self._of_orders) < _FEWEST or self._shown:
            return 0
        of_blocks = np.mean(self._of_orders, 0)
        second, best = (int(place) for place in of_blocks[1:].mean(1).argsort()[-2:] + 1)
        if best == len(self._orders) or certainty(of_blocks[best]) < _CERTAIN:
            return 0
        if of_blocks[best].mean() < _LEAST_GAIN:
            return 0
        # Another fault shows so in one snapshot or two, before it is corrected.
        of_looks = sorted(float(look[best].mean()) for look in self._of_orders)
        if of_looks[-_FEWEST] < _LEAST_GAIN / 2:
            return 0
        is_late = best <= len(_LATE)
        if not is_late and certainty(of_blocks[best] - of_blocks[second]) < _CLEAR:
            return 0
        return best


def _courses(shown: Iterable[tuple[int, float, float]], n_frames: int, begin: float = 0.0) -> F64:
    """Return the courses, (2, B), of masks that are each shown from one time to another one, in
    frames of the cycle, in an exposure that begins at this time.
    """
    courses = np.zeros((2, n_frames))
    for mask, first, last in shown:
        time_ = (first + last - 2 * begin - 1) / (n_frames - 1) - 1
        courses[:, mask] += (last - first) * np.array([1.0, time_])
    return courses


def _frames(masks: Iterable[int]) -> Iterator[tuple[int, float, float]]:
    """Yield masks that are shown for a frame each."""
    for frame, mask in enumerate(masks):
        yield mask, frame, frame + 1


def _window(begin: float, end: float, n_frames: int) -> Iterator[tuple[int, float, float]]:
    """Yield the masks of an exposure that begins and ends at these frames of the cycle."""
    for frame in range(math.floor(begin), math.ceil(end)):
        yield frame % n_frames, max(begin, frame), min(end, frame + 1)


def _orders(n_frames: int) -> Iterator[ShownExposure]:
    """Yield exposures that begin a mask late or early, and those with two masks exchanged."""
    for late in _LATE:
        courses = _courses(_window(late, late + n_frames, n_frames), n_frames, late)
        text = (
            f"the exposures begin {abs(late):g} of a mask {'late' if late > 0 else 'early'}: a "
            "pulse of the modulator was lost, counted twice or delayed; the frames of each "
            "snapshot are in the wrong order"
        )
        yield ShownExposure(courses, text)
    paired = range(n_frames if n_frames <= _MAX_PAIRED else 0)
    for one, other in itertools.combinations(paired, 2):
        masks = list(range(n_frames))
        masks[one], masks[other] = other, one
        text = (
            f"masks {one} and {other} are shown in each other's place: their frames are "
            "exchanged; load the patterns again"
        )
        yield ShownExposure(_courses(_frames(masks), n_frames), text)


def _lights(n_frames: int) -> Iterator[ShownExposure]:
    """Yield exposures that show masks for more or less of the time."""
    first, last = (round(length * n_frames / _STEP_FRAMES) for length in _LENGTHS)
    for step in range(first, last + 1):
        length = step * _STEP_FRAMES
        if length == n_frames:
            continue
        text = (
            f"the exposure is as long as {length / n_frames:.2f} cycles of the masks: set the "
            "exposure time, or the time of a mask, so that it shows each mask once"
        )
        for begin in (0.0, n_frames - length):
            window = _window(begin, begin + length, n_frames)
            yield ShownExposure(_courses(window, n_frames), text)
    for absent in range(n_frames):
        text = f"mask {absent} is dark: load the patterns again"
        shown = (one for one in _frames(range(n_frames)) if one[0] != absent)
        yield ShownExposure(_courses(shown, n_frames), text)
        for twice in {max(absent - 1, 0), min(absent + 1, n_frames - 1)} - {absent}:
            masks = list(range(n_frames))
            masks[absent] = twice
            text = f"mask {twice} is shown in place of mask {absent}, too: load the patterns again"
            # The light that snapshots show one by one (`sci_stream.recon.light`) is nearer.
            yield ShownExposure(_courses(_frames(masks), n_frames), text, corrects=False)


def _lamps(planned: F64) -> list[F64]:
    """Return the courses under lamps that pulse within an exposure."""
    n_frames = planned.shape[1]
    passed = (np.arange(n_frames) + 0.5) / n_frames
    periods_seen = [periods for periods in _PERIODS if periods < n_frames / 2]
    lamps = []
    for periods, phase in itertools.product(periods_seen, range(_PHASES)):
        wave = np.sin(2 * np.pi * (periods * passed + phase / _PHASES))
        lamps.append(planned * (1 + _DEPTH * wave))
    return lamps
