"""The window's process. It listens to the taps as any program may, so it can neither hold up nor end the instrument."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from sci_stream.config import Rig
from sci_stream.model import Reconstruction
from sci_stream.nodes.outputs import tone_settings
from sci_stream.nodes.runner import PARENT_VARIABLE, StopRequest
from sci_stream.sinks.window import Window, require_screen
from sci_stream.transport.taps import subscribe

_JOIN_S = 5.0


def run_window(rig: Rig, stop: StopRequest) -> None:
    """Show what comes until the viewer closes the window or a stop is asked for.

    Raises
    ------
    EnvironmentFault
        If there is no screen.
    """
    window = Window(f"sci_stream: {rig.rig.name}", tone_settings(rig.preview), rig.preview.stale_after_s)
    newest: list[Reconstruction] = []
    lock = threading.Lock()

    def listen() -> None:
        for reconstruction in subscribe(rig.network.taps):
            with lock:
                newest[:] = [reconstruction]

    threading.Thread(target=listen, name="window-tap", daemon=True).start()
    try:
        while not stop:
            with lock:
                come = newest.pop() if newest else None
            if come is not None:
                window.show(come)
            if not window.tick():
                return
    finally:
        window.close()


@contextlib.contextmanager
def window_beside(rig_path: Path, *, wanted: bool) -> Iterator[None]:
    """Have a window in a process of its own while something runs; it may be closed before.

    Raises
    ------
    EnvironmentFault
        If it is wanted and there is no screen.
    """
    if not wanted:
        yield
        return
    require_screen()
    process = subprocess.Popen(
        [sys.executable, "-m", "sci_stream", "window", str(rig_path)],
        env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_JOIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
