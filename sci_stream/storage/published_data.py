"""Read published measurements: MATLAB ``.mat`` files with ``meas``, ``mask`` and, for simulations, ``orig``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sci_stream.errors import FileFormatError
from sci_stream.model import Array
from sci_stream.storage.matlab import read_mat

_KEYS = ("meas", "mask", "orig")


@dataclass(frozen=True, eq=False)
class PublishedMeasurement:
    """The content of a published file, on the scales of the file.

    Parameters
    ----------
    meas
        (shots, H, W) measurements; simulated ones are Σ_b mask_b ⊙ orig_b.
    mask
        (B, H, W) masks, ≥ 0; binary, or grey on any scale if they were measured.
    orig
        (shots·B, H, W) true frames, usually 0–255; None for a real measurement.
    """

    meas: Array
    mask: Array
    orig: Array | None

    @property
    def n_frames(self) -> int:
        """B, the number of frames per snapshot."""
        return int(self.mask.shape[0])

    @property
    def shots(self) -> int:
        """Number of snapshots."""
        return int(self.meas.shape[0])


def read_published(path: Path) -> PublishedMeasurement:
    """Read a published ``.mat`` file of version 5 to 7.3.

    MATLAB stores arrays as (H, W, ·) and drops a last axis of 1, so that a single shot is (H, W). Version 7.3 files
    are HDF5, in which the axes are reversed.

    Returns
    -------
    Arrays with the frame axis first, with the dtypes of the file, owned by the caller.

    Raises
    ------
    FileFormatError
        If the file is missing, not a ``.mat`` file, lacks ``meas`` or ``mask``, or their shapes or values are invalid.
    """
    arrays = {key: _frames_first(path, key, array) for key, array in read_mat(path, _KEYS).items()}
    missing = [key for key in ("meas", "mask") if key not in arrays]
    if missing:
        raise FileFormatError(
            f"{path} is not a published SCI measurement: it has no {' and no '.join(missing)}",
            expected="variables meas (H, W, shots), mask (H, W, B) and optionally orig (H, W, frames)",
            got=", ".join(sorted(arrays)) or "none of them",
        )
    for key, array in arrays.items():
        _check_values(path, key, array)
    measurement = PublishedMeasurement(arrays["meas"], arrays["mask"], arrays.get("orig"))
    _check_shapes(path, measurement)
    return measurement


def _frames_first(path: Path, key: str, array: Array) -> Array:
    """Reorder (H, W) or (H, W, n) to (n, H, W), contiguous."""
    if array.ndim == 2:
        array = array[:, :, np.newaxis]
    if array.ndim != 3 or 0 in array.shape:
        raise FileFormatError(
            f"The variable {key} of {path} has an invalid shape",
            expected="(H, W) or (H, W, n), none of them 0",
            got=array.shape,
        )
    return np.ascontiguousarray(np.moveaxis(array, -1, 0))


def _check_values(path: Path, key: str, array: Array) -> None:
    """Refuse complex, non-finite and non-numeric values, and negative masks."""
    numeric = np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)
    if not (numeric or array.dtype == np.bool_):
        raise FileFormatError(
            f"The variable {key} of {path} does not hold numbers", expected="real numbers", got=array.dtype
        )
    if not np.isfinite(array).all():
        raise FileFormatError(f"The variable {key} of {path} contains NaN or infinity")
    if key == "mask" and not 0 <= array.min() <= array.max() > 0:
        raise FileFormatError(
            f"The mask of {path} is not a transmission",
            expected="values ≥ 0, not all of them 0",
            got=f"{array.min():.4g} to {array.max():.4g}",
        )


def _check_shapes(path: Path, m: PublishedMeasurement) -> None:
    if m.meas.shape[1:] != m.mask.shape[1:]:
        raise FileFormatError(
            f"meas and mask of {path} differ in size",
            expected=f"meas of {_size(m.mask)} pixels as the mask",
            got=_size(m.meas),
        )
    if m.orig is not None and m.orig.shape != (m.shots * m.n_frames, *m.meas.shape[1:]):
        raise FileFormatError(
            f"orig of {path} does not fit its meas and mask",
            expected=f"{m.shots} shots × {m.n_frames} masks = {m.shots * m.n_frames} frames of {_size(m.meas)}",
            got=f"{len(m.orig)} frames of {_size(m.orig)}",
        )


def _size(array: npt.NDArray[np.generic]) -> str:
    return f"{array.shape[1]}×{array.shape[2]}"
