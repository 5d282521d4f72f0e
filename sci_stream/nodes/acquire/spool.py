"""The spool: a file of unacknowledged snapshots that survives a crash of the acquire node.

The file is memory-mapped. Data written to the mapping belong to the kernel: they survive a crash of
the process, but not of the machine. On a memory file system the cost is one copy of a snapshot and
no disk access.

A header comes first, then the series, then slots of one snapshot each. The state of a slot is
written last, so that a partially written slot does not count as a snapshot; checksums detect other
corruption.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import mmap
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from sci_stream.clock import NOTEWORTHY_STEP_S, clock_mark, continue_clock, read_again
from sci_stream.delivery.interval_set import IntervalSet
from sci_stream.errors import StorageError, WireError
from sci_stream.file_guard import lock
from sci_stream.model import Array, SeriesInfo, Snapshot
from sci_stream.nodes.runtime.process import PARENT_VARIABLE, SPOOL_VARIABLE
from sci_stream.nodes.runtime.runtime_folder import make_private_folder, open_own, private_folder
from sci_stream.wire.codec import decode, encode
from sci_stream.wire.header import Limits

log = logging.getLogger(__name__)

_MAGIC = b"SCISPOOL"
_VERSION = 1
# Type and offset of each field.
_FIXED: dict[str, tuple[Any, int]] = {
    "magic": ("S8", 0),
    "version": ("<u4", 8),
    "slots": ("<u4", 12),
    "slot_bytes": ("<u8", 16),
    "begin": ("<u4", 24),  # offset of the slots
    "info_bytes": ("<u4", 28),
    "info_crc": ("<u4", 32),
}
_CHANGING: dict[str, tuple[Any, int]] = {
    "numbering": (
        ("<u8", 3),
        64,
    ),  # next seq, epoch, frames missed by the camera: written by the camera thread
    "confirmed": ("<u8", 96),  # the sink has confirmed every outcome below this number
    "running_ns": (
        "<u8",
        104,
    ),  # the camera's start in monotonic time, which all processes of the host share
    "written_slots": ("<u8", 112),
    "is_ending": ("<u4", 128),
    "reason": ("S252", 132),
    "clock": ("S64", 384),  # of the process that began the series, which the others continue
}
_HEAD = np.dtype(cast(Any, {**_FIXED, **_CHANGING}))
_INFO_AT = 512
_SLOT = struct.Struct(
    "<IIQIIQQ"
)  # state, CRC of the rest, seq, header length, number of payloads, their lengths
_STATE = struct.Struct("<I")
# States of a slot: empty; a snapshot; a delivered snapshot whose raw counts are not yet confirmed.
_FREE, _HELD, _DELIVERED = 0, 0x48454C44, 0x44454C56
_MAX_SLOTS = 1 << 16
# A snapshot's header is a few hundred bytes; chunk data may add kilobytes.
_MAX_HEADER = 16 << 10
_MAX_PAYLOADS = 2
# Snapshots without a confirmed outcome: far more than any queue holds.
_MAX_OPEN = 1 << 24


@dataclass(frozen=True)
class RecoveredState:
    """State recovered from the spool of a crashed acquire node.

    ``next_seq`` is the first unused number; the sink has confirmed every outcome below
    ``confirmed``; ``running_ns`` is the monotonic time of the camera's first start, 0 if it was not
    started; ``ending`` is the end reason of a series that was ending, otherwise ``""``; of
    ``delivered`` snapshots only the raw counts were unconfirmed; ``corrupt_slots`` counts slots
    without a readable snapshot.
    """

    info: SeriesInfo
    next_seq: int
    epoch: int
    camera_missed: int
    confirmed: int
    running_ns: int
    ending: str
    snapshots: tuple[Snapshot, ...]
    delivered: frozenset[int]
    corrupt_slots: int

    @property
    def lost(self) -> Iterator[int]:
        """Numbers whose outcome may be unknown to the sink and whose snapshots cannot
        be recovered.
        """
        here = {snapshot.id.seq for snapshot in self.snapshots} - self.delivered
        return (seq for seq in range(self.confirmed, self.next_seq) if seq not in here)


def spool_path(
    folder: Path | None, rig: str, environment: Mapping[str, str] = os.environ
) -> Path | None:
    """Return the spool file of a rig, in the rig's or the supervisor's folder; None without a
    folder.
    """
    place = folder or environment.get(SPOOL_VARIABLE)
    return private_folder(Path(place)) / f"{rig}.spool" if place else None


def done_path(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the marker file of a completed acquire node; None without a supervisor.

    It is created just before the spool of the last series is deleted. The supervisor does not
    restart a node that is killed after that: it would start an unrequested series.
    """
    place = environment.get(SPOOL_VARIABLE) if PARENT_VARIABLE in environment else None
    return Path(place) / "done" if place else None


class Spool:
    """The snapshots of a rig that are not yet acknowledged, across its series and the restarts of
    its acquire node.

    It takes nothing without a folder, and before `begin`. The camera thread calls `keep` and
    `number`, the node's loop the rest. The file is locked while it is open; one that is unreadable,
    e.g. of another release, is quarantined.

    Raises `StorageError` if another acquire node has the spool open, or the folder named by the rig
    is unusable. An unusable folder of the supervisor only disables the spool.
    """

    def __init__(self, folder: Path | None, rig: str) -> None:
        self._requested = folder is not None
        self._path = spool_path(folder, rig)
        self._done = done_path()
        self._lock = threading.Lock()
        self._warned = False
        self.unspooled = 0
        """Snapshots that did not fit: they are delivered as usual, but a crash would lose them."""
        self.recovered: RecoveredState | None = None
        """State of a crashed predecessor; None if a new series begins."""
        self._map_file()
        if self._path is None or not self._path.exists():
            return
        try:
            with _opened(self._path, self._path, os.O_RDWR) as number:
                begin, slots, info = _read_head(number)
                self._map_file(number, begin, slots)
                self.recovered = self._recover(info)
                self._continue_clock(info.series)
        except (ValueError, WireError) as error:
            self._map_file()
            _quarantine(self._path, str(error))

    def _continue_clock(self, series: str) -> None:
        """Go on with the clock of the series, before a message carries the time to others."""
        stepped_s = continue_clock(bytes(self._head["clock"])) / 1e9
        if abs(stepped_s) > NOTEWORTHY_STEP_S:
            log.warning(
                "host clock stepped by %+.1f s within series %s: it keeps its own time",
                -stepped_s,
                series,
            )

    def _map_file(self, number: int = -1, begin: int = _INFO_AT, slots: int = 0) -> None:
        """Use an open file with so many slots from ``begin`` on; none has no slots."""
        self._map = mmap.mmap(number, 0 if slots else _INFO_AT)
        self._number, self._begin, self.slots = number, begin, slots
        self._slot_bytes = (len(self._map) - begin) // max(1, slots)
        self._bytes: Array = np.frombuffer(self._map, np.uint8)
        self._head = np.frombuffer(self._map, _HEAD, 1)[0]
        self._free = list(range(slots))
        self._allocated = [0] * slots
        self._used: dict[int, int] = {}
        self._first_confirmed = 0
        self._confirmed = IntervalSet()

    def begin(
        self, info: SeriesInfo, *, truth: bool, limit_bytes: int, other_camera: bool = False
    ) -> SeriesInfo:
        """Return the series to run: the recovered one if it matches the camera and calibration,
        otherwise ``info``.

        A spool with other masks or another format is quarantined and named in the log: it is the
        only copy of its snapshots. ``truth`` if snapshots come with ground truth; ``limit_bytes``
        for all together sets the number of slots at one byte per pixel. ``other_camera`` allows
        another serial number or firmware.
        """
        if self._path is None:
            return info
        state = self.recovered
        if state is not None and not (mismatch := _mismatch(state.info, info, other_camera)):
            self._first_confirmed = state.confirmed
            self._head["numbering"][1] = state.epoch + 1
            log.warning(
                "resuming series %s at snapshot %d (epoch %d): %d recovered, %d slots empty or "
                "corrupt",
                state.info.series,
                state.next_seq,
                state.epoch + 1,
                len(state.snapshots),
                state.corrupt_slots,
            )
            return state.info
        if state is not None:
            self.close(over=False)
            _quarantine(self._path, f"{state.info.series}: {mismatch}")
            self.recovered = None
            read_again()
        try:
            self._create(self._path, info, truth=truth, limit_bytes=limit_bytes)
        except StorageError as error:
            if self._requested:
                raise
            # The user did not configure this folder: run without a spool rather than not at all.
            with contextlib.suppress(OSError):
                self._path.unlink()
            log.warning(
                "spool disabled: %s Unacknowledged snapshots are lost if this node crashes.", error
            )
        return info

    def _create(self, path: Path, info: SeriesInfo, *, truth: bool, limit_bytes: int) -> None:
        """Create the file of a series, replacing an existing one. Raises `StorageError`."""
        series = bytes(encode(info)[1])
        pixels = info.height_px * info.width_px
        slots = min(_MAX_SLOTS, 1 + max(1, limit_bytes // pixels))
        # Header, counts and ground truth with up to 4 bytes per pixel.
        slot_bytes = _pages(
            _SLOT.size + _MAX_HEADER + 4 * pixels * (1 + (info.n_frames if truth else 0))
        )
        head = np.zeros((), _HEAD)
        begin = _pages(_INFO_AT + len(series))
        fixed = (_MAGIC, _VERSION, slots, slot_bytes, begin, len(series), zlib.crc32(series))
        for name, value in zip(_FIXED, fixed, strict=True):
            head[name] = value
        head["clock"] = clock_mark()
        # Written aside and renamed: a crash while creating must not leave a half-written spool
        # under the real name.
        new = path.with_suffix(".new")
        with _opened(path, new, os.O_RDWR | os.O_CREAT | os.O_EXCL) as number:
            os.ftruncate(number, begin + slots * slot_bytes)  # sparse
            # Reserve the header now: on a full memory file system a later write through the mapping
            # would raise SIGBUS.
            os.posix_fallocate(number, 0, begin)
            os.pwrite(number, head.tobytes(), 0)
            os.pwrite(number, series, _INFO_AT)
            new.rename(path)
            self._map_file(number, begin, slots)

    # --- camera thread

    def keep(self, snapshot: Snapshot, missed: int) -> bool:
        """Copy a snapshot into a slot and use up its number; False, counted,
        if there is no room.
        """
        parts = (
            [np.frombuffer(part, np.uint8) for part in encode(snapshot)[1:]] if self.slots else []
        )
        slot = self._take_slot(_SLOT.size + sum(part.nbytes for part in parts)) if parts else None
        if slot is not None:
            self._used[snapshot.id.seq] = slot
            self._write(self._at(slot), snapshot.id.seq, parts)
        elif parts:
            self.unspooled += 1
        self.number(snapshot.id.seq, snapshot.id.epoch, missed)
        return slot is not None

    def number(self, seq: int, epoch: int, missed: int) -> None:
        """Record the next number and the frames missed by the camera so far."""
        self._head["numbering"] = (seq + 1, epoch, missed)

    # --- node loop

    def run_since(self, monotonic_ns: int) -> None:
        """Record the first start of the camera."""
        self._head["running_ns"] = monotonic_ns

    def confirm(self, seq: int) -> None:
        """Note that the sink has confirmed a snapshot's outcome."""
        if seq >= self._first_confirmed and self._confirmed.add(seq - self._first_confirmed):
            self._head["confirmed"] = self._first_confirmed + self._confirmed.first_missing()

    def delivered(self, seq: int) -> None:
        """Mark a snapshot as delivered: only its raw counts are unconfirmed."""
        slot = self._used.get(seq)
        if slot is not None:
            _STATE.pack_into(self._map, self._at(slot), _DELIVERED)

    def release(self, seq: int) -> None:
        """Release a snapshot."""
        slot = self._used.pop(seq, None)
        if slot is not None:
            _STATE.pack_into(self._map, self._at(slot), _FREE)
            self._give_back(slot)

    def end(self, reason: str) -> None:
        """Record that the series is ending: a process that resumes it acquires nothing more."""
        self._head["reason"] = reason.encode(errors="replace")
        self._head["is_ending"] = 1

    def progressed(self) -> None:
        """Show a supervisor that is waiting for the end of the series that the sink
        still confirms.
        """
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def close(self, *, over: bool, last: bool = False) -> None:
        """Close the file; delete it if the series is ``over``.

        ``last``: no further series is requested.
        """
        if over and last and self._done is not None:
            with contextlib.suppress(OSError):
                self._done.touch()
        if self._path is None or not self.slots:
            return
        if over:
            self._path.unlink(missing_ok=True)
        number, mapped = self._number, self._map
        self._map_file()
        with contextlib.suppress(BufferError):
            mapped.close()
        os.close(number)

    def status(self) -> dict[str, int]:
        """Return the numbers of spooled snapshots and of those that did not fit."""
        return {"spooled": len(self._used), "unspooled": self.unspooled} if self.slots else {}

    # --- slots

    def _at(self, slot: int) -> int:
        return self._begin + slot * self._slot_bytes

    def _give_back(self, slot: int) -> None:
        with self._lock:
            heapq.heappush(self._free, slot)

    def _take_slot(self, need: int) -> int | None:
        with self._lock:
            slot = heapq.heappop(self._free) if self._free and need <= self._slot_bytes else None
        if slot is None:
            self._warn("all slots are in use")
        elif need > self._allocated[slot]:
            try:
                # Writing to a mapping beyond the free space of the file system raises SIGBUS.
                os.posix_fallocate(self._number, self._at(slot), need)
            except OSError as error:
                self._warn(os.strerror(error.errno or 0))
                self._give_back(slot)
                return None
            self._allocated[slot] = need
            self._head["written_slots"] = max(int(self._head["written_slots"]), slot + 1)
        return slot

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "spool %s is full (%s): further snapshots would be lost if this node crashed",
                self._path,
                why,
            )

    def _write(self, at: int, seq: int, parts: list[Array]) -> None:
        """Write the header and payloads of a snapshot to a free slot."""
        # Bytes first, checksum in the prefix, state last: a crash at any point leaves either a
        # valid slot or a free one.
        header_bytes, *sizes = (part.nbytes for part in parts)
        padded = sizes + [0] * (_MAX_PAYLOADS - len(sizes))
        fields = _SLOT.pack(_FREE, 0, seq, header_bytes, len(sizes), *padded)[8:]
        # Of prefix and header only: the payloads have a checksum of their own in the wire header.
        crc = zlib.crc32(parts[0].data, zlib.crc32(fields))
        self._map[at : at + _SLOT.size] = struct.pack("<II", _FREE, crc) + fields
        end = at + _SLOT.size
        for part in parts:
            self._bytes[end : end + part.nbytes] = part
            end += part.nbytes
        _STATE.pack_into(self._map, at, _HELD)

    def _read(self, at: int, series: str) -> Snapshot | None:
        """Return a copy of the snapshot in a slot; None if it is corrupt or of another series."""
        prefix = self._map[at : at + _SLOT.size]
        _, crc, seq, header_bytes, n_payloads, *sizes = _SLOT.unpack(prefix)
        del sizes[n_payloads:]
        # Sizes are checked before the checksum, which would read beyond the slot if they are
        # damaged.
        fits = _SLOT.size + header_bytes + sum(sizes) <= self._slot_bytes
        if n_payloads > _MAX_PAYLOADS or header_bytes > _MAX_HEADER or not fits:
            return None
        parts = []
        end = at + _SLOT.size
        for size in (header_bytes, *sizes):
            parts.append(self._map[end : end + size])
            end += size
        if zlib.crc32(parts[0], zlib.crc32(prefix[8:])) != crc:
            return None
        try:
            snapshot = decode([b"snapshot", *parts], Limits(max_payload_bytes=self._slot_bytes))
        except WireError as error:
            log.warning("corrupt spool slot ignored: %s", error)
            return None
        assert isinstance(snapshot, Snapshot)
        return snapshot if (snapshot.id.series, snapshot.id.seq) == (series, seq) else None

    def _recover(self, info: SeriesInfo) -> RecoveredState:
        """Return the state that the file has; occupy its slots.

        Raises ValueError if it is damaged.
        """
        head = self._head
        next_seq, epoch, missed = head["numbering"].tolist()
        confirmed = int(head["confirmed"])
        if (
            not 0 <= next_seq - confirmed <= _MAX_OPEN
            or max(next_seq, missed) >= 1 << 48
            or epoch >= 1 << 31
        ):
            raise ValueError(
                f"its numbers are damaged: next {next_seq}, confirmed {confirmed}, epoch {epoch}"
            )
        # Slots fill from the lowest, so slots beyond have never been written; reading them would
        # allocate pages.
        head["written_slots"] = written = min(int(head["written_slots"]), self.slots)
        recovered: dict[int, Snapshot] = {}
        delivered = set[int]()
        corrupt = 0
        self._free = list(range(written, self.slots))
        for slot in range(written):
            (state,) = _STATE.unpack_from(self._map, self._at(slot))
            snapshot = None if state == _FREE else self._read(self._at(slot), info.series)
            if snapshot is None or snapshot.id.seq in recovered:
                corrupt += state != _FREE
                self._give_back(slot)
            else:
                recovered[snapshot.id.seq] = snapshot
                self._used[snapshot.id.seq] = slot
                if state == _DELIVERED:
                    delivered.add(snapshot.id.seq)
        return RecoveredState(
            info=info,
            next_seq=max([next_seq, *(seq + 1 for seq in recovered)]),
            epoch=epoch,
            camera_missed=missed,
            confirmed=confirmed,
            running_ns=int(head["running_ns"]),
            ending=head["reason"].decode(errors="replace") if head["is_ending"] else "",
            snapshots=tuple(recovered[seq] for seq in sorted(recovered)),
            delivered=frozenset(delivered),
            corrupt_slots=corrupt,
        )


@contextlib.contextmanager
def _opened(path: Path, file: Path, flags: int) -> Iterator[int]:
    """Open and lock the file of the spool ``path``; close it again after an error.

    Raises StorageError.
    """
    try:
        if flags & os.O_CREAT:
            make_private_folder(path.parent)
            file.unlink(missing_ok=True)  # left by a crash
        number = open_own(file, flags)
        try:
            # The lock goes with the descriptor: it is released even if the process is killed.
            lock(number)
            yield number
        except BaseException:
            os.close(number)
            raise
    except BlockingIOError:
        raise StorageError(
            f"The spool {path} is in use",
            expected="one acquire node per rig",
            got="another process that has it open",
            hint="Stop the other acquire node, or give this rig another name or [policy] spool.",
        ) from None
    except OSError as error:
        raise StorageError(
            f"Cannot use the spool {path}",
            got=error.strerror,
            hint="Name a folder on a memory file system in [policy] spool that this user can "
            "write to.",
        ) from None


def _read_head(number: int) -> tuple[int, int, SeriesInfo]:
    """Return the offset and the number of the slots, and the series.

    Raises ValueError or WireError.
    """
    content = os.pread(number, _HEAD.itemsize, 0)
    if len(content) < _HEAD.itemsize or not content.startswith(_MAGIC):
        raise ValueError("not a spool file")
    _, version, slots, slot_bytes, begin, info_bytes, crc, *_ = np.frombuffer(content, _HEAD)[
        0
    ].item()
    if version != _VERSION:
        raise ValueError(f"expected version {_VERSION}, got {version}")
    series = os.pread(number, min(info_bytes, Limits().max_header_bytes), _INFO_AT)
    size = os.fstat(number).st_size
    if (
        not 0 < slots <= _MAX_SLOTS
        or begin < _INFO_AT
        or begin + slots * slot_bytes != size
        or zlib.crc32(series) != crc
    ):
        raise ValueError("corrupt header")
    info = decode([b"series_start", series])
    assert isinstance(info, SeriesInfo)
    return begin, slots, info


def _quarantine(path: Path, why: str) -> None:
    """Rename a spool that cannot be resumed, because it is the only copy of its snapshots."""
    aside = path.with_name(f"{path.stem}-{path.stat().st_mtime_ns}.aside")
    path.rename(aside)
    log.error("cannot resume the interrupted series (%s); its spool is kept as %s", why, aside)


def _mismatch(recovered: SeriesInfo, now: SeriesInfo, other_camera: bool) -> str:
    """Return why a series cannot be resumed, ``""`` if it can."""
    of_camera = () if other_camera else ("camera_serial", "camera_firmware")
    for name in (
        *of_camera,
        "height_px",
        "width_px",
        "pixel_format",
        "n_frames",
        "calibration_hash",
        "bayer",
        "policy",
    ):
        before, after = getattr(recovered, name), getattr(now, name)
        if before != after:
            return f"{name} changed from {before} to {after}"
    return ""


def _pages(nbytes: int) -> int:
    """Round up to a multiple of the page size."""
    return -(-nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
