"""Orders of the masks that blocks of several snapshots tell apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sci_stream.calibration.monitor import valid_measurement
from sci_stream.calibration.registration.mask_fitter import MaskFitter
from sci_stream.calibration.shown_masks import ShownMasks
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


FITTER = MaskFitter(CALIBRATION, torch.device("cpu"))


def seen(
    phi: F32, snapshots: int = 8, first: int = 0, length: int = B, shown: ShownMasks | None = None
) -> ShownMasks:
    """Return what snapshots show behind these masks, of which the first are right; each exposure
    shows so many masks.
    """
    shown = shown or ShownMasks(B, paced=False)
    noise = np.random.default_rng(4)
    for k in range(snapshots):
        masks = PHI if k < first else phi
        frames = range(B if k < first else length)
        y = sum(masks[b % B] * scene(B * k + b) for b in frames)
        counts = np.asarray(64 + 500 * y + noise.normal(0, 5, y.shape), np.float32)
        snapshot = CALIBRATION.snapshot("s", k, counts - 64)
        assert shown.is_due()
        measured = valid_measurement(snapshot, CALIBRATION)
        orders, lights = (
            FITTER.misfits(*measured, NO_DISPLACEMENT, courses)
            for courses in (shown.orders, shown.lights)
        )
        shown.add(orders, lights)
    return shown


def named(phi: F32, snapshots: int = 8, first: int = 0) -> list[str]:
    """Return the texts after snapshots behind these masks, of which the first are right."""
    return [defect.text for defect in seen(phi, snapshots, first).defects]


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
    assert text.startswith(f"the exposures begin 1 of a mask {'late' if late > 0 else 'early'}")


def test_two_snapshots_in_another_order_are_not_named() -> None:
    assert named(np.roll(PHI, -1, 0), first=6) == []


@pytest.mark.parametrize("length", [B - 1, B + 2])
def test_exposure_of_other_length_is_named_after_two_snapshots(length: int) -> None:
    shown = seen(PHI, snapshots=4, first=2, length=length)
    (defect,) = shown.defects
    assert defect.name == "uneven_exposure"
    assert defect.text.startswith(f"the exposure is as long as {length / B:.2f} cycles")
    assert np.rint(shown.light).sum() == length


def test_dark_pattern_has_little_light() -> None:
    phi = PHI.copy()
    phi[2] = 0
    shown = seen(phi, snapshots=2)
    assert [defect.text for defect in shown.defects] == ["mask 2 is dark: load the patterns again"]
    assert np.rint(shown.light).tolist() == [1, 1, 0, 1, 1, 1]


def test_pattern_that_is_shown_twice_is_named() -> None:
    phi = PHI.copy()
    phi[3] = phi[4]
    shown = seen(phi, snapshots=2)
    assert [defect.text for defect in shown.defects] == [
        "mask 4 is shown in place of mask 3, too: load the patterns again"
    ]


def test_exposure_that_is_right_again_is_named_no_more() -> None:
    shown = seen(PHI, snapshots=2, length=B - 1)
    assert shown.light
    seen(PHI, snapshots=2, shown=shown)
    assert not shown.light
    assert shown.defects == []


def test_lamp_that_pulses_is_no_other_exposure() -> None:
    passed = (np.arange(B) + 0.5) / B
    light = 1 + 0.3 * np.sin(2 * np.pi * 1.3 * passed)
    assert named(PHI * light.astype(np.float32).reshape(-1, 1, 1)) == []


def test_variances_are_those_of_a_fit_for_each_course() -> None:
    y = np.asarray(sum(PHI[b] * scene(b) for b in range(B)), np.float32)
    valid = np.ones(y.shape, bool)
    valid[:, :9] = False
    planned = ShownMasks(B, paced=False).orders[:1]
    misfits = FITTER.misfits(y, valid, NO_DISPLACEMENT, planned)
    assert misfits.mean() == pytest.approx(FITTER.fit(y, valid).misfit, abs=0.05)
