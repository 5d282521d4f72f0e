"""Pixels that are warm or dead in each snapshot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sci_stream.calibration.sensor.pixel_defects import PixelDefects, defects_of
from sci_stream.model import Flags
from sci_stream.optics.mask_errors import NO_CORRECTION
from sci_stream.optics.mask_shift import corrected_masks
from tests.calibration.moved_masks import Rig


def found(rig: Rig, places: Flags, dn: float) -> Flags:
    """Return the pixels that are left out after snapshots in which some have other counts."""
    detector = PixelDefects(rig.calibration)
    flags: Flags | None = None
    for _ in range(5):
        snapshot = rig.snapshot()
        assert snapshot.truth is not None
        counts = np.where(places, (snapshot.counts + dn).clip(0, 4095), snapshot.counts)
        flags = detector.add(counts.astype(np.uint16), snapshot.truth / np.float32(255))
    return np.zeros_like(places) if flags is None else flags


@pytest.mark.parametrize("bayer", ["none", "RGGB"])
@pytest.mark.parametrize("dn", [400.0, -400.0])
def test_warm_and_cold_pixels_are_left_out(bayer: str, dn: float) -> None:
    rig = Rig(width_px=128, height_px=128, mask="random", bayer=bayer)
    places = np.zeros((128, 128), np.bool_)
    places[5:120:10, 5:120:10] = True
    flags = found(rig, places, dn)
    assert (flags & places).sum() > 0.7 * places.sum()
    assert (flags & ~places).mean() < 0.001
    assert "left out" in defects_of(flags)[0].text


@pytest.mark.parametrize("dn", [4095.0, -4095.0])
def test_few_saturated_and_dead_pixels_are_left_out(dn: float) -> None:
    rig = Rig(width_px=128, height_px=128, mask="random", bayer="RGGB")
    places = np.zeros((128, 128), np.bool_)
    places[5:120:16, 5:120:16] = True
    flags = found(rig, places, dn)
    assert (flags & places).sum() > 0.7 * places.sum()
    assert (flags & ~places).mean() < 0.001


def test_dark_neighbours_are_no_dead_pixels() -> None:
    """They are the edge of a thing, such as a balloon that bursts."""
    rig = Rig(width_px=128, height_px=128, mask="random")
    places = np.zeros((128, 128), np.bool_)
    places[5:120:20, 5:120:20] = True
    places |= np.roll(places, 1, 1)
    assert not found(rig, places, -4095.0).any()


@pytest.mark.parametrize("scene", ["fast", "slow", "static"])
def test_right_pixels_are_no_defect(scene: str) -> None:
    rig = Rig(width_px=128, height_px=128, mask="random", scene=scene)
    assert not found(rig, np.zeros((128, 128), np.bool_), 0.0).any()


def test_masks_with_known_errors_are_no_warm_pixels() -> None:
    rig = Rig(width_px=112, height_px=112, n_frames=6, mask="random", scene="splash", bayer="RGGB")
    calibration = rig.calibration
    twice = NO_CORRECTION.exposed([1.0, 1.0, 1.0, 2.0, 0.05, 1.0])
    phi = corrected_masks(torch.from_numpy(calibration.phi.copy()), twice).numpy()
    behind_right = PixelDefects(calibration)
    behind_known = PixelDefects(calibration)
    for _ in range(4):
        truth = rig.snapshot().truth
        assert truth is not None
        video = truth / np.float32(255)
        y = np.einsum("bhw,bhw->hw", phi, video)
        counts = (calibration.dark + calibration.full_scale_dn * y).astype(np.float32)
        taken_for_warm = behind_right.add(counts, video)
        flags = behind_known.add(counts, video, twice)
    assert taken_for_warm is not None
    assert flags is None
