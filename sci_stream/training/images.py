"""Decode a folder of photographs once, in bounded memory."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from sci_stream.errors import ConfigError, FileFormatError
from sci_stream.file_guard import reading
from sci_stream.storage.media_guard import require_image

_LOG = logging.getLogger(__name__)
_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"})

Image = npt.NDArray[np.uint8]
"""(H, W, 3), red, green, blue, 0–255."""
Plane = npt.NDArray[np.float32]
"""(H, W), one channel, 0–1."""

_LUMINANCE = np.array([0.299, 0.587, 0.114], dtype=np.float32) / np.float32(255)


@dataclass(frozen=True, slots=True, eq=False)
class ImageSet:
    """Decoded photographs, and files that were not used.

    Parameters
    ----------
    images, names
        (H, W, 3) uint8 in red, green, blue, and their file names; sorted by name.
    unreadable, too_small
        Skipped files.
    cropped
        Number of images cropped to their share of the memory.
    """

    images: tuple[Image, ...]
    names: tuple[str, ...]
    unreadable: tuple[str, ...] = ()
    too_small: tuple[str, ...] = ()
    cropped: int = 0

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits that identify the set, from names, sizes and pixels."""
        digest = hashlib.blake2b(digest_size=8)
        for name, image in zip(self.names, self.images, strict=True):
            digest.update(f"{name} {image.shape}".encode())
            digest.update(np.ascontiguousarray(image[::16, ::16]).tobytes())  # a sample identifies the image
        return digest.hexdigest()

    def split(self, held_out: int) -> tuple[ImageSet, ImageSet]:
        """Return training and validation set; the ``held_out`` images of the latter are evenly spread over the names.

        Raises
        ------
        ConfigError
            If no image is left to train on.
        """
        training, validation = split_indices(len(self.images), held_out, "images")
        return self._of(training), self._of(validation)

    def _of(self, indices: Sequence[int]) -> ImageSet:
        return ImageSet(tuple(self.images[k] for k in indices), tuple(self.names[k] for k in indices))


def split_indices(n: int, held_out: int, what: str) -> tuple[list[int], list[int]]:
    """Return the indices to train on and the ``held_out`` ones to validate on, which are evenly spread.

    Raises
    ------
    ConfigError
        If one of the two would be empty; ``what`` names the things, in the plural.
    """
    if not 1 <= held_out < n:
        raise ConfigError(
            f"There are too few {what} for training and validation",
            expected=f"at least {max(1, held_out) + 1}, of which {held_out} are held out",
            got=n,
            hint=f"Add {what} to the folder, or hold out fewer.",
        )
    chosen = {(2 * k + 1) * n // (2 * held_out) for k in range(held_out)}
    return [k for k in range(n) if k not in chosen], sorted(chosen)


def luminance(image: Image) -> Plane:
    """Return 0.299 R + 0.587 G + 0.114 B on the 0–1 scale, (H, W, 3) → (H, W) (ITU-R BT.601, as grey images are)."""
    return np.asarray(image @ _LUMINANCE, dtype=np.float32)


def load_images(folder: Path, *, least_px: int = 1, memory_bytes: int | None = None) -> ImageSet:
    """Decode all photographs of a folder and its sub-folders.

    Parameters
    ----------
    folder
        Folder with PNG, JPEG, WebP, BMP and TIFF files.
    least_px
        Images with fewer rows or columns are skipped.
    memory_bytes
        Memory limit for all images, None for no limit. An image larger than its share of the remaining memory is
        cropped to its centre; small images leave more to those after them.

    Raises
    ------
    ConfigError
        If the folder is missing, or no image in it is usable.
    """
    if not folder.is_dir():
        raise ConfigError(f"The folder of images {folder} does not exist", expected="a folder of photographs")
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())
    images: list[Image] = []
    names: list[str] = []
    unreadable: list[str] = []
    too_small: list[str] = []
    cropped, left = 0, memory_bytes
    for number, path in enumerate(paths):
        name = path.relative_to(folder).as_posix()
        try:
            image = read_image(path)
        except FileFormatError as error:
            _LOG.warning("Skipping a photograph: %s", error)
            unreadable.append(name)
            continue
        if min(image.shape[:2]) < least_px:
            _LOG.warning("Skipping %s: %d×%d pixels, fewer than %d", path, *image.shape[:2], least_px)
            too_small.append(name)
        else:
            if left is not None:
                kept = _cut(image, left // (len(paths) - number), least_px)
                cropped += kept is not image
                left, image = max(0, left - kept.nbytes), kept
            images.append(image)
            names.append(name)
    if not images:
        raise ConfigError(
            f"The folder {folder} contains no usable image",
            expected=f"photographs of at least {least_px}×{least_px} pixels: {', '.join(sorted(_SUFFIXES))}",
            got=f"{len(paths)} files, {len(unreadable)} unreadable, {len(too_small)} too small",
        )
    return ImageSet(tuple(images), tuple(names), tuple(unreadable), tuple(too_small), cropped)


def read_image(path: Path) -> Image:
    """Decode an image to (H, W, 3) in red, green, blue.

    Raises
    ------
    FileFormatError
        If it is damaged, no image, or too large.
    """
    require_image(path)
    with reading(path, "an image"):
        decoded = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    if decoded is None:
        raise FileFormatError(f"{path} cannot be read as an image", expected="an undamaged image")
    return np.ascontiguousarray(decoded[..., ::-1], dtype=np.uint8)


def _cut(image: Image, share_bytes: int, least_px: int) -> Image:
    """Crop an image to its centre, of the same proportions, to about ``share_bytes``; keep it if it fits."""
    if image.nbytes <= share_bytes:
        return image
    scale = (share_bytes / image.nbytes) ** 0.5
    height, width = (min(n, max(least_px, int(n * scale))) for n in image.shape[:2])
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return image[top : top + height, left : left + width].copy()
