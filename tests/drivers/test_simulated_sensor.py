from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sci_stream_drivers.simulated.options import SimulatedOptions
from sci_stream_drivers.simulated.sensor import Sensor

PHI = np.full((4, 8, 8), 0.5, np.float32)


def sensor(**options: Any) -> Sensor:
    return Sensor(SimulatedOptions.model_validate({"n_frames": 4, **options}), PHI)


def flat(brightness: float) -> np.ndarray:
    """Return the measurement of a uniformly bright scene, large enough for statistics."""
    return np.full((200, 200), 2.0 * brightness, np.float32)


def test_white_reaches_the_exposure_fraction_of_the_range() -> None:
    counts = sensor(noise=False, exposure=0.8).convert(flat(1.0), 0)
    assert np.unique(counts) == round(64 + 0.8 * (4095 - 64))


@pytest.mark.parametrize(("bits", "dtype"), [(8, np.uint8), (10, np.uint16), (12, np.uint16)])
def test_counts_are_in_range_of_the_converter_and_clip(bits: int, dtype: type) -> None:
    counts = sensor(bit_depth=bits, exposure=2.0).convert(flat(1.0), 0)
    assert counts.dtype == dtype
    assert np.unique(counts) == 2**bits - 1


def test_noise_below_black_clips_at_zero() -> None:
    counts = sensor(black_level_dn=0.0, read_noise_e=20.0).convert(flat(0.0), 0)
    assert counts.min() == 0
    assert 0.4 < (counts == 0).mean() < 0.6


@pytest.mark.parametrize("brightness", [0.0, 0.001, 0.003, 0.01, 0.1, 0.5, 1.0])
def test_variance_is_that_of_photons_electronics_and_rounding(brightness: float) -> None:
    s = sensor(read_noise_e=4.0)
    counts = s.convert(flat(brightness), 7).astype(float)
    mean_dn = s.full_scale_dn * 2 * brightness
    variance = mean_dn / s.gain_e_per_dn + (4.0 / s.gain_e_per_dn) ** 2 + 1 / 12
    assert counts.mean() - s.black_dn == pytest.approx(
        mean_dn, abs=5 * np.sqrt(variance / counts.size)
    )
    assert counts.var() == pytest.approx(variance, rel=0.04)


def test_noise_depends_on_seed_and_index_only() -> None:
    y = flat(0.3)
    reference = sensor(seed=1).convert(y, 5)
    np.testing.assert_array_equal(sensor(seed=1).convert(y, 5), reference)
    assert not np.array_equal(sensor(seed=1).convert(y, 6), reference)
    assert not np.array_equal(sensor(seed=2).convert(y, 5), reference)


def test_convert_does_not_modify_the_measurement() -> None:
    y = flat(0.3)
    sensor().convert(y, 0)
    np.testing.assert_array_equal(y, flat(0.3))


def test_full_well_is_at_the_top_of_the_range() -> None:
    s = sensor(full_well_e=8062.0)
    assert (s.max_dn - s.black_dn) * s.gain_e_per_dn == pytest.approx(8062.0)
