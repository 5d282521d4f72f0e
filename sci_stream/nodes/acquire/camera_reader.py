"""The thread that serves the camera: reads, numbers, notices gaps, opens it again when it is lost."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import NamedTuple

from sci_stream.errors import CameraError, CameraLost, SciStreamError
from sci_stream.model import CameraCapabilities, CameraFrame
from sci_stream.nodes.acquire.in_flight import MemoryBudget, frame_bytes
from sci_stream.nodes.acquire.trigger_monitor import TriggerWatch
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import Parameter, Value
from sci_stream.ports import AdjustableCamera, Camera

log = logging.getLogger(__name__)

_COUNT_S = 0.5
"""How often the driver is asked for its counts."""
_ASKED_S = 0.05
"""How often, before the camera starts, it is looked whether something is to be set."""


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


class Answer(NamedTuple):
    """What became of a request to set something: the settings right after it, or why they are as they were."""

    request: str
    settings: tuple[Parameter, ...]
    error: SciStreamError | None = None


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
        ring: MemoryBudget,
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
        self._patient = False
        self.keep: Callable[[Captured], Captured] = lambda captured: captured
        """Called with each frame in the camera's thread, before it is counted as acquired."""
        self._triggers = TriggerWatch()
        self.opened: Opened | None = None
        self.failure: BaseException | None = None
        self.finished = False
        self.lost = ""
        self.counts: Counter[str] = Counter()
        """What was noticed of the camera. Never changed, always replaced: other threads go through it meanwhile."""
        self.driver_counts: Counter[str] = Counter()
        """What the driver counted in this series, also before it was opened again."""
        self._driver_before: Counter[str] = Counter()
        self._counted_s = 0.0
        self.chunks: Mapping[str, bool | int | float | str] = {}
        """What the camera added to its newest frame."""
        self.settings: tuple[Parameter, ...] = ()
        """What can be set on the camera now."""
        self._asked: SimpleQueue[tuple[str, Mapping[str, Value]]] = SimpleQueue()
        self._answered: SimpleQueue[Answer] = SimpleQueue()

    def open(self, *, patient: bool = False) -> None:
        """Open the camera in its thread; `opened` or `failure` tells the result.

        A ``patient`` one tries again for as long as it takes: there is a series that waits for the camera.
        """
        self._patient = patient
        self._thread.start()

    def resume(self, seq: int, epoch: int, missed: int) -> None:
        """Go on with a series that an earlier process began; before `start`."""
        self._seq, self._epoch = seq, epoch
        self.counts = Counter(missed=missed)

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

    def change(self, request: str, changes: Mapping[str, Value]) -> None:
        """Set some of `settings` between two frames; `answered` tells when, or why not."""
        self._asked.put((request, changes))

    def answered(self) -> Iterator[Answer]:
        """Tell which requests are done, or why not."""
        if self.finished:
            self._refuse_all("The camera has stopped")
        while not self._answered.empty():
            yield self._answered.get()

    def _run(self) -> None:
        try:
            self.opened = Opened(self._open_first(), self._camera.calibration())
            self._note_settings()
            self._wake()
            while not self._go.wait(_ASKED_S):
                self._obey()
            if not self._stop.is_set():
                self._driver_before.subtract(self._camera.counters())  # of series before this one
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

    def _open_first(self) -> CameraCapabilities:
        wait_s, longest_s = self._backoff_s
        while True:
            try:
                return self._camera.open()
            except CameraError as error:
                if not self._patient or self._stop.wait(wait_s):
                    raise
                log.info("camera not back yet: %s", error)
                wait_s = min(2 * wait_s, longest_s)

    def _acquire(self) -> None:
        while not self._stop.is_set() and (self._most == 0 or self._seq < self._most):
            if time.monotonic() - self._counted_s > _COUNT_S:
                self._count()
            try:
                self._obey()
                frame = self._camera.read(self._read_timeout_s)
            except CameraLost as error:
                log.warning("camera lost: %s", error)
                self._note("lost")
                self.lost = str(error)
                self._reopen()
                continue
            if frame is not None:
                self._take_in(frame)
            elif self._camera.exhausted:
                break
        self._count()

    def _obey(self) -> None:
        """Set what was asked for; stops at the first setting that fails."""
        while not self._asked.empty():
            request, changes = self._asked.get()
            error: SciStreamError | None = None
            try:
                self._set(changes)
            except CameraLost:
                self._answered.put(Answer(request, (), CameraError("The camera was lost while it was set")))
                raise
            except SciStreamError as failure:
                error = failure
            self._note_settings()
            self._answered.put(Answer(request, self.settings, error))
            self._wake()

    def _set(self, changes: Mapping[str, Value]) -> None:
        assert isinstance(self._camera, AdjustableCamera)  # else it has no settings to ask for
        assert self.opened is not None
        for name, value in changes.items():
            again = self._camera.set(name, value)
            self._check_same(again)
            self.opened = replace(self.opened, capabilities=again)

    def _note_settings(self) -> None:
        if isinstance(self._camera, AdjustableCamera):
            self.settings = tuple(self._camera.settings())

    def _refuse_all(self, why: str) -> None:
        while not self._asked.empty():
            self._answered.put(Answer(self._asked.get()[0], (), CameraError(why)))

    def _count(self) -> None:
        """Take over the driver's counts; for readers in other threads as one."""
        self._counted_s = time.monotonic()
        counted = Counter(self._driver_before)
        counted.update(self._camera.counters())
        self.driver_counts = counted

    def _note(self, what: str) -> None:
        """Count something."""
        self.counts = self.counts + Counter({what: 1})

    def _take_in(self, frame: CameraFrame) -> None:
        assert self.opened is not None
        missed = 0
        if frame.frame_id is not None:
            if self._previous_id is not None:
                missed = self.opened.capabilities.frame_ids.missed(self._previous_id, frame.frame_id)
            if missed < 0:
                self._note("repeated")
                return
            self._previous_id = frame.frame_id
        self._triggers.see(frame, missed)
        self.counts = (self.counts + Counter(missed=missed)) | self._triggers.counts
        self.chunks = frame.chunks
        kept = self._ring.take(frame_bytes(frame))
        self._captured.append(self.keep(Captured(self._seq, self._epoch, missed, frame if kept else None)))
        self._seq += 1
        self._wake()

    def _reopen(self) -> None:
        """Open the camera again, however long it takes: a new epoch, since its ids and clock start anew."""
        self._count()
        self._driver_before = self.driver_counts
        wait_s, longest_s = self._backoff_s
        while not self._stop.is_set():
            self._camera.stop()
            self._camera.close()
            self._refuse_all("The camera is lost")
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
            self.opened = replace(self.opened, capabilities=again) if self.opened else None
            self._note_settings()
            self._epoch += 1
            self._previous_id = None
            self._triggers.restart()
            self._note("reopened")
            self.lost = ""
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
