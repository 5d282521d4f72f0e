"""The simulated masks: blur, displacement and transmission."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter

from sci_stream_lab.bench.reality.optics import (
    MARGIN_PX,
    PatternOptics,
    image,
    measured_patterns,
    random_patterns,
    shifting_patterns,
    smooth_field,
    sub_pixel_kernel,
)

INNER = slice(MARGIN_PX, -MARGIN_PX)


def random_optics(blur_px: float = 0.5, n_frames: int = 4) -> PatternOptics:
    return PatternOptics(random_patterns(n_frames, (24, 32), np.random.default_rng(0)), blur_px)


@pytest.mark.parametrize("blur_px", [0.0, 0.3, 0.5, 0.8])
def test_masks_are_patterns_blurred_by_gaussian(blur_px: float) -> None:
    optics = random_optics(blur_px)
    expected = np.stack([gaussian_filter(p, blur_px)[INNER, INNER] for p in optics.patterns])
    np.testing.assert_allclose(optics.masks(), expected, atol=2e-5)
    assert optics.masks().shape == optics.shape == (4, 24, 32)


@pytest.mark.parametrize("blur_px", [0.0, 0.5])
def test_shift_by_whole_pixels_equals_roll(blur_px: float) -> None:
    pattern = random_optics().patterns[0]
    rolled = np.roll(pattern, (-2, 3), axis=(0, 1))
    np.testing.assert_allclose(
        image(pattern, blur_px, (3.0, -2.0)), image(rolled, blur_px), atol=1e-6
    )


@given(st.floats(0.0, 1.2), st.floats(-3.0, 3.0))
def test_sub_pixel_kernel_is_normalised_and_centred_on_shift(
    blur_px: float, shift_px: float
) -> None:
    weights, base = sub_pixel_kernel(blur_px, shift_px)
    reach = len(weights) // 2
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)
    assert base + weights @ np.arange(-reach, reach + 1) == pytest.approx(shift_px, abs=1e-6)


def test_shift_of_sharp_mask_is_linear_interpolation() -> None:
    pattern = random_optics().patterns[0]
    sharp, shifted = image(pattern, 0.0), image(pattern, 0.0, (0.25, 0.0))
    np.testing.assert_allclose(
        shifted[:, 1:], 0.75 * sharp[:, 1:] + 0.25 * sharp[:, :-1], atol=1e-6
    )


def test_shift_beyond_margin_raises() -> None:
    with pytest.raises(ValueError, match="8 px at most"):
        image(random_optics().patterns[0], 0.0, (9.0, 0.0))


def test_further_blur_adds_variances() -> None:
    assert random_optics(0.8).blurred(0.6).blur_px == pytest.approx(1.0)


def test_gains_change_mean_of_each_frame_by_its_factor() -> None:
    optics = random_optics()
    wrong = optics.with_gains(0.05, np.random.default_rng(1))
    ratio = wrong.masks() / optics.masks()
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[:, :1, :1], ratio.shape), rtol=1e-5)
    assert 0.01 < np.std(ratio[:, 0, 0]) < 0.15


def test_smooth_errors_are_smooth_and_of_given_size() -> None:
    field = smooth_field((64, 64), 64 / 6, np.random.default_rng(0))
    assert field.std() == pytest.approx(1, abs=1e-3)
    assert np.abs(np.diff(field, axis=0)).max() < 0.6
    optics = random_optics()
    ratio = optics.with_smooth_errors(0.05, np.random.default_rng(1)).masks() / optics.masks()
    assert np.std(ratio) == pytest.approx(0.05, rel=0.05)


def test_jitter_displaces_each_mask_by_itself() -> None:
    optics = random_optics().jittered(0.2, np.random.default_rng(3))
    assert optics.shifts_px is not None
    assert len(np.unique(optics.shifts_px)) == 8
    moved = optics.shifted(1.0, 0.0).shifts_px
    np.testing.assert_allclose(moved, optics.shifts_px + np.array([1.0, 0.0]))


def test_shifting_pattern_moves_down_by_pixel_each_frame() -> None:
    patterns = shifting_patterns(3, (16, 16), np.random.default_rng(0))
    np.testing.assert_array_equal(patterns[1][1:], patterns[0][:-1])


def test_measured_masks_are_their_middle_with_margin() -> None:
    mask = np.random.default_rng(0).random((2, 40, 48)).astype(np.float32)
    patterns = measured_patterns(mask, (24, 32))
    np.testing.assert_array_equal(PatternOptics(patterns, 0.0).masks(), mask[:, 8:32, 8:40])
    with pytest.raises(ValueError, match="do not cover"):
        measured_patterns(mask, (48, 48))
