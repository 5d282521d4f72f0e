"""A whole rig under its real supervisor, for benchmarks that watch or harm its processes."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sci_stream.config import load_rig
from sci_stream.config.toml_text import table_text
from sci_stream.errors import EnvironmentFault, TransportError
from sci_stream.nodes.launcher.demo import free_port
from sci_stream.nodes.launcher.supervisor import Supervisor
from sci_stream.nodes.runtime.process import StopRequest
from sci_stream.transport.pubsub import subscribe_status

_LINES = 2000
_PROGRAM = (sys.executable, "-m", "sci_stream")


def small_rig(
    folder: Path,
    *,
    rate_hz: float,
    size_px: int,
    tables: Mapping[str, Mapping[str, Any]],
    camera: Mapping[str, Any] | None = None,
) -> Path:
    """Write the rig of a simulated camera with small frames, made ahead, and a denoiser that costs next to nothing.

    ``tables`` are laid over it, and ``camera`` over the options of the camera.
    """
    options = {"width_px": size_px, "height_px": size_px, "n_frames": 4, "snapshot_rate_hz": rate_hz}
    rig: dict[str, dict[str, Any]] = {
        "rig": {"name": "bench"},
        "camera": {
            "driver": "simulated",
            "read_timeout_s": 0.1,
            "options": {**options, "loop_snapshots": 16, **(camera or {})},
        },
        "reconstruct": {"denoiser": "identity", "devices": ["cpu"], "iterations": 1, "threads": 1},
        "network": {name: f"tcp://127.0.0.1:{free_port()}" for name in ("dispatch", "results", "taps")},
        "record": {"folder": "recordings", "min_free_mib": 0, "warn_free_mib": 0},
        "preview": {"enabled": False},
        "health": {"enabled": False},
    }
    for name, table in tables.items():
        rig[name] = {**rig.get(name, {}), **table}
    path = folder / "bench.toml"
    path.write_text("\n".join(table_text(name, table) for name, table in rig.items()))
    return path


class SupervisedRig:
    """A rig that runs in a thread of this process's, its nodes in processes of their own."""

    def __init__(self, path: Path, *, snapshots: int = 0, program: Sequence[str] = _PROGRAM) -> None:
        self.rig = load_rig(path, overrides={})
        self._summary = path.with_name("summary.json")
        self._stop = StopRequest()
        self.lines: deque[str] = deque(maxlen=_LINES)
        """What the supervisor and the nodes said last."""
        self.latest: dict[str, Any] = {}
        """What the sink reported last."""
        self.supervisor = Supervisor(
            *(self.rig, path, self._stop, self.lines.append),
            snapshots=snapshots,
            summary=self._summary,
            program=program,
        )
        self.status: int | None = None
        """Exit status, once it is over."""
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
        """Whether it runs."""
        return self._threads[0].is_alive()

    def wait_for(self, name: str, least: float, timeout_s: float) -> None:
        """Wait until the sink reports at least so much of something.

        Raises
        ------
        EnvironmentFault
            If it ends, or the time passes, before.
        """
        deadline_s = time.monotonic() + timeout_s
        while self.latest.get(name, 0) < least:
            if not self.running or time.monotonic() > deadline_s:
                raise EnvironmentFault(
                    "The rig does not get on",
                    expected=f"{name} of at least {least:g} within {timeout_s:g} s",
                    got=self.latest.get(name, "nothing"),
                    hint="It said last: " + " | ".join(list(self.lines)[-5:]),
                )
            time.sleep(0.05)

    def finish(self, timeout_s: float) -> dict[str, Any]:
        """Have it end in order and return its summary.

        Raises
        ------
        EnvironmentFault
            If it does not end in time, or left no summary.
        """
        self._stop.set()
        return self.join(timeout_s)

    def join(self, timeout_s: float) -> dict[str, Any]:
        """Wait for its end and return its summary; raises as `finish`."""
        self._threads[0].join(timeout_s)
        if self.running or not self._summary.exists():
            raise EnvironmentFault(
                "The rig did not end in order", hint="It said last: " + " | ".join(list(self.lines)[-5:])
            )
        summary: dict[str, Any] = json.loads(self._summary.read_text())
        return summary

    def kill(self) -> None:
        """End everything at once."""
        self._stop.set()
        self._stop.insist()
        self._threads[0].join(10.0)


@contextlib.contextmanager
def supervised(path: Path, *, snapshots: int = 0, program: Sequence[str] = _PROGRAM) -> Iterator[SupervisedRig]:
    """Run a rig; whatever happens, no process of it is left."""
    running = SupervisedRig(path, snapshots=snapshots, program=program)
    try:
        yield running
    finally:
        if running.running:
            running.kill()
