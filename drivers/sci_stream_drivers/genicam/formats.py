"""Pixel formats by their PFNC names: decode the bytes of a buffer to counts in DN.

Harvesters unpacks packed formats at a fifth of the rate of buffers (Mono12p 1024²: 89 of 424 per
second), and raises a KeyError for unknown formats after which the buffer is never returned; so both
are done here.

References
----------
EMVA, *GenICam Pixel Format Naming Convention* (PFNC) 2.4 for the names, codes and the ``p``
packing; AIA, *GigE Vision*
2.0, section on pixel layouts, for ``Packed``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sci_stream.errors import CameraError
from sci_stream.plugins import U8, Array, BayerPhase

Layout = Literal["plain", "p", "Packed"]
"""``plain``: one or two whole bytes per pixel; ``p``: a stream of bits, lowest first; ``Packed``:
two pixels in three
bytes, the high eight bits of each outside, their low bits together in the middle byte."""

_BAYER = {phase.value[:2]: phase for phase in BayerPhase}
_CODES = {
    "Mono8": 0x01080001, "Mono10": 0x01100003, "Mono12": 0x01100005, "Mono14": 0x01100025,
    "Mono16": 0x01100007,
    "Mono10p": 0x010A0046, "Mono12p": 0x010C0047, "Mono10Packed": 0x010C0004,
    "Mono12Packed": 0x010C0006,
    "BayerGR8": 0x01080008, "BayerRG8": 0x01080009, "BayerGB8": 0x0108000A, "BayerBG8": 0x0108000B,
    "BayerGR10": 0x0110000C, "BayerRG10": 0x0110000D, "BayerGB10": 0x0110000E,
    "BayerBG10": 0x0110000F,
    "BayerGR12": 0x01100010, "BayerRG12": 0x01100011, "BayerGB12": 0x01100012,
    "BayerBG12": 0x01100013,
    "BayerGR16": 0x0110002E, "BayerRG16": 0x0110002F, "BayerGB16": 0x01100030,
    "BayerBG16": 0x01100031,
    "BayerGR10p": 0x010A0056, "BayerRG10p": 0x010A0058, "BayerGB10p": 0x010A0054,
    "BayerBG10p": 0x010A0052,
    "BayerGR12p": 0x010C0057, "BayerRG12p": 0x010C0059, "BayerGB12p": 0x010C0055,
    "BayerBG12p": 0x010C0053,
    "BayerGR10Packed": 0x010C0026, "BayerRG10Packed": 0x010C0027,
    "BayerGB10Packed": 0x010C0028, "BayerBG10Packed": 0x010C0029,
    "BayerGR12Packed": 0x010C002A, "BayerRG12Packed": 0x010C002B,
    "BayerGB12Packed": 0x010C002C, "BayerBG12Packed": 0x010C002D,
    # FLIR's, of sensors with polarisers in front of their pixels: not in PFNC, packed as Mono.
    "Polarized8": 0x01080060, "Polarized10p": 0x010A0061, "Polarized12p": 0x010C0062,
    "Polarized16": 0x01100063,
}  # fmt: skip
_NAME = re.compile(r"(Mono|Polarized|Bayer(?P<phase>..))(?P<bits>\d+)(?P<layout>p|Packed|)")


@dataclass(frozen=True)
class PixelFormat:
    """Layout of pixels in a buffer.

    ``code`` is the number of the format in a buffer's description (PFNC); ``bit_depth`` is the
    number of bits of the value; ``bits_per_pixel`` that of a pixel in the buffer.
    """

    name: str
    code: int
    bit_depth: int
    layout: Layout
    bayer: BayerPhase | None

    @property
    def bits_per_pixel(self) -> int:
        """Return the bits of a pixel in the buffer."""
        return self.code >> 16 & 0xFF

    @property
    def dtype(self) -> np.dtype[np.uint8] | np.dtype[np.uint16]:
        """Return the type of the decoded counts."""
        return np.dtype(np.uint8) if self.bit_depth == 8 else np.dtype(np.uint16)

    def bytes_for(self, height_px: int, width_px: int, padding_bytes: int = 0) -> int:
        """Return the size of an image in the buffer; ``padding_bytes`` follow each row."""
        if padding_bytes:
            return height_px * (-(-width_px * self.bits_per_pixel // 8) + padding_bytes)
        return -(-height_px * width_px * self.bits_per_pixel // 8)


def _format(name: str, code: int) -> PixelFormat:
    parts = _NAME.fullmatch(name)
    assert parts is not None
    layout: Layout = "p" if parts["layout"] == "p" else "Packed" if parts["layout"] else "plain"
    bayer = _BAYER[parts["phase"]] if parts["phase"] else None
    return PixelFormat(name, code, int(parts["bits"]), layout, bayer)


# The supported formats by PFNC name.
FORMATS = {name: _format(name, code) for name, code in _CODES.items()}


def find_pixel_format(name: str, *, offered: tuple[str, ...] = ()) -> PixelFormat:
    """Return a format by its name.

    The message lists the ``offered`` formats of the camera.

    Raises `CameraError` if the format is not supported.
    """
    found = FORMATS.get(name)
    if found is None:
        usable = [other for other in offered if other in FORMATS]
        raise CameraError(
            f"The camera sends pixel format {name}, which is not supported",
            expected="one of " + ", ".join(usable or FORMATS),
            got=name,
            hint='Set another one in [camera.options] of the rig: features = [["PixelFormat", '
            '"…"]].'
            if usable or not offered
            else f"This camera offers {', '.join(offered)}: none of them is one intensity per "
            "pixel.",
        )
    return found


def decode(
    raw: U8,
    pixel_format: PixelFormat,
    height_px: int,
    width_px: int,
    *,
    padding_bytes: int = 0,
    big_endian: bool = False,
) -> Array:
    """Decode the bytes of an image to counts.

    Parameters
    ----------
    raw
        (n,) uint8, contiguous, at least `PixelFormat.bytes_for` long. For formats without packing
        the result is a view of it.
    pixel_format
        Format of the pixels.
    height_px, width_px
        Size of the image.
    padding_bytes
        Padding after each row. Without padding, rows of packed formats are contiguous, even within
        a byte.
    big_endian
        Whether the first of two bytes is the high one; applies to formats of two whole bytes per
        pixel only.

    Returns
    -------
    (H, W) uint8 for 8 bit, else uint16, DN.

    Raises
    ------
    CameraError
        If there are too few bytes.
    """
    needed = pixel_format.bytes_for(height_px, width_px, padding_bytes)
    if raw.size < needed:
        raise CameraError(
            f"A buffer is too short for {height_px}×{width_px} {pixel_format.name}",
            expected=f"{needed} bytes",
            got=raw.size,
        )
    raw = raw[:needed]
    if padding_bytes:
        rows = raw.reshape(height_px, -1)[:, : needed // height_px - padding_bytes]
        if (
            pixel_format.layout != "plain"
            and width_px % _GROUPS[pixel_format.bits_per_pixel].pixels
        ):
            return np.stack(
                [_unpack(np.ascontiguousarray(row), pixel_format, width_px) for row in rows]
            )
        raw = np.ascontiguousarray(rows).reshape(-1)
    if pixel_format.layout != "plain":
        return _unpack(raw, pixel_format, height_px * width_px).reshape(height_px, width_px)
    if pixel_format.bit_depth == 8:
        return raw.reshape(height_px, width_px)
    wide = raw.view(">u2" if big_endian else "<u2")
    return wide.astype(np.uint16, copy=False).reshape(height_px, width_px)


class _Group(NamedTuple):
    """The smallest number of pixels of a packed format in whole bytes, and the word that they are
    unpacked in.
    """

    pixels: int
    bytes_: int
    word: np.dtype[Any]


# By the bits of a pixel in the buffer.
_GROUPS = {12: _Group(2, 3, np.dtype("<u4")), 10: _Group(4, 5, np.dtype("<u8"))}

# Groups are unpacked in blocks that fit the processor's cache, several times faster than all at
# once.
_BLOCK_BYTES = 1 << 17


def _unpack(raw: U8, pixel_format: PixelFormat, n_pixels: int) -> npt.NDArray[np.uint16]:
    """Return ``n_pixels`` values of a packed format, in one dimension.

    A group is read as one little-endian word, wider than the group, and its pixels are shifted to
    16 bits each within the word: a few operations on words replace many on single pixels.
    """
    group = _GROUPS[pixel_format.bits_per_pixel]
    count = -(-n_pixels // group.pixels)
    out = np.empty(count, group.word)
    spare = np.empty(min(count, _BLOCK_BYTES // group.word.itemsize), group.word)
    spread = _SPREAD[pixel_format.layout, pixel_format.bit_depth]
    # Words would extend beyond the buffer at its end, and the last group may be incomplete.
    inside = max(0, (raw.size - group.word.itemsize) // group.bytes_ + 1)
    words = np.ndarray((inside,), group.word, raw if inside else None, 0, (group.bytes_,))
    for index in range(inside, count):
        out[index] = int.from_bytes(raw[index * group.bytes_ :][: group.bytes_].tobytes(), "little")
    for first in range(0, count, spare.size):
        block = out[first : first + spare.size]
        source = words[first : first + spare.size]
        block[: source.size] = source
        spread(block, spare[: block.size])
    return out.view("<u2").astype(np.uint16, copy=False)[:n_pixels]


def _spread_12p(word: npt.NDArray[Any], spare: npt.NDArray[Any]) -> None:
    """…BBBAAA (hexadecimal digits) to 0BBB0AAA."""
    np.bitwise_and(word, 0xFFF000, out=spare)
    spare <<= 4
    word &= 0xFFF
    word |= spare


def _spread_10p(word: npt.NDArray[Any], spare: npt.NDArray[Any]) -> None:
    """Four times ten bits: separate two pairs, then the pixels of each."""
    for shift, high, low in (
        (12, 0xFFFFF << 32, 0xFFFFF),
        (6, 0x03FF0000_03FF0000, 0x000003FF_000003FF),
    ):
        np.left_shift(word, shift, out=spare)
        spare &= high
        word &= low
        word |= spare


def _spread_12_packed(word: npt.NDArray[Any], spare: npt.NDArray[Any]) -> None:
    """…BBbaAA (high digits outside, low ones together in the middle) to 0BBb0AAa."""
    np.right_shift(word, 8, out=spare)
    spare &= 0xF
    word &= 0xFFF0FF
    word <<= 4
    word |= spare


def _spread_10_packed(word: npt.NDArray[Any], spare: npt.NDArray[Any]) -> None:
    """As `_spread_12_packed`, but with two low bits each: those of the first at bit 8, of the
    second at bit 12.
    """
    low = word >> 8
    low &= 0x3
    np.left_shift(word, 4, out=spare)
    spare &= 0x30000
    low |= spare
    word &= 0xFF00FF
    word <<= 2
    word |= low


_SPREAD: dict[tuple[Layout, int], Callable[[npt.NDArray[Any], npt.NDArray[Any]], None]] = {
    ("p", 10): _spread_10p,
    ("p", 12): _spread_12p,
    ("Packed", 10): _spread_10_packed,
    ("Packed", 12): _spread_12_packed,
}
