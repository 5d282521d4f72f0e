"""Encode a movie of a running series. It has the lowest priority and counts the snapshots that it skipped."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from sci_stream.errors import SciStreamError, StorageError
from sci_stream.files.video_file import MovieFile
from sci_stream.imaging.rendering import render
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import Reconstruction
from sci_stream.recording.segments import free_bytes, segment_path

_LOG = logging.getLogger(__name__)
# Encoding must not take the cores from receiving and recording.
_NICENESS = 10


@dataclass(frozen=True, slots=True)
class MovieOptions:
    """Options of a live movie.

    ``suffix`` is ``".mp4"`` or ``".mkv"``; ``fps`` the playback rate; ``tone`` as on the page;
    ``queue`` the length of the encoder's queue; below ``floor_free_bytes`` of free disk the movie ends.
    """

    suffix: str = ".mp4"
    fps: float = 25.0
    tone: ToneSettings = field(default_factory=ToneSettings)
    queue: int = 8
    floor_free_bytes: int = 512 << 20


@dataclass(frozen=True, slots=True)
class MovieStatus:
    """State of a live movie: its ``reason`` for ending early, if any, and the number of ``snapshots`` it shows."""

    file: str
    encoder: str
    snapshots: int
    left_out: int
    reason: str


class Movie:
    """The movie of one series, encoded in its own thread.

    Parameters
    ----------
    recording
        Path of the series' recording; the movie has the same name, ``run.mp4``, and replaces no existing file.
    """

    def __init__(self, recording: Path, options: MovieOptions) -> None:
        self._options = options
        self.path = _free_path(recording.with_suffix(options.suffix))
        self._file = MovieFile(self.path, options.fps, threads=1)
        self._changed = threading.Condition()
        self._queue: deque[Reconstruction] = deque()
        self._ending = False
        self._encoded = 0
        self._left_out = 0
        self._reason = ""
        self._thread = threading.Thread(target=self._run, name="movie", daemon=True)
        self._thread.start()

    def publish(self, reconstruction: Reconstruction) -> None:
        """Queue a reconstruction if there is room; never blocks. Its arrays must not be changed afterwards."""
        with self._changed:
            # The movie is a convenience: under load it skips snapshots rather than delaying the recording.
            if self._reason or self._ending or len(self._queue) >= self._options.queue:
                self._left_out += 1
                return
            self._queue.append(reconstruction)
            self._changed.notify()

    def close(self) -> None:
        """Encode the queue and finish the movie. May be called again."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._thread.join()

    def status(self) -> MovieStatus:
        """Return the state; callable from any thread."""
        with self._changed:
            return MovieStatus(str(self.path), self._file.encoder, self._encoded, self._left_out, self._reason)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # not permitted everywhere, and only a courtesy
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while (reconstruction := self._next()) is not None:
            try:
                self._encode(reconstruction)
            except SciStreamError as error:
                self._end_early(str(error))
        try:
            self._file.close()
        except StorageError as error:
            self._end_early(str(error))

    def _next(self) -> Reconstruction | None:
        with self._changed:
            while not self._queue and not self._ending:
                self._changed.wait()
            return self._queue.popleft() if self._queue else None

    def _encode(self, reconstruction: Reconstruction) -> None:
        # Checked here, not only by the recorder: a film alone can fill a disk, and the recording has precedence.
        free, floor = free_bytes(self.path), self._options.floor_free_bytes
        if free < floor:
            raise StorageError(
                f"Movie {self.path} stopped: the disk is nearly full",
                expected=f"{floor / 1e6:.0f} MB free",
                got=f"{free / 1e6:.0f} MB",
            )
        for picture in render(reconstruction.video, reconstruction.bayer, self._options.tone):
            self._file.write(picture)
        with self._changed:
            self._encoded += 1

    def _end_early(self, reason: str) -> None:
        """End the movie early with a reason and count the missing snapshots. The recording continues."""
        with self._changed:
            if not self._reason:
                _LOG.error("movie stopped: %s", reason)
                self._left_out += 1 + len(self._queue)
                self._queue.clear()
                self._reason = reason


def _free_path(path: Path) -> Path:
    number = 0
    while segment_path(path, number).exists():
        number += 1
    return segment_path(path, number)
