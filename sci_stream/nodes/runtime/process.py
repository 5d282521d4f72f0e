"""What every node process shares: who it is, how it is told to stop, how it speaks."""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import logging
import os
import platform
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

PARENT_VARIABLE = "SCI_STREAM_SUPERVISOR_PID"
"""Set by a supervisor for its nodes: a node whose supervisor is gone stops by itself."""

CLOSE_VARIABLE = "SCI_STREAM_CLOSE_SERIES"
"""Set by a supervisor that is stopping: the acquire node closes the series that was left open, and begins none."""

EXIT_AT_ONCE = 130
_STEP_S = 0.02

NEXT_SERIES = signal.SIGUSR1
"""Has the acquire node end the series that runs, in order, and begin another."""


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    found = {"python": platform.python_version()}
    for name in ("sci-stream", "numpy", "torch", "pyzmq", "h5py", "opencv-python"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def freeze_gc() -> None:
    """Take what was loaded so far out of garbage collection: call when a node is set up, before its loop.

    A full collection goes through all objects of all imported modules, a tenth of a second and more with torch, in the
    middle of some snapshot's way. What was there before the loop stays for as long as the process does.
    """
    gc.collect()
    gc.freeze()


def new_instance_id() -> str:
    """Return a token that tells this process from an earlier one of the same name."""
    return secrets.token_hex(4)


def limit_threads() -> None:
    """Have OpenMP threads sleep while they wait for each other. Call before torch is imported.

    By default they spin, which assumes the cores to themselves; here camera, sockets and recorder want them too, and a
    thread that spins for one that was put aside halves the speed (docs/decisions/0009).
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


class StopRequest:
    """Set once a node is asked to drain and stop.

    A request is ``gentle`` when nobody is left to stop the nodes in order: then the acquire node drains first, and the
    others stay as long as it needs them.

    It takes no lock, and so can be set from a signal handler whatever that interrupts: a `threading.Event` that is
    waited for in the same thread holds its lock at times, and whoever sets it then waits for itself.
    """

    def __init__(self) -> None:
        self.gentle = False
        self._is_set = False
        self._on_stop: list[Callable[[], None]] = []
        self._at_once: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return self._is_set

    def call_on_stop(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called (from a signal handler or another thread) when the request comes; now, if it has.

        It may be called twice, where the request comes meanwhile.
        """
        self._on_stop.append(callback)
        if self._is_set:
            callback()

    def call_at_once(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called when a second signal is about to end the process: what must not be left behind."""
        self._at_once.append(callback)

    def insist(self) -> None:
        """Do what must be done before the process ends at once."""
        for callback in self._at_once:
            callback()

    def set(self, *, gentle: bool = False) -> None:
        """Ask."""
        self.gentle = gentle
        self._is_set = True
        for callback in self._on_stop:
            callback()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the request; return whether it came."""
        deadline_s = time.monotonic() + timeout_s
        while not self._is_set and (left_s := deadline_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _STEP_S))
        return self._is_set


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a stop request; the second one ends the process at once."""
    request = StopRequest()

    def handle(number: int, _frame: object) -> None:
        if request:
            request.insist()
            sys.stderr.write("stopped at once\n")
            sys.stderr.flush()
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
    """Stop when the supervisor that started this process is gone: nobody would ever stop it otherwise."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None:
        return

    def watch() -> None:
        while not request:
            if os.getppid() != int(parent):
                logging.getLogger(__name__).warning("the supervisor is gone: draining")
                request.set(gentle=True)
            time.sleep(0.5)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
