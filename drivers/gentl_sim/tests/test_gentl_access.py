"""Exclusive access to a camera: handles, processes, errors, through the C interface."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from genicam import _gentl, gentl

from drivers.gentl_sim.tests.bench import PATIENCE_S, Bench, camera, harvester

NOT_INITIALIZED, IN_USE, INVALID_HANDLE, INVALID_ID = -1002, -1004, -1006, -1007
INVALID_PARAMETER, TIMEOUT, ABORT, TOO_SMALL, INVALID_INDEX = -1009, -1011, -1012, -1016, -1017


def test_second_open_in_the_same_process_is_refused(bench: Bench) -> None:
    info = next(
        i for i in bench.acquirer.interface.module.device_info_list if i.serial_number == "SIM0001"
    )
    with pytest.raises(gentl.ResourceInUseException):
        info.create_device().open(gentl.DEVICE_ACCESS_FLAGS_LIST.DEVICE_ACCESS_EXCLUSIVE)
    bench.start()
    assert bench.next() is not None


HOLD = """
import sys, time
from pathlib import Path
from drivers.gentl_sim.tests.bench import camera
with camera(Path(sys.argv[1])) as bench:
    bench.start()
    print(bench.next().frame_id, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(gentl_producer: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield another process that has the camera open and streams."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(gentl_producer)], stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "0"
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


def test_camera_in_use_by_another_process_is_busy_until_it_dies(
    gentl_producer: Path, holder: subprocess.Popen[str]
) -> None:
    with harvester(gentl_producer) as opened:
        infos = {info.serial_number: info.access_status for info in opened.device_info_list}
        busy, free = (
            gentl.DEVICE_ACCESS_STATUS_LIST[f"DEVICE_ACCESS_STATUS_{s}"]
            for s in ("BUSY", "READWRITE")
        )
        assert infos == {"SIM0001": busy, "SIM0002": free}
        with pytest.raises(gentl.AccessDeniedException):
            opened.create({"serial_number": "SIM0001"})
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait(PATIENCE_S)
    with camera(gentl_producer) as bench:
        bench.start()
        assert bench.next() is not None


def test_camera_can_be_reopened_many_times(gentl_producer: Path) -> None:
    for _ in range(3):
        with camera(gentl_producer) as bench:
            bench.set(Width=16, Height=2, AcquisitionFrameRate=500.0)
            bench.start()
            assert [got.frame_id for got in bench.take(3)] == [0, 1, 2]


def test_two_cameras_stream_side_by_side(gentl_producer: Path) -> None:
    with harvester(gentl_producer) as opened:
        benches = [
            Bench(opened.create({"serial_number": serial})) for serial in ("SIM0001", "SIM0002")
        ]
        for bench, width in zip(benches, (16, 32), strict=True):
            bench.set(Width=width, Height=2, AcquisitionFrameRate=200.0)
            bench.start(buffers=64)
        for bench, width in zip(benches, (16, 32), strict=True):
            frames = bench.take(20)
            assert [got.frame_id for got in frames] == list(range(20))
            assert {got.width for got in frames} == {width}
        for bench in benches:
            bench.acquirer.destroy()


class Producer:
    """The exported functions, called as a C program calls them."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))

    def __call__(self, function: str, *arguments: object) -> int:
        return int(getattr(self._library, function)(*arguments))

    def last_error(self) -> tuple[int, str]:
        code, size = ctypes.c_int32(), ctypes.c_size_t(512)
        text = ctypes.create_string_buffer(512)
        assert self("GCGetLastError", ctypes.byref(code), text, ctypes.byref(size)) == 0
        return code.value, text.value.decode()

    def handle(self, function: str, *arguments: object) -> ctypes.c_void_p:
        out = ctypes.c_void_p()
        assert self(function, *arguments, ctypes.byref(out)) == 0, self.last_error()
        return out


@pytest.fixture
def producer(gentl_producer: Path) -> Iterator[Producer]:
    loaded = Producer(gentl_producer)
    assert loaded("GCInitLib") == 0
    yield loaded
    loaded("GCCloseLib")


@pytest.fixture
def interface(producer: Producer) -> ctypes.c_void_p:
    opened = producer.handle("TLOpenInterface", producer.handle("TLOpen"), b"SciSimInterface")
    assert producer("IFUpdateDeviceList", opened, None, ctypes.c_uint64(0)) == 0
    return opened


def test_producer_exports_every_function_of_the_binding(gentl_producer: Path) -> None:
    text = Path(_gentl.__file__).read_bytes()
    names = {
        name.decode()
        for name in re.findall(rb"\0((?:GC|TL|IF|Dev|DS|Event)[A-Z][A-Za-z]+)(?=\0)", text)
    }
    assert len(names) > 55
    library = ctypes.CDLL(str(gentl_producer))
    assert [name for name in sorted(names) if not hasattr(library, name)] == []


def test_calls_before_initialisation_fail(gentl_producer: Path) -> None:
    loaded = Producer(gentl_producer)
    out = ctypes.c_void_p()
    assert loaded("TLOpen", ctypes.byref(out)) == NOT_INITIALIZED
    assert loaded.last_error() == (NOT_INITIALIZED, "call GCInitLib first")
    assert loaded("GCCloseLib") == NOT_INITIALIZED
    assert loaded("GCInitLib") == 0
    assert loaded("GCInitLib") == IN_USE
    assert loaded("GCCloseLib") == 0


def test_stale_and_foreign_handles_are_refused(
    producer: Producer, interface: ctypes.c_void_p
) -> None:
    number = ctypes.c_uint32()
    assert (
        producer("IFGetNumDevices", ctypes.c_void_p(0xDEADBEEF), ctypes.byref(number))
        == INVALID_HANDLE
    )
    assert producer("DevClose", interface) == INVALID_HANDLE  # open, but no device
    assert producer("IFClose", interface) == 0
    assert producer("IFClose", interface) == INVALID_HANDLE
    assert producer("IFGetNumDevices", interface, ctypes.byref(number)) == INVALID_HANDLE


def test_invalid_arguments_have_their_own_errors(
    producer: Producer, interface: ctypes.c_void_p
) -> None:
    size, out = ctypes.c_size_t(2), ctypes.c_void_p()
    text = ctypes.create_string_buffer(2)
    assert producer("IFGetDeviceID", interface, 0, text, ctypes.byref(size)) == TOO_SMALL
    assert producer("IFGetDeviceID", interface, 9, None, ctypes.byref(size)) == INVALID_INDEX
    assert producer("IFGetDeviceID", interface, 0, None, None) == INVALID_PARAMETER
    assert producer("IFOpenDevice", interface, b"no one", 4, ctypes.byref(out)) == INVALID_ID
    assert (
        producer("IFOpenDevice", interface, b"SciSim_SIM0001", 77, ctypes.byref(out))
        == INVALID_PARAMETER
    )
    assert producer("IFOpenDevice", interface, b"SciSim_SIM0001", 4, None) == INVALID_PARAMETER


def test_camera_opens_through_an_interface_that_listed_none(producer: Producer) -> None:
    """Aravis lists the cameras through one interface, closes it, and opens a camera through
    another.
    """
    system = producer.handle("TLOpen")
    interface = producer.handle("TLOpenInterface", system, b"SciSimInterface")
    device = producer.handle("IFOpenDevice", interface, b"SciSim_SIM0001", 4)
    assert producer("DevClose", device) == 0


def test_size_of_a_result_can_be_queried_first(
    producer: Producer, interface: ctypes.c_void_p
) -> None:
    size, kind = ctypes.c_size_t(), ctypes.c_int32()
    what = (interface, b"SciSim_SIM0001", 7, ctypes.byref(kind))  # DEVICE_INFO_SERIAL_NUMBER
    assert producer("IFGetDeviceInfo", *what, None, ctypes.byref(size)) == 0
    assert (size.value, kind.value) == (len("SIM0001") + 1, 1)
    text = ctypes.create_string_buffer(size.value)
    assert producer("IFGetDeviceInfo", *what, text, ctypes.byref(size)) == 0
    assert text.value == b"SIM0001"


def test_closing_the_library_closes_everything_that_is_open(
    producer: Producer, interface: ctypes.c_void_p
) -> None:
    device = producer.handle("IFOpenDevice", interface, b"SciSim_SIM0001", 4)
    stream = producer.handle("DevOpenDataStream", device, b"Stream0")
    assert producer("GCCloseLib") == 0
    assert producer("GCInitLib") == 0
    assert producer("DSClose", stream) == INVALID_HANDLE
    again = producer.handle("TLOpenInterface", producer.handle("TLOpen"), b"SciSimInterface")
    producer("IFUpdateDeviceList", again, None, ctypes.c_uint64(0))
    producer.handle("IFOpenDevice", again, b"SciSim_SIM0001", 4)


def test_wait_for_frames_ends_on_timeout_or_kill(
    producer: Producer, interface: ctypes.c_void_p
) -> None:
    device = producer.handle("IFOpenDevice", interface, b"SciSim_SIM0001", 4)
    stream = producer.handle("DevOpenDataStream", device, b"Stream0")
    event = producer.handle("GCRegisterEvent", stream, 1)
    data, size = ctypes.create_string_buffer(16), ctypes.c_size_t(16)

    def wait(timeout_ms: int) -> int:
        return producer(
            "EventGetData", event, data, ctypes.byref(size), ctypes.c_uint64(timeout_ms)
        )

    assert wait(10) == TIMEOUT
    assert producer("EventKill", event) == 0
    started_s = time.monotonic()
    assert wait(2**64 - 1) == ABORT
    assert time.monotonic() - started_s < PATIENCE_S
    assert wait(0) == TIMEOUT


def test_device_opened_for_reading_cannot_be_written(
    producer: Producer, interface: ctypes.c_void_p
) -> None:
    device = producer.handle("IFOpenDevice", interface, b"SciSim_SIM0001", 2)
    port = producer.handle("DevGetPort", device)
    value, size = ctypes.c_int64(), ctypes.c_size_t(8)
    first = ctypes.c_uint64(0x400)  # the register of the first feature
    assert producer("GCReadPort", port, first, ctypes.byref(value), ctypes.byref(size)) == 0
    assert producer("GCWritePort", port, first, ctypes.byref(value), ctypes.byref(size)) == -1005


@pytest.mark.parametrize(("event_type", "expected"), [(0, 0), (1, -1003), (2, -1003)])
def test_modules_have_the_events_they_list(
    producer: Producer, interface: ctypes.c_void_p, event_type: int, expected: int
) -> None:
    out = ctypes.c_void_p()
    assert producer("GCRegisterEvent", interface, event_type, ctypes.byref(out)) == expected
