"""Snapshots that are not yet safe, in a file that outlives the acquire node: the next one takes up what a crash leaves.

The file is mapped into memory. What is written to the mapping belongs to the kernel from then on: it survives the
process, however it ends (not the machine). On a memory file system it costs one copy of a snapshot and no disk.

It begins with what is known of the series, then come slots, one a snapshot. A slot's state is written last, so that a
slot in which a process died while writing it is not taken for a snapshot; checksums find what else may befall it.
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
from sci_stream.nodes.acquire.spool.file import SpoolFile, make_file, open_file, said_of
from sci_stream.nodes.acquire.spool.slots import DELIVERED, FREE, Packed, read_slot, set_state, slot_size, state_of
from sci_stream.nodes.runtime.process import PARENT_VARIABLE

log = logging.getLogger(__name__)

SPOOL_VARIABLE = "SCI_STREAM_SPOOL"
"""Set by a supervisor for its acquire node: a folder that lives as long as the run."""

_GIVEN_AT = 64
_GIVEN = struct.Struct("<QQQ")  # next seq, epoch, missed by the camera so far: the camera's thread writes these
_EPOCH_AT = _GIVEN_AT + 8
_CONFIRMED_AT, _RUNNING_AT, _TOUCHED_AT, _ENDING_AT = 96, 104, 112, 128
_NUMBER = struct.Struct("<Q")
_ENDING = struct.Struct("<I252s")  # whether the series is being ended, and why
_MOST_SLOTS = 1 << 16


@dataclass(frozen=True, slots=True)
class RecoveredSnapshot:
    """A snapshot found in a spool; ``delivered``: only its raw counts were not known to be safe."""

    snapshot: Snapshot
    delivered: bool


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """What an acquire node that died left behind.

    ``next_seq`` is the first number that was not given out; ``confirmed`` the number below which the sink has confirmed
    every outcome; ``running_ns`` when the camera was first started, monotonic time, 0 if it was not; ``ending`` why the
    series was being ended, ``""`` if it was not; ``torn`` slots hold no snapshot any more.
    """

    info: SeriesInfo
    next_seq: int
    epoch: int
    camera_missed: int
    confirmed: int
    running_ns: int
    ending: str
    kept: tuple[RecoveredSnapshot, ...]
    torn: int

    @property
    def lost(self) -> Iterator[int]:
        """Numbers given out whose outcome may not be known to the sink, and that cannot be sent out again."""
        here = {kept.snapshot.id.seq for kept in self.kept if not kept.delivered}
        return (seq for seq in range(self.confirmed, self.next_seq) if seq not in here)


def spool_path(folder: Path | None, rig: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file of a rig's spool, in the folder that the rig names or in its supervisor's; None without one."""
    place = folder or environment.get(SPOOL_VARIABLE)
    return Path(place) / f"{rig}.spool" if place else None


def done_path(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file by which an acquire node tells its supervisor that all is done; None without a supervisor.

    It is there from just before the spool of the last series goes. A node that is killed between that and its end is
    not started again: it would begin a series that nobody asked for.
    """
    place = environment.get(SPOOL_VARIABLE) if PARENT_VARIABLE in environment else None
    return Path(place) / "done" if place else None


class Spool:
    """One series' spool. `keep` and `number` are for the camera's thread, the rest for the node's loop.

    Made by `create` or `reopen`; its file is locked as long as it is open.
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
        self._touched = 0
        self._complained = False
        self.unspooled = 0
        """Snapshots for which there was no room: they are delivered as ever, but a crash would cost them."""

    @classmethod
    def create(cls, path: Path, info: SeriesInfo, *, most_bytes: int, limit_bytes: int) -> Spool:
        """Begin the spool of a series; one that is there is replaced.

        Parameters
        ----------
        most_bytes
            Of the arrays of one snapshot.
        limit_bytes
            Of all snapshots together: there are slots for as many as fit in, at a byte a pixel.

        Raises
        ------
        StorageError
            If the file cannot be made.
        """
        slots = min(_MOST_SLOTS, 1 + max(1, limit_bytes // (info.height_px * info.width_px)))
        file = make_file(path, info, slots=slots, slot_bytes=slot_size(most_bytes))
        with said_of(path):
            return cls(file)

    @classmethod
    def reopen(cls, path: Path) -> tuple[Spool, RecoveredState] | None:
        """Take up the spool of a series that was not ended; None if there is none.

        One that cannot be read, as of another release, is moved aside and named in the log.

        Raises
        ------
        StorageError
            If another process has it open, or the file system refuses.
        """
        opened = open_file(path)
        if opened is None:
            return None
        file, info = opened
        with said_of(path):
            spool = cls(file)
        return spool, spool._take_up(info)

    # --- the camera's thread

    def keep(self, snapshot: Snapshot, missed: int) -> bool:
        """Copy a snapshot into a slot and give out its number; False, counted, if there is no room."""
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
        """Note that a number was given out, and how many frames the camera has missed so far."""
        _GIVEN.pack_into(self._map, _GIVEN_AT, seq + 1, epoch, missed)

    # --- the node's loop

    def resume(self, epoch: int) -> None:
        """Note in which epoch the series goes on."""
        self._put(_EPOCH_AT, epoch)

    def run_since(self, monotonic_ns: int) -> None:
        """Note when the camera was started, by the clock that all processes since the host's start share."""
        self._put(_RUNNING_AT, monotonic_ns)

    def confirmed(self, below: int) -> None:
        """Note that the sink has confirmed the outcome of every snapshot below a number."""
        if below > self._confirmed:
            self._put(_CONFIRMED_AT, below)
            self._confirmed = below

    def delivered(self, seq: int) -> None:
        """Note that of a snapshot only the raw counts are not safe yet."""
        slot = self._used.get(seq)
        if slot is not None:
            set_state(self._map, self._at(slot), DELIVERED)

    def release(self, seq: int) -> None:
        """Let go of a snapshot."""
        slot = self._used.pop(seq, None)
        if slot is not None:
            set_state(self._map, self._at(slot), FREE)
            self._give_back(slot)

    def end(self, reason: str) -> None:
        """Note that the series is being ended: whoever takes it up acquires nothing more for it."""
        _ENDING.pack_into(self._map, _ENDING_AT, 1, reason.encode(errors="replace"))

    def close(self, *, over: bool) -> None:
        """Close it; if the series is ``over`` in order, the file goes."""
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
        _NUMBER.pack_into(self._map, at, number)

    def _get(self, at: int) -> int:
        number: int = _NUMBER.unpack_from(self._map, at)[0]
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
            self._complain("all slots are in use")
        elif need > self._allocated[slot]:
            try:
                # Beyond what the file system has, writing to the mapping would be the end of this process.
                os.posix_fallocate(self._file.number, self._at(slot), need)
            except OSError as error:
                self._complain(os.strerror(error.errno or 0))
                self._give_back(slot)
                return None
            self._allocated[slot] = need
            if slot >= self._touched:
                self._touched = slot + 1
                self._put(_TOUCHED_AT, self._touched)
        return slot

    def _complain(self, why: str) -> None:
        if not self._complained:
            self._complained = True
            log.warning(
                "%s is full (%s): a crash of this node would now cost the snapshots beyond it", self._file.path, why
            )

    def _take_up(self, info: SeriesInfo) -> RecoveredState:
        next_seq, epoch, missed = _GIVEN.unpack_from(self._map, _GIVEN_AT)
        self._confirmed = self._get(_CONFIRMED_AT)
        # The lowest free slot is always taken: those beyond have never been written, and looking would fill them in.
        self._touched = min(self._get(_TOUCHED_AT), self._file.slots)
        is_ending, words = _ENDING.unpack_from(self._map, _ENDING_AT)
        kept: dict[int, RecoveredSnapshot] = {}
        torn = 0
        self._free = list(range(self._touched, self._file.slots))
        for slot in range(self._touched):
            state = state_of(self._map, self._at(slot))
            found = None if state == FREE else read_slot(self._map, self._at(slot), self._file.slot_bytes, info.series)
            if found is None or found.id.seq in kept:
                torn += state != FREE
                self._give_back(slot)
            else:
                kept[found.id.seq] = RecoveredSnapshot(found, delivered=state == DELIVERED)
                self._used[found.id.seq] = slot
        return RecoveredState(
            info=info,
            next_seq=max([next_seq, *(seq + 1 for seq in kept)]),
            epoch=epoch,
            camera_missed=missed,
            confirmed=self._confirmed,
            running_ns=self._get(_RUNNING_AT),
            ending=words.rstrip(b"\0").decode(errors="replace") if is_ending else "",
            kept=tuple(kept[seq] for seq in sorted(kept)),
            torn=torn,
        )
