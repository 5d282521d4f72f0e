"""A modulator that is a second display: LCoS and LCD panels with a video input.

Needs tkinter and a display.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import ClassVar

import numpy as np
from pydantic import Field

from sci_stream.errors import CameraError
from sci_stream.plugins import Array, ModulatorCapabilities
from sci_stream_drivers.fields import DriverOptions
from sci_stream_modulators.stepped import SteppedModulator

_START_S = 20.0


class ScreenOptions(DriverOptions):
    """Options of the driver."""

    width_px: int = Field(default=1920, ge=8, le=8192, description="Width of the display, pixels.")
    height_px: int = Field(
        default=1080, ge=8, le=8192, description="Height of the display, pixels."
    )
    left_px: int = Field(
        default=1920, ge=0, le=32768, description="Its left edge on the desktop, pixels."
    )
    top_px: int = Field(
        default=0, ge=0, le=32768, description="Its upper edge on the desktop, pixels."
    )
    refresh_hz: float = Field(
        default=60.0, gt=0, le=1000, description="Its refresh rate, Hz: at most one mask each."
    )


class ScreenModulator(SteppedModulator[ScreenOptions]):
    """A window without a frame that covers a display, in a process of its own."""

    Options: ClassVar[type[ScreenOptions]] = ScreenOptions

    def _connect(self) -> ModulatorCapabilities:
        o = self.options
        place = [str(value) for value in (o.width_px, o.height_px, o.left_px, o.top_px)]
        self._window = subprocess.Popen(
            [sys.executable, "-c", f"import {__name__} as m; m.window()", *place],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        if self._answer() != b"ready\n":
            raise CameraError(
                "The window of the modulator did not open",
                expected="a display and Python with tkinter",
                hint="On Linux set DISPLAY, and install python3-tk.",
            )
        return ModulatorCapabilities(
            model="display",
            serial="",
            height_px=o.height_px,
            width_px=o.width_px,
            bits=8,
            max_patterns=256,
            min_pattern_us=1e6 / o.refresh_hz,
            pulses=(),
            gap=True,
        )

    def _show(self, image: Array) -> None:
        assert self._window.stdin is not None
        self._window.stdin.write(np.ascontiguousarray(image).tobytes())
        self._window.stdin.flush()
        if self._answer() != b"shown\n":
            raise CameraError("The window of the modulator was closed")

    def _answer(self) -> bytes:
        assert self._window.stdout is not None
        return self._window.stdout.readline()

    def _disconnect(self) -> None:
        self._window.terminate()
        self._window.communicate(timeout=_START_S)


def window() -> None:
    """Show each image of standard input, raw bytes of the size in the arguments, and answer once it
    is drawn.
    """
    import tkinter  # noqa: PLC0415 - of the process of the window only

    width, height, left, top = map(int, sys.argv[1:])
    root = tkinter.Tk()
    root.overrideredirect(True)
    root.geometry(f"{width}x{height}+{left}+{top}")
    root.configure(cursor="none", background="black")
    label = tkinter.Label(root, borderwidth=0, background="black")
    label.place(x=0, y=0)
    root.update()
    print("ready", flush=True)
    while len(pixels := sys.stdin.buffer.read(width * height)) == width * height:
        picture = tkinter.PhotoImage(
            data=b"P5 %d %d 255\n" % (width, height) + pixels, format="PPM"
        )
        label.configure(image=picture)
        root.update()
        print("shown", flush=True)
