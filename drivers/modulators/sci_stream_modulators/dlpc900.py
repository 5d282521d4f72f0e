"""DMDs behind TI's controller DLPC900 (LightCrafter 6500, 9000), over USB.

Needs the extra ``dlpc900``.

Patterns are sent to the controller's memory ("pattern on the fly"), 24 one-bit patterns in an
image.

References
----------
TI, *DLPC900 Programmer's Guide*, DLPU018: USB commands 0x1A1B, 0x1A24, 0x1A2A, 0x1A2B, 0x1A31,
0x1A34, 0x1A1E.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sci_stream.errors import CameraError, require_optional
from sci_stream.plugins import Array, MaskTiming, ModulatorCapabilities
from sci_stream_drivers.fields import DriverOptions
from sci_stream_modulators.base import BaseModulator

_VENDOR, _PRODUCT = 0x0451, 0xC900
_REPORT = 64
_READ, _REPLY, _ERROR = 0x80, 0x40, 0x20
_BLOCK = 504
PER_IMAGE = 24
MODE, RUN, LUT, DEFINE, INIT_BMP, LOAD_BMP = 0x1A1B, 0x1A24, 0x1A31, 0x1A34, 0x1A2A, 0x1A2B
TRIGGER_OUT_2, TRIGGER_IN_1, STATUS, FIRMWARE = 0x1A1E, 0x1A35, 0x1A0C, 0x0205
ON_THE_FLY = 3
STOP, START = 0, 2
HEADER = struct.Struct("<4sHHI8s4sBBB21x")
ENHANCED_RLE = 2


class Dlpc900Options(DriverOptions):
    """Options of the driver."""

    width_px: int = Field(
        default=1920,
        ge=1,
        le=4096,
        description="Width of the DMD: 1920 of a DLP6500, 2560 of 9000.",
    )
    height_px: int = Field(default=1080, ge=1, le=2160, description="Height of the DMD, mirrors.")
    serial: str = Field(
        default="", description='Serial number of the controller; "": the first one.'
    )
    timeout_s: float = Field(default=2.0, gt=0, le=60, description="Longest time for an answer, s.")
    color: int = Field(
        default=1, ge=1, le=7, description="LEDs that are lit: 1 red, 2 green, 4 blue, or a sum."
    )


class Dlpc900Modulator(BaseModulator[Dlpc900Options]):
    """A DMD whose trigger output 2 gives a pulse with each pattern, or with the first one alone."""

    Options: ClassVar[type[Dlpc900Options]] = Dlpc900Options
    _sequence = 0

    def _connect(self) -> ModulatorCapabilities:
        self._device = require_optional(
            "hid", "dlpc900", "The modulator driver dlpc900", "sci-stream-modulators"
        ).device()
        try:
            self._device.open(_VENDOR, _PRODUCT, self.options.serial or None)
        except OSError as error:
            hint = (
                "Is it connected and on, and may this user open it "
                "(deploy/host/90-sci-stream.rules)?"
            )
            raise CameraError("No DLPC900 can be opened", got=error, hint=hint) from None
        patch, _, minor, major = self._ask(FIRMWARE)[:4]
        self._command(RUN, bytes([STOP]))
        self._command(MODE, bytes([ON_THE_FLY]))
        return ModulatorCapabilities(
            model=f"TI DLPC900 {major}.{minor}.{patch}",
            serial=self._device.get_serial_number_string() or "",
            height_px=self.options.height_px,
            width_px=self.options.width_px,
            max_patterns=400,
            min_pattern_us=105.0,
            pulses=("per_cycle", "per_pattern"),
            masters=("modulator", "camera", "external"),
            gap=True,
            max_delay_us=20_000.0,
        )

    def _upload(self, patterns: Array) -> None:
        images = [pack(patterns[at : at + PER_IMAGE]) for at in range(0, len(patterns), PER_IMAGE)]
        # The controller takes the last image first.
        for index, image in reversed(list(enumerate(images))):
            data = encode_bmp(image)
            self._command(INIT_BMP, struct.pack("<HI", index, len(data)))
            for at in range(0, len(data), _BLOCK):
                block = data[at : at + _BLOCK]
                self._command(LOAD_BMP, struct.pack("<H", len(block)) + block)
        self._order = list(range(len(patterns)))

    def _reorder(self, patterns: Array, first: int) -> None:
        # In the table alone: to send the images again would take minutes.
        self._order = [(index + first) % len(patterns) for index in range(len(patterns))]

    def _apply(self, timing: MaskTiming) -> MaskTiming:
        delay_us = round(timing.pulse_delay_us)
        self._command(
            TRIGGER_OUT_2, struct.pack("<Bhh", 0, delay_us, delay_us + round(timing.pulse_width_us))
        )
        started = timing.master != "modulator"
        if started:
            self._command(TRIGGER_IN_1, struct.pack("<HB", 0, 0))
        self._define(timing, self._order, started)
        return timing

    def _define(self, timing: MaskTiming, order: list[int], started: bool = False) -> None:
        """Write the table of patterns: the first waits for the trigger, and gives the pulse of a
        cycle.
        """
        count = len(order)
        for index, stored in enumerate(order):
            dark_us = timing.dark_us + (timing.gap_us if index == count - 1 else 0.0)
            # Without darkness the mirrors need not be cleared, and patterns follow each other at
            # once.
            options = int(dark_us > 0) | self.options.color << 4 | (started and index == 0) << 7
            silent = timing.pulse == "none" or (timing.pulse == "per_cycle" and index > 0)
            place = stored // PER_IMAGE | stored % PER_IMAGE << 11
            lit, dark = (
                round(time_us).to_bytes(3, "little") for time_us in (timing.pattern_us, dark_us)
            )
            entry = (
                struct.pack("<H", index)
                + lit
                + bytes([options])
                + dark
                + struct.pack("<BH", silent, place)
            )
            self._command(DEFINE, entry)
        self._command(LUT, struct.pack("<HI", count, 0))

    def _run(self) -> None:
        self._command(RUN, bytes([START]))

    def _halt(self) -> None:
        self._command(RUN, bytes([STOP]))

    def _show(self, image: Array) -> None:
        self._stale = True
        self._upload(image[None])
        self._hold(0)

    def _show_stored(self, pattern: int) -> None:
        self._restore()
        self._hold(pattern)

    def _hold(self, stored: int) -> None:
        self._define(MaskTiming(pattern_us=1_000_000, pulse="none"), [stored])
        self._run()

    def _poll(self) -> None:
        # A controller that has lost power is in another mode, and its sequencer stands still.
        mode, status = self._ask(MODE)[0], self._ask(STATUS)[0]
        if mode != ON_THE_FLY or (self._running and not status & 0x02):
            self.counts["restarts"] += 1
            self._command(MODE, bytes([ON_THE_FLY]))

    def _disconnect(self) -> None:
        self._device.close()

    # --- reports

    def _command(self, command: int, data: bytes = b"") -> None:
        """Write a command and wait for its acknowledgement."""
        self._exchange(_REPLY, command, data)

    def _ask(self, command: int) -> bytes:
        """Read the value of a command."""
        return self._exchange(_READ | _REPLY, command, b"")

    def _exchange(self, flags: int, command: int, data: bytes) -> bytes:
        self._sequence = (self._sequence + 1) % 256
        message = struct.pack("<BBHH", flags, self._sequence, len(data) + 2, command) + data
        for at in range(0, len(message), _REPORT):
            # The first byte is the number of the report, which HID libraries expect.
            if self._device.write(b"\0" + message[at : at + _REPORT].ljust(_REPORT, b"\0")) < 0:
                raise CameraError(
                    "The DMD controller does not take a report", got=self._device.error()
                )
        answer = bytes(self._device.read(_REPORT, round(1000 * self.options.timeout_s)))
        if len(answer) < 4:
            raise CameraError(f"The DMD controller does not answer command 0x{command:04X}")
        flags_back, sequence, length = struct.unpack_from("<BBH", answer)
        if sequence != self._sequence:
            raise CameraError(
                "The DMD controller answers another command", expected=self._sequence, got=sequence
            )
        if flags_back & _ERROR:
            raise CameraError(
                f"The DMD controller refused command 0x{command:04X}",
                got=answer[4 : 4 + length].hex(),
            )
        return answer[4 : 4 + length]


def pack(patterns: Array) -> npt.NDArray[np.uint8]:
    """Return up to 24 one-bit patterns as one image, (H, W, 3): bits 0–7 in the last byte of a
    pixel.
    """
    bits = np.zeros((*patterns.shape[1:], PER_IMAGE), np.uint8)
    bits[..., : len(patterns)] = np.moveaxis(patterns > 0, 0, -1)
    return np.ascontiguousarray(np.packbits(bits, axis=-1, bitorder="little")[..., ::-1])


def encode_bmp(image: npt.NDArray[np.uint8]) -> bytes:
    """Return an image, (H, W, 3), with header and enhanced run-length compression."""
    height, width = image.shape[:2]
    body = bytearray()
    for y, row in enumerate(image):
        if y and np.array_equal(row, image[y - 1]):
            body += b"\0\1" + _count(width)  # copy from the line above
        else:
            for piece in _row(row):
                body += piece
    body += b"\0\1\0"
    body += bytes(-(HEADER.size + len(body)) % 4)
    total = HEADER.size + len(body)
    return HEADER.pack(
        b"Spld", width, height, total, b"\xff" * 8, bytes(4), 0, ENHANCED_RLE, 1
    ) + bytes(body)


def _row(row: npt.NDArray[np.uint8]) -> Iterator[bytes]:
    """Yield the runs of a line: repeated pixels, and literal ones between them."""
    ends = np.flatnonzero((row[1:] != row[:-1]).any(1)) + 1
    begins = np.concatenate([[0], ends])
    lengths = np.diff(np.concatenate([begins, [len(row)]]))
    literal = bytearray()
    for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
        pixel = row[begin].tobytes()
        if length == 1:
            literal += pixel
            continue
        yield from _literal(literal)
        literal.clear()
        yield _count(length) + pixel
    yield from _literal(literal)


def _literal(pixels: bytearray) -> Iterator[bytes]:
    if len(pixels) == 3:
        yield b"\1" + bytes(pixels)
    elif pixels:
        yield b"\0" + _count(len(pixels) // 3) + bytes(pixels)


def _count(number: int) -> bytes:
    """Return a number in one byte, or two from 128 on."""
    return bytes([number]) if number < 128 else bytes([number & 0x7F | 0x80, number >> 7])
