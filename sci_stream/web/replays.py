"""Replays beside the live rig: of recordings, and of single snapshots that a viewer refines."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from sci_stream.errors import EnvironmentFault, InputError
from sci_stream.model import JsonObject, Reconstruction, SeriesInfo
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.denoisers.plugin_code import runs_code
from sci_stream.recording.reader import Recording
from sci_stream.recording.writer import RecordingWriter
from sci_stream.web.recordings import Recordings

_REFINED = " refined"
MAX_ITERATIONS = 200
"""Of a replay: more change nothing that can be seen."""
# Solves of the rig on this host go before a refined snapshot, for which a person waits.
_NICE_REFINING = 5
# No one waits for the replay of a recording.
_NICE_REPLAYING = 19
_STOP_S = 5.0
# A replay ends before the live recording has to: a recording of 1024×1024 px writes so much in a
# second.
_MARGIN_BYTES = 256 << 20
# The same margin would leave no room on a small disk.
_MARGIN_SHARE = 0.1
# `sci_stream.nodes.runtime.process` reads it: a replay stops when the sink has ended, even killed.
_PARENT_VARIABLE = "SCI_STREAM_SUPERVISOR_PID"
_COMMAND = (sys.executable, "-P", "-m", "sci_stream", "replay")


class Replays:
    """Replays of `recordings`, one at a time. Thread-safe.

    A replay is ``sci-stream replay`` in a process of lower priority on this host. It ends with this
    process, and before the disk has less than ``floor_bytes`` and a margin. ``solvers`` returns the
    settings of the rig's solvers by id; the code of ``trusted``, the one in the rig file, may run.
    """

    def __init__(
        self,
        recordings: Recordings,
        solvers: Callable[[], JsonObject],
        floor_bytes: int,
        trusted: str = "",
    ) -> None:
        self._trusted = trusted
        self.recordings = recordings
        self._solvers = solvers
        self._floor_bytes = floor_bytes
        self._series: tuple[SeriesInfo, Calibration] | None = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._state: JsonObject = {}

    def series_started(self, info: SeriesInfo, calibration: Calibration) -> None:
        """Refine snapshots of this series from now on."""
        self._series = info, calibration

    def calibration_of(self, shown: Reconstruction) -> Calibration:
        """Return the calibration of a live or a recorded snapshot.

        Raises `InputError` if its series is over.
        """
        if self._series is not None and self._series[1].hash == shown.calibration_hash:
            return self._series[1]
        return self.recordings.calibration(shown.id.series)

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
        used = [one["denoiser"] for one in self._solvers().values() if isinstance(one, dict)]
        if not denoiser and runs_code(self._trusted) and self._trusted in used:
            denoiser = self._trusted
        other = ("--solver", denoiser) if denoiser else ()
        with tempfile.TemporaryDirectory(prefix="sci-stream-") as folder:
            source = Path(folder) / "snapshot.h5"
            out = Path(folder) / "refined.h5"
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

        Raises `InputError` if there is no such recording, or the new one exists; `EnvironmentFault`
        if another replay is running.
        """
        source = self.recordings.path_of(name)
        out = source.with_name(f"{source.stem}_replay{iterations}.h5")
        if out.exists():
            raise InputError(
                f"{out.name} exists", hint="Replay with another number of iterations, or remove it."
            )
        disk = shutil.disk_usage(source.parent)
        margin_bytes = min(_MARGIN_BYTES, round(_MARGIN_SHARE * disk.total))
        keep_free_mib = (self._floor_bytes + margin_bytes) / 2**20
        process = self._begin(
            source,
            out,
            iterations,
            {"source": source.name, "out": out.name},
            "--device",
            "cpu",
            "--keep-free-mib",
            f"{keep_free_mib:.3f}",
        )
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICE_REPLAYING)
        # Where memory runs out, the system ends the replay and not a node of the rig.
        with suppress(OSError):
            Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000", "utf-8")
        return out.name

    def state(self) -> JsonObject:
        """Return ``source``, ``out`` and ``pid`` of the last replay, ``running``, and why it
        failed: ``error``.
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
        self, source: Path, out: Path, iterations: int, state: JsonObject, *options: str
    ) -> subprocess.Popen[bytes]:
        # No node of this run: it inherits none of its variables.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SCI_STREAM_")
        }
        environment[_PARENT_VARIABLE] = str(os.getpid())
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
            self._state = {**state, "pid": self._process.pid}
            return self._process
