"""Start and stop the recording of a series: initially as configured, then as the operator requests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sci_stream.clock import unix_ns
from sci_stream.errors import InputError, StorageError
from sci_stream.model import JsonObject, SeriesInfo
from sci_stream.nodes.sink.recorder import Recorder, RecorderOptions, RecorderState, RecorderStatus
from sci_stream.optics.calibration import Calibration

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordingChange:
    """The operator started (``on``) or stopped the recording of ``file``."""

    on: bool
    file: str
    time_ns: int


class RecordingController:
    """Open a new file, the next segment of the series, at each `start` and close it at `stop`.

    Parameters
    ----------
    options
        Returns the recorder options; called only when recording starts.
    """

    def __init__(self, info: SeriesInfo, calibration: Calibration, options: Callable[[], RecorderOptions]) -> None:
        self._info = info
        self._calibration = calibration
        self._options = options
        self._closing: Recorder | None = None
        self.recorder: Recorder | None = None
        self.failure = ""
        """Why the recording of a resumed series could not be started; ``""`` if it was, or is not wanted."""
        self.switched: list[RecordingChange] = []
        """What the operator did, for the summary."""

    @property
    def is_on(self) -> bool:
        """Whether new snapshots are recorded."""
        return self.recorder is not None and self.recorder.status().state is RecorderState.RECORDING

    @property
    def is_wanted(self) -> bool:
        """Whether new snapshots are to be recorded: also if the recorder has stopped by itself or could not start."""
        return self.recorder is not None or bool(self.failure)

    def resume(self, folder: Path, settled_below: int = 0) -> None:
        """Start recording after a restart of the sink. On failure log an error and set `failure`.

        Snapshots of the series are on their way: without a recording they count as not recorded. A missing folder is
        not created again: it may be the mount point of a disk.
        """
        try:
            if not folder.is_dir():
                raise StorageError(f"The recording folder {folder} is gone", hint="It was moved, deleted or unmounted.")
            self.start(settled_below)
        except StorageError as error:
            self.failure = str(error)
            log.error("cannot resume the recording, snapshots from now on are not recorded: %s", error)

    def start(self, settled_below: int = 0) -> str:
        """Start recording with the next snapshot; return the file name.

        Snapshots before ``settled_below`` have an outcome and need no row.

        Raises
        ------
        InputError
            If already recording, or while the previous file is still being written.
        StorageError
            If the file cannot be created.
        """
        if self.is_on:
            raise InputError("The series is already being recorded")
        if self._closing is not None and self._closing.is_open:
            raise InputError("The previous file is still being written", hint="Try again in a moment.")
        recorder = Recorder(self._options())
        recorder.start(self._info, self._calibration, settled_below)
        if self.recorder is not None:  # it stopped by itself, e.g. on a full disk, and may have room again
            self.recorder.close()
        self.recorder, self.failure = recorder, ""
        return str(recorder.status().file)

    def stop(self, ledger: JsonObject) -> str:
        """Close the file once all accepted items are written, without waiting; return its name.

        ``ledger`` is the current ledger, stored in the file.

        Raises
        ------
        InputError
            If not recording.
        """
        recorder = self.recorder
        if recorder is None:
            self.failure = ""
            raise InputError("Not recording")
        file = str(recorder.status().file)
        recorder.finish(ledger)
        self.recorder, self._closing = None, recorder
        return file

    def note(self, *, on: bool, file: str) -> None:
        """Record that the operator did this."""
        self.switched.append(RecordingChange(on, file, unix_ns()))
        log.info("recording %s on request: %s", "started" if on else "stopped", file)

    def close(self, ledger: JsonObject | None) -> None:
        """End the recording with the series.

        ``ledger`` is the final ledger; None after an error, so that the file is not marked clean.
        """
        if self._closing is not None:
            self._closing.close()
        if self.recorder is not None:
            self.recorder.close(ledger)

    def status(self) -> RecorderStatus | None:
        """Return the status of the recorder, or of the last one; None if nothing has been recorded."""
        if self.failure:
            return RecorderStatus(state=RecorderState.FAILED, reason=self.failure)
        if self.recorder is not None:
            return self.recorder.status()
        if self._closing is None:
            return None
        status = self._closing.status()
        # Keep showing a failed file; one stopped on request is off.
        if status.state in {RecorderState.RECORDING, RecorderState.IDLE}:
            return replace(status, state=RecorderState.CLOSING if self._closing.is_open else RecorderState.OFF)
        return status
