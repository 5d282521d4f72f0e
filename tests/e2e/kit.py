"""Real rigs for tests: a rig file with free ports, and processes that are started, watched and
always cleaned up.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from sci_stream.config import load_rig
from sci_stream.config.toml_text import table_text
from sci_stream.errors import TransportError
from sci_stream.recording.reader import Recording
from sci_stream.transport.pubsub import subscribe_status
from sci_stream.transport.sockets import FOLDER_VARIABLE
from tests.ports import free_ports

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "sci_stream")
PATIENCE_S = 120.0
"""Timeout of every wait, for a busy machine. Only a broken rig reaches it."""
COMMAND_S = 240.0
"""Timeout of a command, which may start a whole rig and measure the machine first."""

ITERATIONS = 2
"""Iterations of a solve: few, because most of these tests are not about its quality."""

Tables = Mapping[str, Mapping[str, Any]]


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` updated with ``over``, table by table; None removes a key."""
    out = dict(base)
    for key, value in over.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, Mapping):
            out[key] = merged(out.get(key, {}), value)
        else:
            out[key] = value
    return out


def small_rig() -> dict[str, Any]:
    """Return the tables of a rig that runs in real time on a shared core, on free ports."""
    dispatch, results, taps, page = free_ports(4)
    return {
        "rig": {"name": "test"},
        "camera": {
            "driver": "simulated",
            "options": {
                "width_px": 64,
                "height_px": 64,
                "n_frames": 4,
                "snapshot_rate_hz": 10.0,
                "loop_snapshots": 8,
                "truth": True,
            },
        },
        "reconstruct": {
            "solver": "tv",
            "devices": ["cpu"],
            "iterations": ITERATIONS,
            "adapt_budget": False,
            "threads": 1,
        },
        "policy": {"queue_snapshots": 500, "max_wait_s": 3600.0},
        "network": {
            "dispatch": f"tcp://127.0.0.1:{dispatch}",
            "results": f"tcp://127.0.0.1:{results}",
            "taps": f"tcp://127.0.0.1:{taps}",
        },
        "record": {"folder": "recordings", "min_free_mib": 0},
        "preview": {"enabled": False, "port": page},
        "health": {"enabled": False},
    }


def camera_of(driver: str, **options: object) -> dict[str, Any]:
    """Return a camera table of another driver, without the options of the simulated camera in
    `small_rig`.
    """
    return {
        "driver": driver,
        "options": {**dict.fromkeys(small_rig()["camera"]["options"]), **options},
    }


def write_rig(folder: Path, *changes: Tables | None) -> Path:
    """Write `small_rig` with changes, one after the other, to a file in ``folder`` and return its
    path.
    """
    tables = small_rig()
    for change in changes:
        tables = merged(tables, change or {})
    path = folder / "rig.toml"
    path.write_text("\n".join(table_text(name, table) for name, table in tables.items()))
    return path


def environment(**more: str) -> dict[str, str]:
    """Return the environment for a process of the instrument: this tree's code, one thread for each
    computation.
    """
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith("SCI_STREAM_")
    }
    # pytest's own options for warnings must not reach processes that are not pytest.
    inherited.pop("PYTHONWARNINGS", None)
    code = os.pathsep.join((str(ROOT), str(ROOT / "drivers")))
    return {**inherited, "PYTHONPATH": code, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **more}


@dataclass(frozen=True, slots=True)
class Ended:
    """Exit status and output of a command."""

    status: int
    output: str


def sci_stream(
    *arguments: str | Path, cwd: Path, timeout_s: float = COMMAND_S, **variables: str
) -> Ended:
    """Run a command of the instrument and wait for its end."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ended(done.returncode, done.stdout)


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds; fail with a description on timeout."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.05)


class RigFiles:
    """A rig file in a folder, `small_rig` with changes, and the files of its run."""

    def __init__(self, folder: Path, *changes: Tables | None) -> None:
        self.folder = folder
        self.path = write_rig(folder, *changes)
        self.rig = load_rig(self.path, overrides={})
        self._summary = folder / "summary.json"

    def summary(self) -> dict[str, Any]:
        """Return the summary file."""
        result: dict[str, Any] = json.loads(self._summary.read_text())
        return result

    def segments(self) -> list[Path]:
        """Return the recorded files in order."""
        return sorted(Path(self.rig.record.folder).glob("*.h5"), key=lambda path: path.stem)

    @contextlib.contextmanager
    def recordings(self) -> Iterator[list[Recording]]:
        """Open all segments."""
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(Recording(path)) for path in self.segments()]


class RunningRig(RigFiles):
    """``sci-stream run`` as a process with its nodes; a context manager that leaves no process
    behind.

    Parameters
    ----------
    folder
        Where the rig file, the summary, the recordings and the output go.
    changes
        Changes to `small_rig`.
    arguments
        More options of the command, such as ``"--snapshots", "10"``.
    limit_file_bytes
        Limit on the size of every file that its processes write.
    program
        How the command is started.
    """

    def __init__(
        self,
        folder: Path,
        changes: Tables | None = None,
        *arguments: str,
        limit_file_bytes: int | None = None,
        program: Sequence[str | Path] = COMMAND,
    ) -> None:
        super().__init__(folder, changes)
        self._log = folder / "output.txt"
        self._run_folders: set[str] = set()
        limit = [] if limit_file_bytes is None else ["prlimit", f"--fsize={limit_file_bytes}"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *limit,
                    *program,
                    "run",
                    str(self.path),
                    "--summary",
                    str(self._summary),
                    *arguments,
                ],
                cwd=folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.nodes().values(), self.process]:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.kill()
        self.process.wait()
        # A killed supervisor leaves its folder in memory, and all later runs on this machine would
        # report it.
        for folder in self._run_folders - {""}:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def output(self) -> str:
        """The output of the command and its nodes so far."""
        return self._log.read_text(errors="replace")

    def nodes(self) -> dict[str, psutil.Process]:
        """Return the running node processes of this rig by name, whatever their parent is now."""
        found: dict[str, psutil.Process] = {}
        mark = str(self.path).encode()
        for folder in Path("/proc").glob(
            "[0-9]*"
        ):  # psutil takes tens of milliseconds for all processes
            with contextlib.suppress(OSError, psutil.Error):
                if mark not in (folder / "cmdline").read_bytes():
                    continue
                process = psutil.Process(int(folder.name))
                argv = process.cmdline()
                ours = str(self.path) in argv and "run" not in argv
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found[_node_name(argv)] = process
                    self._run_folders.add(process.environ().get(FOLDER_VARIABLE, ""))
        return found

    def kill(self, node: str) -> None:
        """Kill a node."""
        self.nodes()[node].send_signal(signal.SIGKILL)

    def reports(self, timeout_s: float = PATIENCE_S) -> Iterator[dict[str, Any]]:
        """Yield the sink's status reports, twice a second, across restarts of the sink."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and self.process.poll() is None:
            with contextlib.suppress(TransportError):
                for report in subscribe_status(self.rig.network.taps, timeout_s=1.0):
                    yield dict(report.status)
                    if time.monotonic() >= deadline_s:
                        break

    def wait_until(
        self, what: str, condition: Callable[[dict[str, Any]], object]
    ) -> dict[str, Any]:
        """Wait for a matching report of the sink and return it."""
        for report in self.reports():
            if condition(report):
                return report
        raise AssertionError(f"timeout waiting for: {what}\n{self.output}")

    def wait_for_count(self, name: str, least: int) -> dict[str, Any]:
        """Wait until a count of the ledger reaches ``least``."""
        key = f"ledger.{name}"
        return self.wait_until(f"{least} {name}", lambda report: report.get(key, 0) >= least)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the end of the run and return its exit status."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s:g} s\n{self.output}") from None

    def finish(self, timeout_s: float = PATIENCE_S, *, status: int = 0) -> dict[str, Any]:
        """Wait for the end, with this exit status, and return the summary."""
        ended = self.wait(timeout_s)
        assert ended == status, f"exit status {ended}\n{self.output}"
        assert "Traceback" not in self.output, self.output
        return self.summary()


def _node_name(argv: list[str]) -> str:
    kind = next(word for word in ("acquire", "reconstruct", "sink") if word in argv)
    return f"{kind}-{argv[argv.index('--index') + 1]}" if kind == "reconstruct" else kind


def assert_accounted_for(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Assert that a summary's ledger is closed and adds up; return it."""
    ledger: dict[str, Any] = summary["ledger"]
    assert ledger["closed"]
    assert ledger["in_flight"] == 0
    outcomes = (ledger[outcome] for outcome in ("reconstructed", "raw_only", "not_kept"))
    assert ledger["acquired"] == sum(outcomes) + sum(ledger["dropped"].values())
    return ledger
