"""Masks as they were given, brought to y: turned, inverted or moved by whole pixels where evident.

The masks of a rig are measured on its sensor. Those of a file come from another program, which may
count rows from below, store the complement or crop by other pixels.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from sci_stream.arrays.inputs import AnyArray, real_array
from sci_stream.calibration.evidence.defect import Defect
from sci_stream.calibration.evidence.inspection import inspect
from sci_stream.calibration.evidence.mask_match import MATCH, mask_fit
from sci_stream.files import array_choice
from sci_stream.model import Array, Flags
from sci_stream.optics.calibration import Calibration

# Only a comparison of y with masks from elsewhere shows these. All other defects are found in each
# snapshot, whatever its masks are from.
_OF_PAIR = {"mask_number"}


class Arrays(NamedTuple):
    """Snapshots, masks and true frames, turned to agree; ``notes`` name each turn."""

    y: Array
    masks: Array | Calibration
    truth: Array | None
    notes: list[str]


def of_one_size(
    y: AnyArray, masks: AnyArray | Calibration, truth: AnyArray | None = None
) -> Arrays:
    """Return arrays with their frames first, and transposed where only this makes the sizes equal.

    Masks of a rig stay as they are. Raises `InputError` as `real_array`.
    """
    y = real_array(y, "y", invalid=True)
    notes: list[str] = []
    if isinstance(masks, Calibration):
        size = masks.shape
        y = array_choice.turned(y, size, "the snapshots", notes)
    else:
        masks = real_array(masks, "masks", invalid=True)
        if y.shape[-2:] != masks.shape[-2:]:
            pair = array_choice.paired(y, masks)
            y = pair.y
            masks = pair.masks
            notes = pair.words()
        size = masks.shape[-2:]
    if truth is not None:
        truth = real_array(truth, "truth")
        if truth.ndim <= 3:
            truth = array_choice.turned(truth, size, "the true frames", notes)
    return Arrays(y, masks, truth, notes)


def paired(y: Array, calibration: Calibration) -> tuple[Calibration, list[Defect]]:
    """Return the masks as y, (H, W), has them, and the defects of the pair.

    Masks are changed only if they fit y after the change.
    """
    defects = inspect(y, calibration)
    repairs = [defect for defect in defects if defect.repair is not None]
    pair = [defect for defect in defects if defect.name in _OF_PAIR]
    for defect in repairs:
        assert defect.repair is not None
        repaired = _repaired(calibration, defect)
        if mask_fit(repaired.measurement(y), repaired.phi, repaired.bayer) >= MATCH:
            text = f"{defect.text} (done here)"
            done = dataclasses.replace(defect, text=text, fatal=False, corrected=True)
            return repaired, [*pair, done]
    return calibration, pair


def _repaired(calibration: Calibration, defect: Defect) -> Calibration:
    """Return the masks changed; pixels whose masks lay outside are bad."""
    assert defect.repair is not None
    phi = np.ascontiguousarray(defect.repair(calibration.phi))
    bad = ~calibration.good
    if defect.shift_px is not None:
        bad |= _outside(calibration.shape, *defect.shift_px)
    return dataclasses.replace(calibration, phi=phi, bad_pixels=bad)


def _outside(shape: tuple[int, int], dx: int, dy: int) -> Flags:
    """Return the pixels, (H, W), whose masks move in from outside by (dx, dy) px."""
    outside = np.zeros(shape, np.bool_)
    outside[: max(dy, 0)] = True
    outside[shape[0] + min(dy, 0) :] = True
    outside[:, : max(dx, 0)] = True
    outside[:, shape[1] + min(dx, 0) :] = True
    return outside
