"""Common parts of node processes: stop requests and restarts."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from types import FrameType
from typing import Any

import pytest

from sci_stream.nodes.runtime.process import StopRequest, freeze_gc

PATIENCE_S = 60.0


def interrupt_at(line: int) -> None:
    """Make a request from within the wait for it, as a signal handler does, after a number of its
    lines.
    """
    request = StopRequest()
    lines = 0

    def interrupt(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        if event == "line" and lines == line:
            request.set()
        return interrupt

    def wait() -> None:
        sys.settrace(interrupt)
        try:
            request.wait(0.001)
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), f"deadlock if the request comes after {line} lines"


@pytest.mark.parametrize("line", range(1, 12))
def test_signal_during_wait_does_not_deadlock(line: int) -> None:
    interrupt_at(line)


def test_wait_returns_on_request_or_timeout() -> None:
    request = StopRequest()
    began_s = time.monotonic()
    assert not request.wait(0.1)
    assert time.monotonic() - began_s >= 0.1
    called: list[bool] = []
    request.call_on_stop(lambda: called.append(bool(request)))
    threading.Timer(0.05, request.set).start()
    assert request.wait(60.0)
    assert called == [True], "the callback finds the request set"


def test_late_callback_is_called_at_once() -> None:
    request = StopRequest()
    request.set()
    called: list[bool] = []
    request.call_on_stop(lambda: called.append(bool(request)))
    assert called == [True]


def test_restart_process_keeps_arguments_and_adds_variables() -> None:
    text = (
        "import os, sys\n"
        "from sci_stream.nodes.runtime.process import restart_process\n"
        "print(os.getpid(), sys.argv[1:], os.environ.get('SCI_STREAM_TEST_AGAIN'), flush=True)\n"
        "if 'SCI_STREAM_TEST_AGAIN' not in os.environ:\n"
        "    restart_process('a test', SCI_STREAM_TEST_AGAIN='yes')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", text, "one"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    (first, *of_first), (second, *of_second) = (line.split() for line in run.stdout.splitlines())
    assert first == second, "the process keeps its id"
    assert (of_first, of_second) == (["['one']", "None"], ["['one']", "yes"])


class Cycle:
    """An object that only the garbage collector frees."""

    def __init__(self) -> None:
        self.itself = self


def test_second_freeze_keeps_no_garbage() -> None:
    gc.disable()
    try:
        freeze_gc()
        series = Cycle()
        left = weakref.ref(series)
        freeze_gc()  # as each series of an acquire node does
        del series
        gc.collect()
        assert left() is None
    finally:
        gc.unfreeze()
        gc.enable()
