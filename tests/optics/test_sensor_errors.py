"""Errors of the sensor: their text, and snapshots without them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from sci_stream.model import F32
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import (
    CORRECTION_PATTERN,
    NO_CORRECTION,
    MaskCorrection,
    correction_length,
)
from sci_stream.optics.sensor_errors import (
    MAX_SPECKS,
    NO_SENSOR_ERRORS,
    SENSOR_LENGTH,
    SensorErrors,
    Speck,
)

SHAPE = (24, 32)
SPECK = Speck(20.0, 11.0, 4.0, 0.3, 0.7)
WILD = Speck(-9e9, 9e9, 9e9, -9e9, 9e9)


@pytest.fixture
def calibration() -> Calibration:
    masks = (np.random.default_rng(1).random((3, *SHAPE)) < 0.5).astype(np.float32)
    return Calibration(masks, dark=64.0, full_scale_dn=500.0, saturation_dn=4000.0)


def light(seed: int) -> F32:
    """Return the light of a snapshot, DN."""
    return np.random.default_rng(seed).uniform(100, 3000, SHAPE).astype(np.float32)


@pytest.mark.parametrize(
    "errors",
    [
        SensorErrors(left=0.0123456),
        SensorErrors(upper=-0.02, lag=0.1),
        SensorErrors(specks=(SPECK,)),
        SensorErrors(even=0.03),
        SensorErrors(x=0.02, yy=-0.01, specks=(SPECK,)),
        SensorErrors(*(9e9, -9e9, 9e9), (WILD,) * MAX_SPECKS, *(-9e9,) * 6),
        SensorErrors(9e9, -9e9, 9e9, (WILD,) * 2 * MAX_SPECKS),
    ],
)
def test_text_round_trip_gives_errors_as_they_are_applied(errors: SensorErrors) -> None:
    text = errors.to_text
    assert len(text) <= SENSOR_LENGTH
    assert errors.rounded().to_text == text
    correction = MaskCorrection(sensor=errors, light=(1.5, 0.5), black=0.0)
    assert re.fullmatch(CORRECTION_PATTERN, correction.to_text)
    assert len(correction.to_text) <= correction_length(2)
    assert MaskCorrection.from_text(correction.to_text).sensor == errors.rounded()
    assert MaskCorrection.from_text(correction.to_text).light == (1.5, 0.5)


def test_errors_below_the_precision_of_the_text_are_none() -> None:
    assert SensorErrors(left=1e-9).rounded() == NO_SENSOR_ERRORS
    assert MaskCorrection(sensor=SensorErrors(lag=0.1)).is_none
    assert MaskCorrection(sensor=SensorErrors(lag=0.1)) != NO_CORRECTION


def test_stray_light_is_taken_out_at_its_place(calibration: Calibration) -> None:
    height, width = SHAPE
    right = (2 * np.arange(width) + 1) / width - 1
    down = ((2 * np.arange(height) + 1) / height - 1)[:, np.newaxis]
    stray = 0.02 + 0.03 * right + 0.01 * (down**2 - 1 / 3) - 0.02 * down * right
    errors = SensorErrors(even=0.02, x=0.03, yy=0.01, xy=-0.02)
    counts = light(2) + 500 * stray
    np.testing.assert_allclose(errors.without(counts, None, calibration), light(2), atol=0.01)


def test_snapshot_without_errors_is_that_of_a_right_sensor(calibration: Calibration) -> None:
    now = light(2)
    before = light(3)
    faulty = now * SPECK.transmission(SHAPE)
    faulty[:, 16:] += 30
    faulty[:12] += 15
    faulty += np.float32(0.1) * before
    errors = SensorErrors(left=-30 / 500, upper=15 / 500, lag=0.1, specks=(SPECK,))
    found = errors.without(faulty + 64, before + 64, calibration)
    np.testing.assert_allclose(found, now + 64, rtol=1e-4)


def test_saturated_pixels_stay_saturated(calibration: Calibration) -> None:
    counts = light(2)
    counts[3, 4] = 4000
    found = SensorErrors(left=0.05).without(counts, None, calibration)
    assert found[3, 4] == 4000
    assert found[3, 5] == pytest.approx(counts[3, 5] - 25)


def test_speck_takes_its_share_in_the_middle_and_none_far_away() -> None:
    transmission = SPECK.transmission(SHAPE)
    assert transmission[11, 20] == pytest.approx(0.3, abs=0.01)
    assert transmission[11, 24] == pytest.approx(0.65, abs=0.01)
    assert transmission[11, 8] == 1
