"""Recordings on the live page: their list and pictures, and replays beside the live rig."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from pydantic import JsonValue

from sci_stream.errors import EnvironmentFault, InputError
from sci_stream.imaging.rendering import encode_jpeg, render, render_counts, shrink
from sci_stream.model import Json, Reconstruction, SeriesInfo
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.reader import DAMAGE, Recording
from sci_stream.recording.writer import RecordingWriter

_SUFFIXES = (".h5", ".mp4", ".mkv")
# The list opens each file: a folder of years would take minutes.
_MAX_RECORDINGS = 200
_THUMBNAIL_PX = 96
_REFINED = " refined"
MAX_ITERATIONS = 200
"""Of a replay: more change nothing that can be seen."""
# A person waits for a refined snapshot, but not for a recording. Solves of the rig on this host go
# before both.
_NICE_REFINING, _NICE_REPLAYING = 5, 19
_STOP_S = 5.0
_COMMAND = (sys.executable, "-P", "-m", "sci_stream", "replay")


@dataclass(frozen=True, slots=True)
class RecordingEntry:
    """A recorded file. ``state`` is open, clean, continued, unfinished, unreadable or movie."""

    name: str
    bytes: int
    modified_s: float
    state: str
    series: str = ""
    ledger: dict[str, JsonValue] | None = None
    parent: str = ""
    """The recording that it is a replay of."""
    events: int = 0


@lru_cache(maxsize=4 * _MAX_RECORDINGS)
def _described(path: Path, _modified_s: float, _size: int) -> tuple[Any, ...]:
    """Return state, series, ledger, parent and number of events of a recording; read again once it
    has changed.
    """
    if path.suffix != ".h5":
        return ("movie",)
    try:
        with Recording(path) as recording:
            state = (
                "clean" if recording.clean else "continued" if recording.finished else "unfinished"
            )
            ledger = json.loads(json.dumps(recording.ledger))
            events = recording.notes.get("events")
            count = len(events) if isinstance(events, list) else 0
            return (
                state,
                recording.info.series,
                ledger,
                str((recording.parent or {}).get("file", "")),
                count,
            )
    except DAMAGE:
        return ("unreadable",)


def _recorded_files(folder: Path) -> dict[Path, os.stat_result]:
    """Return the recorded files of a folder, newest first; none if there is no folder yet."""
    files = {}
    for path in folder.glob("[!.]*"):
        with suppress(OSError):  # removed meanwhile
            if path.suffix in _SUFFIXES and path.is_file():
                files[path] = path.stat()
    return dict(sorted(files.items(), key=lambda file: file[1].st_mtime, reverse=True))


def recorded_snapshot(path: Path, index: int) -> tuple[Reconstruction, int]:
    """Return a snapshot of a recording by its place, its series named as the file, and the number
    of snapshots.

    Raises `InputError` if there is none; `FileFormatError` if it is not a recording.
    """
    with Recording(path) as recording:
        seqs = recording.video_seqs
        if not 0 <= index < len(seqs):
            expected = f"0 to {len(seqs) - 1}" if seqs else "a recording with video"
            raise InputError(f"{path.name} has no such snapshot", expected=expected, got=index)
        shown = recording.reconstruction(seqs[index])
        return replace(shown, id=replace(shown.id, series=path.name)), len(seqs)


@lru_cache(maxsize=_MAX_RECORDINGS)
def thumbnail(path: Path, _modified_s: float) -> bytes:
    """Return a small picture from the middle of a recording, as JPEG.

    Raises as `recorded_snapshot`.
    """
    with Recording(path) as recording:
        seqs = recording.video_seqs or recording.raw_seqs
        if not seqs:
            raise InputError(f"{path.name} has no picture")
        seq = seqs[len(seqs) // 2]
        if recording.has("video", seq):
            picture = render(recording.video(seq, (slice(0, 1),)), recording.info.bayer)[0]
        else:
            picture = render_counts(recording.raw(seq))
        return encode_jpeg(shrink(picture, _THUMBNAIL_PX))


class Replays:
    """The recordings in a rig's ``folder``, and replays of them, one at a time. Thread-safe.

    A replay is ``sci-stream replay`` in a process of lower priority on this host. ``open_name``
    returns the name of the file that is being written, ``solvers`` the settings of the rig's
    solvers by id.
    """

    def __init__(
        self, folder: Path, open_name: Callable[[], str], solvers: Callable[[], dict[str, Json]]
    ) -> None:
        self._folder, self._open_name, self._solvers = folder, open_name, solvers
        self._series: tuple[SeriesInfo, Calibration] | None = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._state: dict[str, Json] = {}

    def entries(self) -> list[RecordingEntry]:
        """Return the newest 200 recorded files of the folder, newest first, with the ledger of each
        recording.
        """
        entries = []
        for path, stat in list(_recorded_files(self._folder).items())[:_MAX_RECORDINGS]:
            size, modified_s = stat.st_size, stat.st_mtime
            about = (
                ("open",) if path.name == self._open_name() else _described(path, modified_s, size)
            )
            entries.append(RecordingEntry(path.name, size, modified_s, *about))
        return entries

    def path_of(self, name: str) -> Path:
        """Return the path of a file in the list.

        Raises `InputError` if there is none, or it is being written.
        """
        # From the list: a name that is not in it, such as "../secret", is no recording.
        known = {path.name: path for path in _recorded_files(self._folder)}
        if name not in known:
            raise InputError(
                f"There is no recording {name!r}", hint="The list shows what there is."
            )
        if name == self._open_name():
            raise InputError(f"{name} is still being written", hint="Stop the recording first.")
        return known[name]

    def series_started(self, info: SeriesInfo, calibration: Calibration) -> None:
        """Refine snapshots of this series from now on."""
        self._series = info, calibration

    def calibration_of(self, shown: Reconstruction) -> Calibration:
        """Return the calibration of a live or a recorded snapshot.

        Raises `InputError` if its series is over.
        """
        if self._series is not None and self._series[1].hash == shown.calibration_hash:
            return self._series[1]
        with Recording(self.path_of(shown.id.series)) as recording:
            return recording.calibration

    def refine(self, shown: Reconstruction, iterations: int, denoiser: str = "") -> Reconstruction:
        """Solve a snapshot again, from a cold start; takes as long as that, and seconds.

        ``denoiser`` is one by name, the rig's if empty.

        Raises `InputError` if it is not of the running series, or came without its coded snapshot;
        `EnvironmentFault` if the replay fails, or another one is running.
        """
        series = self._series
        if series is None or series[0].series != shown.id.series or shown.counts is None:
            raise InputError(
                f"Snapshot {shown.id.seq} cannot be refined",
                expected="a live snapshot of the running series, sent with its coded snapshot",
                hint="Replay a recording of it with more iterations.",
            )
        info, calibration = series
        other = ("--denoiser", denoiser) if denoiser else ()
        with tempfile.TemporaryDirectory(prefix="sci-stream-") as folder:
            source, out = Path(folder) / "snapshot.h5", Path(folder) / "refined.h5"
            with RecordingWriter(
                source, info, calibration, video=False, first_seq=shown.id.seq
            ) as writer:
                writer.notes["solvers"] = self._solvers()
                writer.write_reconstruction(shown)
                writer.close()
            process = self._begin(
                source, out, iterations, {"source": f"snapshot {shown.id.seq}"}, *other
            )
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICE_REFINING)
            if process.wait() or not out.exists():
                raise EnvironmentFault(
                    "The snapshot was not refined", got=self.state()["error"] or "stopped"
                )
            with Recording(out) as recording:
                refined = recording.reconstruction(shown.id.seq)
        ident = replace(shown.id, series=f"{info.series}{_REFINED}")
        return replace(
            refined, id=ident, counts=shown.counts, picture=shown.picture, device=shown.device
        )

    def start(self, name: str, iterations: int) -> str:
        """Replay a recording into a new one beside it, without the GPUs of the rig; return its
        name.

        Raises `InputError` if the recording is not in the list, or the new one exists;
        `EnvironmentFault` if another replay is running.
        """
        source = self.path_of(name)
        out = source.with_name(f"{source.stem}_replay{iterations}.h5")
        if out.exists():
            raise InputError(
                f"{out.name} exists", hint="Replay with another number of iterations, or remove it."
            )
        process = self._begin(
            source, out, iterations, {"source": source.name, "out": out.name}, "--device", "cpu"
        )
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICE_REPLAYING)
        return out.name

    def state(self) -> dict[str, Json]:
        """Return ``source`` and ``out`` of the last replay, ``running``, and why it failed:
        ``error``.
        """
        with self._lock:
            status = None if self._process is None else self._process.poll()
            error = ""
            if (
                status and status != -signal.SIGTERM and self._log is not None
            ):  # by SIGTERM: stopped while it began
                self._log.seek(0)
                lines = self._log.read().decode(errors="replace").splitlines()
                error = lines[-1] if lines else f"exit status {status}"
            return {
                **self._state,
                "running": self._process is not None and status is None,
                "error": error,
            }

    def stop(self) -> None:
        """Stop the running replay, if any; ``sci-stream replay --resume`` continues that of a
        recording.
        """
        if self._process is not None and self.state()["running"]:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def close(self) -> None:
        """Stop the running replay, if any. May be called again."""
        self.stop()
        if self._log is not None:
            self._log.close()

    def _begin(
        self, source: Path, out: Path, iterations: int, state: dict[str, Json], *options: str
    ) -> subprocess.Popen[bytes]:
        # No node of this run: it inherits none of its variables.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SCI_STREAM_")
        }
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                raise EnvironmentFault(
                    f"{self._state['source']} is being replayed",
                    hint="Wait for its end, or stop it.",
                )
            if self._log is not None:
                self._log.close()
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - until the next replay, or `close`
            self._process = subprocess.Popen(
                [
                    *_COMMAND,
                    str(source),
                    "--out",
                    str(out),
                    "--iterations",
                    str(iterations),
                    *options,
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                start_new_session=True,
            )
            self._state = state
            return self._process
