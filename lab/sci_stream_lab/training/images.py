"""Photographs to learn from: decoding, and luminance."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from sci_stream.files.media import read_image
from sci_stream_lab.training.media import MediaKind, MediaSet, load_media

Image = npt.NDArray[np.uint8]
"""(H, W, 3), red, green, blue, 0–255."""
Plane = npt.NDArray[np.float32]
"""(H, W), one channel, 0–1."""

PHOTOGRAPHS = MediaKind(
    "photograph",
    frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"}),
    sample=(slice(None, None, 16), slice(None, None, 16)),
)

_LUMINANCE = np.array([0.299, 0.587, 0.114], dtype=np.float32) / np.float32(255)


def luminance(image: Image) -> Plane:
    """Return 0.299 R + 0.587 G + 0.114 B on the 0–1 scale, (H, W, 3) → (H, W) (ITU-R BT.601, as
    grey images are).
    """
    return np.asarray(image @ _LUMINANCE, dtype=np.float32)


def load_images(folder: Path, *, least_px: int = 1, memory_bytes: int | None = None) -> MediaSet:
    """Decode all photographs of a folder and its sub-folders; see
    `sci_stream_lab.training.media.load_media`.

    Images with fewer than ``least_px`` rows or columns are skipped. An image larger than its share
    of the memory is cropped to its centre.
    """

    def read(path: Path, share_bytes: int | None) -> Image:
        image = read_rgb(path)
        return image if share_bytes is None else _cut(image, share_bytes, least_px)

    return load_media(
        PHOTOGRAPHS, folder, read, least=(least_px, least_px), memory_bytes=memory_bytes
    )


def read_rgb(path: Path) -> Image:
    """Decode an image to (H, W, 3) in red, green, blue.

    Raises
    ------
    FileFormatError
        If it is damaged, no image, or too large.
    """
    return np.ascontiguousarray(read_image(path, cv2.IMREAD_COLOR)[..., ::-1], dtype=np.uint8)


def _cut(image: Image, share_bytes: int, least_px: int) -> Image:
    """Crop an image to its centre, of the same proportions, to about ``share_bytes``; keep it if it
    fits.
    """
    if image.nbytes <= share_bytes:
        return image
    scale = (share_bytes / image.nbytes) ** 0.5
    height, width = (min(n, max(least_px, int(n * scale))) for n in image.shape[:2])
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return image[top : top + height, left : left + width].copy()
