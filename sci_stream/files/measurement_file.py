"""Read coded snapshots with their masks, and the truth if there is one, from files of any common
format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import h5py
import numpy as np

from sci_stream.calibration.evidence import MATCH, mask_fit, present_masks
from sci_stream.errors import InputError
from sci_stream.files.arrays import (
    MASKS,
    MEASUREMENT,
    TRUTH,
    VARIABLES,
    choose,
    find,
    read_all,
    read_one,
)
from sci_stream.model import Array
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.calibration_file import CALIBRATION_FORMAT, load_calibration
from sci_stream.recording.hdf5 import open_for_reading
from sci_stream.recording.layout import RECORDING_FORMAT
from sci_stream.recording.series import RecordedSeries

_ROLES = {"y": MEASUREMENT, "masks": MASKS, "truth": TRUTH}


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
        The true frames, None if unknown: an array of n·B frames (…, H, W) of the first n snapshots,
        or of all.
    assumed
        Properties that the files do not state and their shapes or contents showed, a sentence each.
    is_mosaic
        Whether a name says that the arrays are mosaics of a colour sensor, and no calibration names
        its colours.
    """

    y: Sequence[Array] | Array
    masks: Array | Calibration
    truth: Array | None = None
    assumed: tuple[str, ...] = ()
    is_mosaic: bool = False


def load_measurement(
    path: str | Path,
    masks: str | Path | None = None,
    truth: str | Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Measurements:
    """Read coded snapshots and their masks.

    ``.mat`` (version 5 to 7.3), ``.npz`` and HDF5 files may hold everything, under names such as
    ``meas``, ``measurement`` or ``y``; ``mask``, ``masks`` or ``phi``; ``orig``, ``truth``, ``gt``
    or ``x``, alone or as a word of a longer name. ``.npy``, TIFF, other images and folders of
    images hold one of them. A recording brings its calibration.

    Parameters
    ----------
    path
        The snapshots.
    masks
        The masks, if they are in another file; also a calibration or a recording.
    truth
        The true frames, if they are in another file.
    variables
        Names of the arrays, if the files have others: of ``y``, ``masks``, ``truth``.

    Returns
    -------
    Frames come first. Arrays with their frames last, or transposed, are turned where only this
    makes the sizes equal, or, of several such ways, as y shows. Of more masks than frames, the
    first ones are used.

    Raises
    ------
    FileFormatError
        If a file cannot be read or holds something else.
    InputError
        If no masks are given and ``path`` has none, or the sizes of the arrays cannot be made
        equal.

    Examples
    --------
    >>> data = sci_stream.load_measurement("kobe_cacti.mat")  # doctest: +SKIP
    >>> result = sci_stream.reconstruct(data.y, data.masks, truth=data.truth)  # doctest: +SKIP
    """
    path, names = Path(path), {**dict.fromkeys(_ROLES, ""), **(variables or {})}
    if unknown := names.keys() - _ROLES.keys():
        raise InputError(
            "Unknown variable", expected="y=NAME, masks=NAME or truth=NAME", got=", ".join(unknown)
        )
    other_masks = None if masks is None else _read_masks(Path(masks), names["masks"])
    other_truth = (
        None if truth is None else read_one(Path(truth), TRUTH, "true frames", names["truth"])
    )
    if _format_of(path) == RECORDING_FORMAT:
        return _recorded(path, other_masks, other_truth)
    arrays = read_all(path)
    chosen = {"y": choose(arrays, path, MEASUREMENT, "snapshots", names["y"])}
    for role in ("masks", "truth"):
        rest = {name: array for name, array in arrays.items() if name not in chosen.values()}
        if names[role] or find(rest, _ROLES[role]):
            chosen[role] = choose(rest, path, _ROLES[role], role, names[role])
    content = {role: arrays[name] for role, name in chosen.items()}
    found_masks = content.get("masks") if other_masks is None else other_masks
    if found_masks is None:
        raise InputError(
            f"{path} holds no masks",
            expected=f"an array named {', '.join(MASKS)} in it, or a file with masks",
            got=", ".join(f"{name} as {role}" for role, name in chosen.items() if name),
            hint=f"Name the file with the masks: --mask FILE; or the array. {VARIABLES}",
        )
    found_truth = content.get("truth") if other_truth is None else other_truth
    mosaic = not isinstance(found_masks, Calibration) and any(
        "bayer" in name.lower() for name in chosen.values()
    )
    return _arranged(path, content["y"], found_masks, found_truth, is_mosaic=mosaic)


def _arranged(
    path: Path, y: Array, masks: Array | Calibration, truth: Array | None, *, is_mosaic: bool
) -> Measurements:
    """Turn the axes, and take as many masks as there are frames."""
    assumed: list[str] = []
    if isinstance(masks, Calibration):
        size, used = masks.shape, range(masks.n_frames)
        y = _turned(y, size, f"snapshots of {path}", assumed)
    else:
        sizes = () if truth is None else (truth.shape[-2:], truth.shape[:2])
        y, masks = _paired(path, y, masks[np.newaxis] if masks.ndim == 2 else masks, sizes, assumed)
        size, used = masks.shape[1:], _used(y if y.ndim == 2 else y[0], masks)
    y = y[np.newaxis] if y.ndim == 2 else y
    if truth is not None:
        truth = (
            _turned(truth, size, f"true frames of {path}", assumed) if truth.ndim <= 3 else truth
        )
        frames = truth.size // (size[0] * size[1])
        if frames % len(used):
            if isinstance(masks, Calibration) or frames % len(y) or frames >= len(masks) * len(y):
                raise InputError(
                    f"The true frames of {path} do not fit",
                    expected=f"{len(used)} for each of {len(y)} snapshots, or of the first ones",
                    got=f"{frames} frames of shape {truth.shape}",
                )
            used = range(frames // len(y))
    if not isinstance(masks, Calibration) and len(used) < len(masks):
        which = f"{used[0]} to {used[-1]}" if used[0] else f"the first {len(used)}"
        assumed.append(f"{which} of {len(masks)} masks belong to a snapshot")
        masks = masks[used[0] : used[-1] + 1]
    return Measurements(y, masks, truth, tuple(assumed), is_mosaic)


def _paired(
    path: Path, y: Array, masks: Array, sizes: Sequence[tuple[int, ...]], assumed: list[str]
) -> tuple[Array, Array]:
    """Return y and the masks in the orientation of both in which their sizes agree, or of several
    in one that fits.

    One of these sizes is preferred, then the orientation that y has.
    """
    ways = [
        (note_y, note_masks, turned_y, turned_masks)
        for (note_y, turned_y), (note_masks, turned_masks) in product(
            _orientations(y), _orientations(masks)
        )
        if turned_masks.ndim == 3
        and turned_y.ndim in (2, 3)
        and turned_y.shape[-2:] == turned_masks.shape[1:]
    ]
    if not ways:
        raise InputError(
            f"The snapshots and masks of {path} differ in size",
            expected="snapshots (H, W) or (N, H, W), and masks (B, H, W)",
            got=f"{y.shape} and {masks.shape}",
        )
    ways.sort(key=lambda way: way[2].shape[-2:] not in sizes)
    best = ways[0]
    if len(ways) > 1 and masks.min() >= 0 and masks.max() > 0:
        fits = [abs(mask_fit(way[2] if way[2].ndim == 2 else way[2][0], way[3])) for way in ways]
        sure = MATCH + 4 / np.sqrt(best[2].shape[-1] * best[2].shape[-2])
        best = ways[int(np.argmax(fits))] if fits[0] < MATCH and max(fits) > sure else best
    for what, note in zip(("snapshots", "masks"), best[:2], strict=True):
        assumed += [f"the {what} of {path.name} {note}"] if note else []
    return best[2], best[3]


def _orientations(array: Array) -> Iterator[tuple[str, Array]]:
    """Yield an array as it is, with its frames moved from the end to the front, and with its
    pictures transposed.
    """
    yield "", array
    if array.ndim == 3:
        yield "have their frames last", np.moveaxis(array, -1, 0)
        yield "have their frames last and are transposed", array.T
    yield "are transposed", array.swapaxes(-1, -2)


def _turned(array: Array, size: tuple[int, ...], what: str, assumed: list[str]) -> Array:
    """Return an array in the first orientation in which its pictures have a size, else as it is."""
    for note, turned in _orientations(array):
        if turned.shape[-2:] == tuple(size):
            assumed += [f"{what} {note}"] if note else []
            return turned
    return array


def _used(y: Array, masks: Array) -> range:
    """Return which of the masks have a part in y; all, unless y shows it."""
    every = range(len(masks))
    if masks.min() < 0 or not masks.max() > 0 or mask_fit(y, masks) < MATCH:
        return every
    return every[slice(*present_masks(y, masks))]


def _recorded(path: Path, masks: Array | Calibration | None, truth: Array | None) -> Measurements:
    series = RecordedSeries(path)  # open as long as its frames are used
    return Measurements(series.require_raw(), series.calibration if masks is None else masks, truth)


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


def _read_masks(path: Path, variable: str) -> Array | Calibration:
    mark = _format_of(path)
    if mark == CALIBRATION_FORMAT:
        return load_calibration(path)
    if mark == RECORDING_FORMAT:
        with RecordedSeries(path) as series:
            return series.calibration
    return read_one(path, MASKS, "masks", variable)
