"""A fake DLPC900 at the level of its HID reports: decodes commands, tables and images, and refuses
wrong ones.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from sci_stream_modulators import dlpc900 as dlp


class device:  # noqa: N801 - the name in the library hidapi
    """Answers each command once its last report has arrived."""

    latest: device | None = None
    present = True

    def __init__(self) -> None:
        self.is_open = False
        self.mode = 0
        self.running = False
        self.parked = False
        self.images: dict[int, npt.NDArray[np.uint8]] = {}
        self.table: dict[int, tuple[int, int, int, int, int]] = {}
        self.count = self.repeats = -1
        self.trigger_out = self.trigger_in = (0, 0, 0)
        self._pending = b""
        self._answer = b""
        self._image = (0, 0, b"")
        self.commands: list[int] = []
        device.latest = self

    def open(self, vendor: int, product: int, serial: str | None) -> None:
        if (vendor, product, serial) != (0x0451, 0xC900, None) or not device.present:
            raise OSError("open failed")
        self.is_open = True

    def get_serial_number_string(self) -> str:
        return "LCR-1"

    def error(self) -> str:
        return "gone"

    def close(self) -> None:
        self.is_open = False

    def write(self, report: bytes) -> int:
        assert len(report) == 65, "a report of 64 bytes, behind its number"
        assert report[0] == 0
        if not self.is_open:
            return -1
        self._pending += report[1:]
        flags, sequence, length, command = struct.unpack_from("<BBHH", self._pending)
        if len(self._pending) >= 4 + length:
            data = self._pending[6 : 4 + length]
            assert not any(self._pending[4 + length :]), "padded by zeros"
            self._pending = b""
            try:
                answer, failed = self._execute(command, data, read=bool(flags & 0x80)), 0
            except (AssertionError, struct.error) as error:
                answer, failed = str(error).encode()[:40], 0x20
            self._answer = (
                struct.pack("<BBH", flags & 0xC0 | failed, sequence, len(answer)) + answer
            )
        return len(report)

    def read(self, size: int, timeout_ms: int) -> list[int]:
        assert timeout_ms > 0
        answer, self._answer = self._answer.ljust(size, b"\0") if self._answer else b"", b""
        return list(answer)

    def _execute(self, command: int, data: bytes, *, read: bool) -> bytes:
        self.commands.append(command)
        if read:
            values = {
                dlp.MODE: bytes([self.mode]),
                dlp.STATUS: bytes([0x02 * self.running | self.parked]),
                dlp.FIRMWARE: bytes([1, 0, 0, 6]),
            }
            return values[command]
        match command:
            case dlp.MODE:
                assert not self.running, "stop first"
                (self.mode,) = data
            case dlp.RUN:
                (action,) = data
                assert action != dlp.START or 0 < self.count <= len(self.table), "no table"
                self.running = action == dlp.START
            case dlp.INIT_BMP:
                assert self.mode == dlp.ON_THE_FLY, "wrong mode"
                assert not self.running, "stop first"
                index, size = struct.unpack("<HI", data)
                self._image = (index, size, b"")
                self.table.clear()
            case dlp.LOAD_BMP:
                (length,) = struct.unpack_from("<H", data)
                assert length == len(data) - 2 <= 504
                index, size, before = self._image
                self._image = (index, size, before + data[2:])
                if len(self._image[2]) == size:
                    self.images[index] = decode_bmp(self._image[2])
            case dlp.DEFINE:
                assert not self.running, "stop first"
                assert len(data) == 12
                index, silent, place = (
                    *struct.unpack_from("<H", data),
                    data[9],
                    *struct.unpack_from("<H", data, 10),
                )
                exposure, dark = (int.from_bytes(data[at : at + 3], "little") for at in (2, 6))
                assert exposure >= 105, "shorter than one bit"
                assert not dark or data[5] & 1, "darkness needs a clear"
                assert data[5] >> 1 & 7 == 0, "one bit"
                self.table[index] = (exposure, dark, data[5] >> 7, silent, place)
            case dlp.LUT:
                self.count, self.repeats = struct.unpack("<HI", data)
                # Entries behind the last one stay in the controller, unused.
                assert self.table.keys() >= set(range(self.count)), "holes in the table"
            case dlp.TRIGGER_OUT_2:
                self.trigger_out = struct.unpack("<Bhh", data)
                assert -20 <= self.trigger_out[1] < self.trigger_out[2] <= 20_050
            case dlp.TRIGGER_IN_1:
                self.trigger_in = struct.unpack("<HB", data)
            case _:
                raise AssertionError(f"unknown command {command:04X}")
        return b""

    def lose_power(self) -> None:
        self.mode, self.running = 0, False
        self.table.clear()
        self.images.clear()

    def shown(self) -> npt.NDArray[np.uint8]:
        """Return the patterns of the table, in order, (B, H, W) of 0 and 255."""
        patterns = []
        for index in range(self.count):
            place = self.table[index][4]
            image, bit = self.images[place & 0x7FF], place >> 11
            patterns.append((image[..., 2 - bit // 8] >> bit % 8 & 1) * 255)
        return np.array(patterns, np.uint8)


def decode_bmp(data: bytes) -> npt.NDArray[np.uint8]:
    """Decode an image with enhanced run-length compression, pixel by pixel."""
    signature, width, height, size, ones, _, zero, compression, one = dlp.HEADER.unpack_from(data)
    assert (signature, size, ones) == (b"Spld", len(data), b"\xff" * 8)
    assert (zero, compression, one) == (0, 2, 1)
    assert size % 4 == 0
    pixels: list[bytes] = []
    at = dlp.HEADER.size

    def number() -> int:
        nonlocal at
        value = data[at]
        at += 1
        if value < 128:
            return value
        value = value & 0x7F | data[at] << 7
        at += 1
        return value

    while True:
        if data[at] != 0:
            count = number()
            pixels += [data[at : at + 3]] * count
            at += 3
        elif data[at + 1] == 1:
            at += 2
            count = number()
            if not count:
                break
            pixels += pixels[-width:][:count] if count <= width else []
        else:
            at += 1
            count = number()
            pixels += [data[at + 3 * i : at + 3 * i + 3] for i in range(count)]
            at += 3 * count
    assert len(pixels) == width * height
    return np.frombuffer(b"".join(pixels), np.uint8).reshape(height, width, 3)
