"""A camera and the mask modulator in front of it as one camera: planned, armed, started and
corrected together.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from sci_stream.config.sections import ModulatorSection
from sci_stream.devices.guarded_modulator import guarded_modulator
from sci_stream.errors import CameraLost, ConfigError, InputError
from sci_stream.model import Array, CameraCapabilities, CameraFrame
from sci_stream.modulation.diagram import describe
from sci_stream.modulation.feedback import (
    ADVANCE,
    ASKED,
    CORRECTIONS,
    DELAY,
    SHIFT_X,
    SHIFT_Y,
    STATE,
    UNITS,
    MaskFeedback,
    ModulatorCorrection,
)
from sci_stream.modulation.plan import TimingPlan, TimingRequest, plan_timing
from sci_stream.modulation.rhythm import ExposureRhythm
from sci_stream.modulation.timing import (
    CameraTiming,
    CameraTrigger,
    ModulatorCapabilities,
    pattern_hash,
)
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import Parameter, Value
from sci_stream.ports import AdjustableCamera, Camera, MaskModulator, TriggeredCamera

log = logging.getLogger(__name__)

_T = TypeVar("_T")

# Counters show most faults. Asking takes a few ms on USB: at most a tenth of the time goes into it.
_IDLE = 10.0
_FAULTS = ("restarts", "underruns")
# Snapshots after a correction that may have begun before it.
_SETTLING = 1
# Exposure and delay that a camera keeps may differ by this share of a mask from the plan.
_TOLERANCE = 0.02


class ModulatedCamera:
    """Satisfies `sci_stream.ports.Camera`, and adds to each frame how the modulator was corrected
    until then.

    ``observe`` may be called from any thread, everything else from one.

    Parameters
    ----------
    section
        ``[modulator]`` of the rig.
    patterns
        The masks, (B, H, W) uint8; None for a mask that is moved by a waveform.
    """

    plan: TimingPlan
    """The timing of both, as they keep it; once it was opened."""
    properties: ModulatorCapabilities
    """Those of the modulator; once it was opened."""

    def __init__(
        self,
        camera: Camera,
        modulator: MaskModulator,
        section: ModulatorSection,
        patterns: Array | None,
    ) -> None:
        self.camera = camera
        self.modulator = guarded_modulator(modulator)
        self.pattern_hash = ""
        self._section = section
        self._patterns = patterns
        self._capabilities: CameraCapabilities | None = None
        self._evidence = deque[Mapping[str, Value]](maxlen=64)
        self._feedback = MaskFeedback(mirror_px=section.mirror_px)
        self._rhythm = ExposureRhythm(1.0)
        self._counts: Mapping[str, int] = {}
        self._counted_s = self._count_every_s = 0.0
        self._state = self._settling = self._corrected = self._recovered = 0
        self._is_lost = self._was_open = False

    # --- the port

    def open(self) -> CameraCapabilities:
        """Open both, load the patterns, plan the timing and arm both with it.

        Raises `ConfigError` if the timing does not fit them, `CameraError` if one does not respond,
        or refuses at a reopening.
        """
        if self._capabilities is None:
            self._capabilities = _as_lost(self._open) if self._was_open else self._open()
        self._was_open = True
        return self._capabilities

    def _open(self) -> CameraCapabilities:
        n_patterns = self.n_patterns
        self.properties = self.modulator.open()
        self.pattern_hash = self.modulator.load(self._moved_patterns(self._feedback.moved))
        self.camera.open()
        self.plan = self._arm(n_patterns, self._feedback.delay_us)
        capabilities = self.camera.open()  # armed, it may have another period
        if capabilities.n_frames not in (None, self.n_patterns):
            raise ConfigError(
                "Camera and modulator disagree about the number of masks",
                expected=f"{capabilities.n_frames}, the camera's",
                got=f"{self.n_patterns} in [modulator]",
            )
        self._feedback.reopened(self.n_patterns, self.plan.mask.slot_us)
        self._counts = self.modulator.counters()
        log.info(
            "%s: %s; patterns %s",
            self.properties.model,
            describe(self.plan),
            self.pattern_hash[:12],
        )
        return dataclasses.replace(
            capabilities,
            n_frames=self.n_patterns,
            patterns="" if self._patterns is None else pattern_hash(self._patterns),
            chunks={**capabilities.chunks, **UNITS},
            frame_period_ns=max(
                round(1000 * self.plan.period_us), capabilities.frame_period_ns or 0
            ),
        )

    @property
    def n_patterns(self) -> int:
        """B. Raises `ConfigError` if neither patterns nor ``n_frames`` tell it."""
        if self._patterns is None and not self._section.n_frames:
            raise ConfigError(
                "The rig does not name its masks",
                expected="[modulator] patterns, or n_frames for a mask that is moved by a waveform",
                hint="To make some: sci-stream masks make.",
            )
        return self._section.n_frames if self._patterns is None else len(self._patterns)

    def _moved_patterns(self, moved: tuple[int, int]) -> Array:
        """Return the patterns, moved by mirrors to the right and down."""
        if self._patterns is None:
            return np.empty((0, self.properties.height_px, self.properties.width_px), np.uint8)
        return (
            np.roll(self._patterns, (moved[1], moved[0]), (1, 2)) if any(moved) else self._patterns
        )

    def _arm(self, n_patterns: int, delay_us: float) -> TimingPlan:
        """Plan, arm both, and return the plan with the times that they keep."""
        section = self._section
        request = TimingRequest(
            **section.model_dump(
                include={"pattern_us", "dark_us", "master", "pulse", "pulse_width_us"}
            ),
            delay_us=section.delay_us + delay_us,
        )
        limits = (
            self.camera.timing()
            if isinstance(self.camera, TriggeredCamera)
            else CameraTiming(max_delay_us=1e6)
        )
        plan = plan_timing(request, self.properties, limits, n_patterns)
        if isinstance(self.camera, TriggeredCamera):
            # The readout of most cameras overlaps with the exposure: the rest depends on its
            # length.
            self.camera.arm(CameraTrigger("free", plan.camera.exposure_us))
            limits = self.camera.timing()
            plan = plan_timing(request, self.properties, limits, n_patterns)
        armed = self.modulator.arm(plan.mask)
        if armed != plan.mask:
            request = dataclasses.replace(
                request, pattern_us=armed.pattern_us, dark_us=armed.dark_us
            )
            # The device keeps these times: they need not be multiples of a step again.
            keeps = dataclasses.replace(
                self.properties, step_us=0.0, min_gap_us=armed.gap_us, gap=armed.gap_us > 0
            )
            plan = dataclasses.replace(plan_timing(request, keeps, limits, n_patterns), mask=armed)
        if not isinstance(self.camera, TriggeredCamera):
            log.warning(
                "the driver of this camera cannot set its trigger: set it yourself to: %s",
                describe(plan),
            )
            return plan
        kept_by_camera = self.camera.arm(plan.camera)
        for name in ("exposure_us", "delay_us"):
            wanted = getattr(plan.camera, name)
            got = getattr(kept_by_camera, name)
            if abs(wanted - got) > _TOLERANCE * armed.pattern_us:
                raise ConfigError(
                    f"The camera does not keep the {name} of the timing plan",
                    expected=f"{wanted:g} µs, within {_TOLERANCE:.0%} of a mask",
                    got=f"{got:g} µs",
                    hint="Set [modulator] pattern_us to a multiple of the camera's step.",
                )
        return dataclasses.replace(plan, camera=kept_by_camera)

    def calibration(self) -> Calibration | None:
        """Return the camera's own calibration, which is of the patterns."""
        calibration = self.camera.calibration()
        if calibration is None or self._capabilities is None:
            return calibration
        return dataclasses.replace(calibration, patterns=self._capabilities.patterns)

    def start(self) -> None:
        """Start both: first the one that waits for the other.

        Their phase is new, and earlier advances do not hold.
        """
        if self._capabilities is None:
            raise RuntimeError("start() needs open()")
        _as_lost(self._start)

    def _start(self) -> None:
        if self._feedback.advance:
            self.modulator.advance(-self._feedback.advance)
            self._feedback.advance = 0
            self._feedback.restarted()
        self._rhythm = ExposureRhythm(self.plan.mask.slot_us)
        first = self.camera.start
        second = self.modulator.start
        if self.plan.mask.master == "camera":
            first, second = second, first
        first()
        second()

    def read(self, timeout_s: float) -> CameraFrame | None:
        """Return the next frame, with the state of the modulator; correct the modulator before."""
        _as_lost(self._correct)
        if self._is_lost:
            self._is_lost = False
            raise CameraLost(
                "The mask modulator needs its patterns again, and is opened with the camera"
            )
        frame = self.camera.read(timeout_s)
        _as_lost(self._look_after)  # now: a fault during this exposure marks it
        if frame is None:
            return None
        counts_pulses = self.plan.camera.source == "line"
        late = self._rhythm.add(frame.camera_time_ns) if counts_pulses else 0
        self._state = self._state or int(late != 0)
        feedback = self._feedback
        state = {
            STATE: self._state or 2 * (self._settling > 0),
            CORRECTIONS: feedback.corrections,
            ADVANCE: feedback.advance,
            DELAY: round(feedback.delay_us, 2),
            SHIFT_X: feedback.moved[0],
            SHIFT_Y: feedback.moved[1],
        }
        self._settling = max(0, self._settling - 1)
        self._state = 0
        if late:
            _as_lost(lambda: self._catch_up(late))
        return dataclasses.replace(frame, chunks={**frame.chunks, **state})

    @property
    def exhausted(self) -> bool:
        """As the camera."""
        return self.camera.exhausted

    def settings(self) -> Sequence[Parameter]:
        """Return the camera's settings, without those that the timing plan sets."""
        if not isinstance(self.camera, AdjustableCamera):
            return ()
        return [
            p
            for p in self.camera.settings()
            if p.name not in ("ExposureTime", "AcquisitionFrameRate")
        ]

    def set(self, name: str, value: Value) -> CameraCapabilities:
        """Change one of `settings`."""
        if not isinstance(self.camera, AdjustableCamera):
            raise ConfigError("This camera has no adjustable settings")
        self.camera.set(name, value)
        return self.open()

    def counters(self) -> Mapping[str, int]:
        """Return the camera's counters and, beginning with ``modulator_``,
        those of the modulator.
        """
        modulator = {f"modulator_{name}": count for name, count in self._counts.items()}
        extra = {"modulator_corrected": self._corrected, "modulator_recovered": self._recovered}
        return {**self.camera.counters(), **modulator, **extra}

    def stop(self) -> None:
        """Stop both."""
        self.modulator.stop()
        self.camera.stop()

    def close(self) -> None:
        """Close both."""
        self._capabilities = None
        self.modulator.close()
        self.camera.close()

    # --- faults and corrections

    def observe(self, evidence: Mapping[str, Value]) -> None:
        """Take the evidence of a reconstructed snapshot; from any thread."""
        if self._section.correct:
            self._evidence.append(evidence)

    @property
    def actions(self) -> Mapping[str, Callable[[], str]]:
        """Actions of an operator, by name. A rig that corrects the phase itself would undo one."""
        return {} if self._section.correct else {"advance_masks": self._advance}

    def _advance(self) -> str:
        self._evidence.append({ASKED: True})
        return "the masks advance by one pattern before the next snapshot"

    def _correct(self) -> None:
        while self._evidence:
            exhausted = self._feedback.exhausted
            correction = self._feedback.add(self._evidence.popleft())
            if self._feedback.exhausted and not exhausted:
                log.error(
                    "the modulator was corrected too often: it is not corrected any more, look "
                    "for the cause"
                )
            if correction is not None:
                self._apply(correction)

    def _catch_up(self, late: int) -> None:
        """Correct exposures that begin so many patterns late from now on, as their times show."""
        # Where each pattern gives a pulse, the camera has counted wrong. Otherwise the cycle itself
        # may have been late, and exposures begin as before.
        sure = self.plan.mask.pulse == "per_pattern"
        correction = self._feedback.late(late, sure=sure) if self._section.correct else None
        if correction is not None:
            self._apply(correction)
        else:
            log.warning(
                "an exposure came %+d patterns late: a pulse was lost, or one too many; if the "
                "picture confirms it, the modulator is corrected",
                late,
            )

    def _apply(self, correction: ModulatorCorrection) -> None:
        log.warning(
            "modulator corrected (%s): %+d patterns, %+.1f µs, moved by (%d, %d) mirrors",
            *(correction.why, correction.advance, correction.delay_us, *correction.move),
        )
        self._corrected += 1
        self._settling = _SETTLING
        if correction.advance:
            self.modulator.advance(correction.advance)
            return
        if any(correction.move):
            self._is_lost = True
            return
        # Both have to be stopped for this; no exposure is under way between two frames of a stopped
        # camera.
        self.stop()
        try:
            self.plan = self._arm(self.n_patterns, self._feedback.delay_us)
        except ConfigError as error:  # neither can delay so long, or so finely
            log.error("the delay is not corrected any more: %s", error)
            self._feedback.delay_us -= correction.delay_us
            self._feedback.delays = False
            self.plan = self._arm(self.n_patterns, self._feedback.delay_us)
        self.start()

    def _look_after(self) -> None:
        """Read the modulator's counters, and start it again after a fault that they show."""
        now_s = time.monotonic()
        if now_s - self._counted_s < self._count_every_s:
            return
        before = self._counts
        self._counts = self.modulator.counters()
        self._counted_s = time.monotonic()
        self._count_every_s = _IDLE * (self._counted_s - now_s)
        faults = [name for name in _FAULTS if self._counts.get(name, 0) != before.get(name, 0)]
        if not faults:
            return
        log.warning("the modulator reports %s: it is armed and started again", " and ".join(faults))
        self._state = 1
        self._settling = _SETTLING
        self._recovered += 1
        self._feedback.restarted()
        if "restarts" in faults:
            # It has lost its patterns. To load them takes minutes on some: both are opened again.
            self._is_lost = True
            return
        self.modulator.stop()
        self.modulator.arm(self.plan.mask)
        self.modulator.start()


def _as_lost(call: Callable[[], _T]) -> _T:
    """Make a modulator that refuses a setting in mid-run a lost one, which is opened again."""
    try:
        return call()
    except InputError as error:
        raise CameraLost(
            "Camera and mask modulator do not fit together as they did before", got=error
        ) from error
