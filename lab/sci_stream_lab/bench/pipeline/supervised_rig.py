"""A whole rig under its real supervisor, for benchmarks that watch its processes or
inject faults.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sci_stream.config import load_rig
from sci_stream.config.toml_text import table_text
from sci_stream.errors import EnvironmentFault, TransportError
from sci_stream.nodes.launcher.demo import free_port
from sci_stream.nodes.launcher.supervisor import Supervisor
from sci_stream.nodes.runtime.process import StopRequest
from sci_stream.transport.pubsub import subscribe_status

RigTables = Mapping[str, Mapping[str, Any]]
"""Tables of a rig file by name, with their keys and values."""

# Enough to hold what preceded a failure; a soak of a day must not fill the memory.
_LINES = 2000
# -P: a folder of the working directory with the name of a dependency must not be imported.
_PROGRAM = (sys.executable, "-P", "-m", "sci_stream")


@dataclass(frozen=True, slots=True)
class LedgerFigures:
    """What became of every snapshot of a run, as its summary has it. ``dropped`` is by reason."""

    acquired: int
    reconstructed: int
    raw_only: int
    dropped: dict[str, int]
    redelivered: int
    duplicates: int
    camera_missed: int
    closed: bool

    @property
    def n_dropped(self) -> int:
        """Number of snapshots dropped, for whatever reason."""
        return sum(self.dropped.values())

    @property
    def lost(self) -> int:
        """Number of snapshots without an outcome."""
        return self.acquired - self.reconstructed - self.raw_only - self.n_dropped

    @property
    def state(self) -> str:
        """Whether it is closed, in words."""
        return "closed" if self.closed else "NOT CLOSED"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Summary of a finished run: the id of its series, its ledger, and the latencies by stage and
    percentile, ms.
    """

    series: str
    ledger: LedgerFigures
    latency_ms: dict[str, dict[str, float]]

    @classmethod
    def read(cls, path: Path) -> RunSummary:
        """Read the summary that a sink wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        names = (entry.name for entry in dataclasses.fields(LedgerFigures))
        ledger = LedgerFigures(**{name: content["ledger"][name] for name in names})
        return cls(content["series"], ledger, content["latency_ms"])


def write_rig(folder: Path, *tables: RigTables) -> Path:
    """Write a rig with free ports, without page and health server; later ``tables`` override
    earlier ones by key.
    """
    rig: dict[str, dict[str, object]] = {
        "rig": {"name": "bench"},
        "network": {
            name: f"tcp://127.0.0.1:{free_port(set())}" for name in ("dispatch", "results", "taps")
        },
        "preview": {"enabled": False},
        "health": {"enabled": False},
    }
    for changes in tables:
        for name, table in changes.items():
            rig[name] = {**rig.get(name, {}), **table}
    path = folder / "bench.toml"
    path.write_text("\n".join(table_text(name, table) for name, table in rig.items()), "utf-8")
    return path


def small_rig(
    folder: Path,
    *,
    rate_hz: float,
    size_px: int,
    tables: RigTables,
    camera: Mapping[str, object] | None = None,
) -> Path:
    """Write a rig with a simulated camera (small frames, made in advance) and a denoiser of
    negligible cost.

    ``tables`` override its tables, ``camera`` the options of the camera.
    """
    options = {
        "width_px": size_px,
        "height_px": size_px,
        "n_frames": 4,
        "snapshot_rate_hz": rate_hz,
    }
    defaults: RigTables = {
        "camera": {
            "driver": "simulated",
            "options": {**options, "loop_snapshots": 16, **(camera or {})},
        },
        "reconstruct": {"solver": "identity", "devices": ["cpu"], "iterations": 1, "threads": 1},
        "record": {"folder": "recordings", "min_free_mib": 0},
    }
    return write_rig(folder, defaults, tables)


class SupervisedRig:
    """A rig whose supervisor runs in a thread of this process;
    each node is a process of its own.
    """

    def __init__(
        self, path: Path, *, snapshots: int = 0, program: Sequence[str] = _PROGRAM
    ) -> None:
        self.rig = load_rig(path, overrides={})
        self._summary = path.with_name("summary.json")
        self._stop = StopRequest()
        self.lines: deque[str] = deque(maxlen=_LINES)
        """The last log lines of supervisor and nodes."""
        self.latest: dict[str, Any] = {}
        """The last report of the sink."""
        self.supervisor = Supervisor(
            *(self.rig, path, self._stop, self.lines.append),
            snapshots=snapshots,
            summary=self._summary,
            program=program,
        )
        self.status: int | None = None
        """Exit status, once the rig has ended."""
        self._threads = [
            threading.Thread(target=self._run, name="supervisor", daemon=True),
            threading.Thread(target=self._follow, name="reports", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        self.status = self.supervisor.run()

    def _follow(self) -> None:
        while self.running:
            with contextlib.suppress(TransportError):
                for report in subscribe_status(self.rig.network.taps, timeout_s=1.0):
                    self.latest = dict(report.status)
                    if self.status is not None:
                        break

    @property
    def running(self) -> bool:
        """Whether the rig runs."""
        return self._threads[0].is_alive()

    def wait_for_more(self, snapshots: int, timeout_s: float) -> None:
        """Wait until so many more snapshots have the outcome that this rig is for.

        Raises as `wait_for`.
        """
        figure = "ledger.reconstructed" if self.rig.reconstruct.nodes else "ledger.raw_only"
        self.wait_for(figure, self.latest.get(figure, 0) + snapshots, timeout_s)

    def wait_for(self, name: str, least: float, timeout_s: float) -> None:
        """Wait until the sink reports at least this value of a figure.

        Raises
        ------
        EnvironmentFault
            If the rig ends or the time runs out first.
        """
        deadline_s = time.monotonic() + timeout_s
        while self.latest.get(name, 0) < least:
            if not self.running or time.monotonic() > deadline_s:
                raise EnvironmentFault(
                    "The rig makes no progress",
                    expected=f"{name} of at least {least:g} within {timeout_s:g} s",
                    got=self.latest.get(name, "nothing"),
                    hint="Last log lines: " + " | ".join(list(self.lines)[-5:]),
                )
            time.sleep(0.05)

    def finish(self, timeout_s: float) -> RunSummary:
        """Stop the rig in order and return its summary.

        Raises
        ------
        EnvironmentFault
            If it does not end in time or leaves no summary.
        """
        self._stop.set()
        return self.join(timeout_s)

    def join(self, timeout_s: float) -> RunSummary:
        """Wait for the end of the run and return its summary; raises as `finish`."""
        self._threads[0].join(timeout_s)
        if self.running or not self._summary.exists():
            raise EnvironmentFault(
                "The rig did not stop cleanly",
                hint="Last log lines: " + " | ".join(list(self.lines)[-5:]),
            )
        return RunSummary.read(self._summary)

    def kill(self) -> None:
        """Kill everything at once."""
        self._stop.set()
        self._stop.force_stop()
        self._threads[0].join(10.0)


@contextlib.contextmanager
def supervised(
    path: Path, *, snapshots: int = 0, program: Sequence[str] = _PROGRAM
) -> Iterator[SupervisedRig]:
    """Run a rig and leave no process behind."""
    running = SupervisedRig(path, snapshots=snapshots, program=program)
    try:
        yield running
    finally:
        if running.running:
            running.kill()
