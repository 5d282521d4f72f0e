"""The file with the frames of the simulated GenTL camera.

Little-endian: a header of 64 bytes, then the frames, each height × width samples of 16 bits, row by
row. The producer maps it (scene.cpp), so a file in ``/dev/shm`` is shared memory.

======  ========  ==========================================================================
offset  type      meaning
======  ========  ==========================================================================
0       char[8]   ``SCIFRAME``
8       uint32    version: 1
12      uint32    offset of the first frame, even: 64
16      uint32    width, pixels, a multiple of 8
20      uint32    height, pixels, even
24      uint32    number of frames, shown in a loop
28      uint32    bits per sample, 8 to 16: samples are 0 … 2^bits − 1
32      uint32    colour filters: 0 none, else the Bayer phase: 1 GRBG, 2 RGGB, 3 GBRG, 4 BGGR
36      uint32    0
40      float64   black level of the frames, DN
48      float64   exposure time of the frames, µs: at this, and gain 0, they are shown unchanged
56      float64   initial frame rate of the camera, Hz
======  ========  ==========================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sci_stream.errors import FileFormatError
from sci_stream.file_guard import complete_output
from sci_stream.plugins import Array, BayerPhase

_LAYOUT = struct.Struct("<8s8I3d")
_MARK = b"SCIFRAME"
_VERSION = 1
_MOSAICS = (None, BayerPhase.GRBG, BayerPhase.RGGB, BayerPhase.GBRG, BayerPhase.BGGR)


@dataclass(frozen=True)
class Header:
    """Header of a frame file; ranges as in the module's table.

    Raises
    ------
    FileFormatError
        If the camera cannot show such frames.
    """

    width_px: int
    height_px: int
    frames: int
    bit_depth: int
    bayer: BayerPhase | None
    black_dn: float
    exposure_us: float
    rate_hz: float

    def __post_init__(self) -> None:
        if self.width_px % 8 or self.height_px % 2 or self.width_px < 16 or self.height_px < 2:
            raise FileFormatError(
                "Unsupported frame size of the simulated GenTL camera",
                expected="a width that is a multiple of 8, from 16, and an even height",
                got=f"{self.width_px} × {self.height_px}",
            )
        if (
            self.frames < 1
            or not 8 <= self.bit_depth <= 16
            or self.exposure_us < 1
            or self.rate_hz <= 0
        ):
            raise FileFormatError(
                "Unsupported frames of the simulated GenTL camera",
                expected="at least one of 8 to 16 bits, exposed for 1 µs or longer, at a rate "
                "above 0",
                got=self,
            )


def write_frames(path: Path, header: Header, frames: Iterable[Array]) -> None:
    """Write a frame file, complete or not at all.

    A camera that is showing the previous file continues with that one.

    The frames are (H, W) arrays of integers, as many as in the header. The folder must exist.

    Raises
    ------
    FileFormatError
        If the frames do not match the header.
    StorageError
        If the file cannot be written.
    """
    shape, top = (header.height_px, header.width_px), (1 << header.bit_depth) - 1
    written = 0
    with complete_output(path, replace=True) as partial, partial.open("wb") as file:
        file.write(
            _LAYOUT.pack(
                _MARK, _VERSION, _LAYOUT.size, header.width_px, header.height_px, header.frames,
                header.bit_depth,
                _MOSAICS.index(header.bayer), 0, header.black_dn, header.exposure_us,
                header.rate_hz,
            )
        )  # fmt: skip
        for frame in frames:
            if frame.shape != shape or int(frame.max()) > top or int(frame.min()) < 0:
                raise FileFormatError(
                    f"Frame {written} does not match the header",
                    expected=f"{shape}, values of 0 to {top}",
                    got=f"{frame.shape}, values of {frame.min()} to {frame.max()}",
                )
            file.write(np.ascontiguousarray(frame, "<u2").tobytes())
            written += 1
        if written != header.frames:
            raise FileFormatError(
                "The number of frames does not match the header",
                expected=header.frames,
                got=written,
            )
