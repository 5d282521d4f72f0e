"""A camera that another program feeds."""

from __future__ import annotations

import contextlib
import json
import runpy
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from pydantic import ValidationError

from sci_stream.errors import CameraError, CameraLost
from sci_stream_drivers.push import PushCamera, PushOptions
from sci_stream_testing.cameras import CameraContract

ROOT = Path(__file__).parents[2]
H, W = 6, 8
PATIENCE_S = 10


class Program:
    """The other program: a bare socket."""

    def __init__(self, address: str, kind: int = zmq.REQ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(kind)
        self._socket.connect(address)

    def close(self) -> None:
        self._context.destroy(linger=0)

    def send(self, *parts: bytes) -> None:
        self._socket.send_multipart(parts)

    def send_frame(self, number: int, pixels: np.ndarray) -> None:
        self.send(header(number), pixels.tobytes())

    def answer(self) -> dict[str, Any]:
        assert self._socket.poll(PATIENCE_S * 1000), "no answer"
        answer: dict[str, Any] = json.loads(self._socket.recv_multipart()[-1])
        return answer


def header(number: int) -> bytes:
    return json.dumps({"frame": number, "time_ns": number * 1_000_000}).encode()


def pixels(number: int, dtype: str = "<u2") -> np.ndarray:
    return np.full((H, W), 100 + number, dtype)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/frames"


@pytest.fixture
def camera(address: str) -> Iterator[PushCamera]:
    with contextlib.closing(push(address)) as camera:
        camera.open()
        camera.start()
        yield camera


@pytest.fixture
def program(address: str) -> Iterator[Program]:
    with contextlib.closing(Program(address)) as program:
        yield program


def push(address: str, **options: Any) -> PushCamera:
    return PushCamera(
        PushOptions(height_px=H, width_px=W, bit_depth=12, address=address, **options)
    )


def test_frame_arrives_with_number_and_time(camera: PushCamera, program: Program) -> None:
    program.send_frame(7, pixels(7))
    frame = camera.read(PATIENCE_S)
    assert frame is not None
    np.testing.assert_array_equal(frame.counts, pixels(7))
    assert (frame.frame_id, frame.camera_time_ns) == (7, 7_000_000)
    assert program.answer() == {"credit": 4, "frame": 7}


def test_program_with_credit_need_not_wait(camera: PushCamera, address: str) -> None:
    with contextlib.closing(Program(address, zmq.DEALER)) as program:
        for number in range(4):
            program.send_frame(number, pixels(number))
        read = [camera.read(PATIENCE_S) for _ in range(4)]
        assert [frame.frame_id for frame in read if frame] == [0, 1, 2, 3]
        assert [program.answer()["frame"] for _ in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ([header(1), b"short"], "expected 96 bytes, 6 rows of 8 pixels of 2 bytes; got 5"),
        ([b"frame 1", bytes(96)], "header in JSON"),
        ([b"[1]", bytes(96)], "object of JSON"),
        ([b'{"frame": "1", "time_ns": 0}', bytes(96)], "expected frame and time_ns, integers"),
        ([b'{"frame": 1}', bytes(96)], "expected frame and time_ns, integers"),
        ([b'{"frame": -1, "time_ns": 0}', bytes(96)], "expected frame and time_ns, integers"),
        ([b'{"frame": true, "time_ns": 0}', bytes(96)], "expected frame and time_ns, integers"),
        ([header(1), bytes(96), b"more"], "a header and pixels; got 3 parts"),
    ],
)
def test_message_that_is_no_frame_is_refused_and_counted(
    camera: PushCamera, program: Program, message: list[bytes], words: str
) -> None:
    program.send(*message)
    assert camera.read(PATIENCE_S) is None
    assert words in program.answer()["error"]
    assert camera.counters() == {"delivered": 0, "refused": 1}


def test_program_that_begins_again_is_a_lost_camera(camera: PushCamera, program: Program) -> None:
    for number in (4, 5, 0):
        program.send_frame(number, pixels(number))
        if number:
            assert camera.read(PATIENCE_S) is not None
        else:
            with pytest.raises(CameraLost, match="begun again; expected a frame after number 5"):
                camera.read(PATIENCE_S)
        program.answer()
    camera.stop()
    camera.start()
    frame = camera.read(PATIENCE_S)
    assert frame is not None
    assert frame.frame_id == 0


def test_silent_program_is_lost_unless_it_says_that_it_lives(address: str) -> None:
    with contextlib.closing(push(address, silence_s=0.05)) as camera:
        camera.open()
        camera.start()
        assert camera.read(0.1) is None  # no program has come yet
        with contextlib.closing(Program(address)) as program:
            program.send(b"{}")
            assert camera.read(PATIENCE_S) is None
            program.answer()
            with pytest.raises(CameraLost, match="No message has come"):
                camera.read(0.2)


def test_8_bit_frame_has_one_byte_a_pixel(address: str) -> None:
    options = PushOptions(height_px=H, width_px=W, bit_depth=8, bayer="RGGB", address=address)
    with (
        contextlib.closing(PushCamera(options)) as camera,
        contextlib.closing(Program(address)) as program,
    ):
        assert camera.open().pixel_format == "BayerRG8"
        camera.start()
        program.send_frame(0, pixels(0, "u1"))
        frame = camera.read(PATIENCE_S)
        assert frame is not None
        assert frame.counts.dtype == np.uint8


def test_example_program_sends_its_frames(camera: PushCamera, address: str) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "push_frames.py"))
    sent = [pixels(number) for number in range(3)]
    program = threading.Thread(target=example["send"], args=(address, iter(sent)))
    program.start()
    for number, expected in enumerate(sent):
        frame = camera.read(PATIENCE_S)
        assert frame is not None
        assert frame.frame_id == number
        np.testing.assert_array_equal(frame.counts, expected)
    program.join()


@pytest.mark.parametrize("place", ["tcp://[::1]:5710", "tcp://localhost:5710", "ipc:///tmp/a"])
def test_address_of_this_machine_is_accepted(place: str) -> None:
    assert PushOptions(height_px=H, width_px=W, address=place).address == place


@pytest.mark.parametrize("place", ["tcp://0.0.0.0:5710", "tcp://192.0.2.1:5710", "5710"])
def test_address_of_another_machine_is_refused(place: str) -> None:
    with pytest.raises(ValidationError, match="must be of this machine"):
        push(place)


def test_address_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        camera = push(f"tcp://127.0.0.1:{other.getsockname()[1]}")
        with pytest.raises(CameraError, match="cannot be bound for frames"):
            camera.open()


class TestPushCamera(CameraContract):
    """The contract of all cameras, with a program that sends 500 frames per second."""

    lost_s = 2.0

    @pytest.fixture(autouse=True)
    def _program(self, address: str) -> Iterator[None]:
        self._address = address
        self._ended = threading.Event()
        thread = threading.Thread(target=self._send)
        thread.start()
        yield
        self._ended.set()
        thread.join()

    def _send(self) -> None:
        number = 0
        with contextlib.closing(Program(self._address, zmq.DEALER)) as program:
            while not self._ended.wait(0.002):
                now = {"frame": number, "time_ns": time.monotonic_ns()}
                program.send(json.dumps(now).encode(), pixels(0).tobytes())
                number += 1

    def make(self) -> PushCamera:
        return push(self._address, silence_s=0.2)

    def unplug(self, camera: PushCamera) -> None:  # noqa: ARG002 - the suite passes it
        self._ended.set()
