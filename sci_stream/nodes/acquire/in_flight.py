"""What the acquire node holds in memory, and until when."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from sci_stream.model import CameraFrame
from sci_stream.nodes.acquire.spool.spool import Spool


def frame_bytes(frame: CameraFrame) -> int:
    """Return the memory that a frame takes, the truth it may carry included."""
    return frame.counts.nbytes + (0 if frame.truth is None else frame.truth.nbytes)


class MemoryBudget:
    """Counts the bytes of snapshots that are not yet safe, so that the camera thread knows when memory is used up."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Bytes held now."""
        return self._used

    def take(self, nbytes: int) -> bool:
        """Reserve memory for a frame; False if there is none left. One frame is always let in."""
        with self._lock:
            if self._used and self._used + nbytes > self._limit:
                return False
            self._used += nbytes
            return True

    def hold(self, nbytes: int) -> None:
        """Take memory for what is there already, from an earlier process."""
        with self._lock:
            self._used += nbytes

    def free(self, nbytes: int) -> None:
        """Give memory back."""
        with self._lock:
            self._used -= nbytes


@dataclass(slots=True)
class _Held:
    nbytes: int
    epoch: int
    delivering: bool
    raw_pending: bool


class InFlightSnapshots:
    """Snapshots in memory: each until its delivery is settled and, if it is recorded raw, its counts are safe.

    ``spool``, where there is one, holds them as long.
    """

    spool: Spool | None = None

    def __init__(self, ring: MemoryBudget) -> None:
        self._ring = ring
        self._held: dict[int, _Held] = {}
        self.released = 0
        """Snapshots let go of so far."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def delivering(self) -> bool:
        """Whether the delivery of any snapshot is not settled."""
        return any(held.delivering for held in self._held.values())

    def hold(self, seq: int, epoch: int, nbytes: int, *, raw_pending: bool) -> None:
        """Hold a snapshot whose memory was taken from the ring."""
        self._held[seq] = _Held(nbytes, epoch, delivering=True, raw_pending=raw_pending)

    def pass_over(self) -> None:
        """Note a snapshot for which there was no memory: it is let go of at once."""
        self.released += 1

    def settle(self, seq: int) -> int | None:
        """Note that the delivery of a snapshot is over; return its epoch, or None if that was known."""
        held = self._held.get(seq)
        if held is None or not held.delivering:
            return None
        held.delivering = False
        if held.raw_pending and self.spool is not None:
            self.spool.delivered(seq)
        self._release(seq, held)
        return held.epoch

    def raw_is_safe(self, seq: int) -> None:
        """Note that a snapshot's raw counts are in the recording."""
        held = self._held.get(seq)
        if held is not None:
            held.raw_pending = False
            self._release(seq, held)

    def _release(self, seq: int, held: _Held) -> None:
        if not held.delivering and not held.raw_pending:
            if self.spool is not None:
                self.spool.release(seq)  # before the memory: who finds memory must find a slot, too
            self._ring.free(held.nbytes)
            self.released += 1
            del self._held[seq]
