"""Whether a series is being recorded: as the rig says at first, and as the operator wishes from then on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from sci_stream.clock import unix_ns
from sci_stream.errors import InputError, StorageError
from sci_stream.model import SeriesInfo
from sci_stream.nodes.sink.recorder import Recorder, RecorderOptions, RecorderState
from sci_stream.optics.calibration import Calibration

log = logging.getLogger(__name__)


class RecordingController:
    """Opens a new file, the next segment of the series, with each `start`, and closes it with `stop`.

    Parameters
    ----------
    info, calibration
        Of the series.
    options
        Makes the recorder's options; called only when something is to be recorded.
    """

    def __init__(self, info: SeriesInfo, calibration: Calibration, options: Callable[[], RecorderOptions]) -> None:
        self._info = info
        self._calibration = calibration
        self._options = options
        self._closing: tuple[Recorder, threading.Thread] | None = None
        self._told: dict[str, Any] = {"enabled": False}
        self.recorder: Recorder | None = None
        self.switched: list[dict[str, Any]] = []
        """When the operator started and stopped it, for the summary."""

    @property
    def is_on(self) -> bool:
        """Whether what comes now is recorded."""
        return self.recorder is not None and self._is_open(self.recorder)

    def start(self) -> str:
        """Begin to record, from the next snapshot on; return the file's name.

        Raises
        ------
        InputError
            While it records, or while the file before is still being written.
        StorageError
            If the file cannot be made.
        """
        if self.recorder is not None and self._is_open(self.recorder):
            raise InputError("The series is being recorded already")
        if self._closing is not None and self._closing[1].is_alive():
            raise InputError("The file before is still being written", hint="Try again in a moment.")
        recorder = Recorder(self._options())
        recorder.series_started(self._info, self._calibration)
        if self.recorder is not None:  # it had stopped by itself, with a full disk say: now there is room again
            self.recorder.close()
        self.recorder = recorder
        return str(recorder.status()["file"])

    def stop(self, ledger: Mapping[str, Any]) -> str:
        """End the file once all that it has accepted is in it, without waiting for that; return its name.

        ``ledger`` is the account so far, which goes into the file.

        Raises
        ------
        InputError
            If nothing is being recorded.
        """
        recorder = self.recorder
        if recorder is None:
            raise InputError("Nothing is being recorded")
        file = str(recorder.status()["file"])
        self.recorder = None
        thread = threading.Thread(target=self._end, args=(recorder, dict(ledger)), name="recorder-end", daemon=True)
        self._closing = (recorder, thread)
        thread.start()
        return file

    def note(self, *, on: bool, file: str) -> None:
        """Take note that the operator did this."""
        self.switched.append({"on": on, "file": file, "time_ns": unix_ns()})
        log.info("recording %s from the page: %s", "started" if on else "stopped", file)

    def close(self, ledger: Mapping[str, Any] | None) -> dict[str, Any]:
        """End the recording with the series; return what there is to say about it.

        ``ledger`` is the final account; None if something went wrong, and the file is not to be marked clean.
        """
        if self._closing is not None:
            self._closing[1].join()
        if self.recorder is not None:
            self._end(self.recorder, ledger)
        return self.status()

    @staticmethod
    def _end(recorder: Recorder, ledger: Mapping[str, Any] | None) -> None:
        try:
            recorder.series_ended(ledger)
        except StorageError as error:
            log.error("the end of the recording could not be written: %s", error)

    def status(self) -> dict[str, Any]:
        """Return what the page and the summary show."""
        recorder = self.recorder
        if recorder is not None:
            self._told = {"enabled": True, **recorder.status()}
        elif self._closing is not None:
            ending, thread = self._closing
            told = {"enabled": True, **ending.status()}
            # A file that failed stays in sight; one that was ended as asked is off.
            if told["state"] in {RecorderState.RECORDING, RecorderState.IDLE}:
                told["state"] = "closing" if thread.is_alive() else "off"
            self._told = told
        return {**self._told, "switched": list(self.switched)} if self.switched else self._told

    @staticmethod
    def _is_open(recorder: Recorder) -> bool:
        return bool(recorder.status()["state"] == RecorderState.RECORDING)
