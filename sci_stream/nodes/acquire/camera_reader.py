"""The camera thread: reads and numbers frames, detects gaps, reconnects a lost camera."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Generic, NamedTuple, TypeVar

from sci_stream.delivery.frame_faults import FAULTS, FRAME_FAULT
from sci_stream.errors import CameraError, CameraLost, SciStreamError
from sci_stream.model import CameraCapabilities, CameraFrame
from sci_stream.nodes.acquire.frame_content import FrameContent
from sci_stream.nodes.acquire.in_flight import MemoryBudget, frame_bytes
from sci_stream.nodes.acquire.trigger_monitor import TriggerMonitor
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import Parameter, Value
from sci_stream.ports import AdjustableCamera, Camera

log = logging.getLogger(__name__)

T = TypeVar("T")

# Interval at which the driver's counters are read.
_COUNT_S = 0.5
# An id at most this far behind the last one is a frame delivered again; further behind, the counter
# was reset.
_REPEATED_WITHIN = 16
# A larger step of the ids is no loss of frames: so many in a burst, and then at four times the
# nominal rate, or, where that is unknown, faster than any camera.
_MAX_MISSED = 10_000
_MAX_MISSED_PER_S = 1_000_000
_RESET = -2
# Interval at which setting requests are served before the camera starts.
_REQUESTS_EVERY_S = 0.05


@dataclass(frozen=True)
class Captured:
    """A frame with its number in the series, None if the memory budget was exhausted."""

    seq: int
    epoch: int
    missed: int
    frame: CameraFrame | None


class Answer(NamedTuple):
    """Result of a setting request: the settings after it, or the reason for the refusal."""

    request: str
    settings: tuple[Parameter, ...]
    error: SciStreamError | None = None


class CameraReader(Generic[T]):
    """Run a `Camera` in its own thread and pass its frames to the loop of the acquire node.

    A camera cannot be paused, so this thread waits for nothing but the camera. Only this thread
    uses the camera object. ``wake`` is called when there is something new to `take`; ``keep`` in
    the camera thread with each frame before it counts as acquired: it returns the value to `take`
    for it. After ``most`` frames it stops; 0 for no limit.
    """

    def __init__(
        self,
        camera: Camera,
        budget: MemoryBudget,
        wake: Callable[[], None],
        keep: Callable[[Captured], T],
        *,
        most: int = 0,
        read_timeout_s: float = 0.2,
        backoff_s: tuple[float, float] = (0.2, 10.0),
    ) -> None:
        self._camera = camera
        self._budget = budget
        self._wake = wake
        self._keep = keep
        self._most = most
        self._read_timeout_s = read_timeout_s
        self._backoff_s = backoff_s
        self._captured = deque[T]()
        self._may_start = threading.Event()
        self._stop = threading.Event()
        # A daemon: a driver that hangs in the vendor's library must not keep the process from
        # ending.
        self.thread = threading.Thread(target=self._run, name="camera", daemon=True)
        self._previous_id: int | None = None
        self._repeated_id: int | None = None
        self._frame_s = time.monotonic()
        self.acquired = 0
        """Snapshots numbered so far."""
        self.epoch = 0
        """Number of camera restarts in this series."""
        self.is_urgent = True
        """Whether each frame wakes the loop; otherwise it finds several at its next turn."""
        self._retries = False
        self._triggers = TriggerMonitor()
        self._content = FrameContent()
        self.capabilities: CameraCapabilities | None = None
        """None until the camera is open."""
        self.calibration: Calibration | None = None
        """The camera's own calibration."""
        self.failure: BaseException | None = None
        self.finished = False
        self._connecting = False
        """While the camera starts or is opened again: once it was asked to stop, no frame
        follows."""
        self.lost = ""
        # Replaced, never mutated: other threads iterate over it without a lock.
        self.counts = Counter[str]()
        """Event counts of the camera."""
        self.driver_counts = Counter[str]()
        """The driver's counters in this series, including those before a reconnect."""
        self._driver_before = Counter[str]()
        self._counted_s = 0.0
        self.chunks: Mapping[str, bool | int | float | str] = {}
        """Chunk data of the newest frame."""
        self.settings: tuple[Parameter, ...] = ()
        """The settings that the camera offers now."""
        self._requests = SimpleQueue[tuple[str, Mapping[str, Value]]]()
        self._answered = SimpleQueue[Answer]()

    def open(self, *, retry: bool = False) -> None:
        """Open the camera in its thread; `capabilities` or `failure` holds the result.

        With ``retry``, try again without limit: a resumed or later series waits for the camera.
        """
        self._retries = retry
        self.thread.start()

    def resume(self, seq: int, epoch: int, missed: int) -> None:
        """Continue the numbering of a resumed series; call before `start`."""
        self.acquired = seq
        self.epoch = epoch
        self.counts = Counter(missed=missed)

    def start(self) -> None:
        """Start frame delivery."""
        self._may_start.set()

    def stop(self) -> None:
        """Ask the camera to stop; captured frames can still be taken.

        `finished` is set once it has stopped.
        """
        self._stop.set()
        self._may_start.set()
        # A camera that is lost answers nothing for seconds. Meanwhile the series can end.
        self.finished = self.finished or self._connecting

    @property
    def stopping(self) -> bool:
        """Whether the camera was asked to stop."""
        return self._stop.is_set()

    def abandon(self, error: CameraError) -> None:
        """Continue without a camera thread that does not return; later frames are ignored."""
        log.error("%s", error)
        self.failure = error
        self.stop()
        self.finished = True

    def join(self, timeout_s: float) -> None:
        """Wait until the camera is closed."""
        if self.thread.ident is not None:
            self.thread.join(timeout_s)

    def take(self) -> Iterator[T]:
        """Take what `keep` has returned since the last call."""
        while self._captured:
            yield self._captured.popleft()

    def change(self, request: str, changes: Mapping[str, Value]) -> None:
        """Request new values for some `settings`, applied between two frames; `answered` returns
        the result.
        """
        self._requests.put((request, changes))

    def answered(self) -> Iterator[Answer]:
        """Return the results of finished setting requests."""
        if self.finished:
            self._refuse_all("The camera has stopped")
        while not self._answered.empty():
            yield self._answered.get()

    def _run(self) -> None:
        try:
            capabilities = self._open_first()
            self.calibration = self._camera.calibration()
            self.capabilities = capabilities
            self.lost = ""
            self._note_settings()
            self._wake()
            self._driver_before.subtract(self._camera.counters())  # of earlier series
            try:
                self._await_start()
                if not self._stop.is_set():
                    self._connecting = True
                    self._camera.start()
            except CameraLost as error:
                self._recover(error)
                self._await_start()
            self._connecting = False
            self._acquire()
        except SciStreamError as error:
            self.failure = error
        # Vendor libraries raise anything; whatever it is, the node must learn that the camera
        # thread ended.
        except BaseException as error:
            log.exception("camera driver failed")
            self.failure = error
        finally:
            try:
                self._camera.stop()
                self._camera.close()
            finally:
                self.finished = True
                self._wake()

    def _open_first(self) -> CameraCapabilities:
        wait_s, longest_s = self._backoff_s
        while True:
            try:
                return self._camera.open()
            except CameraError as error:
                if not self._retries or self._stop.wait(wait_s):
                    raise
                self._note_failure(error)
                wait_s = min(2 * wait_s, longest_s)

    def _await_start(self) -> None:
        """Wait until the camera may start; the operator may already set the exposure."""
        while not self._may_start.wait(_REQUESTS_EVERY_S):
            self._apply_requests()

    def _acquire(self) -> None:
        while not self._stop.is_set() and (self._most == 0 or self.acquired < self._most):
            if time.monotonic() - self._counted_s > _COUNT_S:
                self._count()
            try:
                # Between two frames, since a camera object is used by one thread only.
                self._apply_requests()
                frame = self._camera.read(self._read_timeout_s)
            except CameraLost as error:
                self._recover(error)
                continue
            if frame is not None:
                self._accept(frame)
            elif self._camera.exhausted:
                break
        self._count()

    def _apply_requests(self) -> None:
        """Apply a setting request; stop at the first setting that fails."""
        while not self._requests.empty():
            request, changes = self._requests.get()
            error: SciStreamError | None = None
            try:
                self._set(changes)
            # The operator gets an answer even if the camera does not return.
            except CameraLost:
                self._answered.put(
                    Answer(request, (), CameraError("The camera was lost while it was set"))
                )
                raise
            except SciStreamError as failure:
                error = failure
            self._note_settings()
            self._answered.put(Answer(request, self.settings, error))
            self._wake()

    def _set(self, changes: Mapping[str, Value]) -> None:
        assert isinstance(self._camera, AdjustableCamera)  # otherwise it offers no settings
        for name, value in changes.items():
            self._adopt(self._camera.set(name, value))

    def _note_settings(self) -> None:
        if isinstance(self._camera, AdjustableCamera):
            self.settings = tuple(self._camera.settings())

    def _refuse_all(self, why: str) -> None:
        while not self._requests.empty():
            self._answered.put(Answer(self._requests.get()[0], (), CameraError(why)))

    def _count(self) -> None:
        """Add the driver's counters, in one assignment for readers in other threads."""
        self._counted_s = time.monotonic()
        counted = Counter(self._driver_before)
        counted.update(self._camera.counters())
        self.driver_counts = counted

    def _note(self, what: str) -> bool:
        """Count an event; return whether it is worth a line of the log: few of many are."""
        self.counts = self.counts + Counter({what: 1})
        return self.counts[what] in {1, 10, 100} or self.counts[what] % 1000 == 0

    def _accept(self, frame: CameraFrame) -> None:
        if self.finished:
            return  # abandoned meanwhile
        missed = 0 if frame.frame_id is None else self._missed_before(frame.frame_id)
        if missed < 0:
            if self._note("repeated"):
                log.warning(
                    "frame id %s after %s: the frame was delivered before and is discarded (%d so "
                    "far)",
                    frame.frame_id,
                    self._previous_id,
                    self.counts["repeated"],
                )
            return
        missed, frame = self._checked(frame, missed)
        if missed:
            self.counts = self.counts + Counter(missed=missed)
        self.chunks = frame.chunks
        # Without memory the frame still gets its number: the ledger must count it, and the camera
        # cannot wait.
        fits = self._budget.take(frame_bytes(frame))
        self._captured.append(
            self._keep(Captured(self.acquired, self.epoch, missed, frame if fits else None))
        )
        self.acquired += 1
        if self.is_urgent:
            self._wake()

    def _checked(self, frame: CameraFrame, missed: int) -> tuple[int, CameraFrame]:
        """Return the frames missed before this one, also by its time, and the frame with its
        faults.
        """
        assert self.capabilities is not None
        period_ns = self.capabilities.frame_period_ns
        in_time, untriggered = self._triggers.check(frame.camera_time_ns, missed, period_ns)
        faults = [name for name in (in_time, self._content.check(frame.counts)) if name]
        for name in faults:
            if self._note(name):
                log.warning(
                    "frames %s (the last is %d; %d so far): %s",
                    FAULTS[name].words,
                    self.acquired,
                    self.counts[name],
                    FAULTS[name].remedy,
                )
        if faults:
            bits = sum(FAULTS[name].bit for name in faults)
            frame = replace(frame, chunks={**frame.chunks, FRAME_FAULT: bits})
        return missed + untriggered, frame

    def _missed_before(self, frame_id: int) -> int:
        """Return the number of frames missed before this one, −1 if it is a repetition; detect a
        counter that jumped.

        A counter that was reset, or jumped further than frames can have been missed since the last
        one, starts a new epoch: its ids do not compare with earlier ones, so that frames lost in
        between cannot be counted.
        """
        assert self.capabilities is not None
        before = self._previous_id
        now_s = time.monotonic()
        ids = self.capabilities.frame_ids
        missed = 0 if before is None else ids.missed(before, frame_id)
        if missed < 0 and self._repeated_id is not None and frame_id > self._repeated_id:
            missed = _RESET  # ids count up again, below the last one
        elif missed < 0:
            assert before is not None
            is_first = frame_id - ids.first <= 1 and before > frame_id
            if is_first or before - frame_id > _REPEATED_WITHIN:
                missed = _RESET
        elif missed > self._max_missed(now_s - self._frame_s):
            missed = _RESET
        if missed == _RESET:
            self._new_epoch("counter_resets")
            log.warning(
                "the camera's frame counter jumped from %s to %d: epoch %d",
                before,
                frame_id,
                self.epoch,
            )
            missed = 0
        if missed < 0:
            self._repeated_id = frame_id
        else:
            self._previous_id = frame_id
            self._repeated_id = None
            self._frame_s = now_s
        return missed

    def _max_missed(self, elapsed_s: float) -> float:
        """Return how many frames can have been missed in a time."""
        assert self.capabilities is not None
        period_ns = self.capabilities.frame_period_ns
        return _MAX_MISSED + elapsed_s * (4e9 / period_ns if period_ns else _MAX_MISSED_PER_S)

    def _recover(self, error: CameraLost) -> None:
        """Reconnect a lost camera without a time limit.

        This starts a new epoch, since ids and clock restart.
        """
        log.warning("camera lost: %s", error)
        self._note("lost")
        self.lost = str(error)
        self._count()
        self._driver_before = self.driver_counts
        wait_s, longest_s = self._backoff_s
        self._connecting = True
        while not self._stop.is_set() and self.lost:
            self._camera.stop()
            self._camera.close()
            self._refuse_all("The camera is lost")
            # Wait before the first attempt too: a device that was just lost is rarely back at once.
            if self._stop.wait(wait_s):
                break
            try:
                self._adopt(self._camera.open())
                if not self._stop.is_set():  # opening may take minutes
                    self._camera.start()
                    self.lost = ""
            except CameraError as failure:
                self._note_failure(failure)
                wait_s = min(2 * wait_s, longest_s)
        self._connecting = False
        if not self.lost:
            self._note_settings()
            self._new_epoch("reopened")
            self._previous_id = self._repeated_id = None
            log.warning("camera reconnected: epoch %d", self.epoch)

    def _note_failure(self, error: CameraError) -> None:
        if self.lost != str(error):
            self.lost = str(error)
            log.warning("cannot reconnect the camera yet: %s", error)

    def _new_epoch(self, why: str) -> None:
        """Count the event; frames are not compared with those before."""
        self.epoch += 1
        self._triggers.restart()
        self._content = FrameContent()
        self._note(why)

    def _adopt(self, again: CameraCapabilities) -> None:
        """Replace the capabilities, whose image format must be the same."""
        assert self.capabilities is not None
        before, after = (
            f"{each.height_px}×{each.width_px} {each.pixel_format}"
            for each in (self.capabilities, again)
        )
        # A calibration fits one format only: resuming with another would record nonsense under the
        # same series.
        if before != after:
            raise CameraError(
                "Image format changed after reconnect",
                expected=before,
                got=after,
                hint="Stop the series and start a new one with a calibration that fits.",
            )
        self.capabilities = again
