"""Aravis' fake GigE camera on loopback, showing given frames: ``python -m drivers.cameras.tests.fake_camera``."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_double, c_size_t, c_uint32, c_void_p
from pathlib import Path

import numpy as np
import numpy.typing as npt

_WIDTH, _HEIGHT, _PIXEL_FORMAT = 0x100, 0x104, 0x128
_MONO = {1: 0x01080001, 2: 0x01100007}  # by bytes of a pixel: Mono8, Mono16
_FILL = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_uint32, c_uint32, c_uint32)


def library_file() -> str | None:
    """Return the Aravis library of this machine, None without one."""
    for name in ("libaravis-0.10.so.0", "libaravis-0.8.so.0"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return name
    return None


def serve(
    frames: npt.NDArray[np.generic], serial: str, lost_per_thousand: float, choice: Path | None, held: int
) -> None:
    """Run the camera until SIGTERM, showing (N, H, W) uint8 or uint16 one after the other, for ever.

    The first ``held`` ones are shown only while the file ``choice`` names them by number.
    """
    name = library_file()
    assert name is not None
    lib = ctypes.CDLL(name)
    lib.arv_gv_fake_camera_new.restype, lib.arv_gv_fake_camera_new.argtypes = c_void_p, [c_char_p, c_char_p]
    lib.arv_gv_fake_camera_get_fake_camera.restype = c_void_p
    lib.arv_gv_fake_camera_get_fake_camera.argtypes = [c_void_p]
    lib.arv_gv_fake_camera_is_running.argtypes = [c_void_p]
    lib.arv_fake_camera_set_fill_pattern.argtypes = [c_void_p, _FILL, c_void_p, c_void_p]
    lib.arv_fake_camera_write_register.argtypes = [c_void_p, c_uint32, c_uint32]
    lib.arv_buffer_get_data.restype, lib.arv_buffer_get_data.argtypes = c_void_p, [c_void_p, POINTER(c_size_t)]
    lib.g_object_set.argtypes = [c_void_p, c_char_p, c_double, c_void_p]
    images = [np.ascontiguousarray(frame).tobytes() for frame in frames]
    shots = itertools.cycle(images[held:])

    @_FILL
    def fill(buffer: int, _data: int, _exposure: int, _gain: int, _format: int) -> None:
        number = "" if choice is None else choice.read_text().strip()
        shot = images[int(number)] if number else next(shots)
        ctypes.memmove(lib.arv_buffer_get_data(buffer, None), shot, len(shot))  # its size is that of the payload

    server = lib.arv_gv_fake_camera_new(b"127.0.0.1", serial.encode())
    if not lib.arv_gv_fake_camera_is_running(server):
        sys.exit("the fake camera does not start: is its UDP port 3956 in use?")
    camera = lib.arv_gv_fake_camera_get_fake_camera(server)
    _, height, width = frames.shape
    registers = {_WIDTH: width, _HEIGHT: height, _PIXEL_FORMAT: _MONO[frames.itemsize]}
    for address, value in registers.items():
        lib.arv_fake_camera_write_register(camera, address, value)
    lib.arv_fake_camera_set_fill_pattern(camera, fill, None, None)
    lib.g_object_set(server, b"gvsp-lost-ratio", c_double(lost_per_thousand / 1000), None)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    print("ready", flush=True)
    stop.wait()


class FakeCamera:
    """The camera in a process of its own, which can be switched off and on."""

    def __init__(self, frames: Path, serial: str, lost_per_thousand: float = 0.0, *more: str) -> None:
        self._argv = [sys.executable, "-m", "drivers.cameras.tests.fake_camera", str(frames), serial]
        self._argv += ["--lost-per-thousand", str(lost_per_thousand), *more]
        self._process: subprocess.Popen[str] | None = None
        self.on()

    def on(self) -> None:
        self._process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def off(self) -> None:
        """Pull the plug: no goodbye to anyone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


@contextlib.contextmanager
def fake_camera(
    frames: Path, serial: str = "SCIGV1", lost_per_thousand: float = 0.0, *more: str
) -> Iterator[FakeCamera]:
    """Yield the camera, switched on."""
    camera = FakeCamera(frames, serial, lost_per_thousand, *more)
    try:
        yield camera
    finally:
        camera.off()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frames", type=Path)
    parser.add_argument("serial")
    parser.add_argument("--lost-per-thousand", type=float, default=0.0)
    parser.add_argument("--choice", type=Path)
    parser.add_argument("--held", type=int, default=0)
    given = parser.parse_args()
    serve(np.load(given.frames), given.serial, given.lost_per_thousand, given.choice, given.held)
