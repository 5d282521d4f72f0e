"""Pixel formats by their PFNC names: from the bytes of a buffer to counts in DN.

The library unpacks packed formats at a fifth of the speed at which buffers come (Mono12p 1024²: 89 of 424 per second)
and answers an unknown format with a KeyError after which the buffer is never given back; so both is done here.

References
----------
EMVA, *GenICam Pixel Format Naming Convention* (PFNC) 2.4 for the names, codes and the ``p`` packing; AIA, *GigE Vision*
2.0, section on pixel layouts, for ``Packed``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from sci_stream.errors import CameraError
from sci_stream.model import Array, BayerPhase

Layout = Literal["plain", "p", "Packed"]
"""``plain``: one or two whole bytes a pixel; ``p``: a stream of bits, lowest first; ``Packed``: two pixels in three
bytes, the high eight bits of each outside, their low bits together in the middle byte."""

_BAYER: Final = {phase.value[:2]: phase for phase in BayerPhase}
_CODES: Final = {
    "Mono8": 0x01080001, "Mono10": 0x01100003, "Mono12": 0x01100005, "Mono16": 0x01100007,
    "Mono10p": 0x010A0046, "Mono12p": 0x010C0047, "Mono10Packed": 0x010C0004, "Mono12Packed": 0x010C0006,
    "BayerGR8": 0x01080008, "BayerRG8": 0x01080009, "BayerGB8": 0x0108000A, "BayerBG8": 0x0108000B,
    "BayerGR10": 0x0110000C, "BayerRG10": 0x0110000D, "BayerGB10": 0x0110000E, "BayerBG10": 0x0110000F,
    "BayerGR12": 0x01100010, "BayerRG12": 0x01100011, "BayerGB12": 0x01100012, "BayerBG12": 0x01100013,
    "BayerGR16": 0x0110002E, "BayerRG16": 0x0110002F, "BayerGB16": 0x01100030, "BayerBG16": 0x01100031,
    "BayerGR10p": 0x010A0056, "BayerRG10p": 0x010A0058, "BayerGB10p": 0x010A0054, "BayerBG10p": 0x010A0052,
    "BayerGR12p": 0x010C0057, "BayerRG12p": 0x010C0059, "BayerGB12p": 0x010C0055, "BayerBG12p": 0x010C0053,
    "BayerGR10Packed": 0x010C0026, "BayerRG10Packed": 0x010C0027,
    "BayerGB10Packed": 0x010C0028, "BayerBG10Packed": 0x010C0029,
    "BayerGR12Packed": 0x010C002A, "BayerRG12Packed": 0x010C002B,
    "BayerGB12Packed": 0x010C002C, "BayerBG12Packed": 0x010C002D,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """How pixels lie in a buffer.

    ``code`` is the number of the format in a buffer's description (PFNC); ``bit_depth`` counts the bits that carry
    the value; ``bits_per_pixel`` those that a pixel takes in the buffer.
    """

    name: str
    code: int
    bit_depth: int
    layout: Layout
    bayer: BayerPhase | None

    @property
    def bits_per_pixel(self) -> int:
        """Return what a pixel takes in the buffer, bits."""
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
    kind = name[:7] if name.startswith("Bayer") else name[:4]
    digits = name[len(kind) :]
    layout: Layout = "Packed" if digits.endswith("Packed") else "p" if digits.endswith("p") else "plain"
    depth = int(digits.removesuffix("Packed").removesuffix("p"))
    return PixelFormat(name, code, depth, layout, _BAYER.get(kind[5:]))


FORMATS: Final = {name: _format(name, code) for name, code in _CODES.items()}
"""The formats that are decoded here, by PFNC name."""


def pixel_format(name: str, *, offered: tuple[str, ...] = ()) -> PixelFormat:
    """Return a format by its name.

    Parameters
    ----------
    name
        As the camera's ``PixelFormat`` says.
    offered
        The formats that the camera has, for the message.

    Raises
    ------
    CameraError
        If it is not decoded here.
    """
    found = FORMATS.get(name)
    if found is None:
        usable = [other for other in offered if other in FORMATS]
        raise CameraError(
            f"The camera sends pixel format {name}, which is not supported",
            expected="one of " + ", ".join(usable or FORMATS),
            got=name,
            hint='In [camera.options] of the rig set another: features = [["PixelFormat", "…"]].'
            if usable or not offered
            else f"This camera offers {', '.join(offered)}: none of them is one intensity per pixel.",
        )
    return found


def decode(
    raw: npt.NDArray[np.uint8],
    form: PixelFormat,
    height_px: int,
    width_px: int,
    *,
    padding_bytes: int = 0,
    big_endian: bool = False,
) -> Array:
    """Return the counts that lie in the bytes of an image.

    Parameters
    ----------
    raw
        (n,) uint8, contiguous, at least as long as `PixelFormat.bytes_for` says. Where the format needs no unpacking,
        the result is a view of it.
    form
        How the pixels lie in it.
    height_px, width_px
        Size of the image.
    padding_bytes
        Bytes after each row that belong to no pixel. Without them, rows of packed formats follow each other without a
        gap, also within a byte.
    big_endian
        Whether the first of two bytes is the high one; concerns formats of two whole bytes a pixel only.

    Returns
    -------
    (H, W) uint8 for 8 bit, else uint16, DN.

    Raises
    ------
    CameraError
        If there are too few bytes.
    """
    needed = form.bytes_for(height_px, width_px, padding_bytes)
    if raw.size < needed:
        raise CameraError(
            f"A buffer is too short for {height_px}×{width_px} {form.name}", expected=f"{needed} bytes", got=raw.size
        )
    if padding_bytes:
        row_bytes = needed // height_px - padding_bytes
        rows = raw[:needed].reshape(height_px, -1)[:, :row_bytes]
        if form.layout != "plain":
            return np.stack([_unpack(np.ascontiguousarray(row), form, width_px) for row in rows])
        raw = np.ascontiguousarray(rows).reshape(-1)
    raw = raw[: height_px * width_px * form.bits_per_pixel // 8] if form.layout == "plain" else raw[:needed]
    if form.layout != "plain":
        return _unpack(raw, form, height_px * width_px).reshape(height_px, width_px)
    if form.bit_depth == 8:
        return raw.reshape(height_px, width_px)
    wide = raw.view(">u2" if big_endian else "<u2")
    return wide.astype(np.uint16, copy=False).reshape(height_px, width_px)


def _unpack(raw: npt.NDArray[np.uint8], form: PixelFormat, n_pixels: int) -> npt.NDArray[np.uint16]:
    """Return ``n_pixels`` values of a packed format, in one dimension."""
    group_px, group_bytes = (2, 3) if form.bits_per_pixel == 12 else (4, 5)
    groups = -(-n_pixels // group_px)
    if raw.size < groups * group_bytes:  # the last group is cut off where the pixels end
        raw = np.concatenate([raw, np.zeros(groups * group_bytes - raw.size, np.uint8)])
    out = np.empty((groups, group_px), np.uint16)
    (_unpack_bits if form.layout == "p" else _unpack_packed)(raw, form.bit_depth, out)
    return out.reshape(-1)[:n_pixels]


def _unpack_bits(raw: npt.NDArray[np.uint8], bits: int, out: npt.NDArray[np.uint16]) -> None:
    """Unpack a stream of bits: each pixel is found in the two bytes, low one first, in which it begins."""
    groups, group_px = out.shape
    group_bytes = group_px * bits // 8
    for k in range(group_px):
        first_byte, shift = divmod(k * bits, 8)
        window = np.ndarray((groups,), "<u2", raw, first_byte, (group_bytes,))
        np.right_shift(window, shift, out=out[:, k])
    out &= np.uint16((1 << bits) - 1)


def _unpack_packed(raw: npt.NDArray[np.uint8], bits: int, out: npt.NDArray[np.uint16]) -> None:
    """Unpack high byte, low bits of both (the second's from bit 4 up), high byte."""
    low_bits = bits - 8
    first, low, second = (np.ndarray(out.shape[:1], np.uint8, raw, k, (3,)) for k in range(3))
    mask = np.uint8((1 << low_bits) - 1)
    for k, high in enumerate((first, second)):
        np.left_shift(high, low_bits, out=out[:, k], dtype=np.uint16)
        out[:, k] |= low >> np.uint8(4 * k) & mask
