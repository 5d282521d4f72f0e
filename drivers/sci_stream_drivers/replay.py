"""A camera that plays files: published measurements and recordings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from sci_stream.model import CameraCapabilities, CameraFrame
from sci_stream.optics.calibration import Calibration
from sci_stream_drivers.fields import BayerOption, DriverOptions
from sci_stream_drivers.frame_source import FrameSource, open_frame_source
from sci_stream_drivers.pacing import Pacer


class ReplayOptions(DriverOptions):
    """Options of the replay camera."""

    path: Path = Field(description="A published .mat file (v5 or v7.3); a recording: its first .h5 file.")
    snapshot_rate_hz: float = Field(
        default=0.0, ge=0, le=100_000, description="Snapshots per second; 0: as fast as they can be read."
    )
    loop: bool = Field(default=False, description="Restart after the last shot, endlessly.")
    start: int = Field(default=0, ge=0, description="First shot to play, from 0.")
    stop: int | None = Field(default=None, ge=1, description="Shot to stop before; unset: play all.")
    truth: bool = Field(default=True, description="Deliver the true video, if a .mat file contains it.")
    bayer: BayerOption = Field(
        default=None, description="Colour filters of a .mat file's sensor, or none; a recording contains its own."
    )
    full_scale_dn: float | None = Field(
        default=None,
        gt=0,
        description="Counts of one white frame through an open mask of a .mat file; unset: estimated.",
    )

    @model_validator(mode="after")
    def _start_is_before_stop(self) -> ReplayOptions:
        if self.stop is not None and self.stop <= self.start:
            raise ValueError(f"stop ({self.stop}) must be greater than start ({self.start})")
        return self


class ReplayCamera:
    """Play a file as if it came from a camera. Implements `sci_stream.ports.Camera`.

    Frame ids count from 0 at each start, with the gaps of the original run if a recording contains them; in a loop they
    continue, so that no id is repeated. Recorded timestamps are delivered, except in a loop, where they would go back.
    """

    Options: ClassVar[type[ReplayOptions]] = ReplayOptions

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        self._pacer = Pacer(options.snapshot_rate_hz)
        self._source: FrameSource | None = None
        self._chosen = range(0)
        self._counts: Counter[str] = Counter()
        self._running = False
        self._played = 0

    def open(self) -> CameraCapabilities:
        """Read the file and return the capabilities.

        Raises `FileFormatError` if the file cannot be played; `ConfigError` if there are no shots between ``start`` and
        ``stop``.
        """
        o = self._options
        if self._source is None:
            path = o.path.expanduser()
            self._source, self._chosen = open_frame_source(
                path, o.bayer, o.truth, o.full_scale_dn, slice(o.start, o.stop)
            )
            self._counts.clear()
        capabilities = replace(self._source.capabilities, frame_period_ns=self._pacer.period_ns, finite=not o.loop)
        return replace(capabilities, clock="none") if o.loop else capabilities

    def calibration(self) -> Calibration:
        """Return the calibration of the file, or the one that follows from its masks."""
        return self._opened().calibration

    def start(self) -> None:
        """Start with the first shot."""
        self._opened()
        if not self._running:
            self._running = True
            self._played = 0
            self._pacer.start()

    def read(self, timeout_s: float) -> CameraFrame | None:
        """Return the next frame, or None after the timeout; see `sci_stream.ports.Camera.read`."""
        if not self._running:
            raise RuntimeError("read() needs an open and started camera: call open() and start() first")
        if self.exhausted or not self._pacer.wait(self._played, timeout_s):
            return None
        rounds, step = divmod(self._played, len(self._chosen))
        source = self._opened()
        frame = source.shot(self._chosen[step])
        self._played += 1
        self._counts["delivered"] += 1
        frame = replace(frame, frame_id=self._frame_id(source.frame_numbers, rounds, step))
        return replace(frame, camera_time_ns=None) if self._options.loop else frame

    def _opened(self) -> FrameSource:
        if self._source is None:
            raise RuntimeError("the camera is not open: call open() first")
        return self._source

    def _frame_id(self, numbers: list[int], rounds: int, step: int) -> int:
        first, last = numbers[self._chosen[0]], numbers[self._chosen[-1]]
        return rounds * (last - first + 1) + numbers[self._chosen[step]] - first

    @property
    def exhausted(self) -> bool:
        """True once the last shot has been delivered; never in a loop."""
        return not self._options.loop and self._source is not None and self._played >= len(self._chosen)

    def counters(self) -> Mapping[str, int]:
        """Return the number of frames ``delivered`` since `open`."""
        return dict(self._counts)

    def stop(self) -> None:
        """Stop playing; `start` restarts."""
        self._running = False

    def close(self) -> None:
        """Close the file; `open` may follow."""
        self.stop()
        if self._source is not None:
            self._source.close()
            self._source = None
