"""A picture of a calibration: its masks, a detail of each, and maps of the sensor."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import cv2
import numpy as np

from sci_stream.calibration.measurement import Measured
from sci_stream.errors import StorageError
from sci_stream.file_guard import writing
from sci_stream.model import F32, U8
from sci_stream.optics.calibration import Calibration

_MASKS_SHOWN = 16
_COLUMNS = 8
# Single mask elements are visible in a detail of this size; in a whole mask they are smaller than a
# dot of the picture.
_DETAIL_PX = 24
_TILE_PX = 192
_LABEL_PX = 18
_GAP_PX = 6


def write_report(path: Path, calibration: Calibration, measured: Measured | None = None) -> None:
    """Write the picture, in the format of the suffix.

    It has up to 16 masks, black 0 and white 1, the centre of each below it, and below these Σφ²,
    the white field (or the dark frame, if the field was not measured), both from their 0.5 to their
    99.5 percentile, and the bad pixels.

    Raises `StorageError` if the format is not supported or the file cannot be written.
    """
    masks = calibration.phi[:_MASKS_SHOWN]
    top, left = ((side - min(side, _DETAIL_PX)) // 2 for side in calibration.shape)
    rows = []
    for first in range(0, len(masks), _COLUMNS):
        shown = masks[first : first + _COLUMNS]
        rows.append([_tile(f"mask {first + b}", mask) for b, mask in enumerate(shown)])
        rows.append(
            [
                _tile("centre", mask[top : top + _DETAIL_PX, left : left + _DETAIL_PX])
                for mask in shown
            ]
        )
    bad = ~calibration.good
    field = (
        ("dark frame", calibration.dark) if measured is None else ("white field", measured.white)
    )
    # A single bad pixel of a large sensor would vanish.
    spot = np.ones((max(1, max(bad.shape) // _TILE_PX),) * 2, np.uint8)
    marked = np.asarray(cv2.dilate(bad.astype(np.float32), spot), np.float32)
    maps = [("sum of squares", calibration.gram_diag), field]
    rows.append(
        [
            *(_tile(name, _stretched(image)) for name, image in maps),
            _tile(f"bad {int(bad.sum())}", marked),
        ]
    )
    width = max(map(len, rows))
    blank = np.full_like(rows[0][0], 255)
    picture = np.vstack([np.hstack([*row, *[blank] * (width - len(row))]) for row in rows])
    try:
        done, encoded = cv2.imencode(path.suffix, picture)
    except cv2.error:
        raise StorageError(
            f"Unknown format of the report {path}", expected="such as .png or .tif"
        ) from None
    if not done:
        raise StorageError(f"The report {path} cannot be encoded")
    with writing(path):
        path.write_bytes(encoded.tobytes())


def _stretched(image: F32) -> F32:
    low, high = np.percentile(image, (0.5, 99.5))
    return cast(F32, (image - low) / max(high - low, 1e-6))


def _tile(label: str, image: F32) -> U8:
    """Return an image, 0–1, in a square with its label above it."""
    height, width = (max(1, round(side * _TILE_PX / max(image.shape))) for side in image.shape)
    way = cv2.INTER_AREA if height < image.shape[0] else cv2.INTER_NEAREST
    scaled = cv2.resize(image.astype(np.float32), (width, height), interpolation=way)
    tile = np.full((_LABEL_PX + _TILE_PX + _GAP_PX, _TILE_PX + _GAP_PX), 255, np.uint8)
    tile[_LABEL_PX : _LABEL_PX + height, :width] = np.clip(scaled * 255, 0, 255)
    cv2.putText(tile, label, (2, _LABEL_PX - 5), cv2.FONT_HERSHEY_SIMPLEX, 0.45, 0, 1, cv2.LINE_AA)
    return tile
