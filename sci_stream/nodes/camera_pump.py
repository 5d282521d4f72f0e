"""The thread that serves the camera: reads, numbers, notices gaps, opens it again when it is lost."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sci_stream.errors import CameraError, CameraLost, SciStreamError
from sci_stream.model import CameraCapabilities, CameraFrame
from sci_stream.nodes.holdings import Ring, frame_bytes
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import Camera

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Captured:
    """A frame with its place in the series. ``frame`` is None if there was no memory left to keep it."""

    seq: int
    epoch: int
    missed: int
    frame: CameraFrame | None


@dataclass(frozen=True, slots=True)
class Opened:
    """What a camera said when it was opened."""

    capabilities: CameraCapabilities
    calibration: Calibration | None


class CameraPump:
    """Drives a `Camera` in a thread of its own and hands its frames to the acquire node's loop.

    A camera cannot be paused, so this thread never waits for anything but the camera. It is the only user of the
    camera object.

    Parameters
    ----------
    wake
        Called whenever there is something new to `take`.
    most
        Stop after this many frames; 0 for no limit.
    """

    def __init__(
        self,
        camera: Camera,
        ring: Ring,
        wake: Callable[[], None],
        *,
        most: int = 0,
        read_timeout_s: float = 0.2,
        backoff_s: tuple[float, float] = (0.1, 5.0),
    ) -> None:
        self._camera = camera
        self._ring = ring
        self._wake = wake
        self._most = most
        self._read_timeout_s = read_timeout_s
        self._backoff_s = backoff_s
        self._captured: deque[Captured] = deque()
        self._go = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="camera", daemon=True)
        self._previous_id: int | None = None
        self._seq = 0
        self._epoch = 0
        self.opened: Opened | None = None
        self.failure: BaseException | None = None
        self.finished = False
        self.counts: Counter[str] = Counter()

    def open(self) -> None:
        """Open the camera in its thread; `opened` or `failure` tells the result."""
        self._thread.start()

    def start(self) -> None:
        """Let frames come."""
        self._go.set()

    def stop(self) -> None:
        """Ask the camera to stop; what it captured can still be taken. `finished` tells when it has."""
        self._stop.set()
        self._go.set()

    def join(self, timeout_s: float) -> None:
        """Wait until the camera is closed."""
        self._thread.join(timeout_s)

    @property
    def acquired(self) -> int:
        """Snapshots numbered so far."""
        return self._seq

    @property
    def epoch(self) -> int:
        """How often the camera has been started again in this series."""
        return self._epoch

    def take(self) -> Iterator[Captured]:
        """Take what has been captured since last asked."""
        while self._captured:
            yield self._captured.popleft()

    def _run(self) -> None:
        try:
            self.opened = Opened(self._camera.open(), self._camera.calibration())
            self._wake()
            self._go.wait()
            if not self._stop.is_set():
                self._camera.start()
                self._acquire()
        except SciStreamError as error:
            self.failure = error
        except BaseException as error:
            log.exception("the camera driver failed")
            self.failure = error
        finally:
            self._camera.stop()
            self._camera.close()
            self.finished = True
            self._wake()

    def _acquire(self) -> None:
        while not self._stop.is_set() and (self._most == 0 or self._seq < self._most):
            try:
                frame = self._camera.read(self._read_timeout_s)
            except CameraLost as error:
                log.warning("camera lost: %s", error)
                self.counts["lost"] += 1
                self._reopen()
                continue
            if frame is not None:
                self._take_in(frame)
            elif self._camera.exhausted:
                return

    def _take_in(self, frame: CameraFrame) -> None:
        assert self.opened is not None
        missed = 0
        if frame.frame_id is not None:
            if self._previous_id is not None:
                missed = self.opened.capabilities.frame_ids.missed(self._previous_id, frame.frame_id)
            if missed < 0:
                self.counts["repeated"] += 1
                return
            self._previous_id = frame.frame_id
        self.counts["missed"] += missed
        kept = self._ring.take(frame_bytes(frame))
        self._captured.append(Captured(self._seq, self._epoch, missed, frame if kept else None))
        self._seq += 1
        self._wake()

    def _reopen(self) -> None:
        """Open the camera again, however long it takes: a new epoch, since its ids and clock start anew."""
        wait_s, longest_s = self._backoff_s
        while not self._stop.is_set():
            self._camera.stop()
            self._camera.close()
            if self._stop.wait(wait_s):
                return
            try:
                again = self._camera.open()
                self._check_same(again)
                self._camera.start()
            except CameraError as error:
                log.info("camera not back yet: %s", error)
                wait_s = min(2 * wait_s, longest_s)
                continue
            self._epoch += 1
            self._previous_id = None
            self.counts["reopened"] += 1
            log.warning("camera is back: epoch %d", self._epoch)
            return

    def _check_same(self, again: CameraCapabilities) -> None:
        assert self.opened is not None
        before = self.opened.capabilities
        if (again.height_px, again.width_px, again.pixel_format) != (
            before.height_px,
            before.width_px,
            before.pixel_format,
        ):
            raise CameraError(
                "The camera came back with another image format",
                expected=f"{before.height_px}×{before.width_px} {before.pixel_format}",
                got=f"{again.height_px}×{again.width_px} {again.pixel_format}",
                hint="Stop the series and start a new one with a calibration that fits.",
            )
