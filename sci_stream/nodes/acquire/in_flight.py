"""Memory budget and in-flight snapshots of the acquire node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from sci_stream.model import CameraFrame, Snapshot
from sci_stream.nodes.acquire.spool import Spool
from sci_stream.wire.messages import Dropped, RawSnapshots

# Reports of drops that may wait for their acknowledgement; further drops wait here, as runs.
_MAX_REPORTS = 64
# The sink needs 20 µs for each snapshot of a run, in which it hears no heartbeat.
_MAX_RUN = 4096
# Of a snapshot in queue, spool and outbox besides its arrays. Measured: 5 KiB each for frames of
# 512 bytes.
_BOOKKEEPING_BYTES = 4096


def frame_bytes(frame: CameraFrame | Snapshot) -> int:
    """Return the memory of a frame, including its ground truth and the notes of the node."""
    return (
        _BOOKKEEPING_BYTES
        + frame.counts.nbytes
        + (0 if frame.truth is None else frame.truth.nbytes)
    )


def raw_bytes(raw: RawSnapshots) -> int:
    """Return the memory of snapshots that are only recorded."""
    return sum(_BOOKKEEPING_BYTES + counts.nbytes for counts in raw.counts)


class MemoryBudget:
    """Budget of bytes for snapshots that are not yet safe, checked by the camera thread."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Bytes held now."""
        return self._used

    def take(self, nbytes: int) -> bool:
        """Reserve memory for a frame; False if the budget is exhausted.

        One frame is admitted whatever its size.
        """
        with self._lock:
            if self._used and self._used + nbytes > self._limit:
                return False
            self._used += nbytes
            return True

    def hold(self, nbytes: int) -> None:
        """Reserve memory for snapshots recovered from the spool."""
        with self._lock:
            self._used += nbytes

    def free(self, nbytes: int) -> None:
        """Release memory."""
        with self._lock:
            self._used -= nbytes


@dataclass
class _Held:
    nbytes: int
    epoch: int
    delivering: bool
    raw_pending: bool
    raw_only: bool
    count: int


class InFlightSnapshots:
    """Snapshots in memory, each until its delivery is settled and, if recorded raw, its counts are
    safe.

    ``budget`` accounts for their memory; they are spooled for the same time.
    """

    def __init__(self, budget: MemoryBudget, spool: Spool) -> None:
        self._budget = budget
        self._spool = spool
        self._held: dict[int, _Held] = {}
        self.released = 0
        """Snapshots released so far."""

    def __len__(self) -> int:
        return sum(held.count for held in self._held.values())

    def delivering(self, besides: Collection[int]) -> bool:
        """Return whether the delivery of any snapshot is unsettled, ``besides`` these."""
        return any(held.delivering and seq not in besides for seq, held in self._held.items())

    def hold(
        self,
        seq: int,
        epoch: int,
        nbytes: int,
        *,
        raw_pending: bool,
        raw_only: bool = False,
        count: int = 1,
    ) -> None:
        """Hold a snapshot whose memory is already reserved, or ``count`` of them from ``seq`` on,
        which are settled together.

        Those that are ``raw_only`` are not delivered.
        """
        self._held[seq] = _Held(nbytes, epoch, not raw_only, raw_pending, raw_only, count)

    def settle(self, seq: int) -> int | None:
        """Settle the delivery of a snapshot; return its epoch,
        or None if it was already settled.
        """
        held = self._held.get(seq)
        if held is None or not held.delivering:
            return None
        held.delivering = False
        if held.raw_pending:
            self._spool.delivered(seq)
        self._release(seq, held)
        return held.epoch

    def confirm_raw(self, seq: int) -> range:
        """Note that the raw counts of a snapshot, and of those held with it, are recorded; return
        those of which that is the outcome.
        """
        held = self._held.get(seq)
        if held is None:
            return range(0)
        held.raw_pending = False
        self._release(seq, held)
        return range(seq, seq + held.count) if held.raw_only else range(0)

    def _release(self, seq: int, held: _Held) -> None:
        if not held.delivering and not held.raw_pending:
            # Before the memory is released: free memory implies a free slot.
            for number in range(seq, seq + held.count):
                self._spool.release(number)
            self._budget.free(held.nbytes)
            self.released += held.count
            del self._held[seq]


class DropReports:
    """Reports to the sink of snapshots that were dropped.

    A camera can be faster than the sink acknowledges. So only a limited number of messages is under
    way; later drops wait as runs of consecutive numbers, each of which is one message. ``post``
    sends one until it is acknowledged.
    """

    def __init__(self, series: str, post: Callable[[Dropped, float], None]) -> None:
        self._series = series
        self._post = post
        self._waiting: dict[tuple[int, str], list[list[int]]] = {}
        self._sent: dict[int, int] = {}

    def add(self, seq: int, epoch: int, reason: str) -> None:
        """Report a snapshot, in a message of its own or together with those before it."""
        runs = self._waiting.setdefault((epoch, reason), [])
        if runs and runs[-1][1] == seq and seq - runs[-1][0] < _MAX_RUN:
            runs[-1][1] += 1
        else:
            runs.append([seq, seq + 1])

    def send(self, now_s: float, *, everything: bool = False) -> None:
        """Send as many reports as may be under way, or ``everything``, before the end of the
        series.
        """
        while self._waiting and (everything or len(self._sent) < _MAX_REPORTS):
            (epoch, reason), runs = next(iter(self._waiting.items()))
            start, stop = runs.pop(0)
            if not runs:
                del self._waiting[epoch, reason]
            self._sent[start] = stop
            self._post(Dropped(self._series, epoch, start, reason, count=stop - start), now_s)

    def acknowledged(self, seq: int) -> range:
        """Return the snapshots of the report that begins with ``seq``, which the sink has accounted
        for.
        """
        return range(seq, self._sent.pop(seq, seq + 1))
