"""``--window`` on a virtual screen: it shows the video, and closing it does not stop the rig."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.e2e.kit import COMMAND, RunningRig, environment, sci_stream, wait_for, write_rig

SIZE = (1024, 768)
_WINDOWS, _WINDOW_S = 6, 20.0


class Screen:
    """A virtual screen with readable contents."""

    def __init__(self, folder: Path) -> None:
        read_end, write_end = os.pipe()
        self._folder = folder
        self.process = subprocess.Popen(
            [
                *("Xvfb", "-displayfd", str(write_end), "-screen", "0", f"{SIZE[0]}x{SIZE[1]}x24"),
                *("-fbdir", str(folder), "-nolisten", "tcp", "-noreset"),
            ],
            pass_fds=[write_end],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(write_end)
        with os.fdopen(read_end) as report:
            self.name = f":{report.readline().strip()}"

    def picture(self) -> np.ndarray:
        """Return the screen contents, (H, W, 3) BGR, from a file in xwd format."""
        data = (self._folder / "Xvfb_screen0").read_bytes()
        header = struct.unpack(">25I", data[:100])
        header_bytes, width, height, stride, colours = header[0], header[4], header[5], header[12], header[19]
        pixels = np.frombuffer(data, np.uint8, height * stride, header_bytes + 12 * colours)
        return pixels.reshape(height, stride)[:, : 4 * width].reshape(height, width, 4)[..., :3].copy()


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Screen]:
    if shutil.which("Xvfb") is None:
        pytest.skip("no Xvfb in PATH (Debian: apt-get install xvfb)")
    folder = tmp_path / "screen"
    folder.mkdir()
    screen = Screen(folder)
    yield screen
    screen.process.terminate()
    screen.process.wait()


def colours_on(screen: Screen) -> int:
    return len(np.unique(screen.picture().reshape(-1, 3), axis=0))


def window_of(rig: RunningRig) -> psutil.Process | None:
    for process in psutil.Process(rig.process.pid).children(recursive=True):
        try:
            if "window" in process.cmdline():
                return process
        except psutil.NoSuchProcess:
            continue
    return None


def is_there(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def a_window_with_a_picture(rig: RunningRig, screen: Screen, opened: contextlib.ExitStack) -> psutil.Process:
    """Return the process of a window that shows a picture: the rig's own or one opened later.

    On a virtual screen Qt never paints about one window in twelve, even of a bare ``imshow`` loop; we then
    open another, as a person would.
    """
    window = window_of(rig)
    assert window is not None
    for _ in range(_WINDOWS):
        deadline_s = time.monotonic() + _WINDOW_S
        while time.monotonic() < deadline_s:
            if colours_on(screen) > 2000:
                return window
            time.sleep(0.1)
        window.terminate()
        again = subprocess.Popen(
            [*COMMAND, "window", str(rig.path)], cwd=rig.folder, env=environment(), stderr=subprocess.DEVNULL
        )
        opened.callback(again.wait)
        opened.callback(again.kill)
        window = psutil.Process(again.pid)
    raise AssertionError(f"none of {_WINDOWS} windows showed a picture\n{rig.output}")


def test_window_shows_video_and_closing_keeps_rig(
    screen: Screen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", screen.name)
    monkeypatch.setenv("QT_LOGGING_RULES", "*=false")
    with RunningRig(tmp_path, None, "--window") as rig, contextlib.ExitStack() as opened:
        wait_for(lambda: window_of(rig) is not None, "the window's process")
        rig.wait_for_count("reconstructed", 1)
        window = a_window_with_a_picture(rig, screen, opened)
        before = screen.picture()
        wait_for(lambda: not np.array_equal(screen.picture(), before), "it moves")
        window.send_signal(signal.SIGTERM)
        wait_for(lambda: not is_there(window), "the window is closed")
        count = rig.wait_for_count("reconstructed", 1)["ledger.reconstructed"]
        rig.wait_for_count("reconstructed", int(count) + 3)
        rig.process.terminate()
        assert rig.finish()["ledger"]["closed"]


@pytest.mark.slow
def test_window_closes_with_run(screen: Screen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", screen.name)
    with RunningRig(tmp_path, None, "--window", "--snapshots", "3") as rig:
        wait_for(lambda: window_of(rig) is not None, "the window's process")
        window = window_of(rig)
        assert window is not None
        rig.finish()
        deadline_s = time.monotonic() + 10
        while window.is_running():
            assert time.monotonic() < deadline_s, "the window stayed"
            time.sleep(0.05)


def test_window_without_screen_reports_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    rig = write_rig(tmp_path)
    for command in ("run", "sink"):
        ended = sci_stream(command, rig, "--window", cwd=tmp_path)
        assert ended.status == 3
        assert "No screen available for a window" in ended.output
        assert "live page" in ended.output
        assert "Traceback" not in ended.output
