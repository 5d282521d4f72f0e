"""Perturbations: named, combined, repeatable, and unknown to the calibration that the solver is
given.
"""

from __future__ import annotations

import numpy as np
import pytest

from sci_stream.errors import ConfigError
from sci_stream_lab.bench.reality.optics import F32
from sci_stream_lab.bench.reality.perturbations import (
    PERTURBATIONS,
    TOGETHER,
    parse_perturbation,
    sensor_for,
)
from sci_stream_lab.bench.reality.rigs import ALL_RIGS, RIGS, OpticalSetup, choose_rigs, film

RIG = OpticalSetup("random", 0.5, 4)


def scene(rig: OpticalSetup = RIG, snapshots: int = 2) -> F32:
    return np.random.default_rng(5).random((snapshots, rig.n_frames, 32, 32)).astype(np.float32)


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_equal_seeds_give_equal_snapshots(name: str) -> None:
    optics, perturbation = RIG.optics(32), parse_perturbation(name)
    one, other = (film(RIG, optics, scene(), perturbation) for _ in range(2))
    for mine, its in zip(one.snapshots, other.snapshots, strict=True):
        np.testing.assert_array_equal(mine.counts, its.counts)
    assert one.exact.hash == other.exact.hash


@pytest.mark.parametrize("name", [name for name in PERTURBATIONS if name not in {"none", "noise"}])
def test_perturbation_changes_exact_masks_alone(name: str) -> None:
    optics = RIG.optics(32)
    series = film(RIG, optics, scene(), parse_perturbation(name))
    np.testing.assert_allclose(series.assumed.phi, optics.masks(), atol=1e-6)
    residuals = []
    for calibration in (series.exact, series.assumed):
        y = calibration.measurement(series.snapshots[0].counts)
        model = np.einsum("bhw,bhw->hw", calibration.phi, scene()[0])
        residuals.append(float(np.linalg.norm(y - model) / np.linalg.norm(model)))
    assert residuals[0] < (0.05 if name == "all" else 1e-5)
    assert residuals[1] > max(0.01, 2 * residuals[0])


def test_none_has_one_calibration_that_is_exact() -> None:
    series = film(RIG, RIG.optics(32), scene(), parse_perturbation("none"))
    assert series.exact is series.assumed
    assert series.snapshots[0].counts.dtype == np.float32


def test_noise_is_eight_bits_known_to_exact_calibration_alone() -> None:
    series = film(RIG, RIG.optics(32), scene(), parse_perturbation("noise"))
    assert series.snapshots[0].counts.dtype == np.uint8
    assert series.assumed.noise is None
    assert series.exact.read_noise_dn == pytest.approx(2.55, abs=0.05)
    expected = series.exact.full_scale_dn * np.einsum("bhw,bhw->hw", series.exact.phi, scene()[0])
    assert np.std(series.snapshots[0].counts - expected) == pytest.approx(2.55, rel=0.1)


def test_all_has_every_part_with_the_error_it_has_alone() -> None:
    optics = RIG.optics(32)
    together = parse_perturbation("all")
    assert together.parts == TOGETHER
    shift, jitter = (
        parse_perturbation(name).applied(optics, 7).shifts_px for name in ("shift", "jitter")
    )
    both = together.applied(optics, 7).shifts_px
    assert shift is not None
    assert jitter is not None
    np.testing.assert_allclose(both, shift + jitter)
    assert np.hypot(*shift[0]) == pytest.approx(0.25)


def test_perturbations_combine_by_name_and_unknown_ones_raise() -> None:
    assert parse_perturbation("shift+gain").parts == ("shift", "gain")
    with pytest.raises(ConfigError, match=r"blur0.3.*'tilt'"):
        parse_perturbation("shift+tilt")


def test_sensor_is_exact_without_noise() -> None:
    assert sensor_for(parse_perturbation("gain"), 4.0).max_dn is None
    assert sensor_for(parse_perturbation("noise"), 4.0).full_scale_dn == pytest.approx(
        0.9 * 255 / 4
    )


def test_snapshots_can_be_acquired_with_exact_calibration() -> None:
    series = film(RIG, RIG.optics(32), scene(), parse_perturbation("shift"))
    snapshots = series.of(series.exact)
    assert {snapshot.calibration_hash for snapshot in snapshots} == {series.exact.hash}
    np.testing.assert_array_equal(snapshots[1].counts, series.snapshots[1].counts)


def test_default_rigs_cover_all_masks_blurs_counts_and_colours() -> None:
    assert {rig.patterns for rig in RIGS} == {"published", "random", "shift", "measured", "moving"}
    assert {rig.blur_px for rig in RIGS} == {0.0, 0.3, 0.5, 0.6, 0.8}
    assert {rig.n_frames for rig in RIGS} == {8, 14, 24}
    assert {rig.colour for rig in RIGS} == {False, True}
    assert len({rig.name for rig in ALL_RIGS}) == len(ALL_RIGS)


def test_rigs_are_chosen_by_property() -> None:
    assert all(rig.blur_px == 0.5 for rig in choose_rigs(RIGS, blurs_px=(0.5,)))
    with pytest.raises(ConfigError, match="--full"):
        choose_rigs(RIGS, frames=(5,))
