"""Common parts of node processes: versions, instance ids, threads, stop requests and signals."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib.metadata
import logging
import math
import os
import platform
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

with contextlib.suppress(ImportError):  # Windows has none, and runs no nodes
    import resource

PARENT_VARIABLE = "SCI_STREAM_SUPERVISOR_PID"
"""Set by a supervisor for its nodes: a node stops by itself when its supervisor has ended."""

CLOSE_VARIABLE = "SCI_STREAM_CLOSE_SERIES"
"""Set by a stopping supervisor: the acquire node closes the interrupted series and starts none."""

SPOOL_VARIABLE = "SCI_STREAM_SPOOL"
"""Set by a supervisor for acquire node and sink: a folder for what survives a crash of them, until
the run ends."""

# Of malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD (its maximum) and M_ARENA_MAX, bytes and number.
# Messages of 2 MiB, record-only, two AMD EPYC cores: 0.5 ms a snapshot of ZeroMQ's thread in place
# of 0.7 to 2.3.
_MEMORY_OPTIONS = {-1: 128 << 20, -3: 32 << 20, -8: 1}
EXIT_AT_ONCE = 130
# After a signal, sleep continues for the rest of its time (PEP 475): look this often.
_STEP_S = 0.02


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    installed = {"python": platform.python_version()}
    for name in ("sci-stream", "numpy", "torch", "pyzmq", "h5py", "opencv-python-headless"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def freeze_gc() -> None:
    """Exclude all loaded objects from garbage collection: call after the set-up of a node, before
    its loop.

    A full collection visits all objects of all imported modules, 0.1 s and more with torch, and
    delays the snapshots in flight. Objects created before the loop live as long as the process
    anyway. Only the first call of a process freezes: anything later would keep the garbage of
    earlier series permanently.
    """
    if gc.get_freeze_count():
        return  # the garbage of a later series must be collected
    gc.collect()
    gc.freeze()


def keep_memory() -> None:
    """Let the C library use the memory of a message again for the next one.

    By default it returns megabytes to the kernel, which then clears new pages for each message.
    Call it before ZeroMQ starts its thread.
    """
    with contextlib.suppress(OSError, AttributeError):  # other systems than Linux with glibc
        set_option = ctypes.CDLL(None).mallopt
        for option, value in _MEMORY_OPTIONS.items():
            set_option(option, value)


def new_instance_id() -> str:
    """Return a token that distinguishes this process from earlier ones of the same name."""
    return secrets.token_hex(4)


def usable_cores() -> int:
    """Return the number of cores that this process may use: its affinity, and the quota of its
    control group.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def limit_threads() -> None:
    """Make OpenMP threads sleep, not spin, while they wait for each other.

    Call before torch is imported.

    Spinning assumes exclusive cores; here camera, sockets and recorder need them too, and a thread
    that spins for a preempted one halves the speed (docs/decisions/solver-threads.md).
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def restart_process(reason: str, **variables: str) -> NoReturn:
    """Replace this process by a fresh one with the same command line and more environment
    variables.

    It keeps its process id, so that supervisors need not know. All sockets and files must be
    closed.
    """
    logging.getLogger(__name__).error("%s: starting this node again with %s", reason, variables)
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **variables})


# Enough for every connection that is admitted; programs that loop over all descriptors stay quick.
_MAX_DESCRIPTORS = 65_536


def raise_descriptor_limit() -> None:
    """Raise the limit on open files as far as the system permits: the usual 1024 are soon taken by
    connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class StopRequest:
    """A request to drain and stop a node.

    A request is ``gentle`` when no supervisor is left to stop the nodes in order: the acquire node
    then drains first, and the others stay as long as it needs them.

    It takes no lock, so any signal handler can set it. A `threading.Event` could deadlock: a wait
    in the same thread may hold its lock when the handler sets it.
    """

    def __init__(self) -> None:
        self.gentle = False
        self._is_set = False
        self._on_stop: list[Callable[[], None]] = []
        self._on_forced_stop: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return self._is_set

    def call_on_stop(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` (from a signal handler or another thread) when the request arrives; at
        once if it has.

        It may be called twice if the request arrives meanwhile.
        """
        self._on_stop.append(callback)
        if self._is_set:
            callback()

    def call_on_forced_stop(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when a second signal is about to end the process, to clean up."""
        self._on_forced_stop.append(callback)

    def force_stop(self) -> None:
        """Run the clean-up of an immediate end."""
        for callback in self._on_forced_stop:
            callback()

    def set(self, *, gentle: bool = False) -> None:
        """Make the request."""
        self.gentle = gentle
        self._is_set = True
        for callback in self._on_stop:
            callback()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the request; return whether it arrived."""
        deadline_s = time.monotonic() + timeout_s
        while not self._is_set and (left_s := deadline_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _STEP_S))
        return self._is_set


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a stop request; the second one ends the process at
    once.
    """
    raise_descriptor_limit()
    request = StopRequest()

    def handle(number: int, _frame: object) -> None:
        if request:
            request.force_stop()
            sys.stderr.write("stopped immediately\n")
            sys.stderr.flush()
            # Without clean-up: the user wants out, and a hung library would block a regular exit.
            os._exit(EXIT_AT_ONCE)
        logging.getLogger(__name__).info("%s: draining", signal.Signals(number).name)
        request.set()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    _stop_with_parent(request)
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _stop_with_parent(request: StopRequest) -> None:
    """Stop when the supervisor of this process has ended: nothing else would stop it."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None:
        return

    def watch() -> None:
        while not request:
            # Linux gives an orphan another parent; PR_SET_PDEATHSIG would signal when the parent's
            # *thread* ends.
            if os.getppid() != int(parent):
                logging.getLogger(__name__).warning("supervisor has ended: draining and stopping")
                request.set(gentle=True)
            time.sleep(0.5)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
