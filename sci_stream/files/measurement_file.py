"""Read coded snapshots with their masks, and the truth if there is one, from files of any common format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from sci_stream.errors import FileFormatError, InputError
from sci_stream.file_guard import reading, require_regular
from sci_stream.files.calibration_import import IMAGES, read_array
from sci_stream.files.matlab import read_mat
from sci_stream.files.numpy_file import read_npy, read_npz
from sci_stream.model import Array
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.calibration_file import CALIBRATION_FORMAT, load_calibration
from sci_stream.recording.hdf5 import open_for_reading, read_dataset
from sci_stream.recording.layout import RECORDING_FORMAT
from sci_stream.recording.series import RecordedSeries

MEASUREMENT_NAMES = ("meas", "measurement", "y")
MASK_NAMES = ("mask", "masks", "phi")
TRUTH_NAMES = ("orig", "truth", "gt", "x")
_KNOWN = (*MEASUREMENT_NAMES, *MASK_NAMES, *TRUTH_NAMES)


@dataclass(frozen=True, slots=True, eq=False)
class Measurements:
    """The content of measurement files, as `sci_stream.reconstruct` takes it.

    Parameters
    ----------
    y
        (N, H, W), snapshots: an array or, of a recording, frames that are read when indexed.
    masks
        (B, H, W) on the scale of the file, or a calibration.
    truth
        The true frames, None if unknown: an array of N·B frames (…, H, W).
    """

    y: Sequence[Array] | Array
    masks: Array | Calibration
    truth: Array | None = None


def load_measurement(
    path: str | Path, masks: str | Path | None = None, truth: str | Path | None = None
) -> Measurements:
    """Read coded snapshots and their masks.

    ``.mat`` (version 5 to 7.3), ``.npz`` and HDF5 files may hold everything, under the names ``meas``, ``measurement``
    or ``y``; ``mask``, ``masks`` or ``phi``; ``orig``, ``truth``, ``gt`` or ``x``. ``.npy``, TIFF, other images and
    folders of images hold one of them. A recording brings its calibration.

    Parameters
    ----------
    path
        The snapshots.
    masks
        The masks, if they are in another file; also a calibration or a recording.
    truth
        The true frames, if they are in another file.

    Returns
    -------
    Frames come first. Arrays with their frames last, as MATLAB and some programs write them, are turned where their
    shapes show it.

    Raises
    ------
    FileFormatError
        If a file cannot be read or holds something else.
    InputError
        If no masks are given and ``path`` has none.

    Examples
    --------
    >>> data = sci_stream.load_measurement("kobe_cacti.mat")                            # doctest: +SKIP
    >>> result = sci_stream.reconstruct(data.y, data.masks, truth=data.truth)           # doctest: +SKIP
    """
    path = Path(path)
    _require_exists(path)
    found_masks = None if masks is None else _read_masks(Path(masks))
    found_truth = None if truth is None else _read_named(Path(truth), TRUTH_NAMES, "true frames")
    if _format_of(path) == RECORDING_FORMAT:
        return _recorded(path, found_masks, found_truth)
    if path.suffix.lower() == ".mat" and masks is None:
        published = read_published(path)
        y, found_masks = published.meas, published.mask
        found_truth = published.orig if found_truth is None else found_truth
    else:
        arrays = _read_all(path)
        y = _named(arrays, path, MEASUREMENT_NAMES, "snapshots")
        if found_masks is None:
            found_masks = _optional(arrays, MASK_NAMES) if len(arrays) > 1 or "" not in arrays else None
        if found_truth is None and "" not in arrays:
            found_truth = _optional(arrays, TRUTH_NAMES)
    if found_masks is None:
        raise InputError(
            f"{path} holds no masks",
            expected=f"an array named {', '.join(MASK_NAMES)} in it, or a file with masks",
            hint="Name the file with the masks: --mask FILE.",
        )
    y, found_masks, found_truth = _frames_first(y, found_masks, found_truth)
    return Measurements(y[np.newaxis] if y.ndim == 2 else y, found_masks, found_truth)


def _recorded(path: Path, masks: Array | Calibration | None, truth: Array | None) -> Measurements:
    series = RecordedSeries(path)  # open as long as its frames are used
    if not len(series.raw):
        series.close()
        raise FileFormatError(
            f"The recording {path} holds no raw snapshots", hint="It was recorded without raw counts; see its video."
        )
    return Measurements(series.raw, series.calibration if masks is None else masks, truth)


def _require_exists(path: Path) -> None:
    if not path.exists():
        raise FileFormatError(f"{path} was not found", expected="a file or a folder of images", got="nothing")


def _format_of(path: Path) -> str | None:
    """Return the format mark of an HDF5 file of this package."""
    if not (path.is_file() and h5py.is_hdf5(path)):
        return None
    try:
        with open_for_reading(path, "measurement") as file:
            mark = file.attrs.get("format")
    except (OSError, ValueError, RuntimeError, KeyError):
        return None
    return mark.decode() if isinstance(mark, bytes) else mark if isinstance(mark, str) else None


def _read_masks(path: Path) -> Array | Calibration:
    _require_exists(path)
    mark = _format_of(path)
    if mark == CALIBRATION_FORMAT:
        return load_calibration(path)
    if mark == RECORDING_FORMAT:
        with RecordedSeries(path) as series:
            return series.calibration
    return _read_named(path, MASK_NAMES, "masks")


def _read_named(path: Path, names: Sequence[str], what: str) -> Array:
    _require_exists(path)
    return _named(_read_all(path), path, names, what)


def _named(arrays: dict[str, Array], path: Path, names: Sequence[str], what: str) -> Array:
    if "" in arrays:
        return arrays[""]
    array = _optional(arrays, names)
    if array is None and len(arrays) == 1:
        array = next(iter(arrays.values()))
    if array is None:
        raise FileFormatError(
            f"{path} holds no {what}",
            expected=f"an array named {' or '.join(names)}, or a single array",
            got=", ".join(sorted(arrays)) or "no array",
        )
    return array


def _optional(arrays: dict[str, Array], names: Sequence[str]) -> Array | None:
    return next((arrays[name] for name in names if name in arrays), None)


def _read_all(path: Path) -> dict[str, Array]:
    """Return the arrays of a file by name; ``""`` for the only array of a format without names."""
    suffix = path.suffix.lower()
    if path.is_dir() or suffix in IMAGES:
        return {"": read_array(path, "")}
    size = require_regular(path, "a measurement")
    if suffix == ".npy":
        return {"": read_npy(path)}
    if suffix == ".npz":
        return read_npz(path)
    if h5py.is_hdf5(path):
        return _read_hdf5(path, matlab=suffix == ".mat")
    if suffix == ".mat":
        return read_mat(path, _KNOWN)
    raise FileFormatError(
        f"{path} cannot be read",
        expected=".mat (version 5 to 7.3), .npy, .npz, HDF5, TIFF, a folder of images, or a recording",
        got="another format" if size else "an empty file",
    )


def _read_hdf5(path: Path, *, matlab: bool) -> dict[str, Array]:
    """Return the arrays of at least two dimensions in an HDF5 file by the last part of their names."""
    arrays: dict[str, Array] = {}

    def visit(name: str, node: object) -> None:
        known = name.rsplit("/", 1)[-1]
        wanted = isinstance(node, h5py.Dataset) and node.ndim >= 2 and node.dtype.kind in "buif"
        if wanted and (known in _KNOWN or len(arrays) < len(_KNOWN)):
            # MATLAB stores arrays column-major: HDF5 shows their axes reversed.
            array = read_dataset(node)
            arrays.setdefault(known, array.T if matlab else array)

    with open_for_reading(path, "measurement") as file, reading(path, "a measurement"):
        file.visititems(visit)
    return arrays


def _frames_first(
    y: Array, masks: Array | Calibration, truth: Array | None
) -> tuple[Array, Array | Calibration, Array | None]:
    """Move the last axis to the front where only this makes the sizes of y and the masks equal."""
    size = masks.shape if isinstance(masks, Calibration) else None
    if isinstance(masks, np.ndarray) and masks.ndim == 3:
        choices = [(a, b) for a in (False, True) for b in ((False, True) if y.ndim == 3 else (False,))]
        for move_masks, move_y in choices:
            m, n = (np.moveaxis(a, -1, 0) if move else a for a, move in ((masks, move_masks), (y, move_y)))
            if m.shape[1:] == n.shape[-2:]:
                masks, y, size = m, n, m.shape[1:]
                break
    elif size is not None and y.ndim == 3 and y.shape[1:] != size and y.shape[:2] == size:
        y = np.moveaxis(y, -1, 0)
    if truth is not None and truth.ndim == 3 and truth.shape[1:] != size and truth.shape[:2] == size:
        truth = np.moveaxis(truth, -1, 0)
    return y, masks, truth


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
    arrays = {key: _from_matlab(path, key, array) for key, array in read_mat(path, ("meas", "mask", "orig")).items()}
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


def _from_matlab(path: Path, key: str, array: Array) -> Array:
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
