"""The spool: a folder of unacknowledged snapshots that survives a crash of the acquire node.

Written data belong to the kernel: they survive a crash of the process, but not of the machine.
On a memory file system the cost is one copy of a snapshot and no disk access.

A memory-mapped file has the series and its numbers. Each snapshot has a file of its own, named by
its number, whose checksums show one that was written in part. Snapshots that are only recorded
follow each other in one file.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import shutil
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sci_stream.clock import NOTEWORTHY_STEP_S, clock_mark, continue_clock, read_again
from sci_stream.delivery.interval_set import IntervalSet
from sci_stream.delivery.outbox import Frames
from sci_stream.errors import StorageError, WireError
from sci_stream.file_guard import lock
from sci_stream.model import SeriesInfo, Snapshot
from sci_stream.nodes.acquire.spool_records import (
    raw_parts,
    raw_seq,
    raw_snapshot,
    read_record,
    write_record,
)
from sci_stream.nodes.runtime.process import PARENT_VARIABLE, SPOOL_VARIABLE
from sci_stream.nodes.runtime.runtime_folder import make_private_folder, open_own, private_folder
from sci_stream.wire.codec import decode, encode
from sci_stream.wire.header import MAX_HEADER_BYTES
from sci_stream.wire.messages import RawSnapshots

log = logging.getLogger(__name__)

_MAGIC = b"SCISPOOL"
_VERSION = 3
_HEAD = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("max_snapshots", "<u4"),
        ("info_bytes", "<u4"),
        ("info_crc", "<u4"),
        # Next seq, epoch, frames missed by the camera: written by the camera thread.
        ("numbering", "<u8", 3),
        # The sink has confirmed every outcome below this number.
        ("confirmed", "<u8"),
        # The camera's start in monotonic time, which all processes of the host share.
        ("running_ns", "<u8"),
        ("is_ending", "<u4"),
        ("reason", "S252"),
        # Of the process that began the series, which the others continue.
        ("clock", "S64"),
    ]
)
_INFO_AT = 512
_SERIES = "series"
# A spool that is being created or deleted.
_ASIDE = ".new"
# A delivered snapshot whose raw counts are not yet confirmed.
_DELIVERED = ".delivered"
# A file for the next snapshot: with new pages of memory, 8 MiB take twice the time.
_FREE = ".free"
# A file of snapshots that are only recorded. It is used again once all of them are confirmed. So it
# takes few: 32 of 256 x 256 pixels, 4 of 1024 x 1024.
_RAW = ".raw"
_RAW_SNAPSHOTS = 32
_RAW_BYTES = 8 << 20
_WRITING = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
# Each is a file.
_MAX_SNAPSHOTS = 1 << 16
# Snapshots without a confirmed outcome: far more than any queue holds.
_MAX_OPEN = 1 << 24


@dataclass
class _RawFile:
    """A file of snapshots that are only recorded; ``number`` is −1 once it takes no more."""

    path: str
    number: int = -1
    n_bytes: int = 0
    written: int = 0
    held: int = 0


@dataclass(frozen=True)
class RecoveredState:
    """State recovered from the spool of a crashed acquire node.

    ``next_seq`` is the first unused number; the sink has confirmed every outcome below
    ``confirmed``; ``running_ns`` is the monotonic time of the camera's first start, 0 if it was not
    started; ``ending`` is the end reason of a series that was ending, otherwise ``""``; of
    ``delivered`` snapshots only the raw counts were unconfirmed; each of ``raw`` is one that is
    only recorded; ``corrupt`` counts those that cannot be read.
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
    raw: tuple[RawSnapshots, ...]
    corrupt: int

    @property
    def lost(self) -> Iterator[int]:
        """Numbers whose outcome may be unknown to the sink and whose snapshots cannot
        be recovered.
        """
        here = {snapshot.id.seq for snapshot in self.snapshots} - self.delivered
        here.update(raw.id.seq for raw in self.raw)
        return (seq for seq in range(self.confirmed, self.next_seq) if seq not in here)


def spool_path(
    folder: Path | None, rig: str, environment: Mapping[str, str] = os.environ
) -> Path | None:
    """Return the spool of a rig, in the rig's or the supervisor's folder; None without a
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

    It takes nothing without a folder, and before `begin`. The camera thread calls `keep`,
    `keep_raw` and `number`, the node's loop the rest. It is locked while it is open; one that is
    unreadable, e.g. of another release, is quarantined.

    Raises `StorageError` if another acquire node has the spool open, or the folder named by the rig
    is unusable. An unusable folder of the supervisor only disables the spool.
    """

    def __init__(self, folder: Path | None, rig: str) -> None:
        self._requested = folder is not None
        self._path = spool_path(folder, rig)
        self._done = done_path()
        self._warned = False
        self.unspooled = 0
        """Snapshots that did not fit: they are delivered as usual, but a crash would lose them."""
        self.recovered: RecoveredState | None = None
        """State of a crashed predecessor; None if a new series begins."""
        self._map_file()
        if self._path is None or not self._path.exists():
            return
        try:
            file = self._path / _SERIES
            if not file.is_file():
                raise ValueError("not a spool")
            with _opened(file, os.O_RDWR) as number:
                max_snapshots, info = _read_head(number)
                self._map_file(number, max_snapshots)
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

    def _map_file(self, number: int = -1, max_snapshots: int = 0) -> None:
        """Use the open file of a series; without one, nothing is kept."""
        self._map = mmap.mmap(number, _INFO_AT)
        self._number = number
        self.max_snapshots = max_snapshots
        self._head = np.frombuffer(self._map, _HEAD, 1)[0]
        self._files: dict[int, str] = {}
        self._free: list[str] = []
        self._raw_files: dict[int, _RawFile] = {}
        self._raw_file: _RawFile | None = None
        self._raw_lock = threading.Lock()
        self._first_confirmed = 0
        self._confirmed = IntervalSet()

    def begin(
        self, info: SeriesInfo, *, limit_bytes: int, other_camera: bool = False
    ) -> SeriesInfo:
        """Return the series to run: the recovered one if it matches the camera and calibration,
        otherwise ``info``.

        A spool with other masks or another format is quarantined and named in the log: it is the
        only copy of its snapshots. ``limit_bytes`` for all together sets their number at one byte
        per pixel. ``other_camera`` allows another serial number or firmware.
        """
        if self._path is None:
            return info
        state = self.recovered
        if state is not None and not (mismatch := _mismatch(state.info, info, other_camera)):
            self._first_confirmed = state.confirmed
            self._head["numbering"][1] = state.epoch + 1
            log.warning(
                "resuming series %s at snapshot %d (epoch %d): %d recovered, %d corrupt",
                state.info.series,
                state.next_seq,
                state.epoch + 1,
                len(state.snapshots) + len(state.raw),
                state.corrupt,
            )
            return state.info
        if state is not None:
            self.close(over=False)
            _quarantine(self._path, f"{state.info.series}: {mismatch}")
            self.recovered = None
            read_again()
        try:
            self._create(self._path, info, limit_bytes)
        except StorageError as error:
            if self._requested:
                raise
            # The user did not configure this folder: run without a spool rather than not at all.
            log.warning(
                "spool disabled: %s Unacknowledged snapshots are lost if this node crashes.", error
            )
        return info

    def _create(self, path: Path, info: SeriesInfo, limit_bytes: int) -> None:
        """Create the spool of a series. Raises `StorageError`."""
        series = bytes(encode(info)[1])
        pixels = info.height_px * info.width_px
        max_snapshots = min(_MAX_SNAPSHOTS, 1 + max(1, limit_bytes // pixels))
        head = np.zeros((), _HEAD)
        head["magic"] = _MAGIC
        head["version"] = _VERSION
        head["max_snapshots"] = max_snapshots
        head["info_bytes"] = len(series)
        head["info_crc"] = zlib.crc32(series)
        head["clock"] = clock_mark()
        # Made aside and renamed: a crash while creating must not leave a half-written spool under
        # the real name.
        new = path.with_suffix(_ASIDE)
        shutil.rmtree(new, ignore_errors=True)
        with _opened(new / _SERIES, os.O_RDWR | os.O_CREAT | os.O_EXCL) as number:
            # Reserve the file now: on a full memory file system a later write through the mapping
            # would raise SIGBUS.
            os.posix_fallocate(number, 0, _INFO_AT + len(series))
            os.pwrite(number, head.tobytes(), 0)
            os.pwrite(number, series, _INFO_AT)
            new.rename(path)
            self._map_file(number, max_snapshots)

    # --- camera thread

    def keep(self, snapshot: Snapshot, missed: int, frames: Frames = ()) -> bool:
        """Write a snapshot to a file and use up its number; False, counted, if there is no room.

        ``frames`` are those of its message, if it is encoded already.
        """
        seq = snapshot.id.seq
        if self.max_snapshots and not self._write(seq, (frames or encode(snapshot))[1:]):
            self.unspooled += 1
        self.number(seq, snapshot.id.epoch, missed)
        return seq in self._files

    def keep_raw(self, raw: RawSnapshots, missed: int) -> bool:
        """Write one snapshot that is only recorded behind those before; otherwise as `keep`.

        Raises ValueError if a receiver would refuse it.
        """
        seq = raw.id.seq
        parts = raw_parts(raw)
        if self.max_snapshots and not self._append(seq, parts):
            self.unspooled += 1
        self.number(seq, raw.id.epoch, missed)
        return seq in self._raw_files

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
        if (path := self._files.get(seq)) is not None:
            with contextlib.suppress(OSError):
                self._files[seq] = self._renamed(path, f"{seq}{_DELIVERED}")

    def release(self, seq: int) -> None:
        """Release a snapshot."""
        if (path := self._files.pop(seq, None)) is not None:
            self._recycle(path)
        if (raw := self._raw_files.pop(seq, None)) is not None:
            with self._raw_lock:
                raw.held -= 1
                if raw.number < 0 and not raw.held:
                    self._recycle(raw.path)

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
        """Close the spool; delete it if the series is ``over``.

        ``last``: no further series is requested.
        """
        if over and last and self._done is not None:
            with contextlib.suppress(OSError):
                self._done.touch()
        if self._path is None or not self.max_snapshots:
            return
        if over:
            gone = self._path.with_suffix(_ASIDE)
            with contextlib.suppress(OSError):
                self._path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        self._close_raw_file()
        number, mapped = self._number, self._map
        self._map_file()
        with contextlib.suppress(BufferError):
            mapped.close()
        os.close(number)

    def status(self) -> dict[str, int]:
        """Return the numbers of spooled snapshots and of those that did not fit."""
        if not self.max_snapshots:
            return {}
        spooled = len(self._files) + len(self._raw_files)
        return {"spooled": spooled, "unspooled": self.unspooled}

    # --- files

    def _write(self, seq: int, parts: Frames) -> bool:
        """Write the header and payloads of a snapshot; return whether there was room."""
        if len(self._files) >= self.max_snapshots:
            self._warn("it has as many snapshots as it may")
            return False
        path = self._free_path(seq)
        try:
            number = os.open(path, _WRITING, 0o600)
            try:
                write_record(number, 0, parts)
            finally:
                os.close(number)
            self._files[seq] = self._renamed(path, str(seq))
        except OSError as error:
            self._warn(str(error.strerror))
            with contextlib.suppress(OSError):
                Path(path).unlink()
            return False
        return True

    def _append(self, seq: int, parts: Frames) -> bool:
        """Write a snapshot that is only recorded; return whether there was room."""
        file = self._raw_file
        if file is not None and (file.written >= _RAW_SNAPSHOTS or file.n_bytes >= _RAW_BYTES):
            self._close_raw_file()
            file = None
        path = self._free_path(seq) if file is None else ""
        try:
            if file is None:
                file = self._raw_file = _RawFile(path, os.open(path, _WRITING, 0o600))
            file.n_bytes += write_record(file.number, file.n_bytes, parts)
            if path:
                file.path = self._renamed(path, f"{seq}{_RAW}")
        except OSError as error:
            self._warn(str(error.strerror))
            self._close_raw_file()
            if path:
                with contextlib.suppress(OSError):
                    Path(path).unlink()
            return False
        with self._raw_lock:
            file.written += 1
            file.held += 1
        self._raw_files[seq] = file
        return True

    def _close_raw_file(self) -> None:
        """Let the next snapshot begin another file."""
        file = self._raw_file
        self._raw_file = None
        if file is None:
            return
        with self._raw_lock:
            os.close(file.number)
            file.number = -1
            if file.written and not file.held:
                self._recycle(file.path)

    def _free_path(self, seq: int) -> str:
        return self._free.pop() if self._free else f"{self._path}/{seq}{_FREE}"

    def _recycle(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self._free.append(self._renamed(path, f"{Path(path).stem}{_FREE}"))

    def _renamed(self, path: str, name: str) -> str:
        new = f"{self._path}/{name}"
        os.rename(path, new)  # noqa: PTH104 - pathlib takes longer than the system
        return new

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "spool %s is full (%s): further snapshots would be lost if this node crashed",
                self._path,
                why,
            )

    def _read(self, path: Path, series: str) -> Snapshot | None:
        """Return the snapshot in a file; None if it is corrupt or of another series."""
        parts, end = read_record(path.read_bytes() if path.is_file() else b"", 0)
        if not parts:
            return None
        try:
            snapshot = decode([b"snapshot", *parts], end)
        except WireError as error:
            log.warning("corrupt spooled snapshot ignored: %s", error)
            return None
        assert isinstance(snapshot, Snapshot)
        is_named_so = (snapshot.id.series, str(snapshot.id.seq)) == (series, path.stem)
        return snapshot if is_named_so else None

    def _read_raw(
        self, path: Path, info: SeriesInfo, confirmed: int
    ) -> Iterator[RawSnapshots | None]:
        """Yield the snapshots of a file from ``confirmed`` up, each by itself; None for a damaged
        one.

        Those behind a header that is damaged are not found.
        """
        content = path.read_bytes() if path.is_file() else b""
        file = _RawFile(str(path))
        before = -1
        parts, end = read_record(content, 0)
        while parts:
            try:
                seq = raw_seq(parts)
                # Behind those of this use, a file may have some of an earlier use.
                if seq <= before:
                    break
                before = seq
                snapshot = raw_snapshot(parts, info)
            except ValueError as error:
                log.warning("corrupt spooled snapshot ignored: %s", error)
                yield None
            else:
                if seq >= confirmed:
                    file.held += 1
                    self._raw_files[seq] = file
                    yield snapshot
            parts, end = read_record(content, end)
        if not file.held:
            path.unlink()

    def _recover(self, info: SeriesInfo) -> RecoveredState:
        """Return the state that the spool has, without its corrupt files.

        Raises ValueError if its numbers are damaged.
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
        recovered: dict[int, Snapshot] = {}
        raw: list[RawSnapshots] = []
        delivered = set[int]()
        corrupt = 0
        assert self._path is not None
        for path in self._path.iterdir():
            if path.name == _SERIES:
                continue
            if path.suffix == _RAW:
                read = list(self._read_raw(path, info, confirmed))
                raw += [one for one in read if one is not None]
                corrupt += read.count(None)
                continue
            is_free = path.suffix == _FREE
            snapshot = None if is_free else self._read(path, info.series)
            if snapshot is None:
                corrupt += not is_free
                path.unlink()
                continue
            seq = snapshot.id.seq
            recovered[seq] = snapshot
            self._files[seq] = str(path)
            if path.suffix == _DELIVERED:
                delivered.add(seq)
        return RecoveredState(
            info=info,
            next_seq=max([next_seq, *(seq + 1 for seq in [*recovered, *self._raw_files])]),
            epoch=epoch,
            camera_missed=missed,
            confirmed=confirmed,
            running_ns=int(head["running_ns"]),
            ending=head["reason"].decode(errors="replace") if head["is_ending"] else "",
            snapshots=tuple(recovered[seq] for seq in sorted(recovered)),
            delivered=frozenset(delivered),
            raw=tuple(sorted(raw, key=lambda one: one.id.seq)),
            corrupt=corrupt,
        )


@contextlib.contextmanager
def _opened(file: Path, flags: int) -> Iterator[int]:
    """Open and lock the file of a series; close it again after an error.

    Raises StorageError.
    """
    path = file.parent
    try:
        for folder in (path.parent, path):
            make_private_folder(folder)
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


def _read_head(number: int) -> tuple[int, SeriesInfo]:
    """Return the limit of the number of snapshots, and the series.

    Raises ValueError or WireError.
    """
    content = os.pread(number, _HEAD.itemsize, 0)
    if len(content) < _HEAD.itemsize or not content.startswith(_MAGIC):
        raise ValueError("not a spool")
    _, version, max_snapshots, info_bytes, crc, *_ = np.frombuffer(content, _HEAD)[0].item()
    if version != _VERSION:
        raise ValueError(f"expected version {_VERSION}, got {version}")
    series = os.pread(number, min(info_bytes, MAX_HEADER_BYTES), _INFO_AT)
    if max_snapshots == 0 or zlib.crc32(series) != crc:
        raise ValueError("corrupt header")
    info = decode([b"series_start", series])
    assert isinstance(info, SeriesInfo)
    return max_snapshots, info


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
