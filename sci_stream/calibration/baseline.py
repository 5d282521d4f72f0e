"""Tell from the noise and the residual of each solve when the masks no longer explain the picture.

The noise that a snapshot shows is nearly the same in all scenes behind right masks. It rises once
masks, light or exposure are others than in the calibration. A sum of deviations from the usual
figures (CUSUM) notices the step, and the estimates of the masks begin again. Noise that they do not
bring back to the usual one is an alarm. A scene that is suddenly another one has figures of its
own.

References
----------
E. S. Page, "Continuous inspection schemes", Biometrika 41 (1954).
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.model import F32, F64, Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.reports import CalibrationHealth, SolveReport

# Figures are compared with those of so many snapshots.
_USUAL = 32
# Figures of fewer snapshots are not usual ones.
_FEWEST = 6
_MAD = 1.4826
# Least standard deviations of the logarithms of noise, residual and saturated share.
_LEAST_SD = np.array([0.03, 0.08, 0.2])
# It is added to the saturated share, which may be 0.
_SATURATED = 1e-3
# Smaller deviations are usual.
_SLACK = 1.5
# A larger sum of deviations is a step.
_STEP = 8.0
# No deviation counts more.
_MAX_DEVIATION = 6.0
# The masks are measured again in so many snapshots after a step.
_SETTLING = 6
# The last of them tell whether that was enough.
_LATEST = 3
# More noise, over the usual one, is an alarm.
_UNEXPLAINED = 1.3
# More noise, over that of the calibration, is an alarm. Texture in which all moves counts as noise,
# too: up to 1.7 times in 17 right series (clips and simulated scenes).
_UNEXPLAINED_AT_START = 2.5
# Correlation of pictures of one scene from snapshot to snapshot.
_SAME_SCENE = 0.7
# Smaller changes of contrast, and of the logarithm of the brightness, cause no noise.
_USUAL_CHANGE = 0.05
# A smaller loss of the match causes no noise.
_USUAL_LOSS = 0.02
# Match of right masks, if the usual one is not known.
_RIGHT_MATCH = 0.95
_TINY = 1e-12
# Warm starts pay after so many that did.
_PAID = 4
# So many in a row that do not are a step then: stray light, or a pattern that is shown twice,
# leaves the noise as it was.
_UNPAID = 2


class Baseline:
    """Usual figures of the solves of a calibration, and departures from them.

    Noise counts relative to that of the calibration, if it is known. Then a departure also shows
    when it was there from the start.
    """

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._picture: F32 | None = None
        self._before_step: F32 | None = None
        self._usual_looks = deque[tuple[float, float]](maxlen=_USUAL)
        self.excess: float | None = None
        """Noise relative to the usual one, while it is not explained."""
        self.ratio: float | None = None
        """Noise of the last snapshot relative to the usual one; None if that is unknown."""
        self._since_step: int | None = None
        self._paid = self._unpaid = 0
        self.begin_anew()
        if calibration.noise is not None:
            self._since_step = 0

    def begin_anew(self) -> None:
        """Learn the usual figures."""
        self._figures = deque[F64](maxlen=_USUAL)
        self._latest = deque[F64](maxlen=_LATEST)
        self._sums: F64 = np.zeros(3)
        self._since_step = None
        self.excess = None

    def add(self, report: SolveReport, picture: F32, snapshot: Snapshot) -> str:
        """Add the solve of a snapshot and its scene, made small; return ``"cut"`` if the scene is
        another one, ``"step"`` if the figures step away from the usual ones, else ``""``.
        """
        before = self._picture
        self._picture = picture
        is_cut = bool(self._figures) and not _is_one_scene(before, picture)
        is_cut = is_cut and self.excess is None and self._since_step is None
        noise = self._noise_of(report, snapshot)
        if is_cut and (noise is None or noise < self._statistics()[0][0] + math.log(_UNEXPLAINED)):
            self.begin_anew()
            return "cut"
        stopped_paying = self._stopped_paying(report)
        if noise is None:
            return ""
        saturated = math.log(report.saturated_fraction + _SATURATED)
        figures = np.array([noise, math.log(report.residual + _TINY), saturated])
        self._latest.append(figures)
        usual, sd = self._statistics()
        self.ratio = math.exp(noise - usual[0]) if self._is_known else None
        if self._since_step is not None:
            self._settle(float(usual[0]))
            return ""
        # Masks that are suddenly wrong make a video that looks like another scene.
        is_step = stopped_paying or is_cut
        if len(self._figures) >= _FEWEST:
            deviations = np.minimum((figures - usual) / sd, _MAX_DEVIATION)
            self._sums = np.maximum(0.0, self._sums + deviations - _SLACK)
            is_step = is_step or bool(self._sums.max() > _STEP)
        if is_step:
            self._since_step = 0
            self._before_step = before
            self._latest.clear()
            return "step"
        self._figures.append(figures)
        return ""

    def _stopped_paying(self, report: SolveReport) -> bool:
        """Return whether warm starts have paid and do so no more."""
        if report.start_reason == "warm":
            self._paid += 1
            self._unpaid = 0
        elif report.start_reason == "no_gain":
            self._unpaid += 1
        stopped = self._paid >= _PAID and self._unpaid == _UNPAID
        if stopped:
            self._paid = 0
        return stopped

    @property
    def _is_known(self) -> bool:
        return bool(self._figures) or self._calibration.noise is not None

    def _noise_of(self, report: SolveReport, snapshot: Snapshot) -> float | None:
        """Return the logarithm of the noise of a snapshot, relative to that of the calibration if
        it is known.
        """
        if report.noise is None or not report.noise > 0:
            return None
        if self._calibration.noise is None:
            return math.log(report.noise)
        offset, slope = self._calibration.noise
        y = self._calibration.measurement(snapshot.counts)
        variance = offset + slope * float(y.clip(0).mean())
        known = math.sqrt((variance + _TINY) / (float(np.square(y).mean()) + _TINY))
        return math.log(report.noise / known)

    def _settle(self, usual: float) -> None:
        """After a step, decide whether its cause was corrected."""
        assert self._since_step is not None
        self._since_step += 1
        if self._since_step < _SETTLING or len(self._latest) < _LATEST:
            return
        noise = float(np.median([figures[0] for figures in self._latest]))
        ratio = math.exp(noise - usual)
        usual_ratio = _UNEXPLAINED if self._figures else _UNEXPLAINED_AT_START
        if ratio > usual_ratio and _is_one_scene(self._before_step, self._picture):
            self.excess = ratio
        else:
            explained = list(self._latest) if ratio <= usual_ratio else []
            self.begin_anew()
            self._figures.extend(explained)

    def _statistics(self) -> tuple[F64, F64]:
        """Return the usual figures and their robust standard deviations."""
        if not self._figures:
            return np.zeros(3), _LEAST_SD
        figures = np.array(self._figures)
        usual = np.median(figures, 0)
        sd = _MAD * np.median(np.abs(figures - usual), 0)
        return usual, np.maximum(sd, _LEAST_SD)

    def note(self, health: CalibrationHealth) -> None:
        """Note match and brightness while nothing is unusual."""
        if self._since_step is None and health.match and health.brightness:
            self._usual_looks.append((health.match, health.brightness))

    def defects(self, health: CalibrationHealth) -> list[Defect]:
        """Return the noise that is not explained as a defect, with its likely causes."""
        if self.excess is None:
            return []
        text = (
            f"the masks no longer explain the picture: its noise is {self.excess:.1f} times the "
            f"usual one after all corrections; likely causes: {', '.join(self._causes(health))}"
        )
        return [Defect("unexplained", text)]

    def _causes(self, health: CalibrationHealth) -> list[str]:
        """Return likely causes in the order of their evidence."""
        match = health.match or 0.0
        brightness = max(health.brightness or 0.0, _TINY)
        if self._usual_looks:
            looks = np.median(self._usual_looks, 0)
            match_lost = float(looks[0]) - match
            change = abs(math.log(brightness / float(looks[1])))
        else:
            match_lost = _RIGHT_MATCH - match
            change = 0.0
        evidence = {
            "an exposure that is not as long as the cycle": change / _USUAL_CHANGE,
            "masks that are blurred or not the calibrated ones": match_lost / _USUAL_LOSS,
            "stray light": (1.0 - (health.contrast or 1.0)) / _USUAL_CHANGE,
            "a lamp that flickers, or a pattern shown twice": 1.0,
        }
        order = sorted(evidence, key=lambda cause: -evidence[cause])
        return [cause for cause in order if evidence[cause] >= 1.0]


def _is_one_scene(before: F32 | None, after: F32 | None) -> bool:
    """Return whether pictures show one scene, also if one is not known."""
    if before is None or after is None or not before.std() * after.std() > 0:
        return True
    return float(np.corrcoef(before.ravel(), after.ravel())[0, 1]) >= _SAME_SCENE
