"""Aravis' fake GigE camera on loopback, with the frames of a file or the picture of an optical
table.
"""

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
from ctypes import POINTER, byref, c_char_p, c_double, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

import numpy as np

from drivers.cameras.tests.optical_table import OpticalTable
from sci_stream.model import Array
from sci_stream.modulation.timing import CameraTrigger

_WIDTH, _HEIGHT, _PIXEL_FORMAT, _ACQUISITION = 0x100, 0x104, 0x128, 0x124
_TRIGGER_MODE, _TRIGGER_SOURCE, _TRIGGER, _TRIGGER_DELAY = 0x300, 0x304, 0x30C, 0x400
_LINE = 1  # of the register of the source, see `_with_input`
_DELAY_NODES = """
<Float Name="TriggerDelay" NameSpace="Standard">
    <pValue>TriggerDelayConverter</pValue><Min>0.0</Min><Max>10000000.0</Max><Unit>us</Unit>
</Float>
<Converter Name="TriggerDelayConverter" NameSpace="Custom">
    <FormulaTo>FROM</FormulaTo><FormulaFrom>TO</FormulaFrom><pValue>TriggerDelayRegister</pValue>
</Converter>
<IntReg Name="TriggerDelayRegister" NameSpace="Custom">
    <Address>%d</Address><Length>4</Length><AccessMode>RW</AccessMode><pPort>Device</pPort>
    <Sign>Unsigned</Sign><Endianess>BigEndian</Endianess>
</IntReg>
"""
_MONO = {1: 0x01080001, 2: 0x01100007}  # by bytes of a pixel: Mono8, Mono16
# Registers that the firmware writes from a frame on, as another program would.
_WRITES = {
    "height": (_HEIGHT, 24),
    "width": (_WIDTH, 32),
    "format": (_PIXEL_FORMAT, 0x01080001),
    "trigger": (_TRIGGER_MODE, 1),
}
MISBEHAVIOURS = (*_WRITES, "repeats", "tears", "halves", "stamp_stands", "stamp_back", "ids_back")
_FILL = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_uint32, c_uint32, c_uint32)


def library_file() -> str | None:
    """Return the Aravis library of this machine, None without one."""
    for name in ("libaravis-0.10.so.0", "libaravis-0.8.so.0"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return name
    return None


class Firmware:
    """The pictures of a camera, which misbehaves from a frame on; ``what`` is one of
    `MISBEHAVIOURS`.
    """

    def __init__(self, lib: ctypes.CDLL, what: str, since: int) -> None:
        lib.arv_buffer_set_frame_id.argtypes = [c_void_p, c_uint64]
        lib.arv_buffer_set_timestamp.argtypes = [c_void_p, c_uint64]
        self._lib, self._what, self._since = lib, what, since
        self._count = 0
        self._before: Array | None = None

    def picture(self, buffer: int, camera: int, picture: Array) -> Array:
        """Return the picture that the camera sends in place of one, and mark the buffer."""
        self._count += 1
        self._before = self._sent(buffer, camera, picture, self._before)
        return self._before

    def _sent(self, buffer: int, camera: int, picture: Array, before: Array | None) -> Array:
        late = self._count - self._since
        if late < 0 or not self._what or before is None:
            return picture
        rows, lib = len(picture) // 2, self._lib
        if late == 0 and self._what in _WRITES:
            lib.arv_fake_camera_write_register(camera, *_WRITES[self._what])
        if self._what == "repeats" and late % 3 == 0:
            return before
        if self._what == "tears":
            return np.concatenate([picture[:rows], before[rows:]])
        if self._what == "halves":
            return np.concatenate([picture[:rows], np.zeros_like(before[rows:])])
        if self._what == "stamp_stands":
            lib.arv_buffer_set_timestamp(buffer, 10**9)
        if self._what == "stamp_back":
            lib.arv_buffer_set_timestamp(buffer, 10**9 + late * 2 * 10**7)
        if self._what == "ids_back":
            lib.arv_buffer_set_frame_id(buffer, late + 1)
        return picture


def serve(source: Path, serial: str, lost_per_thousand: float, what: str, since: int) -> None:
    """Run the camera until SIGTERM: a file of (N, H, W) uint8 or uint16, one after the other, for
    ever, or a table.

    Of an `optical_table.OpticalTable` in the folder ``source`` the camera takes the picture at each
    exposure.
    """
    name = library_file()
    assert name is not None
    lib = ctypes.CDLL(name)
    lib.arv_gv_fake_camera_new_full.restype = c_void_p
    lib.arv_gv_fake_camera_new_full.argtypes = [c_char_p, c_char_p, c_char_p]
    lib.arv_gv_fake_camera_get_fake_camera.restype = c_void_p
    lib.arv_gv_fake_camera_get_fake_camera.argtypes = [c_void_p]
    lib.arv_gv_fake_camera_is_running.argtypes = [c_void_p]
    lib.arv_fake_camera_set_fill_pattern.argtypes = [c_void_p, _FILL, c_void_p, c_void_p]
    lib.arv_fake_camera_write_register.argtypes = [c_void_p, c_uint32, c_uint32]
    lib.arv_fake_camera_read_register.argtypes = [c_void_p, c_uint32, POINTER(c_uint32)]
    lib.arv_buffer_get_frame_id.restype, lib.arv_buffer_get_frame_id.argtypes = c_uint64, [c_void_p]
    lib.arv_buffer_get_data.restype, lib.arv_buffer_get_data.argtypes = (
        c_void_p,
        [c_void_p, POINTER(c_size_t)],
    )
    lib.g_object_set.argtypes = [c_void_p, c_char_p, c_double, c_void_p]
    is_table = source.is_dir()
    firmware = Firmware(lib, what, since)
    frames = np.load(source / "scene.npy" if is_table else source)
    shots = itertools.cycle(frames)

    def register(address: int) -> int:
        value = c_uint32()
        lib.arv_fake_camera_read_register(camera, address, byref(value))
        return value.value

    def pulse() -> bool:
        """Give a pulse to the input; return whether the camera waits for it."""
        waits = bool(
            register(_ACQUISITION)
            and register(_TRIGGER_MODE)
            and register(_TRIGGER_SOURCE) == _LINE
        )
        if waits:
            lib.arv_fake_camera_write_register(camera, _TRIGGER, 1)
        return waits

    @_FILL
    def fill(buffer: int, _data: int, exposure_us: int, _gain: int, _format: int) -> None:
        if table is None:
            picture = next(shots)
        else:
            mode = "line" if register(_TRIGGER_MODE) else "free"
            trigger = CameraTrigger(mode, exposure_us, register(_TRIGGER_DELAY))
            picture = table.image(lib.arv_buffer_get_frame_id(buffer), trigger)
        if register(_ACQUISITION):
            picture = firmware.picture(buffer, camera, picture)
        shot = np.ascontiguousarray(picture).tobytes()
        pixel_bytes = (register(_PIXEL_FORMAT) >> 16 & 0xFF) // 8
        payload = register(_WIDTH) * register(_HEIGHT) * pixel_bytes
        ctypes.memmove(lib.arv_buffer_get_data(buffer, None), shot, min(len(shot), payload))

    description = str(_with_input(lib, source)).encode() if is_table else None
    server = lib.arv_gv_fake_camera_new_full(b"127.0.0.1", serial.encode(), description)
    if not lib.arv_gv_fake_camera_is_running(server):
        sys.exit("the fake camera does not start: is its UDP port 3956 in use?")
    camera = lib.arv_gv_fake_camera_get_fake_camera(server)
    _, height, width = frames.shape
    registers = {
        _WIDTH: width,
        _HEIGHT: height,
        _PIXEL_FORMAT: _MONO[2 if is_table else frames.itemsize],
    }
    for address, value in registers.items():
        lib.arv_fake_camera_write_register(camera, address, value)
    table = OpticalTable(source, pulse) if is_table else None
    lib.arv_fake_camera_set_fill_pattern(camera, fill, None, None)
    lib.g_object_set(server, b"gvsp-lost-ratio", c_double(lost_per_thousand / 1000), None)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    print("ready", flush=True)
    stop.wait()


def _with_input(lib: ctypes.CDLL, folder: Path) -> Path:
    """Return the description of a fake camera whose input line works, and that can delay exposures.

    Its firmware takes a frame when a register is written while the register of the source has a
    certain value, which its description calls ``Software``. Here it is ``Line0``, and the optical
    table writes the register.
    """
    lib.arv_fake_camera_new.restype, lib.arv_fake_camera_new.argtypes = c_void_p, [c_char_p]
    lib.arv_fake_camera_get_genicam_xml.restype = c_char_p
    lib.arv_fake_camera_get_genicam_xml.argtypes = [c_void_p, c_void_p]
    description = lib.arv_fake_camera_get_genicam_xml(lib.arv_fake_camera_new(b"-"), None).decode()
    begin = description.index('<Enumeration Name="TriggerSource"')
    end = description.index("</Enumeration>", begin)
    sources = description[begin:end].translate(str.maketrans("01", "10")).replace("Line1", "Line0")
    delay = (_DELAY_NODES % _TRIGGER_DELAY) + '\n<Float Name="ExposureTimeAbs"'
    changed = (
        description[:begin]
        + sources
        + description[end:].replace('<Float Name="ExposureTimeAbs"', delay, 1)
    )
    path = folder / "camera.xml"
    path.write_text(changed)
    return path


class FakeCamera:
    """The camera in a process of its own, which can be switched off and on."""

    def __init__(
        self, source: Path, serial: str, lost_per_thousand: float, what: str, since: int
    ) -> None:
        self._argv = [
            sys.executable,
            "-m",
            "drivers.cameras.tests.fake_camera",
            str(source),
            serial,
        ]
        self._argv += ["--lost-per-thousand", str(lost_per_thousand)]
        self._argv += ["--what", what, "--since", str(since)]
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
    source: Path,
    serial: str = "SCIGV1",
    lost_per_thousand: float = 0.0,
    what: str = "",
    since: int = 0,
) -> Iterator[FakeCamera]:
    """Yield the camera, switched on; ``what`` is what its firmware does from frame ``since`` on."""
    camera = FakeCamera(source, serial, lost_per_thousand, what, since)
    try:
        yield camera
    finally:
        camera.off()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("serial")
    parser.add_argument("--lost-per-thousand", type=float, default=0.0)
    parser.add_argument("--what", choices=("", *MISBEHAVIOURS), default="")
    parser.add_argument("--since", type=int, default=0)
    given = parser.parse_args()
    serve(given.source, given.serial, given.lost_per_thousand, given.what, given.since)
