"""Import masks from arrays and image stacks of other programs as a calibration."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sci_stream.errors import CalibrationError
from sci_stream.file_guard import unicode_name
from sci_stream.files.arrays import MASKS, read_one
from sci_stream.model import F32, Array, BayerPhase
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.white import transmission

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImportOptions:
    """Properties of a stack of masks that the file does not contain.

    Parameters
    ----------
    variable
        Name of the array, if the file has several and none is called mask, masks or phi.
    axis
        Axis of a three-dimensional array, as stored, that counts the masks; None for the shortest.
    reverse
        Reverse the order: the last mask is shown first.
    dark, white
        Files with frames to subtract and to divide by; without white, masks are divided by their
        maximum.
    full_scale_dn
        DN of one frame of brightness 1 through an open mask; None: a white scene just fills the
        range.
    black_level_dn
        Black level of the snapshots to be reconstructed; None for the median of ``dark``, else 0.
    bit_depth, read_noise_dn, gain_e_per_dn, bayer, camera_serial
        As in `Calibration`; the sensor saturates at the top of the bit depth.
    """

    variable: str = ""
    axis: int | None = None
    reverse: bool = False
    dark: Path | None = None
    white: Path | None = None
    full_scale_dn: float | None = None
    black_level_dn: float | None = None
    bit_depth: int | None = None
    read_noise_dn: float | None = None
    gain_e_per_dn: float | None = None
    bayer: BayerPhase | None = None
    camera_serial: str = ""


def import_masks(
    path: Path, options: ImportOptions, note: Callable[[str], object] = _log.info
) -> Calibration:
    """Make a calibration from masks that were measured or published elsewhere.

    The file is a ``.mat`` of version 5 to 7.3, ``.npy``, a multi-page TIFF, or a folder of images,
    one for each mask, in the order of their names (2 before 10). ``note`` as of `read_one`.

    Raises `FileFormatError` if the file cannot be read; `CalibrationError` or `InputError` if the
    content is not a stack of masks, or the options do not fit it.
    """
    as_stored = options.axis is not None
    stored = read_one(path, MASKS, "masks", options.variable, as_stored=as_stored, note=note)
    masks = _frames_first(path, stored, options.axis).astype(np.float32)
    if not np.isfinite(masks).all():
        raise CalibrationError(f"The masks of {path} contain NaN or infinity")
    shape = masks.shape[1:]
    dark = _frame(options.dark, shape)
    white = _frame(options.white, shape)
    light = masks - (0.0 if dark is None else dark)
    if white is not None:
        reference = white - (0.0 if dark is None else dark)
        phi = light / np.maximum(reference, max(1e-6, 1e-3 * float(np.percentile(reference, 99))))
    else:
        _, phi = transmission(light if dark is None else light.clip(0))
    phi = np.clip(phi[::-1] if options.reverse else phi, 0.0, 1.0)
    saturation_dn = None if options.bit_depth is None else float((1 << options.bit_depth) - 1)
    black: F32 = np.zeros((), np.float32) if dark is None else dark
    if options.black_level_dn is not None:
        black = np.asarray(options.black_level_dn, np.float32)
    full_scale_dn = options.full_scale_dn
    if full_scale_dn is None:
        top = 255.0 if saturation_dn is None else saturation_dn - float(np.median(black))
        full_scale_dn = top / max(1e-6, float(phi.sum(0).max()))
    return Calibration(
        phi=phi,
        dark=black,
        full_scale_dn=full_scale_dn,
        saturation_dn=saturation_dn,
        read_noise_dn=options.read_noise_dn,
        gain_e_per_dn=options.gain_e_per_dn,
        bit_depth=options.bit_depth,
        bayer=options.bayer,
        camera_serial=options.camera_serial,
        source=f"imported from {unicode_name(path)}" + (", reversed" if options.reverse else ""),
    )


def _frames_first(path: Path, array: Array, axis: int | None) -> Array:
    if array.ndim != 3 or 0 in array.shape or array.dtype.kind not in "buif":
        raise CalibrationError(
            f"{path} contains no stack of masks",
            expected="a numeric array of three dimensions: height, width, and the masks",
            got=f"shape {array.shape}, dtype {array.dtype}",
        )
    return np.moveaxis(array, int(np.argmin(array.shape)) if axis is None else axis, 0)


def _frame(path: Path | None, shape: tuple[int, ...]) -> F32 | None:
    """Read a single frame: an array, or the mean of the pages of an image or the images of a
    folder.
    """
    if path is None:
        return None
    array = read_one(path, ("frame", "dark", "white"), "frame")
    means = (array.mean(axis) for axis in range(3)) if array.ndim == 3 else iter((array,))
    frame = next((mean for mean in means if mean.shape == shape), array)
    if frame.shape != shape:
        raise CalibrationError(
            f"The frame {path} does not fit the masks", expected=f"{shape} pixels", got=frame.shape
        )
    return frame.astype(np.float32)
