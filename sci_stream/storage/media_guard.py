"""Read images and videos with OpenCV, which allocates whatever size a file declares: that is checked first."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

from sci_stream.errors import FileFormatError
from sci_stream.file_guard import reading, require_memory, require_ratio, require_regular
from sci_stream.model import Array

# Sizes are in the first bytes; metadata such as a thumbnail may come before them.
_HEAD_BYTES = 1 << 16
# Containers with their data inside. Playlists and other scripts, which FFmpeg recognises by their content whatever
# their name, make it open other files and addresses.
_VIDEO = re.compile(
    rb"....(ftyp|moov|mdat|free|wide|skip)|\x1aE\xdf\xa3|RIFF....AVI |\x00\x00\x01[\xba\xb3]|FLV\x01|OggS|GIF8"
    rb"|YUV4MPEG2 |\x47.{187}\x47|\x30\x26\xb2\x75",
    re.DOTALL,
)
# Tags of a TIFF page: width, height, bits per sample, samples per pixel; and sizes of its field types.
_WIDTH, _HEIGHT, _BITS, _SAMPLES = 256, 257, 258, 277
_FIELD_BYTES = {1: 1, 3: 2, 4: 4, 16: 8}


def require_video(path: Path) -> None:
    """Raise a `FileFormatError` unless a file is a video container with its data inside."""
    require_regular(path, "a video")
    with reading(path, "a video"), path.open("rb") as file:
        head = file.read(256)
    if _VIDEO.match(head) is None:
        raise FileFormatError(
            f"{path} cannot be read as a video", expected="MP4, MOV, Matroska, AVI, MPEG, Ogg, FLV, GIF or Y4M"
        )


def video_frames(path: Path) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the frames of a video, (H, W, 3) blue, green, red; none if OpenCV cannot decode it.

    Raises
    ------
    FileFormatError
        If it is no video container.
    """
    require_video(path)
    capture = cv2.VideoCapture(str(path))
    try:
        while True:
            decoded, frame = capture.read()
            if not decoded:
                return
            yield np.asarray(frame, np.uint8)
    finally:
        capture.release()


def require_image(path: Path) -> None:
    """Raise a `FileFormatError` if an image is no regular file, or declares more than it can hold."""
    size = require_regular(path, "an image")
    with reading(path, "an image"):
        declared = _declared_bytes(path)
        require_memory(max(size, declared), path)
        require_ratio(declared, size, path)


def read_image(path: Path, flags: int) -> Array:
    """Decode an image with OpenCV; ``flags`` as of `cv2.imread`.

    Raises
    ------
    FileFormatError
        If it cannot be decoded, or declares more than it can hold.
    """
    require_image(path)
    with reading(path, "an image"):
        image = cv2.imread(str(path), flags)
    if image is None:
        raise FileFormatError(f"{path} cannot be read as an image", expected="an undamaged image")
    return np.asarray(image)


def in_natural_order(files: Iterable[Path]) -> list[Path]:
    """Sort files by their names, 2.png before 10.png."""

    def key(path: Path) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]

    return sorted(files, key=key)


def _declared_bytes(path: Path) -> int:
    """Return the decoded size of all pages of a TIFF, a PNG, a BMP or a JPEG; 0 of other formats."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return sum(size or 0 for size in _tiff_pages(path.read_bytes()))
    if head.startswith(b"\x89PNG"):
        width, height, depth = map(int, struct.unpack_from(">IIB", head, 16))
        return width * height * 4 * max(1, depth // 8)
    if head.startswith(b"BM"):
        width, height = map(int, struct.unpack_from("<ii", head, 18))
        return abs(width * height) * 4
    if head.startswith(b"\xff\xd8"):
        return max((w * h * 3 for h, w in _jpeg_sizes(head)), default=0)
    return 0


def count_pages(path: Path) -> int:
    """Return the number of pages of a TIFF, -1 if the chain of their directories is broken or a loop."""
    sizes = list(_tiff_pages(path.read_bytes()))
    return -1 if None in sizes else len(sizes)


def _tiff_pages(content: bytes) -> Iterator[int | None]:
    """Yield the decoded bytes of each page of a TIFF or BigTIFF; None, as the last, where the chain is broken."""
    order: Literal["little", "big"] = "little" if content[:2] == b"II" else "big"
    # Sizes of an offset, of the number of tags in a directory, and of a tag.
    offset_size, count_size, tag_size = (8, 8, 20) if content[2:4] in (b"+\0", b"\0+") else (4, 2, 12)

    def number(at: int, size: int) -> int:
        return int.from_bytes(content[at : at + size], order)

    seen = set[int]()
    place = number(8 if offset_size == 8 else 4, offset_size)
    while place:
        first, tags = place + count_size, number(place, count_size)
        link = first + tag_size * tags
        if link + offset_size > len(content) or place in seen:
            yield None
            return
        seen.add(place)
        values = {}
        for at in range(first, link, tag_size):
            tag, n_bytes = number(at, 2), _FIELD_BYTES.get(number(at + 2, 2), 0)
            value_at = at + tag_size - offset_size
            if number(at + 4, offset_size) * n_bytes > offset_size:  # several values, elsewhere
                value_at = number(value_at, offset_size)
            values[tag] = number(value_at, n_bytes)
        bits = max(8, values.get(_BITS, 8)) * max(1, values.get(_SAMPLES, 1))
        yield values.get(_WIDTH, 0) * values.get(_HEIGHT, 0) * bits // 8
        place = number(link, offset_size)


def _jpeg_sizes(head: bytes) -> list[tuple[int, int]]:
    frames = re.finditer(rb"\xff[\xc0-\xc3\xc5-\xc7\xc9-\xcb\xcd-\xcf]...(....)", head, re.DOTALL)
    sizes = [struct.unpack(">HH", frame[1]) for frame in frames]
    return [(int(height), int(width)) for height, width in sizes]
