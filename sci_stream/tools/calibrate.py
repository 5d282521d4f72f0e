"""``sci-stream calibrate``: take dark, white and each mask with the camera, and compute a
calibration.

A modulator that the rig commands holds the patterns while the camera exposes by itself, as long as
in operation. A mask that a waveform moves cannot be held: it is measured phase by phase, in
exposures of a B-th of a cycle. Otherwise the user is asked to set up each pattern. One process, one
camera, no network.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from sci_stream.calibration.measurement import (
    FrameMean,
    Measured,
    MeasurementConditions,
    check_white,
    dark_of_phases,
    measure,
    white_of_phases,
)
from sci_stream.clock import unix_ns
from sci_stream.devices.modulated_camera import ModulatedCamera
from sci_stream.errors import CalibrationError, CameraError, ConfigError, FileFormatError
from sci_stream.file_guard import writing
from sci_stream.files.arrays import read_npz
from sci_stream.model import Array, CameraFrame
from sci_stream.modulation.timing import CameraTrigger
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import AdjustableCamera, Camera, Pattern, TriggeredCamera
from sci_stream.web.calibration_page import LiveFrame

log = logging.getLogger(__name__)

# Short, so that Ctrl-C is answered while the camera is silent.
_READ_S = 0.5
# A dark frame above this fraction of the range was not taken in the dark.
_DARK_AT_MOST = 0.5
# The light of a resumed calibration may differ by this much from that of the frames taken before.
_SAME_LIGHT = 0.02


@dataclass(frozen=True)
class CalibrationPlan:
    """Settings of a calibration.

    ``frames`` are averaged per pattern, after ``settle`` ones are discarded: their exposure may
    have started before the change. ``n_frames`` None is B of the camera or the modulator. The
    modulator of the rig shows the patterns, and the user is asked before unless ``automatic``;
    without one, the user shows them. ``unattended`` asks nothing: the dark frame of a moving mask,
    which cannot be closed, is extrapolated from two exposure times. ``brightness`` is as in
    `calibration.measurement.MeasurementConditions`, None for the modulator's value, else 1;
    ``reverse`` is for patterns in reverse order of exposure; ``timeout_s`` for a frame.
    ``conditions`` are those that the camera does not tell; exposure time and gain are read from a
    GenICam camera where None. ``progress_file`` has the averages taken so far, with which an
    interrupted calibration resumes; None for none.
    """

    frames: int = 32
    settle: int = 2
    n_frames: int | None = None
    automatic: bool = True
    unattended: bool = False
    brightness: float | None = None
    reverse: bool = False
    timeout_s: float = 30.0
    conditions: MeasurementConditions = field(default_factory=MeasurementConditions)
    progress_file: Path | None = None


Ask = Callable[[str, Callable[[], object]], None]
"""Asks the user to set something up, and returns when it is done. While it waits, it may call its
second argument again and again: that shows the camera's next frame. May raise KeyboardInterrupt."""
Progress = Callable[[str, int, int], None]
"""Called with the present step, the number of frames taken and their total."""
Show = Callable[[LiveFrame], None]
"""Called with each frame."""


def calibrate(
    camera: Camera,
    plan: CalibrationPlan,
    ask: Ask,
    progress: Progress,
    show: Show = lambda *_: None,
) -> tuple[Calibration, Measured]:
    """Acquire all frames and compute the calibration.

    The camera is closed on return and on every exception, including KeyboardInterrupt.

    Raises `ConfigError` if the number of patterns is unknown; `CameraError` if the camera cannot be
    opened or delivers no frames; `CalibrationError` if the frames are unsuitable for a calibration;
    raised as early as possible.
    """
    try:
        session = _Session(camera, plan, ask=ask, progress=progress, show=show)
        with session.running():
            _require_lens(camera)
            return session.calibrate()
    finally:
        camera.stop()
        camera.close()


def _require_lens(camera: Camera) -> None:
    """Raise `ConfigError` for a simulated or replayed camera: it can be shown no pattern."""
    if isinstance(camera, ModulatedCamera) or camera.calibration() is None:
        return
    raise ConfigError(
        "The camera has no lens to close, and knows its masks already",
        expected="a real camera, or a mask modulator that the rig commands",
        hint="Run the rig without a calibration file. To try a calibration, set "
        '[modulator] driver = "simulated".',
    )


def hold(camera: Camera, pattern: Pattern | None, show: Show) -> None:
    """Hold a pattern, or run the cycle, and show the newest frames until KeyboardInterrupt; then
    close the camera.

    Raises `ConfigError` if the rig commands no modulator that can.
    """
    if not isinstance(camera, ModulatedCamera):
        raise ConfigError(
            "The rig commands no modulator",
            expected="[modulator] driver",
            hint="See the rig guide.",
        )
    try:
        session = _Session(
            camera, CalibrationPlan(), ask=lambda *_: None, progress=lambda *_: None, show=show
        )
        with nullcontext() if pattern is None else session.running():
            if pattern is None:
                camera.start()
            else:
                session.hold(pattern, "")
            while True:
                session.show_next(
                    "The masks run" if pattern is None else f"Pattern {pattern} is held"
                )
    finally:
        camera.stop()
        camera.close()


class _Session:
    """One calibration of a camera, which it opens."""

    def __init__(
        self, camera: Camera, plan: CalibrationPlan, *, ask: Ask, progress: Progress, show: Show
    ) -> None:
        self._plan = plan
        self._ask = ask
        self._progress = progress
        self._show = show
        capabilities = self._capabilities = camera.open()
        coded = self._coded = camera if isinstance(camera, ModulatedCamera) else None
        self._camera = camera if coded is None else coded.camera
        self._timing = None if coded is None else coded.plan
        properties = None if coded is None else coded.properties
        self._holds = properties is None or properties.holds
        self._field_brightness = 1.0 if properties is None else properties.field_brightness
        n_frames = plan.n_frames or capabilities.n_frames
        if n_frames is None:
            raise ConfigError(
                f"The camera {capabilities.model} does not report the number of patterns of its "
                "modulator",
                hint="Set it with --masks B.",
            )
        self._n_frames = n_frames
        self._saturation_dn = float((1 << capabilities.bit_depth) - 1)
        self._dark_dn = 0.0
        self._steps: list[str] = []
        self._step = ""
        # Another dark frame is the reason to be asked.
        of_modulator = None if coded is None else (coded.pattern_hash, coded.plan, plan.automatic)
        settings = (
            [(s.name, s.value) for s in camera.settings()]
            if isinstance(camera, AdjustableCamera)
            else []
        )
        same = replace(capabilities, frame_period_ns=None)  # which some cameras measure
        conditions = (plan.frames, n_frames, same, settings, of_modulator)
        self._taken = _TakenFrames(plan.progress_file, repr(conditions))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the camera expose by itself as long as in operation;
        restore its trigger in any case.
        """
        camera = self._camera
        timing = self._timing
        before = camera.trigger_now() if isinstance(camera, TriggeredCamera) else None
        if isinstance(camera, TriggeredCamera) and timing is not None and self._holds:
            camera.arm(CameraTrigger("free", timing.camera.exposure_us, period_us=timing.period_us))
        try:
            yield
        finally:
            if self._coded is not None and self._holds:
                self._coded.modulator.hold(None)
            self._camera.stop()
            if isinstance(camera, TriggeredCamera) and timing is not None and before is not None:
                camera.arm(before)

    def calibrate(self) -> tuple[Calibration, Measured]:
        """Take all frames and compute."""
        plan = self._plan
        for text in self._capabilities.distortions:
            log.warning("the masks will be wrong: %s", text)
        # The order of exposure is stored; reconstruction needs the masks in the order of time.
        order = range(self._n_frames)[::-1] if plan.reverse else range(self._n_frames)
        dark, white, patterns = self._held(order) if self._holds else self._by_phase(order)
        conditions = plan.conditions
        if (timing := self._timing) is not None:
            # The exposure may be longer than B patterns, by the darkness between them and a delay
            # before the first.
            share = timing.mask.pattern_us / timing.camera.exposure_us if self._holds else 1.0
            exposure_ns = conditions.exposure_ns or round(1000 * timing.camera.exposure_us)
            conditions = replace(
                conditions, lit_share=conditions.lit_share or share, exposure_ns=exposure_ns
            )
        conditions = replace(
            with_camera_settings(self._camera, conditions),
            brightness=self._field_brightness if plan.brightness is None else plan.brightness,
            saturation_dn=self._saturation_dn,
            bayer=self._capabilities.bayer,
            bit_depth=self._capabilities.bit_depth,
            camera_serial=self._capabilities.serial,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            source=self._source(),
            patterns=self._capabilities.patterns,
            mask_order=tuple(order),
            moving=not self._holds,
        )
        result = measure(dark, white, patterns, conditions)
        self._taken.finish()
        return result

    def _source(self) -> str:
        capabilities = self._capabilities
        how = "" if self._holds else ", by phase"
        text = (
            f"measured with {capabilities.model} {capabilities.serial}, {self._plan.frames} "
            f"frames per pattern{how}"
        )
        return "; ".join(
            (text, *(distortion.partition(";")[0] for distortion in capabilities.distortions))
        )

    def _held(self, order: range) -> tuple[FrameMean, FrameMean, list[FrameMean]]:
        """Take dark, white and patterns that are held."""
        self._steps = ["dark", "white", *(str(b) for b in order)]
        dark = self._take("dark", "No light: close the lens, or switch the light off")
        self._dark_dn = float(np.median(dark.mean))
        # Checked at once: the operator may have forgotten the cap, and the patterns take minutes.
        _check_dark(dark, self._saturation_dn)
        white = self._take(
            "white", "White: a uniform bright field, every mask element open", again=True
        )
        check_white(dark, white)
        self._taken.require_light("white", float(np.median(white.mean - dark.mean)))
        patterns = [
            self._take(b, f"Pattern {b} (of 0 to {self._n_frames - 1}), the same field")
            for b in order
        ]
        return dark, white, patterns

    def _take(self, pattern: Pattern, words: str, *, again: bool = False) -> FrameMean:
        """Return the mean of a held pattern; that of an interrupted calibration,
        unless ``again``.
        """
        self._step = str(pattern)
        if not again and (before := self._taken.get(str(pattern))) is not None:
            return before
        self.hold(pattern, words)
        return self._taken.put(str(pattern), self._average(words))

    def hold(self, pattern: Pattern, words: str) -> None:
        """Let the modulator hold a pattern, or ask for it, and start the camera."""
        # Stopped meanwhile: its buffers would hold frames of the pattern before.
        self._camera.stop()
        if self._coded is not None:
            self._coded.modulator.hold(pattern)
        if self._coded is None or not self._plan.automatic:
            self._prompt(words)
        self._camera.start()

    def _prompt(self, words: str) -> None:
        """Ask the user, who sees the camera's frames meanwhile."""
        # A mask that moves triggers the camera.
        source = self._camera if self._holds or self._coded is None else self._coded
        source.start()
        self._ask(words, lambda: self.show_next(words, asks=True))
        source.stop()

    def show_next(self, words: str, *, asks: bool = False) -> CameraFrame | None:
        """Return and show the next frame, None if there is none yet."""
        frame = self._camera.read(_READ_S)
        if frame is not None:
            at = self._steps.index(self._step) if self._step in self._steps else 0
            levels = self._saturation_dn, self._dark_dn
            self._show(LiveFrame(words, frame.counts, *levels, self._steps, at, asks))
        return frame

    def _by_phase(self, order: range) -> tuple[FrameMean, FrameMean, list[FrameMean]]:
        """Take a moving mask in exposures of a B-th of a cycle, each later than the one before by
        as much.

        Most pixels see an open element in some phase, which gives the white field. Without an
        operator, the dark field comes from exposures half as long.
        """
        camera = self._camera
        coded = self._coded
        plan = self._timing
        assert coded is not None
        assert plan is not None
        if not isinstance(camera, TriggeredCamera):
            raise ConfigError(
                "A moving mask is measured phase by phase",
                expected="a camera whose exposure can be set",
            )
        slot_us = plan.mask.slot_us
        shortest_us = slot_us / 2 if self._plan.unattended else slot_us
        latest_us = plan.camera.delay_us + len(order) * slot_us - shortest_us
        limits = camera.timing()
        if shortest_us < limits.min_exposure_us or latest_us > limits.max_delay_us:
            raise ConfigError(
                "The camera cannot expose for single phases of the mask",
                expected=f"exposures of {shortest_us:g} µs and delays up to {latest_us:g} µs",
                got=f"at least {limits.min_exposure_us:g} µs, and up to {limits.max_delay_us:g} µs",
                hint="Move the mask more slowly: [modulator] pattern_us.",
            )

        def phase(index: int, parts: int, step: str = "phase", *, again: bool = False) -> FrameMean:
            name = f"{step} {parts}:{index}"
            self._step = "dark" if step == "dark" else str(index)
            if not again and (before := self._taken.get(name)) is not None:
                return before
            length_us = len(order) * slot_us / parts
            coded.stop()
            camera.arm(
                replace(
                    plan.camera,
                    exposure_us=length_us,
                    delay_us=plan.camera.delay_us + index * length_us,
                )
            )
            coded.start()
            return self._taken.put(
                name, self._average(f"Phase {index} (of 0 to {parts - 1}), a uniform bright field")
            )

        n = len(order)
        self._steps = ["dark", *map(str, range(n))]
        if not self._plan.unattended:
            if self._taken.get(f"dark {n}:0") is None:
                self._prompt("No light: close the lens, or switch the light off")
            dark = phase(0, n, "dark")
            self._prompt("White: a uniform bright field, the mask moving")
        self._taken.require_light(f"phase {n}:0", float(np.median(phase(0, n, again=True).mean)))
        patterns = [phase(b, n) for b in range(n)]
        if self._plan.unattended:
            halves = [phase(b, 2 * n) for b in range(2 * n)]
            dark = dark_of_phases(halves, patterns)
        coded.stop()
        white = white_of_phases(patterns, self._capabilities.bayer)
        return dark, white, [patterns[b] for b in order]

    def _average(self, words: str) -> FrameMean:
        """Average the next frames whose exposure starts after this call."""
        mean = FrameMean()
        camera = self._camera
        plan = self._plan
        to_settle = plan.settle
        began_ns = unix_ns()
        received_s = time.monotonic()
        self._progress(words, 0, plan.frames)
        while mean.n < plan.frames:
            frame = self.show_next(words)
            if frame is None:
                if camera.exhausted or time.monotonic() - received_s > plan.timeout_s:
                    raise CameraError(
                        "The camera delivers no frames",
                        expected=f"{plan.frames} frames for {words!r}",
                        got=f"{mean.n}"
                        + (
                            ", then its end"
                            if camera.exhausted
                            else f", then none for {plan.timeout_s:g} s"
                        ),
                        hint="Check whether it waits for a trigger, or the rig limits its number "
                        "of snapshots.",
                    )
                continue
            received_s = time.monotonic()
            if frame.host_time_ns < began_ns:
                continue  # it was buffered while the pattern was being set up
            if to_settle:
                to_settle -= 1
                continue
            mean.add(frame.counts, self._saturation_dn)
            self._progress(words, mean.n, plan.frames)
        return mean


class _TakenFrames:
    """Averages of a calibration by step, in a file until it is finished.

    ``conditions`` identify the calibration: averages of another one are ignored.
    """

    def __init__(self, path: Path | None, conditions: str) -> None:
        self._path = path
        self._digest = np.frombuffer(hashlib.sha256(conditions.encode()).digest(), np.uint8)
        self._arrays: dict[str, Array] = {}
        if path is not None and path.exists():
            try:
                arrays = read_npz(path)
            except FileFormatError:
                return  # the interruption fell into writing it
            if np.array_equal(arrays.get("conditions", ()), self._digest):
                self._arrays = arrays

    def get(self, name: str) -> FrameMean | None:
        """Return the average of a step that was taken before; None if it was not."""
        figures = self._arrays.get(f"{name}.figures")
        n = self._arrays.get(f"{name}.n")
        if figures is None or n is None:
            return None
        return FrameMean.of(figures[0], figures[2] > 0, figures[1], int(n))

    def put(self, name: str, mean: FrameMean) -> FrameMean:
        """Keep the average of a step, and return it."""
        self._arrays |= {f"{name}.figures": np.stack([mean.mean, mean.variance, mean.saturated])}
        self._arrays |= {f"{name}.n": np.int64(mean.n), "conditions": self._digest}  # type: ignore[dict-item]
        if self._path is not None:
            new = self._path.with_name(f"{self._path.name}.new.npz")
            with writing(new):
                np.savez(new, **self._arrays)  # type: ignore[arg-type] # its stub takes the names for flags
                new.replace(self._path)
        return mean

    def require_light(self, step: str, light_dn: float) -> None:
        """Forget an interrupted calibration but for dark and ``step`` if the light has changed
        since.
        """
        before = self._arrays.get("light")
        if before is not None and abs(light_dn / float(before) - 1) > _SAME_LIGHT:
            self._arrays = {
                name: a for name, a in self._arrays.items() if name.startswith(("dark", f"{step}."))
            }
        self._arrays["light"] = np.asarray(light_dn)

    def finish(self) -> None:
        """Delete the file."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def with_camera_settings(
    camera: Camera, conditions: MeasurementConditions
) -> MeasurementConditions:
    """Fill in exposure time and gain, unless given, from a camera with the SFNC features."""
    if not isinstance(camera, AdjustableCamera):
        return conditions
    parameters = {parameter.name: parameter for parameter in camera.settings()}
    exposure = parameters.get("ExposureTime")
    gain = parameters.get("Gain")
    if conditions.exposure_ns is None and exposure is not None:
        conditions = replace(conditions, exposure_ns=round(1000 * float(exposure.value)))  # µs
    if conditions.gain_db is None and gain is not None and "(dB)" in gain.description:
        conditions = replace(conditions, gain_db=float(gain.value))
    return conditions


def _check_dark(dark: FrameMean, saturation_dn: float) -> None:
    level = float(np.median(dark.mean))
    if level > _DARK_AT_MOST * saturation_dn:
        raise CalibrationError(
            "The dark frame is not dark",
            expected=f"less than {_DARK_AT_MOST * saturation_dn:g} DN, half of the range",
            got=f"{level:.0f} DN",
            hint="Cover the lens, and check the black level of the camera.",
        )
