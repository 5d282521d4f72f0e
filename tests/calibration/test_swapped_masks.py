"""Orders of the masks that blocks of several snapshots tell apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sci_stream.calibration.monitor import valid_measurement
from sci_stream.calibration.registration.mask_fitter import MaskFitter
from sci_stream.calibration.swapped_masks import SwappedMasks
from sci_stream.model import F32
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.displacement import NO_DISPLACEMENT

B, SIZE = 6, 128
PHI = np.random.default_rng(3).integers(0, 2, (B, SIZE, SIZE)).astype(np.float32)
CALIBRATION = Calibration(phi=PHI, full_scale_dn=500.0)
ROWS, COLUMNS = np.mgrid[:SIZE, :SIZE]


def scene(frame: int) -> F32:
    """Return waves that travel by a pixel a frame."""
    waves = np.sin((COLUMNS - frame) / 9) + np.sin((ROWS + frame) / 11)
    return np.asarray(0.5 + 0.2 * waves, np.float32)


def named(phi: F32, snapshots: int = 8, first: int = 0) -> list[str]:
    """Return the texts after snapshots behind these masks, of which the first are right."""
    fitter = MaskFitter(CALIBRATION, torch.device("cpu"))
    swapped, noise = SwappedMasks(B, paced=False), np.random.default_rng(4)
    for k in range(snapshots):
        shown = PHI if k < first else phi
        y = sum(mask * scene(B * k + b) for b, mask in enumerate(shown))
        counts = np.asarray(64 + 500 * y + noise.normal(0, 5, y.shape), np.float32)
        snapshot = CALIBRATION.snapshot("s", k, counts - 64)
        assert swapped.is_due()
        measured = valid_measurement(snapshot, CALIBRATION)
        swapped.add(fitter.misfits(*measured, NO_DISPLACEMENT, swapped.orders))
    return [defect.text for defect in swapped.defects]


def test_masks_in_order_are_not_named() -> None:
    assert named(PHI) == []


@pytest.mark.parametrize("pair", [(1, 4), (0, 5)])
def test_exchanged_masks_are_named(pair: tuple[int, int]) -> None:
    phi = PHI.copy()
    phi[list(pair)] = phi[list(pair[::-1])]
    (text,) = named(phi)
    assert text.startswith(f"masks {pair[0]} and {pair[1]} are shown in each other's place")


@pytest.mark.parametrize("late", [1, -1])
def test_exposures_that_begin_late_are_named(late: int) -> None:
    (text,) = named(np.roll(PHI, -late, 0))
    assert text.startswith(f"the exposures begin with mask {late % B}")


def test_two_snapshots_in_another_order_are_not_named() -> None:
    assert named(np.roll(PHI, -1, 0), first=6) == []
