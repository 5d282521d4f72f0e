"""The spool: a file of unacknowledged snapshots that survives a crash of the acquire node.

The file is memory-mapped. Data written to the mapping belong to the kernel: they survive a crash of the process, but
not of the machine. On a memory file system the cost is one copy of a snapshot and no disk access.

The series information comes first, then slots of one snapshot each. The state of a slot is written last, so that a
partially written slot does not count as a snapshot; checksums detect other corruption.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import mmap
import os
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sci_stream.model import SeriesInfo, Snapshot
from sci_stream.nodes.acquire.spool.file import (
    DELIVERED,
    FREE,
    MAX_SLOTS,
    Packed,
    SpoolFile,
    make_file,
    open_file,
    quarantine,
    read_slot,
    set_state,
    slot_size,
    state_of,
    storage_errors,
)
from sci_stream.nodes.runtime.process import PARENT_VARIABLE, SPOOL_VARIABLE
from sci_stream.nodes.runtime.runtime_folder import private_folder

log = logging.getLogger(__name__)

_NUMBERING_AT = 64
_NUMBERING = struct.Struct("<QQQ")  # next seq, epoch, frames missed by the camera: written by the camera thread
_EPOCH_AT = _NUMBERING_AT + 8
_CONFIRMED_AT, _RUNNING_AT, _WRITTEN_SLOTS_AT, _ENDING_AT = 96, 104, 112, 128
_UINT64 = struct.Struct("<Q")
# Snapshots without a confirmed outcome: far more than any queue holds.
_MAX_OPEN = 1 << 24
_ENDING = struct.Struct("<I252s")  # whether the series is ending, and why


@dataclass(frozen=True, slots=True)
class RecoveredSnapshot:
    """A snapshot recovered from a spool; ``delivered``: only its raw counts were unconfirmed."""

    snapshot: Snapshot
    delivered: bool


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """State recovered from the spool of a crashed acquire node.

    ``next_seq`` is the first unused number; the sink has confirmed every outcome below ``confirmed``; ``running_ns``
    is the monotonic time of the camera's first start, 0 if it was not started; ``ending`` is the end reason of a series
    that was ending, otherwise ``""``; ``corrupt_slots`` counts slots without a readable snapshot.
    """

    info: SeriesInfo
    next_seq: int
    epoch: int
    camera_missed: int
    confirmed: int
    running_ns: int
    ending: str
    snapshots: tuple[RecoveredSnapshot, ...]
    corrupt_slots: int

    @property
    def lost(self) -> Iterator[int]:
        """Numbers whose outcome may be unknown to the sink and whose snapshots cannot be recovered."""
        here = {recovered.snapshot.id.seq for recovered in self.snapshots if not recovered.delivered}
        return (seq for seq in range(self.confirmed, self.next_seq) if seq not in here)


def spool_path(folder: Path | None, rig: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the spool file of a rig, in the rig's or the supervisor's folder; None without a folder."""
    place = folder or environment.get(SPOOL_VARIABLE)
    return private_folder(Path(place)) / f"{rig}.spool" if place else None


def done_path(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the marker file of a completed acquire node; None without a supervisor.

    It is created just before the spool of the last series is deleted. The supervisor does not restart a node that is
    killed after that: it would start an unrequested series.
    """
    place = environment.get(SPOOL_VARIABLE) if PARENT_VARIABLE in environment else None
    return Path(place) / "done" if place else None


class Spool:
    """The spool of one series. The camera thread calls `keep` and `number`, the node's loop the rest.

    Created by `create` or `reopen`; the file is locked while it is open.
    """

    def __init__(self, file: SpoolFile) -> None:
        self._file = file
        self._map = mmap.mmap(file.number, file.nbytes)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._lock = threading.Lock()
        self._free = list(range(file.slots))
        self._allocated = [0] * file.slots
        self._used: dict[int, int] = {}
        self._confirmed = 0
        self._written_slots = 0
        self._warned = False
        self.unspooled = 0
        """Snapshots that did not fit: they are delivered as usual, but a crash would lose them."""

    @classmethod
    def create(cls, path: Path, info: SeriesInfo, *, truth: bool, limit_bytes: int) -> Spool:
        """Create the spool of a series, replacing an existing one.

        Parameters
        ----------
        truth
            Whether snapshots come with ground truth.
        limit_bytes
            Limit for all snapshots together, which sets the number of slots at one byte per pixel.

        Raises
        ------
        StorageError
            If the file cannot be created.
        """
        slots = min(MAX_SLOTS, 1 + max(1, limit_bytes // (info.height_px * info.width_px)))
        file = make_file(path, info, slots=slots, slot_bytes=slot_size(info, truth=truth))
        with storage_errors(path):
            return cls(file)

    @classmethod
    def reopen(cls, path: Path) -> tuple[Spool, RecoveredState] | None:
        """Reopen the spool of an interrupted series; None if there is none.

        An unreadable spool, e.g. of another release, is quarantined and named in the log.

        Raises
        ------
        StorageError
            If another process has it open, or the file system refuses.
        """
        opened = open_file(path)
        if opened is None:
            return None
        file, info = opened
        with storage_errors(path):
            spool = cls(file)
        try:
            return spool, spool._resume(info)
        except ValueError as error:
            spool.close(over=False)
            quarantine(path, str(error))
            return None

    # --- camera thread

    def keep(self, snapshot: Snapshot, missed: int) -> bool:
        """Copy a snapshot into a slot and use up its number; False, counted, if there is no room."""
        packed = Packed.of(snapshot)
        slot = self._take_slot(packed.nbytes)
        if slot is None:
            self.unspooled += 1
        else:
            self._used[packed.seq] = slot
            packed.write(self._map, self._at(slot), self._bytes)
        self.number(snapshot.id.seq, snapshot.id.epoch, missed)
        return slot is not None

    def number(self, seq: int, epoch: int, missed: int) -> None:
        """Record the next number and the frames missed by the camera so far."""
        _NUMBERING.pack_into(self._map, _NUMBERING_AT, seq + 1, epoch, missed)

    # --- node loop

    def resume(self, epoch: int) -> None:
        """Record the epoch in which the series resumes."""
        self._put(_EPOCH_AT, epoch)

    def run_since(self, monotonic_ns: int) -> None:
        """Record the camera's start in monotonic time, which all processes of the host share."""
        self._put(_RUNNING_AT, monotonic_ns)

    def confirmed(self, below: int) -> None:
        """Record that the sink has confirmed every outcome below a number."""
        if below > self._confirmed:
            self._put(_CONFIRMED_AT, below)
            self._confirmed = below

    def delivered(self, seq: int) -> None:
        """Mark a snapshot as delivered: only its raw counts are unconfirmed."""
        slot = self._used.get(seq)
        if slot is not None:
            set_state(self._map, self._at(slot), DELIVERED)

    def release(self, seq: int) -> None:
        """Release a snapshot."""
        slot = self._used.pop(seq, None)
        if slot is not None:
            set_state(self._map, self._at(slot), FREE)
            self._give_back(slot)

    def end(self, reason: str) -> None:
        """Record that the series is ending: a process that resumes it acquires nothing more."""
        _ENDING.pack_into(self._map, _ENDING_AT, 1, reason.encode(errors="replace"))

    def close(self, *, over: bool) -> None:
        """Close the spool; delete the file if the series is ``over``."""
        if over:
            self._file.path.unlink(missing_ok=True)
        del self._bytes
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self._file.number)

    @property
    def used(self) -> int:
        """Snapshots held."""
        return len(self._used)

    # --- slots

    def _put(self, at: int, number: int) -> None:
        _UINT64.pack_into(self._map, at, number)

    def _get(self, at: int) -> int:
        number: int = _UINT64.unpack_from(self._map, at)[0]
        return number

    def _at(self, slot: int) -> int:
        return self._file.begin + slot * self._file.slot_bytes

    def _give_back(self, slot: int) -> None:
        with self._lock:
            heapq.heappush(self._free, slot)

    def _take_slot(self, need: int) -> int | None:
        with self._lock:
            slot = heapq.heappop(self._free) if self._free and need <= self._file.slot_bytes else None
        if slot is None:
            self._warn("all slots are in use")
        elif need > self._allocated[slot]:
            try:
                # Writing to a mapping beyond the free space of the file system raises SIGBUS.
                os.posix_fallocate(self._file.number, self._at(slot), need)
            except OSError as error:
                self._warn(os.strerror(error.errno or 0))
                self._give_back(slot)
                return None
            self._allocated[slot] = need
            if slot >= self._written_slots:
                self._written_slots = slot + 1
                self._put(_WRITTEN_SLOTS_AT, self._written_slots)
        return slot

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "spool %s is full (%s): further snapshots would be lost if this node crashed", self._file.path, why
            )

    def _resume(self, info: SeriesInfo) -> RecoveredState:
        next_seq, epoch, missed = _NUMBERING.unpack_from(self._map, _NUMBERING_AT)
        self._confirmed = self._get(_CONFIRMED_AT)
        if not 0 <= next_seq - self._confirmed <= _MAX_OPEN or max(next_seq, missed) >= 1 << 48 or epoch >= 1 << 31:
            raise ValueError(f"its numbers are damaged: next {next_seq}, confirmed {self._confirmed}, epoch {epoch}")
        # Slots fill from the lowest, so slots beyond have never been written; reading them would allocate pages.
        self._written_slots = min(self._get(_WRITTEN_SLOTS_AT), self._file.slots)
        is_ending, words = _ENDING.unpack_from(self._map, _ENDING_AT)
        recovered: dict[int, RecoveredSnapshot] = {}
        corrupt = 0
        self._free = list(range(self._written_slots, self._file.slots))
        for slot in range(self._written_slots):
            state = state_of(self._map, self._at(slot))
            snapshot = (
                None if state == FREE else read_slot(self._map, self._at(slot), self._file.slot_bytes, info.series)
            )
            if snapshot is None or snapshot.id.seq in recovered:
                corrupt += state != FREE
                self._give_back(slot)
            else:
                recovered[snapshot.id.seq] = RecoveredSnapshot(snapshot, delivered=state == DELIVERED)
                self._used[snapshot.id.seq] = slot
        return RecoveredState(
            info=info,
            next_seq=max([next_seq, *(seq + 1 for seq in recovered)]),
            epoch=epoch,
            camera_missed=missed,
            confirmed=self._confirmed,
            running_ns=self._get(_RUNNING_AT),
            ending=words.rstrip(b"\0").decode(errors="replace") if is_ending else "",
            snapshots=tuple(recovered[seq] for seq in sorted(recovered)),
            corrupt_slots=corrupt,
        )
