"""Estimate how far each pixel of a video is from the scene, from the snapshot, the masks and the
video alone.
"""

from __future__ import annotations

import cv2
import numpy as np

from sci_stream.errors import InputError
from sci_stream.model import F32, Array, Reconstruction
from sci_stream.optics.bayer import blocks_size
from sci_stream.optics.calibration import Calibration

# Tuned on Traffic and two films behind random binary masks, with noise of 2 and 20 DN of 12 bits:
# docs/algorithm.md has the shares of errors within the estimate, there and on other scenes.
_OF_RESIDUAL = 0.40
_OF_GRADIENT = 0.117


def error_estimate(reconstruction: Reconstruction, calibration: Calibration) -> F32:
    """Estimate the error of blocks of 4 × 4 pixels of the video, (B, h, w), 0–1; of a mosaic, a
    mosaic.

    The residual of the measurement shows errors of the frames where masks differ, as does the error
    map of a solve's start; the gradient of the video, where a prior fills in edges. Most errors are
    smaller.

    Raises `InputError` if the coded snapshot did not come with the video.
    """
    if reconstruction.counts is None:
        raise InputError("The coded snapshot was not sent with the video")
    n_frames, height, width = reconstruction.video.shape
    size = blocks_size(height, width, reconstruction.bayer)
    y = calibration.measurement(reconstruction.counts)
    step = 1 if reconstruction.bayer is None else 2
    estimate = np.empty((n_frames, *size), np.float32)
    shape = size[0] // step, size[1] // step
    for row, column in np.ndindex(step, step):
        part = np.s_[..., row::step, column::step]
        video = reconstruction.video[part].astype(np.float32)
        phi = calibration.phi[part]
        contrast = (phi**2).sum(0) - phi.sum(0) ** 2 / len(phi)
        missed = _around((y[part] - (phi * video).sum(0)) ** 2, shape) / np.maximum(
            _around(contrast, shape), 1e-6
        )
        for estimated, frame in zip(estimate, video, strict=True):
            across = np.diff(frame, axis=1, prepend=frame[:, :1])
            along = np.diff(frame, axis=0, prepend=frame[:1])
            filled_in = (
                _around(across**2 + along**2, shape) / step**2
            )  # neighbours of a colour are two pixels apart
            estimated[part] = np.sqrt(_OF_RESIDUAL * missed + _OF_GRADIENT * filled_in)
    return estimate


def _around(image: Array, shape: tuple[int, int]) -> Array:
    # Means of 3 × 3 blocks: about the window of the start's error map.
    return cv2.blur(cv2.resize(image, shape[::-1], interpolation=cv2.INTER_AREA), (3, 3))
