"""Read images and videos with OpenCV."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

from sci_stream.errors import FileFormatError
from sci_stream.file_guard import reading, require_memory, require_ratio, require_regular
from sci_stream.model import Array

TIFF = (".tif", ".tiff")
# Containers with their data inside. Playlists and other scripts, which FFmpeg recognises by their
# content whatever their name, make it open other files and addresses.
_VIDEO = re.compile(
    rb"....(ftyp|moov|mdat|free|wide|skip)|\x1aE\xdf\xa3|RIFF....AVI "
    rb"|\x00\x00\x01[\xba\xb3]|FLV\x01|OggS|GIF8"
    rb"|YUV4MPEG2 |\x47.{187}\x47|\x30\x26\xb2\x75",
    re.DOTALL,
)


def require_video(path: Path) -> None:
    """Raise a `FileFormatError` unless a file is a video container with its data inside."""
    require_regular(path, "a video")
    with reading(path, "a video"), path.open("rb") as file:
        head = file.read(256)
    if _VIDEO.match(head) is None:
        raise FileFormatError(
            f"{path} cannot be read as a video",
            expected="MP4, MOV, Matroska, AVI, MPEG, Ogg, FLV, GIF or Y4M",
        )


def video_frames(path: Path) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the frames of a video, (H, W, 3) blue, green, red; none if OpenCV cannot decode it.

    Raises `FileFormatError` if it is no video container.
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


def read_image(path: Path, flags: int) -> Array:
    """Decode an image with OpenCV; ``flags`` as of `cv2.imread`.

    Raises `FileFormatError` if it cannot be decoded, or declares more pixels than `sci_stream` lets
    OpenCV allocate.
    """
    require_regular(path, "an image")
    with reading(path, "an image"):
        image = cv2.imread(str(path), flags)
    if image is None:
        raise FileFormatError(
            f"{path} cannot be read as an image", expected="an undamaged image of 1 to 4 channels"
        )
    return np.asarray(image)


def read_pages(path: Path) -> list[Array]:
    """Decode all pages of a TIFF, or the only image of another format.

    Raises `FileFormatError` if a page cannot be decoded, or the pages declare more than they can
    hold.
    """
    first = read_image(path, cv2.IMREAD_UNCHANGED)
    if path.suffix.lower() not in TIFF:
        return [first]
    content = path.read_bytes()
    count = _count_pages(content)
    require_memory(first.nbytes * (count or 1), path)
    require_ratio(first.nbytes * (count or 1), len(content), path)
    with reading(path, "an image"):
        _, pages = cv2.imreadmulti(str(path), flags=cv2.IMREAD_UNCHANGED)
    # OpenCV returns the pages before the damage without an error.
    if len(pages) != count:
        raise FileFormatError(
            f"{path} is damaged",
            expected="a complete TIFF",
            got=f"{len(pages)} readable pages before the damage",
        )
    return [np.asarray(page) for page in pages]


def in_natural_order(files: Iterable[Path]) -> list[Path]:
    """Sort files by their names, 2.png before 10.png."""

    def key(path: Path) -> list[tuple[int, str]]:
        return [
            (int(part), "") if part.isdigit() else (-1, part)
            for part in re.split(r"(\d+)", str(path))
        ]

    return sorted(files, key=key)


def _count_pages(content: bytes) -> int | None:
    """Return the number of directories in a TIFF or BigTIFF; None if their chain is broken or a
    loop.
    """
    order: Literal["little", "big"] = "little" if content[:2] == b"II" else "big"
    # Sizes of an offset, of the number of tags in a directory, and of a tag.
    offset_size, count_size, tag_size = (
        (8, 8, 20) if content[2:4] in (b"+\0", b"\0+") else (4, 2, 12)
    )

    def number(at: int, size: int) -> int:
        return int.from_bytes(content[at : at + size], order)

    seen = set[int]()
    place = number(8 if offset_size == 8 else 4, offset_size)
    while place:
        link = place + count_size + tag_size * number(place, count_size)
        if link + offset_size > len(content) or place in seen:
            return None
        seen.add(place)
        place = number(link, offset_size)
    return len(seen)
