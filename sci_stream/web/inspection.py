"""Values and statistics of a region of a snapshot, at the sensor's resolution and without tone."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from sci_stream.errors import InputError
from sci_stream.imaging.demosaic import demosaic
from sci_stream.imaging.estimated_error import error_estimate
from sci_stream.imaging.rendering import encode_jpeg, encode_png, render, render_counts
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import Array, BayerPhase, Json, JsonObject, Reconstruction
from sci_stream.optics.bayer import split
from sci_stream.optics.calibration import Calibration

# As many as the page can show as numbers; whole pictures are downloaded as files.
_MAX_VALUES = 64 * 64
# Half precision, in which video is recorded, has no more than four significant digits.
_DIGITS = 5
_QUALITY = 90
# Pixels around a region that its colours depend on.
_MARGIN = 4
_LEVELS = 65535


@dataclass(frozen=True)
class Region:
    """A rectangle of the sensor: its first column and row, and its size, px."""

    x: int
    y: int
    width: int
    height: int

    def of(self, image: Array) -> Array:
        """Return the region of an image. Raises `InputError` if none of it lies in the image."""
        x = max(self.x, 0)
        y = max(self.y, 0)
        part = image[..., y : max(self.y + self.height, 0), x : max(self.x + self.width, 0)]
        if part.size == 0:
            height, width = image.shape[-2:]
            raise InputError(
                "The region is outside the picture",
                expected=f"within {width}×{height}",
                got=f"{self}",
            )
        return part


@dataclass(frozen=True)
class Line:
    """A line on the sensor from its first to its last pixel, px."""

    x0: int
    y0: int
    x1: int
    y1: int

    def of(self, video: Array) -> Array:
        """Return the pixels nearest to the line, (B, L), with one for each step of the longer
        direction.

        Raises `InputError` if an end lies outside the picture.
        """
        height, width = video.shape[-2:]
        if not all(
            0 <= x < width and 0 <= y < height for x, y in ((self.x0, self.y0), (self.x1, self.y1))
        ):
            raise InputError(
                "The line ends outside the picture",
                expected=f"within {width}×{height}",
                got=f"{self}",
            )
        n = max(abs(self.x1 - self.x0), abs(self.y1 - self.y0)) + 1
        x = np.rint(np.linspace(self.x0, self.x1, n)).astype(np.intp)
        y = np.rint(np.linspace(self.y0, self.y1, n)).astype(np.intp)
        return video[..., y, x]


def traces(snapshots: Sequence[Reconstruction], line: Line | None, region: Region | None) -> bytes:
    """Return the video of some snapshots along a line, and the means of a region: all frames, one
    after the other.

    A little-endian uint32 with the length of a header, the header as JSON, then float32: for each
    snapshot its means (B), and its pixels along the line, if there is one, (B, L, C): C = 3 for a
    mosaic, of whose 2×2 pixels each has red, green and blue.
    """
    parts: list[bytes] = []
    described = []
    n_colours = 1
    for snapshot in snapshots:
        video = snapshot.video.astype(np.float32)
        colours = video[None] if snapshot.bayer is None else _quads(video, snapshot.bayer)
        along = None if line is None else np.moveaxis(line.of(colours), 0, -1)
        n_colours = len(colours)
        means = (video if region is None else region.of(video)).mean((1, 2), dtype=np.float64)
        described.append(
            {
                "seq": snapshot.id.seq,
                "acquired_ns": snapshot.times.acquired_ns,
                "n_frames": len(video),
            }
        )
        parts += [
            means.astype("<f4").tobytes(),
            b"" if along is None else along.astype("<f4").tobytes(),
        ]
    n_points = 0 if line is None else max(abs(line.x1 - line.x0), abs(line.y1 - line.y0)) + 1
    header = json.dumps(
        {"n_points": n_points, "n_colours": n_colours, "snapshots": described}
    ).encode()
    padding = b" " * (-len(header) % 4)
    return b"".join((struct.pack("<I", len(header + padding)), header, padding, *parts))


def _quads(mosaic: Array, bayer: BayerPhase) -> Array:
    """Return red, green and blue of the 2×2 pixels around each pixel of a mosaic, (3, …, H, W)."""
    planes = split(mosaic)
    colours = np.stack([planes[[own == colour for own in bayer.value]].mean(0) for colour in "RGB"])
    return colours.repeat(2, axis=-2).repeat(2, axis=-1)


def describe_region(
    reconstruction: Reconstruction, frame: int, region: Region | None, bit_depth: int | None
) -> JsonObject:
    """Return the statistics of a region of a frame (``video``, 0–1) and of the coded snapshot
    (``counts``, DN).

    ``focus`` is a figure to maximise while focusing; see `focus_figure`. ``saturated`` is a
    fraction of the pixels.
    """
    video = reconstruction.video[_frame(reconstruction, frame)]
    counts = reconstruction.counts
    if region is not None:
        video = region.of(video)
        counts = None if counts is None else region.of(counts)
    description: JsonObject = {
        "video": _statistics(video),
        "focus": focus_figure(video, mosaic=reconstruction.bayer is not None),
        "counts": None if counts is None else _statistics(counts),
        "saturated": None,
    }
    if counts is not None and bit_depth is not None and counts.dtype.kind in "iu":
        description["saturated"] = float(np.mean(counts >= (1 << bit_depth) - 1))
    return description


def _statistics(values: Array) -> dict[str, float | None]:
    """Return the statistics of the finite values, all None if there are none."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if not finite.size:
        return dict.fromkeys(("mean", "std", "min", "max"))
    figures = {"mean": finite.mean(), "std": finite.std(), "min": finite.min(), "max": finite.max()}
    return {name: float(f"{value:.6g}") for name, value in figures.items()}


def focus_figure(image: Array, *, mosaic: bool) -> float | None:
    """Return the mean squared gradient (Tenengrad) over the squared mean: independent of exposure;
    None if too small.

    Krotkov, *Focusing*, IJCV 1988. Of a mosaic, only the first colour is used.
    """
    plane = np.nan_to_num((image[::2, ::2] if mosaic else image).astype(np.float32))
    mean = float(plane.mean()) if plane.size else 0.0
    if min(plane.shape) < 3 or mean <= 0:
        return None
    dx = cv2.Sobel(plane, cv2.CV_32F, 1, 0, scale=1 / 8)
    dy = cv2.Sobel(plane, cv2.CV_32F, 0, 1, scale=1 / 8)
    return float(f"{1e4 * float(np.mean(dx * dx + dy * dy)) / mean**2:.5g}")


def pixel_values(reconstruction: Reconstruction, frame: int, region: Region) -> JsonObject:
    """Return the values of a small region: ``video`` as rows of 0–1, ``counts`` as rows of DN or
    None.

    ``rgb`` is None for a monochrome camera, else the rows of red, of green and of blue, demosaiced.

    Raises `InputError` if the region is too large or outside the picture.
    """
    if region.width * region.height > _MAX_VALUES:
        raise InputError(
            "Too many pixel values",
            expected=f"at most {_MAX_VALUES}",
            got=region.width * region.height,
        )
    picture = reconstruction.video[_frame(reconstruction, frame)]
    video = region.of(picture).astype(np.float64)
    counts = None if reconstruction.counts is None else region.of(reconstruction.counts)
    return {
        "x": max(region.x, 0),
        "y": max(region.y, 0),
        "video": _rows(np.round(video, _DIGITS)),
        "rgb": None
        if reconstruction.bayer is None
        else _colours(picture, region, reconstruction.bayer),
        "counts": None if counts is None else _rows(counts),
    }


def _colours(mosaic: Array, region: Region, bayer: BayerPhase) -> list[Json]:
    """Return the rows of red, green and blue of a region, from its pixels and those around them."""
    x = max(region.x - _MARGIN, 0) // 2 * 2
    y = max(region.y - _MARGIN, 0) // 2 * 2
    bottom = (region.y + region.height + _MARGIN) // 2 * 2
    right = (region.x + region.width + _MARGIN) // 2 * 2
    around = mosaic[y:bottom, x:right]
    levels = np.rint(np.clip(np.nan_to_num(around.astype(np.float32)), 0, 1) * _LEVELS).astype(
        np.uint16
    )
    inside = Region(region.x - x, region.y - y, region.width, region.height)
    planes = np.moveaxis(demosaic(levels[None], bayer)[0], -1, 0)
    return [_rows(np.round(inside.of(plane) / _LEVELS, _DIGITS)) for plane in planes]


def _rows(values: Array) -> list[Json]:
    return [[value if math.isfinite(value) else None for value in row] for row in values.tolist()]


_LARGE_ERROR = 0.1


def error_png(reconstruction: Reconstruction, frame: int, calibration: Calibration) -> bytes:
    """Return the estimated error of a frame as PNG: white from a tenth of full scale on."""
    index = _frame(reconstruction, frame)
    estimate = error_estimate(reconstruction, calibration)[index : index + 1]
    of_pixels = (
        estimate if reconstruction.bayer is None else _quads(estimate, reconstruction.bayer).mean(0)
    )
    share = cv2.resize(of_pixels[0], reconstruction.video.shape[:0:-1]) / _LARGE_ERROR
    return encode_png((255 * np.clip(share, 0, 1)).astype(np.uint8))


def frame_png(reconstruction: Reconstruction, frame: int, tone: ToneSettings) -> bytes:
    """Return a frame as it is shown, at the sensor's resolution, as PNG."""
    index = _frame(reconstruction, frame)
    return encode_png(
        render(reconstruction.video[index : index + 1], reconstruction.bayer, tone)[0]
    )


def coded_jpeg(reconstruction: Reconstruction, tone: ToneSettings) -> bytes:
    """Return the coded snapshot at the sensor's resolution, as JPEG.

    Raises `InputError` if it was not sent with the video.
    """
    if reconstruction.counts is None:
        raise InputError("The coded snapshot was not sent with the video")
    return encode_jpeg(render_counts(reconstruction.counts, tone.gamma), _QUALITY)


def _frame(reconstruction: Reconstruction, frame: int) -> int:
    n = len(reconstruction.video)
    if not 0 <= frame < n:
        raise InputError("The snapshot has no such frame", expected=f"0 to {n - 1}", got=frame)
    return frame
