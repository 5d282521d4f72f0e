"""The plane of an image that moves, and the frames that show it; see `moving_image`.

A camera of grey frames shows an image u at p − d_b. A pixel of a mosaic shows one colour of it. The
image of a mosaic is then one of green on the whole grid, and the differences of red and blue from
it, which are smooth, on every other row and column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from sci_stream.model import F32, BayerPhase
from sci_stream.optics.bayer import colour_sites

# The constants were chosen with those of `moving_image`, on the same data.

# Taps of the windowed sinc that moves an image by parts of a pixel.
TAPS = 8
# Largest correction of a displacement by one linear step, px.
MAX_STEP_PX = 0.4
# Weights of the squared slopes of the image, and of a difference of colours: they fill places that
# no open mask shows.
_SMOOTHNESS = 0.05
_SMOOTHNESS_COLOUR = 0.5

_TINY = 1e-12
_ALL = (slice(None), slice(None))

Displacements = npt.NDArray[np.floating[Any]]


class CodedImage(NamedTuple):
    """A snapshot: ``y`` (h, w); ``phi`` (B, h, w); ``weights`` (h, w), 1 where y counts, else 0."""

    y: F32
    phi: F32
    weights: F32


class _Part(NamedTuple):
    """A part of the image: its place in the array, the pixels of a frame that show it, and how many
    pixels of a frame are between two of its own.
    """

    where: tuple[slice, slice]
    shown_at: tuple[slice, slice]
    step: int
    smoothness: float
    middle: float
    """Add it for values from 0 to 1."""


class Canvas:
    """The plane of the image, around that of the frames, and where each frame lies on it.

    The image is one array. That of a mosaic has green at the left, and at the right the differences
    of red, above, and of blue.

    Parameters
    ----------
    displacements
        (B, 2), d_b in px, rows and columns.
    shape
        (h, w) of a frame, even for a mosaic.
    rounds
        Number of times that `move` may be called.
    bayer
        Of a mosaic, else None.
    """

    def __init__(
        self,
        displacements: Displacements,
        shape: Sequence[int],
        rounds: int,
        bayer: BayerPhase | None = None,
    ) -> None:
        self.displacements = displacements
        self._shape = tuple(shape)
        margin = TAPS // 2 if bayer is None else TAPS + 2
        reach = np.abs(displacements).max(0) + rounds * MAX_STEP_PX
        self._border = np.ceil(reach).astype(int) + margin
        height, width = (np.array(shape) + 2 * self._border).tolist()
        whole = (slice(0, height), slice(0, width))
        self.parts = [_Part(whole, _ALL, 1, _SMOOTHNESS, 0.0)]
        """The parts of the image, the brightness first."""
        self._size = (height, width)
        if bayer is not None:
            sites = {colour: site for colour, site in colour_sites(bayer) if colour != "G"}
            right = slice(width, width + width // 2)
            above = slice(0, height // 2)
            below = slice(height // 2, height)
            for rows, colour in ((above, "R"), (below, "B")):
                shown_at = sites[colour]
                self.parts.append(_Part((rows, right), shown_at, 2, _SMOOTHNESS_COLOUR, 0.5))
            self._size = (height, right.stop)
        self.move(np.zeros_like(displacements))

    def move(self, steps: Displacements) -> None:
        """Change the displacements by these steps, (B, 2); their mean stays 0."""
        displacements = self.displacements + np.clip(steps, -MAX_STEP_PX, MAX_STEP_PX)
        self.displacements = displacements - displacements.mean(0)
        origins = self._border - self.displacements
        self._views = []
        for part in self.parts:
            first = [cut.start or 0 for cut in part.shown_at]
            shape = [length // part.step for length in self._shape]
            self._views.append(_Views((origins + first) / part.step, shape))

    def even(self, snapshot: CodedImage) -> F32:
        """Return an image without contrast and colour, as bright as the scene in the mean."""
        light = float((snapshot.weights * snapshot.y).sum())
        transmission = float((snapshot.weights * snapshot.phi).sum())
        image = np.zeros(self._size, np.float32)
        image[self.parts[0].where] = light / max(transmission, _TINY)
        return image

    def frames(self, image: F32) -> F32:
        """Return the frames (B, h, w) that show an image."""
        return self._shown([image[part.where] for part in self.parts])

    def slopes(self, image: F32) -> tuple[F32, F32]:
        """Return the slopes of the frames that show an image, down and to the right, (B, h, w)."""
        down, right = zip(
            *(np.gradient(image[part.where] / part.step) for part in self.parts), strict=True
        )
        return self._shown(down), self._shown(right)

    def _shown(self, images: Sequence[F32]) -> F32:
        frames = self._views[0].frames(images[0])
        for part, views, image in zip(self.parts[1:], self._views[1:], images[1:], strict=True):
            frames[:, *part.shown_at] += views.frames(image)
        return frames

    def transposed(self, frames: F32) -> F32:
        """Return the image that the transpose of `frames` makes of frames."""
        image = np.zeros(self._size, np.float32)
        for part, views in zip(self.parts, self._views, strict=True):
            views.add_transposed(frames[:, *part.shown_at], image[part.where])
        return image

    def roughness(self, image: F32) -> F32:
        """Return the gradient of the squared slopes of an image, times their weight."""
        result = np.zeros_like(image)
        for part in self.parts:
            rough = result[part.where]
            for image_t, result_t in ((image[part.where], rough), (image[part.where].T, rough.T)):
                slope = part.smoothness * np.diff(image_t, axis=0)
                result_t[1:] += slope
                result_t[:-1] -= slope
        return result


class _Views:
    """Views of an image from places between its pixels.

    Parameters
    ----------
    origins
        (B, 2), the place in the image of the first pixel of each view, rows and columns.
    shape
        (h, w) of a view.
    """

    def __init__(self, origins: Displacements, shape: Sequence[int]) -> None:
        self._height, self._width = shape
        corners = np.floor(origins).astype(int)
        fractions = origins - corners
        corners -= TAPS // 2 - 1
        more = TAPS - 1
        self._windows = [
            np.s_[top : top + self._height + more, left : left + self._width + more]
            for top, left in corners.tolist()
        ]
        self._kernels = [(_kernel(down), _kernel(right)) for down, right in fractions.tolist()]

    def frames(self, image: F32) -> F32:
        """Return the views of an image, (B, h, w)."""
        frames = np.empty((len(self._windows), self._height, self._width), np.float32)
        for frame, window, (down, right) in zip(frames, self._windows, self._kernels, strict=True):
            moved = cv2.sepFilter2D(image[window], -1, right, down, anchor=(0, 0))
            frame[...] = moved[: self._height, : self._width]
        return frames

    def add_transposed(self, frames: F32, image: F32) -> None:
        """Add the transpose of `frames`, of views (B, h, w), to an image."""
        more = TAPS - 1
        border = cv2.BORDER_CONSTANT
        padded = np.zeros((self._height + more, self._width + more), np.float32)
        for frame, window, (down, right) in zip(frames, self._windows, self._kernels, strict=True):
            padded[: self._height, : self._width] = frame
            image[window] += cv2.sepFilter2D(
                padded, -1, right[::-1], down[::-1], anchor=(more, more), borderType=border
            )


def _kernel(fraction: float) -> F32:
    """Return the windowed sinc that samples between pixels, 0 ≤ ``fraction`` < 1."""
    taps = np.arange(TAPS) - (TAPS // 2 - 1) - fraction
    kernel = np.sinc(taps) * np.sinc(taps / (TAPS // 2))
    return np.asarray(kernel / kernel.sum(), np.float32)
