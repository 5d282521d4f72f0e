"""A camera whose frames another program sends, in any language, over ZeroMQ.

`docs/how-to/push-frames.md` describes the messages.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np
import zmq
from pydantic import Field, field_validator

from sci_stream.errors import CameraError, CameraLost
from sci_stream.plugins import CameraCapabilities, CameraFrame, unix_ns
from sci_stream_drivers.fields import BayerOption, DriverOptions, Rare, pixel_format_name

log = logging.getLogger(__name__)

_MAX_HEADER_BYTES = 4096


class PushOptions(DriverOptions):
    """Options of the camera that other programs feed."""

    height_px: int = Field(ge=2, le=65_536)
    """Rows of a frame."""
    width_px: int = Field(ge=2, le=65_536)
    """Columns of a frame."""
    bit_depth: int = Field(16, ge=8, le=16)
    """Bits of a pixel: 8 bits are sent as one byte, more as two, the low one first."""
    bayer: BayerOption = None
    """Colour filters of the sensor, or none."""
    address: str = "tcp://127.0.0.1:5710"
    """Address that the program connects to: a port of this machine, or ipc://FILE."""
    credit: Rare[int] = Field(4, ge=1, le=64)
    """Frames that the program may send before the first of them is answered."""
    silence_s: Rare[float] = Field(5.0, gt=0)
    """Seconds without a message after which the program is lost."""
    serial: Rare[str] = ""
    """Serial number of the camera behind the program."""

    @field_validator("address")
    @classmethod
    def _is_local(cls, address: str) -> str:
        if _is_local(address):
            return address
        raise ValueError(
            "frames are not encrypted: the address must be of this machine, such as "
            "tcp://127.0.0.1:5710; run the program and the acquire node on the same machine"
        )


class PushCamera:
    """Receive the frames of another program. Implements `sci_stream.ports.Camera`.

    The program sends the number and the time of each frame. A program that begins again, with a
    lower number, is a lost camera that has come back.
    """

    Options: ClassVar[type[PushOptions]] = PushOptions

    def __init__(self, options: PushOptions) -> None:
        self._options = options
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._counts = Counter[str]()
        self._running = False
        self._last_id = -1
        self._heard_s: float | None = None
        self._next: CameraFrame | None = None

    def open(self) -> CameraCapabilities:
        """Bind the address. Raises `CameraError` if that is not possible."""
        o = self._options
        if self._socket is None:
            self._counts.clear()
            self._context = zmq.Context()
            self._socket = self._context.socket(zmq.ROUTER)
            self._socket.setsockopt(zmq.LINGER, 200)
            self._socket.setsockopt(zmq.IPV6, "[" in o.address)
            self._socket.setsockopt(zmq.RCVHWM, o.credit)
            self._socket.setsockopt(zmq.MAXMSGSIZE, max(self._frame_bytes, _MAX_HEADER_BYTES))
            try:
                self._socket.bind(o.address)
            except zmq.ZMQError as error:
                self.close()
                raise CameraError(
                    f"{o.address} cannot be bound for frames",
                    got=str(error),
                    hint="Choose another address in [camera.options].",
                ) from error
        return CameraCapabilities(
            model="Frames of another program",
            serial=o.serial or o.address,
            height_px=o.height_px,
            width_px=o.width_px,
            pixel_format=pixel_format_name(o.bit_depth, o.bayer),
            bit_depth=o.bit_depth,
            bayer=o.bayer,
            clock="program",
        )

    def calibration(self) -> None:
        """Return None: the program sends frames alone."""
        self._opened()

    def start(self) -> None:
        """Take the next frames, whatever their numbers."""
        self._opened()
        if not self._running:
            self._running = True
            self._last_id = -1
            self._heard_s = None

    def read(self, timeout_s: float) -> CameraFrame | None:
        """Return the next frame, or None after the timeout; see `sci_stream.ports.Camera.read`."""
        if not self._running:
            raise RuntimeError("read() needs an open and started camera")
        frame = self._next or self._received(timeout_s)
        self._next = None
        if frame is None:
            self._require_program()
            return None
        assert frame.frame_id is not None
        if frame.frame_id <= self._last_id:
            self._next = frame
            raise CameraLost(
                "The program that sends frames has begun again",
                expected=f"a frame after number {self._last_id}",
                got=frame.frame_id,
            )
        self._last_id = frame.frame_id
        self._counts["delivered"] += 1
        return frame

    @property
    def exhausted(self) -> bool:
        """False: the program may go on at any time."""
        return False

    def counters(self) -> Mapping[str, int]:
        """Return ``delivered`` and ``refused`` messages."""
        return {"delivered": 0, "refused": 0, **self._counts}

    def stop(self) -> None:
        """Take no more frames; the program waits for its answers."""
        self._running = False

    def close(self) -> None:
        """Release the address."""
        self.stop()
        self._next = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._context is not None:
            self._context.term()
            self._context = None

    @property
    def _frame_bytes(self) -> int:
        o = self._options
        return o.height_px * o.width_px * self._dtype.itemsize

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8 if self._options.bit_depth == 8 else "<u2")

    def _opened(self) -> zmq.Socket[bytes]:
        if self._socket is None:
            raise RuntimeError("the camera is not open: call open() first")
        return self._socket

    def _require_program(self) -> None:
        """Raise `CameraLost` if a program that has sent frames is silent."""
        if self._heard_s is None:
            return
        silent_s = time.monotonic() - self._heard_s
        if silent_s > self._options.silence_s:
            raise CameraLost(
                f"No message has come to {self._options.address} for {silent_s:.1f} s",
                hint="Check the program that sends the frames. While it pauses, it sends {}.",
            )

    def _received(self, timeout_s: float) -> CameraFrame | None:
        """Return the frame of the next message; None after the timeout, or if it has none."""
        socket = self._opened()
        if not socket.poll(round(timeout_s * 1000)):
            return None
        parts = socket.recv_multipart()
        self._heard_s = time.monotonic()
        # A REQ socket puts an empty part in front of its message, and perhaps a number before it.
        begin = parts.index(b"", 0, 3) + 1 if b"" in parts[:3] else 1
        answer: dict[str, Any] = {"credit": self._options.credit}
        frame = None
        try:
            frame = self._frame(parts[begin:])
        except ValueError as error:
            self._counts["refused"] += 1
            answer["error"] = str(error)
            log.warning("message to %s refused: %s", self._options.address, error)
        if frame is not None:
            answer["frame"] = frame.frame_id
        socket.send_multipart([*parts[:begin], json.dumps(answer).encode()])
        return frame

    def _frame(self, message: list[bytes]) -> CameraFrame | None:
        """Return the frame of a message, None if the program only says that it lives.

        Raises ValueError if the message is none of ours.
        """
        o = self._options
        if not message or len(message) > 2:
            raise ValueError(f"expected a header and pixels; got {len(message)} parts")
        try:
            header = json.loads(message[0][:_MAX_HEADER_BYTES])
        except ValueError:
            raise ValueError(f"expected a header in JSON; got {message[0][:40]!r}") from None
        if not isinstance(header, dict):
            raise ValueError(f"expected an object of JSON as the header; got {header!r:.40}")
        if len(message) == 1:
            return None
        number, time_ns = _numbers(header)
        if len(message[1]) != self._frame_bytes:
            raise ValueError(
                f"expected {self._frame_bytes} bytes, {o.height_px} rows of {o.width_px} pixels of "
                f"{self._dtype.itemsize} bytes; got {len(message[1])}"
            )
        pixels = np.frombuffer(message[1], self._dtype).reshape(o.height_px, o.width_px)
        return CameraFrame(
            counts=pixels.astype(self._dtype.newbyteorder("="), copy=True),
            frame_id=number,
            camera_time_ns=time_ns,
            host_time_ns=unix_ns(),
        )


def _is_local(address: str) -> bool:
    place = urlsplit(address)
    if place.scheme != "tcp":
        return place.scheme == "ipc"
    try:
        return ipaddress.ip_address(place.hostname or "").is_loopback
    except ValueError:
        return place.hostname == "localhost"


def _numbers(header: dict[str, Any]) -> tuple[Any, Any]:
    """Return number and time of a frame. Raises ValueError if the header lacks one."""
    numbers = header.get("frame"), header.get("time_ns")
    if not all(type(value) is int and 0 <= value < 2**63 for value in numbers):
        raise ValueError(f"expected frame and time_ns, integers from 0; got {header!r:.80}")
    return numbers
