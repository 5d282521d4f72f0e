"""Dust shows where a scene passes, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from sci_stream.calibration.sensor.dust import Dust
from sci_stream.calibration.sensor.speck_fit import fitted_speck
from sci_stream.model import F32
from tests.calibration.moved_masks import Rig

SIZE = 128
LOOKS = 9


def specks(row: int, column: int) -> F32:
    """Return the transmission of a sensor's window with a speck of 5 px that takes 70 %."""
    rows, columns = np.mgrid[:SIZE, :SIZE]
    inside = 1 / (1 + np.exp(1.5 * (np.hypot(rows - row, columns - column) - 5)))
    return np.asarray(1 - 0.7 * inside, np.float32)


def looks_at(dust: Dust, rig: Rig, window: F32, count: int) -> None:
    """Look at snapshots behind a window."""
    for _ in range(count):
        counts = rig.snapshot().counts
        light = (counts - rig.calibration.dark) * window
        dust.add(rig.calibration.measurement(light + rig.calibration.dark))


def texts(rig: Rig, window: F32) -> list[str]:
    """Return the texts on dust after snapshots behind a window."""
    dust = Dust(rig.calibration)
    looks_at(dust, rig, window, LOOKS)
    return [defect.text for defect in dust.defects]


@pytest.mark.parametrize("bayer", ["none", "RGGB"])
def test_speck_before_a_moving_scene_is_fitted(bayer: str) -> None:
    rig = Rig(width_px=SIZE, height_px=SIZE, mask="random", bayer=bayer, scene="pan", speed=2.0)
    window = specks(60, 80)
    dust = Dust(rig.calibration, correct=True)
    looks_at(dust, rig, window, 2 * LOOKS)
    (speck,) = dust.specks
    np.testing.assert_allclose(speck.transmission((SIZE, SIZE)), window, atol=0.06)
    (defect,) = dust.defects
    assert defect.corrected
    assert "this light is restored" in defect.text
    dust.begin_anew()
    assert dust.specks == ()


def test_place_that_is_not_round_is_no_speck() -> None:
    rows, columns = np.mgrid[:64, :64]
    bar = np.where((abs(rows - 30) < 3) & (abs(columns - 34) < 14), 0.3, 1.0)
    assert fitted_speck(np.log(bar).astype(np.float32), 34, 30) is None
    assert fitted_speck(np.zeros((64, 64), np.float32), 34, 30) is None


@pytest.mark.parametrize("bayer", ["none", "RGGB"])
def test_speck_before_a_moving_scene_is_named_with_its_place(bayer: str) -> None:
    rig = Rig(width_px=SIZE, height_px=SIZE, mask="random", bayer=bayer, scene="pan", speed=2.0)
    (text,) = texts(rig, specks(60, 80))
    x_px, y_px = (int(part.strip("(,)")) for part in text.split()[2:4])
    assert abs(x_px - 80) <= 4
    assert abs(y_px - 60) <= 4


def test_dark_place_of_a_scene_at_rest_is_no_dust() -> None:
    rig = Rig(width_px=SIZE, height_px=SIZE, mask="random", scene="static")
    assert texts(rig, specks(60, 80)) == []


@pytest.mark.parametrize("scene", ["static", "pan"])
def test_speck_that_arrives_is_fitted_within_ten_looks(scene: str) -> None:
    rig = Rig(width_px=SIZE, height_px=SIZE, mask="random", scene=scene)
    window = specks(60, 80)
    dust = Dust(rig.calibration, correct=True)
    looks_at(dust, rig, np.ones_like(window), LOOKS)
    assert dust.defects == []
    looks_at(dust, rig, window, 10)
    (speck,) = dust.specks
    np.testing.assert_allclose(speck.transmission((SIZE, SIZE)), window, atol=0.1)
    dust.begin_anew()
    assert dust.specks == (speck,), "it is still there"


def test_speck_that_arrives_before_a_fast_scene_is_named_in_ten() -> None:
    rig = Rig(width_px=SIZE, height_px=SIZE, mask="random", scene="fast")
    dust = Dust(rig.calibration)
    looks_at(dust, rig, np.ones((SIZE, SIZE), np.float32), LOOKS)
    looks_at(dust, rig, specks(60, 80), 10)
    (defect,) = dust.defects
    assert "dust on the window" in defect.text


def test_speck_that_is_wiped_off_is_forgotten() -> None:
    rig = Rig(width_px=SIZE, height_px=SIZE, mask="random", scene="static")
    dust = Dust(rig.calibration, correct=True)
    clean = np.ones((SIZE, SIZE), np.float32)
    for window in (clean, specks(60, 80), clean):
        looks_at(dust, rig, window, LOOKS)
    assert dust.defects == []
    assert dust.specks == ()


def test_things_that_come_and_go_are_no_dust() -> None:
    rig = Rig(width_px=SIZE, height_px=SIZE, mask="shifting", scene="drops", speed=2.0)
    dust = Dust(rig.calibration, correct=True)
    for _ in range(5 * LOOKS):
        looks_at(dust, rig, np.ones((SIZE, SIZE), np.float32), 1)
        assert dust.defects == []


@pytest.mark.parametrize("scene", ["fast", "fan", "pan", "slow", "splash", "balloon"])
def test_clean_window_is_no_dust(scene: str) -> None:
    rig = Rig(width_px=SIZE, height_px=SIZE, mask="shifting", scene=scene)
    assert texts(rig, np.ones((SIZE, SIZE), np.float32)) == []
