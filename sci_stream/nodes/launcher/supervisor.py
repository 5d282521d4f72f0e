"""The supervisor: start, monitor, restart and stop all nodes of a rig on this machine."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sci_stream.config import Rig
from sci_stream.errors import EnvironmentFault, InputError, LedgerError
from sci_stream.nodes.acquire.spool import done_path, spool_path
from sci_stream.nodes.launcher.output import bounded_lines
from sci_stream.nodes.runtime.process import (
    CLOSE_VARIABLE,
    PARENT_VARIABLE,
    SPOOL_VARIABLE,
    StopRequest,
    usable_cores,
)
from sci_stream.nodes.runtime.run_inputs import FROZEN_VARIABLE, freeze
from sci_stream.nodes.runtime.runtime_folder import RunFolder, run_folders
from sci_stream.transport.sockets import FOLDER_VARIABLE

log = logging.getLogger(__name__)

_POLL_S = 0.05
# A killed node is back at once; one that fails at its start must not take the cores by restarting.
_BACKOFF_FIRST_S = 0.2
_BACKOFF_MAX_S = 5.0
# Crashes in a row after which a node is given up, each within _SETTLED_S of its start: by its own
# fault, or killed from outside (SIGKILL), as for lack of memory, which may pass. A limit by time
# alone is never reached: backoff and start take longer than it allows.
_MAX_CRASHES = 10
_MAX_KILLS = 100
_SETTLED_S = 60.0
# Beyond the drain a node has only to close its files.
_GRACE_S = 10.0
EXIT_NODE_FAILED = 5


@dataclass
class _Child:
    """The process of one node across restarts."""

    name: str
    argv: Sequence[str]
    environment: dict[str, str]
    process: subprocess.Popen[str] | None = None
    starts: int = 0
    crashes: Counter[bool] = field(default_factory=Counter)
    """Crashes in a row, by whether it was killed."""
    started_s: float = 0.0
    again_s: float = 0.0
    over: bool = False
    """The node has ended for good."""

    def send(self, number: signal.Signals) -> None:
        """Send a signal if the process runs; may be called from a signal handler."""
        if self.process is not None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process if it runs, and wait for its end."""
        self.send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
            self.process = None


class Supervisor:
    """Supervises a rig's nodes.

    The run is over when the acquire node ends. A crashed node is restarted, with backoff. A node
    that exits because its input is wrong, or at its first start because something is missing, is
    not restarted: the run ends with its status.

    ``report`` receives each line of output of a node; ``program`` is the command of each, before
    its arguments.
    """

    def __init__(
        self,
        rig: Rig,
        rig_path: Path,
        stop: StopRequest,
        report: Callable[[str], None],
        *,
        snapshots: int = 0,
        duration_s: float = 0.0,
        summary: Path | None = None,
        verbose: bool = False,
        program: Sequence[str] = (sys.executable, "-P", "-m", "sci_stream"),
    ) -> None:
        self._rig = rig
        self._stop = stop
        self._report = report
        command = [*program, *(["--verbose"] if verbose else [])]
        sink = [*command, "sink", str(rig_path)] + (["--summary", str(summary)] if summary else [])
        acquire = [*command, "acquire", str(rig_path)]
        acquire += ["--snapshots", str(snapshots)] if snapshots else []
        acquire += ["--duration", str(duration_s)] if duration_s else []
        # The lines of a node that is killed must not be lost in its buffer.
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        # In memory: a spool on a disk would be written back and slow the camera thread.
        self._folder = RunFolder.in_memory()
        environment[FOLDER_VARIABLE] = environment[FROZEN_VARIABLE] = str(self._folder.path)
        freeze(rig, rig_path, self._folder.path)
        # The service manager that started this process monitors this one, not its nodes.
        environment.pop("NOTIFY_SOCKET", None)
        # Nodes share the cores: nodes that only move data need one thread, solvers divide the rest.
        movers = {**environment, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        nodes = rig.reconstruct.nodes
        solvers = dict(environment)
        if nodes > 1 and not rig.reconstruct.threads:
            solvers["OMP_NUM_THREADS"] = str(max(1, usable_cores() // nodes))
        movers[SPOOL_VARIABLE] = str(self._folder.path)
        self._sink = _Child("sink", sink, dict(movers))
        self._acquire = _Child("acquire", acquire, dict(movers))
        self._workers = [
            _Child(
                f"reconstruct-{index}",
                [*command, "reconstruct", str(rig_path), "--index", str(index)],
                solvers,
            )
            for index in range(nodes)
        ]
        self._status = 0
        stop.call_on_forced_stop(self._abandon)

    @property
    def restarts(self) -> int:
        """Number of node restarts."""
        return sum(max(0, child.starts - 1) for child in self._children)

    @property
    def processes(self) -> dict[str, int]:
        """Process ids of the running nodes."""
        # Also called by other threads: read each process once.
        there = [(child.name, child.process) for child in self._children]
        return {name: process.pid for name, process in there if process is not None}

    @property
    def _children(self) -> list[_Child]:
        # In the order of starting: snapshots flow only once everything behind the camera is there.
        return [self._sink, *self._workers, self._acquire]

    def run(self) -> int:
        """Run to the end; return the exit status: 0 if every node succeeded and the
        ledger closed.
        """
        self._remove_leftovers()
        try:
            for child in self._children:
                self._start(child)
            while not any(self._supervise(child, time.monotonic()) for child in self._children):
                self._stop.wait(_POLL_S)
                if self._stop:
                    self._report(
                        "draining: finishing the snapshots in flight; a second Ctrl-C stops "
                        "immediately"
                    )
                    break
            # In the order of the data: the acquire node drains through the workers, and both report
            # to the sink.
            if not self._acquire.over:
                self._end_acquire(self._rig.drain.timeout_s * 2 + _GRACE_S)
            for child in (*self._workers, self._sink):
                self._end(child)
        finally:
            for child in self._children:
                child.send(signal.SIGKILL)
            for child in self._children:
                child.kill()
            self._clear_folder()
        return self._status

    def _supervise(self, child: _Child, now_s: float) -> bool:
        """Manage a child: start it when due; return whether its end ends the run."""
        if child.process is None:
            if now_s >= child.again_s and not child.over:
                self._start(child)
            return False
        status = child.process.poll()
        if status is not None and self._ended(child, status, now_s):
            child.over = True
        return child.over

    def _start(self, child: _Child) -> None:
        child.starts += 1
        # A sink that finds no folder would bind its TCP address alone, and the nodes would wait at
        # the local socket.
        self._folder.restore()
        child.started_s = time.monotonic()
        # A session of its own: Ctrl-C reaches only this process, which stops the nodes in order.
        child.process = subprocess.Popen(
            child.argv,
            env=child.environment,
            # A node that reads the terminal would be stopped by the shell's job control.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        threading.Thread(target=self._relay, args=(child.process,), daemon=True).start()
        log.info("%s started as process %d", child.name, child.process.pid)

    def _relay(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in bounded_lines(output):
                self._report(line)

    def _ended(self, child: _Child, status: int, now_s: float) -> bool:
        """Handle a node that ended by itself; return whether that ends the run."""
        child.process = None
        # The acquire node ends the run by itself; killed by a signal after its last series, it only
        # failed to say so.
        if child is self._acquire and (status >= 0 or self._all_done):
            self._fail_with(max(0, status))
            return True
        if status == InputError.exit_status or (
            status == EnvironmentFault.exit_status and child.starts == 1
        ):
            # It has logged the reason, which a restart would not change.
            self._fail_with(status)
            self._report(f"{child.name} cannot run (exit status {status}): stopping")
            return True
        # Only crashes in a row count: a node that crashes once a day is not broken.
        if now_s - child.started_s > _SETTLED_S:
            child.crashes.clear()
        killed = status == -signal.SIGKILL
        # Kills from outside and crashes of its own have separate limits.
        child.crashes[killed] += 1
        if child.crashes[killed] > (_MAX_KILLS if killed else _MAX_CRASHES):
            self._report(f"{child.name} crashed {child.crashes.total()} times in a row: stopping")
            self._fail_with(EXIT_NODE_FAILED)
            return True
        wait_s = min(_BACKOFF_FIRST_S * 2 ** (min(child.crashes.total(), 16) - 1), _BACKOFF_MAX_S)
        child.again_s = now_s + wait_s
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        self._report(f"{child.name} ended {how}: restarting in {wait_s:.1f} s")
        return False

    @property
    def _acquire_spool(self) -> Path | None:
        return spool_path(self._rig.policy.spool, self._rig.rig.name, self._acquire.environment)

    @property
    def _all_done(self) -> bool:
        """Whether the acquire node has marked its last series as completed."""
        done = done_path(self._acquire.environment)
        spool = self._acquire_spool
        return done is not None and done.exists() and not (spool is not None and spool.exists())

    def _remove_leftovers(self) -> None:
        """Delete what killed runs left behind; name what holds snapshots that exist
        nowhere else.
        """
        for folder in run_folders(self._folder.path.parent, running=False):
            if spools := _spools(folder):
                files = (file for spool in spools for file in spool.glob("*"))
                size = sum(file.stat().st_size for file in files) >> 20
                self._report(
                    f"a run that was killed left undelivered snapshots in {folder} ({size} MiB of "
                    "memory): to resume "
                    f'its series, run its rig with [policy] spool = "{folder}"; to give them up: '
                    f"rm -r {folder}"
                )
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def _clear_folder(self) -> None:
        """Delete the folder of this run unless it holds snapshots that exist nowhere else."""
        folder = self._folder.path
        if spools := _spools(folder):
            place = Path(tempfile.mkdtemp(prefix="sci-stream-kept-", dir=folder.parent))
            # With the sink's ledger of the series.
            for file in (*spools, *folder.glob("*.ledger")):
                file.rename(place / file.name)
            self._report(f"undelivered snapshots are kept in {place}")
            if any(file.suffix == ".spool" for file in spools):
                self._report(f'to resume the series, run the rig with [policy] spool = "{place}"')
            self._fail_with(LedgerError.exit_status)
        self._folder.delete()

    def _end_acquire(self, grace_s: float) -> None:
        """Make the acquire node end its series, within ``grace_s`` of its last progress; it needs
        the others.

        If it is down or crashes meanwhile, it is restarted only to close the open series.
        """
        progress = 0.0
        deadline_s = time.monotonic() + grace_s
        child = self._acquire
        child.send(signal.SIGTERM)
        child.environment[CLOSE_VARIABLE] = "1"
        spool = self._acquire_spool
        while time.monotonic() < deadline_s:
            if spool is not None and (last := _changed_s(spool)) != progress:
                progress = last
                deadline_s = time.monotonic() + grace_s
            # A node that is being restarted may hold the only trace of snapshots in flight: its
            # series has to be closed.
            if child.process is None or (status := child.process.poll()) == -signal.SIGTERM:
                # Down, or still loading and without a signal handler.
                child.process = None
                if spool is None or not spool.exists():
                    return
                self._report("acquire left a series open: restarting it to close the series")
                self._start(child)
            elif status is not None and self._ended(child, status, time.monotonic()):
                return
            for other in (self._sink, *self._workers):
                self._supervise(other, time.monotonic())
            time.sleep(_POLL_S)
        self._report(f"{child.name} made no progress for {grace_s:.0f} s: killed")
        child.kill()
        self._fail_with(EXIT_NODE_FAILED)

    def _end(self, child: _Child) -> None:
        """Ask a node to stop and wait; kill it on timeout."""
        if child.process is None:
            return
        child.send(signal.SIGTERM)
        try:
            status = child.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._report(f"{child.name} did not stop within {_GRACE_S:.0f} s: killed")
            # Once the acquire node has ended, no result of a reconstruct node is awaited.
            status = 0 if child in self._workers else EXIT_NODE_FAILED
        if status == -signal.SIGTERM:
            status = 0  # it was still loading and had no signal handler yet
        self._fail_with(status if status >= 0 else EXIT_NODE_FAILED)
        child.kill()

    def _fail_with(self, status: int) -> None:
        """Keep the first failure: later ones are its consequences."""
        self._status = self._status or status

    def _abandon(self) -> None:
        """Kill every node and delete the spool: a forced stop gives up the snapshots in flight."""
        for child in self._children:
            child.send(signal.SIGKILL)
        self._folder.delete()


def _changed_s(path: Path) -> float:
    """Return the time of the last change of a file; 0 if there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _spools(folder: Path) -> list[Path]:
    """Return what has snapshots that exist nowhere else: spools, and those that could not be
    resumed.
    """
    return [*folder.glob("*.spool"), *folder.glob("*.aside")]
