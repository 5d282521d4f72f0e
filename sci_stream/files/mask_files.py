"""Write the patterns of a modulator: NumPy, images, and the forms of makers' own software."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sci_stream.errors import ConfigError
from sci_stream.file_guard import complete_output
from sci_stream.imaging.rendering import encode_png
from sci_stream.model import Array

FORMS = ("npy", "png", "alp", "dlp")
_PER_IMAGE = 24


def write_masks(path: Path, masks: Array, form: str, *, replace: bool = False) -> None:
    """Write masks, (B, H, W) uint8 of 0 and 255.

    ``npy``: one array, as a rig reads it; ``png``: a folder of images, one for each mask; ``alp``:
    raw bytes, one a pixel, as EasyProj and ``AlpSeqPut`` take them; ``dlp``: a folder of 24-bit
    images of 24 masks each, as the GUI of DLPC900 takes them: green has masks 0 to 7, red 8 to 15,
    blue 16 to 23.

    Raises `ConfigError` if the form is unknown, `StorageError` as `complete_output`.
    """
    if form not in FORMS:
        raise ConfigError("Unknown form of masks", expected=", ".join(FORMS), got=repr(form))
    name = {"png": "mask", "dlp": "image"}.get(form)
    with complete_output(
        path, replace=replace, folder=rf"{name}-\d{{3,}}\.png" if name else ""
    ) as partial:
        if form == "npy":
            with partial.open("wb") as file:
                np.save(file, masks)
        elif form == "alp":
            partial.write_bytes(masks.tobytes())
        else:
            partial.mkdir()
            images = (
                list(masks)
                if form == "png"
                else [_packed(masks[at:]) for at in range(0, len(masks), _PER_IMAGE)]
            )
            for index, image in enumerate(images):
                (partial / f"{name}-{index:03}.png").write_bytes(encode_png(image))


PACKED_NAME = re.compile(r"image-\d{3,}\.png")
"""Names of the images of the form ``dlp``."""


def unpacked(images: Sequence[Array]) -> Array:
    """Return the masks of images of the form ``dlp``, (H, W, 3) blue, green, red, as (B, H, W).

    Unused masks at the end are dropped.
    """
    masks = [
        (image[..., channel] >> bit & 1) * np.uint8(255)
        for image in images
        for channel in (1, 2, 0)
        for bit in range(8)
    ]
    while len(masks) > 1 and not masks[-1].any():
        masks.pop()
    return np.stack(masks)


def _packed(masks: Array) -> Array:
    """Return the first 24 masks as one RGB image, (H, W, 3)."""
    image = np.zeros((*masks.shape[1:], 3), np.uint8)
    for bit, mask in enumerate(masks[:_PER_IMAGE]):
        image[..., (1, 0, 2)[bit // 8]] |= (mask > 0).astype(np.uint8) << bit % 8
    return image
