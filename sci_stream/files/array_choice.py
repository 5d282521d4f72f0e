"""Choose the snapshots, masks and true frames among the arrays of files.

Agreement with y decides: the light of the right masks correlates with it. Names help where arrays
agree equally well, and so does a group that holds both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from sci_stream.calibration.evidence.mask_match import MATCH, mask_fit
from sci_stream.calibration.evidence.mask_placement import fit_words
from sci_stream.errors import InputError
from sci_stream.files.arrays import (
    MASKS,
    MEASUREMENT,
    VARIABLES,
    Candidate,
    Contents,
)
from sci_stream.model import Array
from sci_stream.optics.calibration import Calibration

# Masks in another order, their sum, or a scaled copy agree with y equally well but for noise.
_EQUAL_FIT = 0.1
# Pixels along each side by which agreement is measured: enough, and quick.
_COMPARED_PX = 512


@dataclass(frozen=True, eq=False)
class Pair:
    """Snapshots and masks (B, H, W), turned such that their sizes agree; ``notes`` say how."""

    y: Array
    masks: Array
    notes: tuple[str, str]

    def words(self, of: str = "") -> list[str]:
        """Return how the arrays were turned, ``of`` a file."""
        named = zip(("snapshots", "masks"), self.notes, strict=True)
        return [f"the {what}{of} {note}" for what, note in named if note]

    @property
    def size(self) -> tuple[int, ...]:
        """Height and width."""
        return self.masks.shape[1:]

    @property
    def fit(self) -> float:
        """How well the light of the masks agrees with the first snapshot, 0 to 1."""
        rows, columns = (_middle(side) for side in self.size)
        masks = self.masks[:, rows, columns]
        if masks.min() < 0 or not masks.max() > 0:
            return 0.0
        first = self.y if self.y.ndim == 2 else self.y[0]
        return abs(mask_fit(first[rows, columns], masks))

    @property
    def least_sure(self) -> float:
        """The fit that arrays of this size do not have by chance."""
        return MATCH + 4 / float(np.sqrt(np.prod(self.size)))


@dataclass(frozen=True)
class _Option:
    """Two arrays that may be the snapshots and their masks, and how well they agree."""

    y: Candidate
    masks: Candidate
    is_one_group: bool
    fit: float = 0.0
    is_sure: bool = False

    @property
    def is_named(self) -> bool:
        return self.y.is_named and self.masks.is_named

    @property
    def order(self) -> tuple[bool, bool, int, int]:
        """The least is the best: a stack, not a picture; of one group; of the closest names."""
        is_picture = len(self.masks.shape) < 3
        return is_picture, not self.is_one_group, self.y.rank, self.masks.rank


def choose_pair(
    file: Contents, mask_file: Contents | Calibration, names: Mapping[str, str], notes: list[str]
) -> tuple[Candidate, Candidate]:
    """Return the snapshots of a file and their masks: of the same file, another or a calibration.

    ``names`` are those that the user gave, by role. A choice is added to ``notes``.

    Raises `FileFormatError` or `InputError` if there are none, or several that are equally good.
    """
    ys = file.candidates_for(MEASUREMENT, names["y"])
    if isinstance(mask_file, Calibration):
        phi = mask_file.phi
        stacks = [Candidate("", phi.shape, phi.dtype, lambda: phi)]
    else:
        stacks = mask_file.candidates_for(MASKS, names["masks"])
    options = [
        _Option(y, masks, file is mask_file and y.group == masks.group)
        for y, masks in product(ys, stacks)
        if not (file is mask_file and y.name == masks.name) and _have_one_size(y, masks)
    ]
    named = [option for option in options if option.is_named]
    pool = named
    if len(options) > 1 or not named:
        named = [_compared(option) for option in named]
        pool = [option for option in named if option.is_sure]
    if not pool:
        rest = [_compared(option) for option in options if not option.is_named]
        pool = [option for option in rest if option.is_sure] or named
    if not pool:
        raise _no_pair(file, mask_file, ys, stacks)
    best = max(option.fit for option in pool)
    equal = [option for option in pool if option.fit >= best - _EQUAL_FIT or not option.is_sure]
    chosen = min(equal, key=lambda option: option.order)
    if len(equal) > 1 and not chosen.is_named:
        unclear = {option.y for option in equal} | {option.masks for option in equal}
        raise file.ambiguous("snapshots or the masks", unclear)
    notes += _choices({"y": (chosen.y, ys), "masks": (chosen.masks, stacks)}, options)
    return chosen.y, chosen.masks


def _have_one_size(y: Candidate, masks: Candidate) -> bool:
    nothing = np.zeros((), np.bool_)
    outlines = (np.broadcast_to(nothing, one.shape) for one in (y, masks))
    return next(_pairs(*outlines), None) is not None


def _compared(option: _Option) -> _Option:
    pair = paired(option.y.load(), option.masks.load())
    fit = pair.fit
    is_sure = fit > pair.least_sure
    if not option.masks.is_named:
        # Frames of a film share their texture, and masks do not.
        is_film = len(pair.masks) < 2 or mask_fit(pair.masks[0], pair.masks[1:]) > MATCH
        is_sure &= not is_film
    return replace(option, fit=fit, is_sure=is_sure)


def _choices(
    chosen: Mapping[str, tuple[Candidate, Sequence[Candidate]]], options: Sequence[_Option]
) -> Iterator[str]:
    """Yield which array has each role, where there was a choice."""
    possible = {one for option in options for one in (option.y, option.masks)}
    for role, (candidate, candidates) in chosen.items():
        names = [
            one.name for one in candidates if one == candidate or (one.is_named and one in possible)
        ]
        if len(names) > 1 or not candidate.is_named:
            yield f"{role} = {candidate.name} (of {', '.join(names)})"


def _no_pair(
    file: Contents,
    mask_file: Contents | Calibration,
    ys: Sequence[Candidate],
    stacks: Sequence[Candidate],
) -> InputError:
    if not any(y.is_named for y in ys):
        return file.lacks("snapshots", MEASUREMENT)
    if file is mask_file:
        stacks = [masks for masks in stacks if masks.name not in {y.name for y in ys}]
    if isinstance(mask_file, Contents) and not any(masks.is_named for masks in stacks):
        other = f"Name the file with the masks: --mask FILE; or the array. {VARIABLES}"
        return mask_file.lacks("masks", MASKS, hint=other if file is mask_file else VARIABLES)
    return InputError(
        f"The snapshots and masks of {file.path} differ in size",
        expected="snapshots (H, W) or (N, H, W), and masks (B, H, W)",
        got=f"{_named(ys)} and {_named(stacks)}",
    )


def _named(candidates: Iterable[Candidate]) -> str:
    return ", ".join(str(one) for one in candidates if one.is_named)


def _middle(side: int) -> slice:
    start = max(0, side - _COMPARED_PX) // 2
    return slice(start, start + _COMPARED_PX)


def paired(y: Array, masks: Array, sizes: Sequence[tuple[int, ...]] = ()) -> Pair:
    """Return y and the masks in the orientation of both in which their sizes agree; of several, the
    one that fits; of none, both as they are.

    One of these ``sizes`` is preferred, then the orientation that y has.
    """
    pairs = sorted(_pairs(y, masks), key=lambda pair: pair.size not in sizes)
    best = next(iter(pairs), Pair(y, masks, ("", "")))
    if len(pairs) < 2 or best.fit >= MATCH:
        return best
    # Both transposed fit as well as neither but for rounding: the first one keeps y as it is.
    closest = max(pairs, key=lambda pair: round(pair.fit, 3))
    if closest.fit <= closest.least_sure:
        return best
    of_y, of_masks = closest.notes
    if closest.masks.shape == masks.shape and of_masks == "are transposed":
        words = fit_words("transposed", closest.fit, best.fit)
        of_masks = f"{words}: pass masks.transpose(0, 2, 1) (done here)"
    return replace(closest, notes=(of_y, of_masks))


def _pairs(y: Array, masks: Array) -> Iterator[Pair]:
    """Yield y and masks in all orientations in which their sizes agree."""
    masks = masks[np.newaxis] if masks.ndim == 2 else masks
    for (of_y, turned_y), (of_masks, turned_masks) in product(orientations(y), orientations(masks)):
        if turned_y.ndim not in (2, 3) or turned_masks.ndim != 3:
            continue
        if turned_y.shape[-2:] == turned_masks.shape[1:]:
            yield Pair(turned_y, turned_masks, (of_y, of_masks))


def turned(array: Array, size: tuple[int, ...], what: str, notes: list[str]) -> Array:
    """Return an array in the first orientation in which its pictures have a size, else as it is.

    A note says how it was turned, and ``what`` it is.
    """
    for note, candidate in orientations(array):
        if candidate.shape[-2:] == tuple(size):
            notes += [f"{what} {note}"] if note else []
            return candidate
    return array


def orientations(array: Array) -> Iterator[tuple[str, Array]]:
    """Yield an array as it is, with its frames moved from the end to the front, and with its
    pictures transposed.
    """
    yield "", array
    if array.ndim == 3:
        yield "have their frames last", np.moveaxis(array, -1, 0)
        yield "have their frames last and are transposed", array.T
    if array.ndim > 1:
        yield "are transposed", array.swapaxes(-1, -2)
