"""Demosaicing: a fast method and a better one; `sci-stream bench colour` measures both.

The better one interpolates colour differences instead of colours: these vary less from pixel to
pixel than brightness does.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import cast

import cv2
import numpy as np
import numpy.typing as npt

from sci_stream.model import F32, F64, BayerPhase, Flags
from sci_stream.optics.bayer import colour_sites

U16 = npt.NDArray[np.uint16]

_FULL = 65535


class Demosaic(enum.StrEnum):
    """Method that interpolates the two missing colours of a pixel."""

    BILINEAR = "bilinear"
    """OpenCV's mean of the neighbours: fastest, with coloured fringes at edges."""
    DIRECTIONAL = "directional"
    """Menon, Andriani and Calvagno, IEEE TIP 2007: horizontal or vertical, whichever gives the
    smoother colour."""


# Menon, Andriani and Calvagno: green along a line (their eq. 1), and the neighbourhood of their
# classifier (fig. 3).
_GREEN_ALONG = np.array([[-0.25, 0.5, 0.5, 0.5, -0.25]])
_NEARBY = np.array([[1, 0, 1], [0, 1, 0], [3, 0, 3], [0, 1, 0], [1, 0, 1]], float)
_HALVES = np.array([[0.5, 0.0, 0.5]])


def demosaic(mosaic: U16, bayer: BayerPhase, method: Demosaic = Demosaic.BILINEAR) -> U16:
    """Demosaic mosaics.

    ``mosaic`` is (B, H, W) uint16 in linear light, H and W even, and not modified.

    Returns
    -------
    (B, H, W, 3) uint16 RGB, a new array.
    """
    if method is Demosaic.BILINEAR:
        code = getattr(cv2, f"COLOR_Bayer{bayer}2RGB")
        return cast(U16, np.stack([cv2.cvtColor(frame, code) for frame in mosaic]))
    # Frame by frame: float intermediates of a whole video would take ten times its memory.
    out = np.empty((*mosaic.shape, 3), np.uint16)
    for frame, rgb in zip(mosaic, out, strict=True):
        colours = _directional(frame.astype(np.float32), bayer)
        np.clip(colours, 0, _FULL, out=colours)
        rgb[...] = np.rint(colours, out=colours)
    return out


def demosaic_values(mosaic: npt.NDArray[np.floating], bayer: BayerPhase) -> F32:
    """Return (B, H, W) mosaics as RGB, (B, H, W, 3), of any range, by `Demosaic.DIRECTIONAL`."""
    rgb = np.empty((*mosaic.shape, 3), np.float32)
    for frame, pixels in zip(rgb, mosaic, strict=True):
        frame[:] = _directional(np.asarray(pixels, np.float32), bayer)
    return rgb


def _filtered(image: F32, kernel: F64) -> F32:
    # Reflection about the edge pixel continues the pattern of colours beyond the border.
    return cast(F32, cv2.filter2D(image, -1, kernel, borderType=cv2.BORDER_REFLECT_101))


def _directional(mosaic: F32, bayer: BayerPhase) -> F32:
    sites = [site for _, site in colour_sites(bayer)]
    place = bayer.index("R")
    # In reading order, blue is opposite to red, and the greens are beside and below or above it.
    at_red = sites[place]
    at_blue = sites[3 - place]
    green_by_red = sites[place ^ 1]
    green_by_blue = sites[place ^ 2]
    green, horizontal = _directional_green(mosaic, (at_red, at_blue))
    rgb = np.stack([mosaic, green, mosaic], axis=-1)
    red = rgb[..., 0]
    blue = rgb[..., 2]
    # Colour differences are smooth: red and blue at green pixels from their neighbours in the row
    # or the column.
    difference = mosaic - green
    along = _filtered(difference, _HALVES)
    down = _filtered(difference, _HALVES.T)
    for colour, beside, above in (
        (red, green_by_red, green_by_blue),
        (blue, green_by_blue, green_by_red),
    ):
        colour[beside] = green[beside] + along[beside]
        colour[above] = green[above] + down[above]
    # Red at blue pixels and blue at red ones, along the direction chosen there.
    apart = red - blue
    along = _filtered(apart, _HALVES)
    down = _filtered(apart, _HALVES.T)
    chroma = np.where(horizontal, along, down)
    red[at_blue] = blue[at_blue] + chroma[at_blue]
    blue[at_red] = red[at_red] - chroma[at_red]
    return rgb


def _directional_green(mosaic: F32, others: Sequence[tuple[slice, slice]]) -> tuple[F32, Flags]:
    """Return green everywhere, and whether it was interpolated along the row rather than the
    column.

    ``others`` are the pixels of red and of blue.
    """
    rows = _filtered(mosaic, _GREEN_ALONG)
    columns = _filtered(mosaic, _GREEN_ALONG.T)
    differences = []
    for green in (rows, columns):
        difference = np.zeros_like(mosaic)
        for sites in others:
            difference[sites] = mosaic[sites] - green[sites]
        differences.append(difference)
    by_row, by_column = differences
    # Change of the colour difference from one pixel of a colour to the next, stored between the
    # two.
    rough_row = np.zeros_like(mosaic)
    rough_column = np.zeros_like(mosaic)
    rough_row[:, 1:-1] = np.abs(by_row[:, 2:] - by_row[:, :-2])
    rough_column[1:-1] = np.abs(by_column[2:] - by_column[:-2])
    horizontal = _filtered(rough_row, _NEARBY) <= _filtered(rough_column, _NEARBY.T)
    green = mosaic.copy()
    for sites in others:
        green[sites] = np.where(horizontal[sites], rows[sites], columns[sites])
    return green, horizontal
