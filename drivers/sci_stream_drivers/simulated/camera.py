"""The simulated camera as `sci_stream.ports.Camera`."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from sci_stream.errors import CameraError
from sci_stream.plugins import (
    F32,
    Array,
    Calibration,
    CameraCapabilities,
    CameraFrame,
    CameraTiming,
    CameraTrigger,
    Parameter,
    Value,
    checked_changes,
    declare,
    unix_ns,
)
from sci_stream_drivers.fields import pixel_format_name
from sci_stream_drivers.pacing import Pacer
from sci_stream_drivers.simulated.bench import Bench, bench_of
from sci_stream_drivers.simulated.exposure import Exposure
from sci_stream_drivers.simulated.faults import Faults
from sci_stream_drivers.simulated.masks import MaskOptics
from sci_stream_drivers.simulated.options import SCENES, SimulatedOptions
from sci_stream_drivers.simulated.scenes import make_scene
from sci_stream_drivers.simulated.sensor import Sensor

Shot = tuple[Array, Array | None]
"""Counts of one snapshot and, if requested, its truth."""


class _OpenCamera:
    """State of an open camera: scene, masks and sensor, and snapshots rendered in advance.

    The masks are the camera's own, or those of a modulator in its bench.
    """

    def __init__(self, options: SimulatedOptions, bench: Bench) -> None:
        if bench.attached and bench.n_patterns:
            options = options.model_copy(update={"n_frames": bench.n_patterns, "loop_snapshots": 0})
        self._options = options
        self._bench = bench
        self._version = bench.version
        self._masks = MaskOptics(options, bench.patterns)
        phi = self._phi = self._masks.stack()
        self._exposure = Exposure(make_scene(options), phi, options.bayer)
        self._sensor = Sensor(options, phi)
        self._truth = options.truth
        self._loop: list[Shot | None] = []
        self.calibration = Calibration(
            phi=phi,
            dark=np.float32(self._sensor.black_dn),  # type: ignore[arg-type] # a scalar is documented to do
            full_scale_dn=self._sensor.full_scale_dn,
            saturation_dn=float(self._sensor.max_dn),
            read_noise_dn=self._sensor.read_noise_dn,
            gain_e_per_dn=self._sensor.gain_e_per_dn if options.noise else None,
            bit_depth=options.bit_depth,
            bayer=options.bayer,
            camera_serial=f"SIM-{options.seed}",
            exposure_ns=round(1e9 * options.frame_s * len(phi)) if options.lamp_depth else None,
            source="true masks of the simulated camera",
        )
        self._loop = [self._make(n) for n in range(options.loop_snapshots)]

    @property
    def n_frames(self) -> int:
        """B."""
        return len(self._phi)

    def shot(self, n: int, trigger: CameraTrigger) -> Shot:
        """Return snapshot ``n``, owned by the caller."""
        if self._bench.attached:
            return self._behind_modulator(n, trigger)
        if not self._loop:
            return self._make(n)
        place = n % len(self._loop)
        counts, truth = self._loop[place] = self._loop[place] or self._make(place)
        return counts.copy(), None if truth is None else truth.copy()

    def change(self, name: str, value: Value) -> None:
        """Change exposure or scene.

        As with a real camera, the calibration remains that of the previous exposure.
        """
        self._options = self._options.model_copy(update={name: value})
        if name == "exposure":
            self._sensor = Sensor(self._options, self._phi)
        else:
            self._exposure = Exposure(make_scene(self._options), self._phi, self._options.bayer)
        self._loop = [None] * len(
            self._loop
        )  # rendered again one by one: the camera cannot pause for all of them

    def _behind_modulator(self, n: int, trigger: CameraTrigger) -> Shot:
        """Return exposure ``n`` through the modulator: of the scene, or of a white field while a
        pattern is held.
        """
        bench = self._bench
        options = self._options
        if (
            self._version != bench.version
        ):  # other patterns: the calibration remains that of the first ones
            self._version = bench.version
            self._masks = MaskOptics(options, bench.patterns)
            self._phi = self._masks.stack()
        if bench.shown is not None or options.white_field:
            shown = bench.shown
            stream = (
                shown if isinstance(shown, int) else {"dark": -2, "white": -1}.get(shown or "", -3)
            )
            return self._sensor.convert(
                self._white_field(n, trigger), (n + 1) * (len(self._phi) + 3) + stream
            ), None
        slots = bench.expose(n, trigger)
        x, light = self._lit(n)
        phi = self._phi
        if any(options.mask_position_px(n)) or options.mask_jitter_px or options.frame_gain_error:
            phi = self._masks.exposed(options.mask_position_px(n))
        y = np.zeros(phi.shape[1:], np.float32)
        for mask, weight, time_ in slots:
            there = (
                x[round(time_)]
                if 0 <= round(time_) < len(x)
                else self._exposure.frame(n * len(x) + time_)
            )
            lit = np.float32(weight) * light[min(max(round(time_), 0), len(x) - 1)]
            y += lit * _between(phi, mask) * there
        return self._sensor.convert(y, n), self._true_video(x)

    def _white_field(self, n: int, trigger: CameraTrigger) -> F32:
        """Return the light of a uniform field; it is off while the pattern is "dark"."""
        bench = self._bench
        light = np.float32(self._options.calibration_light)
        if bench.shown is None:
            parts = [
                np.float32(slot.weight) * _between(self._phi, slot.mask)
                for slot in bench.expose(n, trigger)
            ]
            return np.asarray(light * np.sum(parts, axis=0, dtype=np.float32), np.float32)
        if bench.shown == "dark":
            return np.zeros(self._phi.shape[1:], np.float32)
        transmission = self._masks.open() if bench.shown == "white" else self._phi[bench.shown]
        exposure_us = trigger.exposure_us
        pattern_us = bench.timing.pattern_us
        exposed = exposure_us / pattern_us if exposure_us and pattern_us else len(self._phi)
        return transmission * (light * np.float32(exposed))

    def _make(self, n: int) -> Shot:
        x, light = self._lit(n)
        position_px = self._options.mask_position_px(n)
        wrong = any(position_px) or self._options.mask_jitter_px or self._options.frame_gain_error
        phi = self._masks.exposed(position_px) if wrong else None
        lit = x * light.reshape(-1, 1, 1) if self._options.lamp_depth else x
        counts = self._sensor.convert(self._exposure.measure(lit, phi), n)
        return counts, self._true_video(x)

    def _lit(self, n: int) -> tuple[F32, F32]:
        """Return the video of exposure ``n`` in even light, as bright as that of the lamp, and the
        light of each frame, (B,), relative to it.
        """
        x = self._exposure.frames(n)
        light = self._options.light(n)
        if self._options.lamp_depth:
            x *= light.mean()
        return x, light / light.mean()

    def _true_video(self, x: F32) -> Array | None:
        """Return the truth, uint8, if it is wanted; ``x`` is overwritten.

        It is the scene by the scale of the calibration: darker after a shorter exposure.
        """
        if not self._truth:
            return None
        x *= 255 * self._sensor.full_scale_dn / self.calibration.full_scale_dn
        np.clip(np.rint(x, out=x), 0, 255, out=x)
        return x.astype(np.uint8)


def _between(phi: F32, position: float) -> F32:
    """Return a mask, or the mean of two, at a position that need not be whole."""
    below = int(position)
    share = np.float32(position - below)
    return np.asarray(
        phi[below] if not share else (1 - share) * phi[below] + share * phi[below + 1], np.float32
    )


class SimulatedCamera:
    """An SCI camera simulated by an optical model. Implements `sci_stream.ports.Camera`.

    Equal options give equal frames, in every process. The scene restarts with each `start`, except
    after a disconnect, when it continues. A snapshot is rendered by the `read` that waits for it,
    on the calling thread, which may exceed the timeout; if rendering is slower than
    ``snapshot_rate_hz``, snapshots are late, back to back, and are counted as ``late``
    (``loop_snapshots`` renders them in advance, ``faults.buffers`` drops late ones as real hardware
    does).
    """

    Options: ClassVar[type[SimulatedOptions]] = SimulatedOptions

    def __init__(self, options: SimulatedOptions) -> None:
        self._given = self._options = options
        self._serial = f"SIM-{self._options.seed}"
        free = self._options.trigger == "free"
        self._pacer = Pacer(self._options.snapshot_rate_hz if free else 0.0)
        self._faults = Faults(self._options.faults, self._options.seed, f"Camera {self._serial}")
        self._triggers = None if free else threading.Semaphore(0)
        self._triggered = False
        self._open_camera: _OpenCamera | None = None
        self._counts = Counter[str]()
        self._running = False
        self._lost = False
        self._resumes = False
        self._index = 0
        self._first = 0
        self._shot: Shot | None = None
        self._repeat: CameraFrame | None = None
        self._bench = bench_of(self._options.bench)
        self._bench.light = self._options.calibration_light
        self._trigger = CameraTrigger()

    def open(self) -> CameraCapabilities:
        """Create scene, masks and sensor, and return the capabilities.

        Raises `CameraError` while the camera is disconnected (``faults.return_after_s``);
        `FileFormatError` if the scene is a file that cannot be read.
        """
        self._faults.check_present()
        if self._lost:
            self.close()
        if self._open_camera is None:
            self._open_camera = _OpenCamera(self._options, self._bench)
            self._counts.clear()
        return self._capabilities()

    def _capabilities(self) -> CameraCapabilities:
        o = self._options
        return CameraCapabilities(
            model="sci_stream simulated SCI camera",
            serial=self._serial,
            height_px=o.height_px,
            width_px=o.width_px,
            pixel_format=pixel_format_name(o.bit_depth, o.bayer),
            bit_depth=o.bit_depth,
            n_frames=self._opened().n_frames,
            bayer=o.bayer,
            frame_ids=o.faults.frame_ids,
            clock="simulated",
            frame_period_ns=self._pacer.period_ns,
            finite=o.snapshots > 0,
            has_truth=o.truth,
        )

    def settings(self) -> list[Parameter]:
        """Return exposure, rate and scene; see `sci_stream.ports.AdjustableCamera`."""
        self._opened()
        o = self._options
        scenes = SCENES if o.scene in SCENES else (o.scene, *SCENES)
        settings = [
            declare(SimulatedOptions, "exposure", o.exposure),
            declare(SimulatedOptions, "snapshot_rate_hz", o.snapshot_rate_hz),
            declare(SimulatedOptions, "scene", o.scene, choices=scenes),
        ]
        return settings if self._triggers is None else [settings[0], settings[2]]

    def set(self, name: str, value: Value) -> CameraCapabilities:
        """Change exposure, rate or scene from the next snapshot on; see
        `sci_stream.ports.AdjustableCamera`.
        """
        camera = self._opened()
        checked = checked_changes(self.settings(), {name: value}, f"Camera {self._serial}")
        self._options = self._options.model_copy(update=checked)
        if name == "snapshot_rate_hz":
            self._pacer.retime(self._options.snapshot_rate_hz, self._k)
        else:
            camera.change(name, checked[name])
            self._shot = None
        return self._capabilities()

    def calibration(self) -> Calibration:
        """Return the true calibration, more accurate than any measured one."""
        return self._opened().calibration

    def timing(self) -> CameraTiming:
        """Return the limits of its exposures; see `sci_stream.ports.TriggeredCamera`."""
        return CameraTiming(
            max_exposure_us=1e7, step_us=0.1, max_delay_us=1e6, readout_us=0.0, max_every=1 << 16
        )

    def trigger_now(self) -> CameraTrigger:
        """Return how exposures are started; see `sci_stream.ports.TriggeredCamera`."""
        return self._trigger

    def arm(self, trigger: CameraTrigger) -> CameraTrigger:
        """Change the start of exposures; see `sci_stream.ports.TriggeredCamera`."""
        self._opened()
        if self._running:
            raise RuntimeError("arm() while it is started: call stop() first")
        self._trigger = trigger
        return trigger

    def start(self) -> None:
        """Start exposing. Frame ids and the camera clock restart."""
        self._opened()
        if self._lost:
            raise self._faults.lost()
        if self._running:
            return
        self._first = self._index if self._resumes else 0
        self._index = self._first
        self._resumes = False
        self._shot = self._repeat = None
        self._running = True
        self._pacer.start()
        self._skip_dropped()

    def trigger(self) -> None:
        """Request one snapshot; from any thread. Requests queue up."""
        if self._triggers is None:
            raise CameraError(
                f"Camera {self._serial} has no trigger", hint="Set trigger = 'software'."
            )
        self._triggers.release()

    def read(self, timeout_s: float) -> CameraFrame | None:
        """Return the next frame, or None after the timeout; see `sci_stream.ports.Camera.read`."""
        if self._lost:
            raise self._faults.lost()
        if not self._running:
            raise RuntimeError(
                "read() needs an open and started camera: call open() and start() first"
            )
        deadline_s = time.monotonic() + timeout_s
        if self._repeat is not None:
            frame = self._repeat
            self._repeat = None
            self._counts["duplicated"] += 1
            return frame
        self._unplug_if_due()
        self._skip_overwritten()
        if self.exhausted or not self._wait_for_trigger(timeout_s):
            return None
        if self._bench.silent(self._trigger):
            time.sleep(max(0.0, timeout_s))
            self._pacer.pause(timeout_s)
            return None
        if self._shot is None:  # rendered while waiting, so that it is ready when due
            self._shot = self._opened().shot(self._index, self._trigger)
        if not self._pacer.wait(self._k, deadline_s - time.monotonic()):
            return None
        return self._deliver(*self._shot)

    @property
    def exhausted(self) -> bool:
        """True once the last of a limited number of ``snapshots`` has been delivered."""
        total = self._options.snapshots if self._bench.shown is None else 0
        return 0 < total <= self._index and self._repeat is None

    def counters(self) -> Mapping[str, int]:
        """Return the counters since `open`.

        ``delivered``, ``dropped`` and ``duplicated`` frames, ``overwritten`` ones in the buffers of
        a late reader, ``late`` ones delivered more than a period after they were due, ``stalls``,
        ``disconnects``.
        """
        return dict(self._counts)

    def stop(self) -> None:
        """Stop exposing; `start` may follow."""
        self._running = False
        self._shot = self._repeat = None

    def close(self) -> None:
        """Release scene and masks; `open` may follow."""
        self.stop()
        self._open_camera = None
        if self._options is not self._given:
            self._options = self._given
            self._pacer = Pacer(self._given.snapshot_rate_hz if self._triggers is None else 0.0)
        self._lost = False
        self._trigger = CameraTrigger()

    @property
    def _k(self) -> int:
        """Number of the frame since the start."""
        return self._index - self._first

    def _opened(self) -> _OpenCamera:
        if self._open_camera is None:
            raise RuntimeError("the camera is not open: call open() first")
        return self._open_camera

    def _wait_for_trigger(self, timeout_s: float) -> bool:
        if self._triggers is not None and not self._triggered:
            self._triggered = self._triggers.acquire(timeout=max(timeout_s, 0.0))
        return self._triggers is None or self._triggered

    def _deliver(self, counts: Array, truth: Array | None) -> CameraFrame:
        """Deliver the snapshot that is due and advance to the next."""
        ids = self._options.faults.frame_ids
        span = None if ids.last is None else ids.last - ids.first + 1
        frame = CameraFrame(
            counts=counts,
            frame_id=ids.first + (self._k if span is None else self._k % span),
            camera_time_ns=self._pacer.stamp_ns(self._k) + round(1e3 * self._bench.late_us),
            host_time_ns=unix_ns(),
            truth=truth,
        )
        self._shot = None
        self._triggered = False
        self._counts["delivered"] += 1
        period_ns = self._pacer.period_ns
        self._counts["late"] += (
            period_ns is not None and self._pacer.late_s(self._k) * 1e9 > period_ns
        )
        if self._faults.duplicates(self._index):
            # The receiver owns the arrays of a frame and may change them.
            self._repeat = replace(
                frame, counts=counts.copy(), truth=None if truth is None else truth.copy()
            )
        stall_s = self._faults.stall_s(self._counts["delivered"])
        if stall_s:
            self._counts["stalls"] += 1
            self._pacer.pause(stall_s)
        self._index += 1
        self._skip_dropped()
        return frame

    def _skip_dropped(self) -> None:
        """Skip dropped snapshots at once, so that `exhausted` is true right after the last
        delivered one.
        """
        while not self.exhausted and self._faults.drops(self._index):
            self._counts["dropped"] += 1
            self._index += 1

    def _skip_overwritten(self) -> None:
        """Drop snapshots that a late reader would find overwritten in the buffers."""
        buffers = self._options.faults.buffers
        period_ns = self._pacer.period_ns
        if not buffers or period_ns is None:
            return
        while not self.exhausted and self._pacer.late_s(self._k + buffers) >= 0:
            self._counts["overwritten"] += 1
            self._index += 1
            self._shot = None
            self._skip_dropped()

    def _unplug_if_due(self) -> None:
        if self._faults.unplugs(self._counts["delivered"]):
            self._lost = self._resumes = True
            self._running = False
            self._counts["disconnects"] += 1
            raise self._faults.lost()
