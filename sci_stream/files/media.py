"""Read images and videos with OpenCV."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import cv2
import numpy as np

from sci_stream.errors import FileFormatError, require_optional
from sci_stream.file_guard import reading, require_memory, require_ratio, require_regular
from sci_stream.model import U8, Array

TIFF = (".tif", ".tiff")
# A sign follows the start or a separator: the hyphen of "mask-1" is none.
_SIGN = r"(?:(?<![^\W_])[-+−])?"
_INTEGERS = re.compile(rf"({_SIGN}\d+)")
_DECIMALS = re.compile(rf"({_SIGN}\d+(?:[.,]\d+)?)")
# Containers with their data inside. Playlists and other scripts, which FFmpeg recognises by their
# content whatever their name, make it open other files and addresses.
_VIDEO = re.compile(
    rb"....(ftyp|moov|mdat|free|wide|skip)|\x1aE\xdf\xa3|RIFF....AVI "
    rb"|\x00\x00\x01[\xba\xb3]|FLV\x01|OggS|GIF8"
    rb"|YUV4MPEG2 |\x47.{187}\x47|\x30\x26\xb2\x75",
    re.DOTALL,
)


# Makers' formats of high-speed cameras, and the programs that convert them.
_PHOTRON = "Save it as 16-bit TIFF in Photron FASTCAM Viewer, or as .npy with pyMRAW."
_CONVERTERS = {
    ".cine": "Save it as 16-bit TIFF in Phantom Camera Control or CineViewer.",
    ".mraw": _PHOTRON,
    ".cih": _PHOTRON,
    ".cihx": _PHOTRON,
}


def refuse_makers_format(path: Path) -> None:
    """Raise a `FileFormatError` that names the converter for a format of high-speed cameras."""
    suffix = path.suffix.lower()
    if suffix in _CONVERTERS:
        raise FileFormatError(
            f"{path} cannot be read",
            expected="frames in an open format",
            got=f"a {suffix} file of a high-speed camera",
            hint=_CONVERTERS[suffix],
        )


def require_video(path: Path) -> None:
    """Raise a `FileFormatError` unless a file is a video container with its data inside."""
    refuse_makers_format(path)
    require_regular(path, "a video")
    with reading(path, "a video"), path.open("rb") as file:
        head = file.read(256)
    if _VIDEO.match(head) is None:
        raise FileFormatError(
            f"{path} cannot be read as a video",
            expected="MP4, MOV, Matroska, AVI, MPEG, Ogg, FLV, GIF or Y4M",
        )


def video_frames(path: Path) -> Iterator[U8]:
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


def read_pages(path: Path, note: Callable[[str], object] = lambda _: None) -> list[Array]:
    """Decode all pages of a TIFF, or the only image of another format, as they are stored.

    Samples of a pixel that are no colours are pages. ``note`` takes a sentence on what was done.

    Raises `FileFormatError` if a page cannot be decoded, or the pages declare more than they can
    hold.
    """
    if path.suffix.lower() not in TIFF:
        return [read_image(path, cv2.IMREAD_UNCHANGED)]
    require_regular(path, "an image")
    content = path.read_bytes()
    pages = _tiff_pages(content)
    if pages and not all(page.suits_opencv for page in pages):
        return _unusual_pages(path, pages, len(content), note)
    first = read_image(path, cv2.IMREAD_UNCHANGED)
    count = None if pages is None else len(pages)
    require_memory(first.nbytes * (count or 1), path)
    require_ratio(first.nbytes * (count or 1), len(content), path)
    with reading(path, "an image"):
        _, images = cv2.imreadmulti(str(path), flags=cv2.IMREAD_UNCHANGED)
    # OpenCV returns the pages before the damage without an error.
    if len(images) != count:
        raise FileFormatError(
            f"{path} is damaged",
            expected="a complete TIFF",
            got=f"{len(images)} readable pages before the damage",
        )
    return [np.asarray(image) for image in images]


@dataclass(frozen=True)
class _TiffPage:
    """Tags of a page that say how its values are stored."""

    width: int = 1
    height: int = 1
    bits: int = 1
    photometric: int = 1
    orientation: int = 1
    samples: int = 1
    sample_format: int = 1

    @property
    def is_inverted(self) -> bool:
        """Whether 0 is white, in whole numbers."""
        return self.photometric == 0 and self.sample_format == 1

    @property
    def suits_opencv(self) -> bool:
        """Whether OpenCV decodes it, and returns the values that are stored."""
        return (
            self.orientation == 1
            and self.samples in (1, 3, 4)
            and not (self.is_inverted and self.bits > 8)
            and not (self.sample_format == 3 and self.bits < 32)
        )


def _unusual_pages(
    path: Path, pages: Sequence[_TiffPage], size: int, note: Callable[[str], object]
) -> list[Array]:
    """Decode pages that OpenCV refuses or changes."""
    n_bytes = sum(page.width * page.height * page.samples * page.bits // 8 for page in pages)
    require_memory(n_bytes, path)
    require_ratio(n_bytes, size, path)
    tifffile = require_optional("tifffile", "export", f"A TIFF such as {path.name}")
    with reading(path, "an image"), tifffile.TiffFile(path) as file:
        images = [np.asarray(page.asarray()) for page in file.pages]
    if any(page.orientation != 1 for page in pages):
        note(f"{path.name} is read as it is stored: its tag of the orientation is ignored")
    frames: list[Array] = []
    for page, image in zip(pages, images, strict=True):
        if page.is_inverted:
            image = (1 << page.bits) - 1 - image  # noqa: PLW2901
        if image.ndim == 3 and page.samples not in (3, 4):
            samples_last = image.shape[-1] == page.samples
            frames += [*(np.moveaxis(image, -1, 0) if samples_last else image)]
        else:
            frames.append(image)
    return frames


def in_natural_order(files: Iterable[Path]) -> list[Path]:
    """Sort files by the numbers in their names: 2.png before 10.png, -1 before +0, 0.75 before 1.0.

    A number has decimals unless the steps are more regular without: run1.9 precedes run1.10.
    """
    return _sorted(list(files))[0]


def gaps_between(files: Sequence[Path]) -> list[str]:
    """Return a sentence for each place where the numbers in the names of files leave some out."""
    files, steps = _sorted(files)
    if not steps or steps.count(min(steps)) < len(steps) / 2:
        return []
    usual = min(steps)
    return [
        f"{before.name} is followed by {after.name}: images between them may be missing"
        for (before, after), step in zip(pairwise(files), steps, strict=True)
        if step > 1.5 * usual
    ]


def _sorted(files: Sequence[Path]) -> tuple[list[Path], list[float]]:
    """Return the files in order, and the steps of the first number that changes: none if it does
    not count them.
    """
    ways = []
    for numbers in (_DECIMALS, _INTEGERS):
        ordered = sorted(files, key=lambda file: (_parts(file, numbers), file.name))
        ways.append((ordered, _steps([_parts(file, numbers) for file in ordered])))
    return min(ways, key=lambda way: len(set(way[1])) or len(files))


def _parts(file: Path, numbers: re.Pattern[str]) -> list[tuple[float, str]]:
    """Return texts and numbers of a name in turn: numbers precede texts."""
    texts = numbers.split(file.stem)
    return [
        (math.inf, text) if index % 2 == 0 else (_value(text), "")
        for index, text in enumerate(texts)
    ]


def _value(text: str) -> float:
    return float(text.replace(",", ".").replace("−", "-"))


def _steps(names: Sequence[list[tuple[float, str]]]) -> list[float]:
    for column in zip(*names, strict=False):
        if len(set(column)) > 1:
            values = [number for number, text in column]
            steps = [round(after - before, 9) for before, after in pairwise(values)]
            return steps if math.isfinite(values[0]) and min(steps) > 0 else []
    return []


# Of each tag, the field of `_TiffPage`. The first value of a tag with several counts.
_TAGS = {
    256: "width",
    257: "height",
    258: "bits",
    262: "photometric",
    274: "orientation",
    277: "samples",
    339: "sample_format",
}
_TAG_BYTES = {3: 2, 4: 4, 16: 8}


def _tiff_pages(content: bytes) -> list[_TiffPage] | None:
    """Return the directories of a TIFF or BigTIFF; None if their chain is broken or a loop."""
    order: Literal["little", "big"] = "little" if content[:2] == b"II" else "big"
    # Sizes of an offset, of the number of tags in a directory, and of a tag.
    offset_size, count_size, tag_size = (
        (8, 8, 20) if content[2:4] in (b"+\0", b"\0+") else (4, 2, 12)
    )

    def number(at: int, size: int) -> int:
        return int.from_bytes(content[at : at + size], order)

    def value(at: int) -> int:
        size = _TAG_BYTES.get(number(at + 2, 2), 0)
        place = at + 4 + offset_size
        if number(at + 4, offset_size) * size > offset_size:
            place = number(place, offset_size)
        return number(place, size)

    seen = set[int]()
    pages = []
    place = number(8 if offset_size == 8 else 4, offset_size)
    while place:
        first = place + count_size
        link = first + tag_size * number(place, count_size)
        if link + offset_size > len(content) or place in seen:
            return None
        seen.add(place)
        tags = {number(at, 2): at for at in range(first, link, tag_size)}
        known = {_TAGS[code]: value(at) for code, at in tags.items() if code in _TAGS}
        pages.append(_TiffPage(**known))
        place = number(link, offset_size)
    return pages
