"""A window on this machine's screen that plays the newest video until the next one arrives."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import cv2
import numpy as np
import numpy.typing as npt

from sci_stream.config import Rig
from sci_stream.errors import EnvironmentFault
from sci_stream.imaging.rendering import render, render_counts, write_centred
from sci_stream.imaging.tone import MOST_EV, ToneSettings
from sci_stream.model import Reconstruction
from sci_stream.nodes.runtime.process import PARENT_VARIABLE, StopRequest
from sci_stream.nodes.sink.options import tone_settings
from sci_stream.transport.pubsub import subscribe

KEYS = "space pauses · ← → by frame · C coded snapshot · + − brightness · W white balance · Q closes"

# Small sensors would be a stamp on a screen.
_SMALLEST_PX = 512
_TICK_MS = 15
# No faster than a screen, and no slower than motion is seen as such.
_LEAST_DWELL_S, _MOST_DWELL_S = 1 / 60, 1 / 8
_STOPS = 0.5
# Key codes of the arrow keys under GTK, Qt and Cocoa.
_LEFT, _RIGHT = {81, 2}, {83, 3}

U8 = npt.NDArray[np.uint8]


def require_screen(environment: Mapping[str, str] = os.environ) -> None:
    """Check that a window can be shown.

    Raises
    ------
    EnvironmentFault
        If there is no screen, or OpenCV has no windows.
    """
    if not (environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY")):
        raise EnvironmentFault(
            "No screen available for a window",
            expected="DISPLAY or WAYLAND_DISPLAY to name one",
            got="neither",
            hint="Leave out --window and open the live page in a browser, from this or another machine; "
            "over ssh, -X brings a screen.",
        )
    if re.search(r"^ *GUI: +NONE", cv2.getBuildInformation(), re.MULTILINE):
        raise EnvironmentFault(
            "This OpenCV cannot show windows",
            expected="opencv-python",
            got="opencv-python-headless",
            hint="Open the live page in a browser; or pip install --force-reinstall --no-deps opencv-python.",
        )


class FrameClock:
    """Playback clock: show all frames of a snapshot in the time until the next one is expected."""

    def __init__(self) -> None:
        self._n = 0
        self._arrived_s = self._interval_s = 0.0
        self.paused_at: int | None = None

    def arrived(self, n_frames: int, now_s: float) -> None:
        """Start the frames of the next snapshot."""
        if self._n:
            gap_s = min(now_s - self._arrived_s, 10.0)
            self._interval_s = gap_s if not self._interval_s else self._interval_s + 0.3 * (gap_s - self._interval_s)
        self._n, self._arrived_s = n_frames, now_s

    def index(self, now_s: float) -> int:
        """Return the frame to show now; the last one stays until the next snapshot arrives."""
        if self.paused_at is not None:
            return min(self.paused_at, max(0, self._n - 1))
        dwell_s = min(max(self._interval_s / max(1, self._n), _LEAST_DWELL_S), _MOST_DWELL_S)
        return max(0, min(int((now_s - self._arrived_s) / dwell_s), self._n - 1))

    def toggle_pause(self, now_s: float) -> None:
        """Pause at the current frame, or resume."""
        self.paused_at = self.index(now_s) if self.paused_at is None else None

    def step(self, by: int, now_s: float) -> None:
        """Pause and step forward or back."""
        self.paused_at = max(0, min(self.index(now_s) + by, self._n - 1))


def compose(frame: U8, coded: U8 | None, words: str, alarm: str = "") -> U8:
    """Return the content of the window, (…, …, 3) uint8 BGR: the frame, the coded snapshot next to it, a line below.

    ``frame`` is (H, W) or (H, W, 3) RGB, ``coded`` (H, W); ``alarm`` is written across the dimmed picture when it is
    not live.
    """
    parts = [_bgr(frame), *([] if coded is None else [_bgr(coded)])]
    picture = np.concatenate(parts, axis=1)
    scale = max(1, round(_SMALLEST_PX / picture.shape[0]))
    picture = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_NEAREST)
    if alarm:
        picture = (picture // 3).astype(np.uint8)
        write_centred(
            picture, alarm, (picture.shape[1] // 2, picture.shape[0] // 2), picture.shape[1] / 450, (60, 60, 255)
        )
    line = np.full((30, picture.shape[1], 3), 18, np.uint8)
    write_centred(line, words, (line.shape[1] // 2, 15), 0.5, (210, 210, 210))
    return cast(U8, np.concatenate([picture, line]))


def _bgr(image: U8) -> U8:
    return cast(U8, cv2.cvtColor(image, cv2.COLOR_GRAY2BGR if image.ndim == 2 else cv2.COLOR_RGB2BGR))


class Window:
    """The window; created and used in one thread, the main thread where the system requires it.

    Without new video for ``stale_s`` it shows NO DATA.

    Raises
    ------
    EnvironmentFault
        If there is no screen, or this OpenCV was built without windows.
    """

    def __init__(self, title: str, tone: ToneSettings, stale_s: float) -> None:
        require_screen()
        self._title = title
        self._stale_s = stale_s
        self._clock = FrameClock()
        self._reconstruction: Reconstruction | None = None
        self._frames: U8 | None = None
        self._coded: U8 | None = None
        self._with_coded = True
        self._received_s = time.monotonic()
        self.tone = tone
        try:
            cv2.namedWindow(title, cv2.WINDOW_NORMAL | cv2.WINDOW_KEEPRATIO | cv2.WINDOW_GUI_NORMAL)
        except cv2.error as error:
            raise EnvironmentFault(
                "This OpenCV cannot open windows",
                got=str(error).strip().splitlines()[0],
                hint="Install opencv-python in place of opencv-python-headless, or open the live page.",
            ) from None
        self._sized = False

    def show(self, reconstruction: Reconstruction) -> None:
        """Show this reconstruction, unless the viewer has paused."""
        now_s = self._received_s = time.monotonic()
        if self._clock.paused_at is not None and self._frames is not None:
            return
        self._reconstruction = reconstruction
        self._clock.arrived(reconstruction.video.shape[0], now_s)
        self._render()

    def _render(self) -> None:
        reconstruction = self._reconstruction
        if reconstruction is None:
            return
        self._frames = render(reconstruction.video, reconstruction.bayer, self.tone)
        self._coded = None if reconstruction.counts is None else render_counts(reconstruction.counts, self.tone.gamma)

    def tick(self) -> bool:
        """Draw the current frame and handle keys; return False once the window is closed."""
        now_s = time.monotonic()
        image = self._image(now_s)
        if not self._sized:
            cv2.resizeWindow(self._title, image.shape[1], image.shape[0])
            self._sized = self._frames is not None
        cv2.imshow(self._title, image)
        key = cv2.waitKey(_TICK_MS) & 0xFF
        if key != 0xFF and not self._handle_key(key, now_s):
            return False
        return cv2.getWindowProperty(self._title, cv2.WND_PROP_VISIBLE) >= 1

    def _image(self, now_s: float) -> U8:
        age_s = now_s - self._received_s
        if self._frames is None or self._reconstruction is None:
            waiting = "WAITING" if age_s <= self._stale_s else "NO DATA"
            return compose(np.zeros((_SMALLEST_PX, _SMALLEST_PX), np.uint8), None, KEYS.replace("·", "|"), waiting)
        index = self._clock.index(now_s)
        report = self._reconstruction.report
        words = (
            f"#{self._reconstruction.id.seq}  {index + 1}/{len(self._frames)}  age {age_s:.1f} s  "
            f"{report.iterations} iterations, {report.start}  {self.tone.exposure_ev:+.1f} EV"
        )
        if self._clock.paused_at is not None:
            words += "  PAUSED"
        coded = self._coded if self._with_coded else None
        return compose(self._frames[index], coded, words, "NO DATA" if age_s > self._stale_s else "")

    def _handle_key(self, key: int, now_s: float) -> bool:
        match chr(key):
            case "q" | "Q" | "\x1b":
                return False
            case " ":
                self._clock.toggle_pause(now_s)
            case "c" | "C":
                self._with_coded = not self._with_coded
                self._sized = False
            case "+" | "=":
                self._change(exposure_ev=min(MOST_EV, self.tone.exposure_ev + _STOPS))
            case "-":
                self._change(exposure_ev=max(-MOST_EV, self.tone.exposure_ev - _STOPS))
            case "w" | "W":
                self._change(white_balance="none" if self.tone.white_balance == "grey_world" else "grey_world")
            case _ if key in _LEFT:
                self._clock.step(-1, now_s)
            case _ if key in _RIGHT:
                self._clock.step(1, now_s)
        return True

    def _change(self, **changes: object) -> None:
        self.tone = self.tone.changed(changes)
        self._render()

    def close(self) -> None:
        """Close the window. May be called again."""
        try:
            cv2.destroyWindow(self._title)
        except cv2.error:
            return  # closed by the viewer


_JOIN_S = 5.0


def run_window(rig: Rig, stop: StopRequest) -> None:
    """Show reconstructions until the viewer closes the window or a stop is requested.

    Raises
    ------
    EnvironmentFault
        If there is no screen.
    """
    window = Window(f"sci_stream: {rig.rig.name}", tone_settings(rig.preview), rig.preview.stale_after_s)
    newest: deque[Reconstruction] = deque(maxlen=1)  # thread-safe

    def listen() -> None:
        for reconstruction in subscribe(rig.network.taps):
            newest.append(reconstruction)

    threading.Thread(target=listen, name="window-tap", daemon=True).start()
    try:
        while not stop:
            if newest:
                window.show(newest.pop())
            if not window.tick():
                return
    finally:
        window.close()


@contextlib.contextmanager
def window_process(rig_path: Path) -> Iterator[None]:
    """Run a window in its own process during a run; it may be closed earlier.

    Raises
    ------
    EnvironmentFault
        If there is no screen.
    """
    require_screen()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sci_stream", "window", str(rig_path)],
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
