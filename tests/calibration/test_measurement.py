from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.calibration.measurement import (
    Field,
    FrameMean,
    Measured,
    MeasurementConditions,
    PixelFlag,
    measure,
)
from sci_stream.errors import CalibrationError
from sci_stream.model import Array, BayerPhase

H, W, B = 40, 48, 4
BLACK_DN, LIGHT_DN, GAIN_E, READ_E = 60.0, 2000.0, 4.0, 6.0
SETTING = MeasurementConditions(saturation_dn=4095.0, brightness=0.5)


class Bench:
    """A sensor of known gain and noise behind known masks."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.phi = (self.random.random((B, H, W)) < 0.5) * 0.9 + 0.05
        self.transmission = 1 - 0.2 * np.hypot(*np.mgrid[-1 : 1 : H * 1j, -1 : 1 : W * 1j]) ** 2 / 2
        self.offset = np.full((H, W), BLACK_DN)
        self.sensitivity = np.ones((H, W))
        self.read_e = np.full((H, W), READ_E)

    def expose(self, transmission: Array | float, frames: int) -> FrameMean:
        electrons = LIGHT_DN * GAIN_E * self.sensitivity * transmission
        mean = FrameMean()
        for _ in range(frames):
            collected = self.random.poisson(electrons) + self.read_e * self.random.standard_normal(
                (H, W)
            )
            mean.add(
                np.clip(np.rint(self.offset + collected / GAIN_E), 0, 4095).astype(np.uint16),
                4095.0,
            )
        return mean

    def measure(
        self, frames: int = 64, setting: MeasurementConditions = SETTING
    ) -> tuple[object, Measured]:
        dark, white = self.expose(0.0, frames), self.expose(self.transmission, frames)
        patterns = [self.expose(self.transmission * mask, frames) for mask in self.phi]
        return measure(dark, white, patterns, setting)


def test_even_field_keeps_the_unevenness_of_the_optics_in_phi() -> None:
    bench = Bench()
    calibration, measured = measure(
        bench.expose(0.0, 64),
        bench.expose(bench.transmission, 64),
        [bench.expose(bench.transmission * mask, 64) for mask in bench.phi],
        SETTING,
    )
    np.testing.assert_allclose(
        calibration.phi, np.clip(bench.phi * bench.transmission, 0, 1), atol=0.02
    )
    np.testing.assert_allclose(calibration.dark, BLACK_DN, atol=1.0)
    assert calibration.full_scale_dn == pytest.approx(LIGHT_DN / 0.5 / B, rel=0.01)
    assert calibration.read_noise_dn == pytest.approx(np.hypot(READ_E / GAIN_E, 12**-0.5), rel=0.05)
    assert calibration.gain_e_per_dn == pytest.approx(GAIN_E, rel=0.03)
    assert measured.mask_order == (0, 1, 2, 3)
    assert calibration.bad_pixels is None


def test_uneven_field_is_divided_out_per_pixel() -> None:
    bench = Bench()
    calibration, _ = measure(
        bench.expose(0.0, 64),
        bench.expose(bench.transmission, 64),
        [bench.expose(bench.transmission * mask, 64) for mask in bench.phi],
        replace(SETTING, field=Field.UNEVEN),
    )
    np.testing.assert_allclose(calibration.phi, bench.phi, atol=0.02)


def test_each_colour_of_a_mosaic_has_its_own_white() -> None:
    bench = Bench()
    bench.transmission = np.ones((H, W))
    bench.sensitivity[::2, ::2] = 0.4
    calibration, _ = measure(
        bench.expose(0.0, 64),
        bench.expose(1.0, 64),
        [bench.expose(mask, 64) for mask in bench.phi],
        replace(SETTING, bayer=BayerPhase.RGGB),
    )
    np.testing.assert_allclose(calibration.phi, bench.phi, atol=0.03)


def test_hot_dead_and_noisy_pixels_are_flagged_and_no_others() -> None:
    bench = Bench()
    bench.offset[3, 5] += 400
    bench.sensitivity[20, 30] = 0.05
    bench.read_e[33, 7] = 12 * READ_E
    calibration, measured = bench.measure()
    expected = np.zeros((H, W), np.uint8)
    expected[3, 5], expected[20, 30], expected[33, 7] = (
        PixelFlag.HOT,
        PixelFlag.DEAD,
        PixelFlag.NOISY,
    )
    np.testing.assert_array_equal(measured.flags & expected, expected)
    np.testing.assert_array_equal(measured.flags > 0, expected > 0)
    np.testing.assert_array_equal(calibration.bad_pixels, expected > 0)  # type: ignore[attr-defined]


def test_white_field_that_saturates_is_refused() -> None:
    bench = Bench()
    bench.sensitivity *= 3
    with pytest.raises(CalibrationError, match=r"saturates the sensor.*Dim the light"):
        bench.measure(4)


def test_white_field_that_is_dark_is_refused() -> None:
    bench = Bench()
    bench.sensitivity *= 0.001
    with pytest.raises(CalibrationError, match="hardly brighter than the dark frame"):
        bench.measure(4)


def test_few_frames_give_no_noise_model() -> None:
    calibration, _ = Bench().measure(2)
    assert calibration.read_noise_dn is None
    assert calibration.gain_e_per_dn is None


@given(st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_mean_and_variance_are_those_of_all_frames_at_once(n: int, seed: int) -> None:
    frames = np.random.default_rng(seed).integers(0, 4096, (n, 3, 4)).astype(np.uint16)
    mean = FrameMean()
    for frame in frames:
        mean.add(frame, 4000.0)
    np.testing.assert_allclose(mean.mean, frames.mean(0))
    np.testing.assert_allclose(mean.variance, frames.var(0, ddof=1) if n > 1 else 0.0, atol=1e-6)
    np.testing.assert_array_equal(mean.saturated, (frames >= 4000).any(0))
