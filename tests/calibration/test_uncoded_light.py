"""Light that no mask codes lowers the modulation by the masks; columns and rows have offsets."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from sci_stream.calibration.evidence.uncoded_light import Fit, UncodedLight
from sci_stream.model import F32
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import NO_CORRECTION
from sci_stream.optics.sensor_errors import NO_SENSOR_ERRORS, SensorErrors

SHAPE = (96, 128)
LOOKS = 6


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    masks = (np.random.default_rng(1).random((6, *SHAPE)) < 0.5).astype(np.float32)
    return Calibration(masks, dark=64.0, full_scale_dn=1000.0)


def scene(look: int) -> F32:
    """Return frames with texture and bright columns, (6, H, W), that move on with each look."""
    rows, columns = np.mgrid[: SHAPE[0], : SHAPE[1]]
    phase = look + 0.2 * np.arange(6).reshape(-1, 1, 1)
    frames = 0.4 + 0.15 * np.sin(rows / 7 + phase) * np.cos(columns / 9 - phase)
    return np.asarray(frames + 0.1 * (columns % 11 == look % 3), np.float32)


def looks(
    calibration: Calibration,
    light: F32,
    *,
    known: SensorErrors = NO_SENSOR_ERRORS,
    contrast: float = 1.0,
    before: int = 0,
) -> UncodedLight:
    """Return looks at snapshots with light, (H, W) in units of y, as a solve explains them.

    ``before`` of them are without it; ``contrast`` is that of the masks.
    """
    uncoded = UncodedLight(calibration)
    open_to_light = calibration.phi.sum(0)
    dimmed = contrast * calibration.phi + (1 - contrast) * calibration.phi.mean()
    rng = np.random.default_rng(2)
    for look in range(LOOKS + before):
        frames = scene(look)
        more = light if look >= before else np.zeros_like(light)
        y = (dimmed * frames).sum(0) + more + 0.01 * rng.standard_normal(SHAPE)
        video = frames + more / open_to_light.mean()
        counts = (64 + 1000 * y).astype(np.float32)
        uncoded.add(counts, video.astype(np.float32), NO_CORRECTION, known)
    return uncoded


def fitted(uncoded: UncodedLight, known: SensorErrors = NO_SENSOR_ERRORS) -> Fit:
    fit = uncoded.fit(known)
    assert fit is not None
    return fit


@pytest.mark.parametrize(
    "errors",
    [
        SensorErrors(even=0.3),
        SensorErrors(even=-0.2),
        SensorErrors(left=0.2),
        SensorErrors(upper=-0.3),
        SensorErrors(even=0.3, x=0.15, y=-0.1, xx=0.05, yy=0.02, xy=0.04),
    ],
)
@pytest.mark.parametrize("before", [0, 6])
def test_light_that_no_mask_codes_has_its_shape(
    calibration: Calibration, errors: SensorErrors, before: int
) -> None:
    dark = np.zeros(SHAPE, np.float32)
    light = -errors.without(dark, None, calibration) / 1000
    uncoded = looks(calibration, light, before=before)
    fit = fitted(uncoded)
    measured = NO_SENSOR_ERRORS._replace(**fit.light)
    assert [bool(part) for part in measured[:2]] == [bool(part) for part in errors[:2]]
    np.testing.assert_allclose(-measured.without(dark, None, calibration) / 1000, light, atol=0.04)


def test_right_light_is_none(calibration: Calibration) -> None:
    uncoded = looks(calibration, np.zeros(SHAPE, np.float32))
    assert uncoded.fit(NO_SENSOR_ERRORS) is None
    assert [uncoded.lines.spread(axis) for axis in (0, 1)] == [0.0, 0.0]


def test_masks_with_less_contrast_are_no_light(calibration: Calibration) -> None:
    uncoded = looks(calibration, np.zeros(SHAPE, np.float32), contrast=0.8)
    assert uncoded.fit(NO_SENSOR_ERRORS) is None


def test_saturated_pixels_say_nothing(calibration: Calibration) -> None:
    clipped = dataclasses.replace(calibration, saturation_dn=1700.0)
    uncoded = UncodedLight(clipped)
    for look in range(LOOKS):
        frames = scene(look)
        y = (clipped.phi * frames).sum(0)
        uncoded.add((64 + 1000 * y).clip(0, 1700), frames, NO_CORRECTION, NO_SENSOR_ERRORS)
    assert uncoded.fit(NO_SENSOR_ERRORS) is None


def test_light_that_is_known_stays_until_looks_exclude_it(calibration: Calibration) -> None:
    known = SensorErrors(even=0.3)
    taken = looks(calibration, np.zeros(SHAPE, np.float32), known=known)
    assert fitted(taken, known).light["even"] == pytest.approx(0.3, abs=0.03)
    gone = looks(calibration, np.full(SHAPE, -0.3, np.float32), known=known)
    assert gone.fit(known) is None


def test_known_light_stays_without_looks(calibration: Calibration) -> None:
    uncoded = UncodedLight(calibration)
    assert uncoded.fit(NO_SENSOR_ERRORS) is None
    assert fitted(uncoded, SensorErrors(left=0.2)).light["left"] == 0.2


@pytest.mark.parametrize("axis", [0, 1])
def test_offsets_of_lines_are_told_from_texture(calibration: Calibration, axis: int) -> None:
    offsets = 0.1 * np.random.default_rng(3).standard_normal(SHAPE[1 - axis])
    light = np.broadcast_to(offsets if axis == 0 else offsets[:, np.newaxis], SHAPE)
    uncoded = looks(calibration, np.zeros(SHAPE, np.float32))
    assert uncoded.lines.spread(axis) == 0.0
    uncoded = looks(calibration, light.astype(np.float32))
    assert uncoded.lines.spread(axis) == pytest.approx(0.1, rel=0.3)
    assert uncoded.lines.spread(1 - axis) == 0.0


@pytest.mark.parametrize("axis", [0, 1])
def test_offsets_of_lines_that_change_are_noise(calibration: Calibration, axis: int) -> None:
    uncoded = UncodedLight(calibration)
    rng = np.random.default_rng(3)
    for look in range(LOOKS):
        frames = scene(look)
        offsets = 0.1 * rng.standard_normal(SHAPE[1 - axis])
        lines = offsets if axis == 0 else offsets[:, np.newaxis]
        y = (calibration.phi * frames).sum(0) + lines
        counts = (64 + 1000 * y).astype(np.float32)
        uncoded.add(counts, frames, NO_CORRECTION, NO_SENSOR_ERRORS)
    assert uncoded.lines.noise(axis) == pytest.approx(0.1, rel=0.3)
    assert uncoded.lines.noise(1 - axis) == 0.0


def test_light_within_the_read_noise_is_none(calibration: Calibration) -> None:
    rough = replace(calibration, read_noise_dn=100.0)
    light = np.full(SHAPE, 0.2, np.float32)
    assert looks(calibration, light).fit(NO_SENSOR_ERRORS) is not None
    assert looks(rough, light).fit(NO_SENSOR_ERRORS) is None


def test_large_sensor_is_read_in_parts() -> None:
    masks = np.random.default_rng(4).random((2, 900, 420)).astype(np.float32)
    uncoded = UncodedLight(Calibration(masks, dark=0.0, full_scale_dn=1.0))
    frames = np.full_like(masks, 0.5)
    light = np.linspace(0, 0.3, 900, dtype=np.float32)[:, np.newaxis]
    for _ in range(3):
        video = frames + light / masks.sum(0).mean()
        uncoded.add((masks * frames).sum(0) + light, video, NO_CORRECTION, NO_SENSOR_ERRORS)
    fit = fitted(uncoded)
    assert fit.light["y"] == pytest.approx(0.15, abs=0.02)
    assert fit.light["x"] == pytest.approx(0.0, abs=0.02)
