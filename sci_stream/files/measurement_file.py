"""Read coded snapshots with their masks, and the truth if there is one, from files of any common
format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np

from sci_stream.calibration.evidence.mask_match import MATCH, mask_fit, present_masks
from sci_stream.errors import InputError
from sci_stream.files.array_choice import choose_pair, paired, turned
from sci_stream.files.arrays import (
    MASKS,
    ROLES,
    TRUTH,
    Candidate,
    Contents,
    is_weak,
    read_contents,
    size_of,
)
from sci_stream.files.colour_truth import colour_views
from sci_stream.model import Array
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.white import fit_white, white_level
from sci_stream.recording.calibration_file import CALIBRATION_FORMAT, load_calibration
from sci_stream.recording.hdf5 import open_for_reading
from sci_stream.recording.layout import RECORDING_FORMAT
from sci_stream.recording.series import RecordedSeries

# True frames of simulations explain y to rounding; flipped ones, grey and other masks only to
# within 20, 54 and 70 %.
_MAX_MISFIT = 0.1


@dataclass(frozen=True, eq=False)
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
    path = Path(path)
    names = {**dict.fromkeys(ROLES, ""), **(variables or {})}
    if unknown := names.keys() - ROLES.keys():
        raise InputError(
            "Unknown variable", expected="y=NAME, masks=NAME or truth=NAME", got=", ".join(unknown)
        )
    mask_file = None if masks is None else _read_masks(Path(masks))
    truth_file = None if truth is None else read_contents(Path(truth), lossy=True)
    if _format_of(path) == RECORDING_FORMAT:
        return _recorded(path, mask_file, truth_file, names)
    file = read_contents(path)
    assumed: list[str] = []
    for contents in (file, mask_file, truth_file):
        if isinstance(contents, Contents):
            assumed += contents.all_notes
    of_y, of_masks = choose_pair(file, mask_file or file, names, assumed)
    truths = _true_candidates(file, truth_file, names["truth"])
    if truth_file is None:
        truths = [one for one in truths if one.name not in (of_y.name, of_masks.name)]
    if isinstance(mask_file, Calibration):
        y = turned(of_y.load(), mask_file.shape, f"snapshots of {path.name}", assumed)
        found_masks: Array | Calibration = mask_file
    else:
        sizes = [size for one in truths for size in (one.shape[-2:], one.shape[:2])]
        pair = paired(of_y.load(), of_masks.load(), sizes)
        assumed += pair.words(f" of {path.name}")
        y = pair.y
        found_masks = pair.masks
    scene = _Scene(path, y[np.newaxis] if y.ndim == 2 else y, found_masks)
    is_required = truth_file is not None or bool(names["truth"])
    true = scene.best_truth(truths, assumed, is_required=is_required)
    used = scene.used if true is None else true.used
    if isinstance(found_masks, np.ndarray) and len(used) < len(found_masks):
        which = f"{used[0]} to {used[-1]}" if used[0] else f"the first {len(used)}"
        assumed.append(f"{which} of {len(found_masks)} masks belong to a snapshot")
        found_masks = found_masks[used[0] : used[-1] + 1]
    if look_like_colours(scene.y):
        assumed.append(COLOURS)
    chosen = (of_y.name, of_masks.name, "" if true is None else true.name)
    is_mosaic = isinstance(found_masks, np.ndarray) and "bayer" in " ".join(chosen).lower()
    frames = None if true is None else true.frames
    return Measurements(scene.y, found_masks, frames, tuple(assumed), is_mosaic)


COLOURS = (
    "the three snapshots differ in brightness alone, and were taken as moments: are they red, "
    "green and blue? Then solve each by itself: reconstruct(y[0], …), or sci-stream solve "
    "--channels"
)
# Moments of a scene that moves correlate less; moments of one that does not have equal means.
_MIN_CORRELATION = 0.9
_MIN_RATIO = 1.05


def look_like_colours(y: Array) -> bool:
    """Return whether snapshots (N, H, W) may be three colours of one moment."""
    if len(y) != 3:
        return False
    values = y.reshape(3, -1).astype(np.float64)
    means = values.mean(1)
    if means.min() <= 0 or not values.std(1).all():
        return False
    alike = bool(np.corrcoef(values).min() > _MIN_CORRELATION)
    return alike and means.max() / means.min() > _MIN_RATIO


def _true_candidates(file: Contents, truth_file: Contents | None, variable: str) -> list[Candidate]:
    """Return the arrays that may be the true frames. Raises `FileFormatError` if some are required
    and there are none.
    """
    contents = truth_file or file
    truths = [one for one in contents.candidates_for(TRUTH, variable) if one.is_named]
    if truth_file is not None and not truths:
        raise truth_file.lacks("true frames", TRUTH)
    return truths


@dataclass(frozen=True, eq=False)
class _TrueFrames:
    """True frames that fit, the masks that belong to a snapshot, and what was turned."""

    name: str
    frames: Array
    used: range
    notes: tuple[str, ...]


class _Scene:
    """Snapshots (N, H, W) with their masks, and the masks that have a part in them."""

    def __init__(self, path: Path, y: Array, masks: Array | Calibration) -> None:
        self.y = y
        self._path = path
        self._calibration = masks if isinstance(masks, Calibration) else None
        self._phi: Array = masks.phi if isinstance(masks, Calibration) else masks
        self.used = range(len(self._phi))
        """Numbers of the masks that belong to a snapshot."""
        self._is_sure = self._calibration is not None
        if self._calibration is None:
            self.used, self._is_sure = _used(y[0], self._phi)

    def best_truth(
        self, candidates: Sequence[Candidate], notes: list[str], *, is_required: bool
    ) -> _TrueFrames | None:
        """Return the frames that explain y best. ``notes`` name the choice and those that do not
        fit.

        Raises `InputError` if none fits and some are required.
        """
        fitting = []
        for candidate in candidates:
            try:
                true = self._as_seen(candidate.name, candidate.load())
                if not is_required and is_weak(candidate.name):
                    self._require_explanation(true)
                fitting.append(true)
            except InputError as error:
                notes.append(f"{candidate.name} is left out: {error}")
        if not fitting:
            if is_required:
                raise InputError(f"No true frames fit {self._path}", got="; ".join(notes))
            return None
        best = min(fitting, key=self._misfit) if len(fitting) > 1 else fitting[0]
        if len(candidates) > 1:
            notes.append(f"truth = {best.name} (of {', '.join(one.name for one in candidates)})")
        notes += best.notes
        return best

    def _as_seen(self, name: str, frames: Array) -> _TrueFrames:
        """Return the frames of an array; of frames in colour, the view that explains y best.

        Raises `InputError` if they do not fit.
        """
        used = len(self.used)
        views = [
            replace(self._true_frames(name, view), notes=(f"{name} is in colour: taken as {how}",))
            for how, view in colour_views(frames, used, self._phi.shape[1:])
            if len(view) <= used * len(self.y)
        ]
        if not views:
            return self._true_frames(name, frames)
        return min(views, key=self._misfit)

    def _true_frames(self, name: str, frames: Array) -> _TrueFrames:
        """Return the frames of an array. Raises `InputError` if they do not fit."""
        notes: list[str] = []
        size = self._phi.shape[1:]
        if frames.ndim <= 3:
            what = f"true frames of {self._path.name}"
            frames = turned(frames, size, what, notes)
        count = frames.size // (size[0] * size[1])
        used = self.used
        n_snapshots = len(self.y)
        is_whole = count > 0 and count % n_snapshots == 0
        if not self._is_sure and is_whole and count < len(self._phi) * n_snapshots:
            used = range(count // n_snapshots)
        if (
            frames.shape[-2:] != size
            or count % len(used)
            or count > n_snapshots * len(used)
            or (frames.ndim > 3 and frames.shape[-3] != len(used))
        ):
            raise InputError(
                f"The true frames of {self._path} do not fit",
                expected=f"{len(used)} of {size_of(size)} pixels for each of {n_snapshots} "
                "snapshots, or of the first ones",
                got=f"an array of {size_of(frames.shape)}",
            )
        if not np.isfinite(frames).all():
            raise InputError(f"The true frames of {self._path} have NaN or infinite values")
        white_level(frames)
        return _TrueFrames(name, frames, used, tuple(notes))

    def _require_explanation(self, true: _TrueFrames) -> None:
        """Raise `InputError` if frames explain y in neither order."""
        series = true.frames.reshape(-1, len(true.used), *self._phi.shape[1:])
        backwards = replace(true, frames=series[:, ::-1])
        misfit = min(self._misfit(true), self._misfit(backwards))
        if misfit > _MAX_MISFIT:
            raise InputError(f"It explains the snapshots only to within {misfit:.0%}")

    def _misfit(self, true: _TrueFrames) -> float:
        """Return how badly true frames explain y, rounded: equal ones are as good as each other."""
        phi = self._phi[true.used[0] : true.used[-1] + 1]
        series = true.frames.reshape(-1, *phi.shape)
        y = self.y[: len(series)]
        if self._calibration is not None:
            y = y - self._calibration.dark
        with np.errstate(all="ignore"):  # infinite values
            _, misfit = fit_white(y, phi, series)
        return round(misfit, 2)


def _used(y: Array, masks: Array) -> tuple[range, bool]:
    """Return which of the masks have a part in y, all unless y shows it, and whether y does."""
    every = range(len(masks))
    if masks.min() < 0 or not masks.max() > 0 or mask_fit(y, masks) < MATCH:
        return every, False
    return every[slice(*present_masks(y, masks))], True


def _recorded(
    path: Path,
    masks: Contents | Calibration | None,
    truth: Contents | None,
    names: Mapping[str, str],
) -> Measurements:
    series = RecordedSeries(path)  # open as long as its frames are used
    found_masks: Array | Calibration = series.calibration
    if isinstance(masks, Contents):
        found_masks = masks.one(MASKS, "masks", names["masks"]).load()
    elif masks is not None:
        found_masks = masks
    frames = None
    if truth is not None:
        frames = truth.one(TRUTH, "true frames", names["truth"]).load()
    return Measurements(series.require_raw(), found_masks, frames)


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


def _read_masks(path: Path) -> Contents | Calibration:
    mark = _format_of(path)
    if mark == CALIBRATION_FORMAT:
        return load_calibration(path)
    if mark == RECORDING_FORMAT:
        with RecordedSeries(path) as series:
            return series.calibration
    return read_contents(path)
