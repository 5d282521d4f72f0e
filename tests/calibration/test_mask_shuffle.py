"""Masks in a shuffled order are found in what moves; nothing is claimed with the right ones or a
still scene.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sci_stream.calibration.mask_order import is_cycle
from sci_stream.calibration.monitor import CalibrationMonitor
from tests.calibration.moved_masks import Rig

pytestmark = pytest.mark.usefixtures("one_thread")


def better_order(
    order: np.ndarray, snapshots: int = 5, **options: object
) -> tuple[int, ...] | None:
    """Return the better order that is found if the calibration has the masks in this order."""
    camera = Rig(width_px=128, height_px=128, n_frames=len(order), **options)
    calibration = replace(camera.calibration, phi=camera.calibration.phi[order])
    monitor = CalibrationMonitor(
        calibration, torch.device("cpu"), every=1, correct=True, shuffled=True
    )
    video = np.zeros((len(order), 128, 128), np.float32)
    health = None
    for _ in range(snapshots):
        health = monitor.check(replace(camera.snapshot(), calibration_hash=calibration.hash), video)
    assert health is not None
    assert monitor.shuffle is not None
    assert health.order != "shuffled" or monitor.shuffle.order is not None
    assert (
        health.order == "shuffled"
        or monitor.shuffle.order is None
        or is_cycle(monitor.shuffle.order)
    )
    return monitor.shuffle.order


def shuffled(n_frames: int) -> np.ndarray:
    return np.random.default_rng(5).permutation(n_frames)


@pytest.mark.parametrize(("mask", "n_frames"), [("random", 8), ("shifting", 8), ("random", 14)])
def test_shuffled_masks_are_recognised_and_their_order_is_found(mask: str, n_frames: int) -> None:
    order = shuffled(n_frames)
    found = better_order(order, mask=mask, scene="fast")
    assert found is not None
    shown = order[list(found)]
    right = np.arange(n_frames)
    misplaced = min(np.abs(shown - right).max(), np.abs(shown - right[::-1]).max())
    assert misplaced <= (0 if n_frames == 8 else 1), (
        "one snapshot does not tell an order from its reverse"
    )


@pytest.mark.parametrize("mask", ["random", "shifting"])
@pytest.mark.parametrize("scene", ["fast", "slow", "static"])
def test_right_masks_are_not_taken_for_shuffled(mask: str, scene: str) -> None:
    assert better_order(np.arange(8), mask=mask, scene=scene) is None


def test_nothing_is_claimed_where_nothing_moves() -> None:
    assert better_order(shuffled(8), mask="random", scene="static") is None


def test_reversed_masks_are_left_to_the_video() -> None:
    assert better_order(np.arange(8)[::-1], mask="random", scene="fast") is None


def test_masks_that_begin_elsewhere_are_a_cycle() -> None:
    found = better_order((np.arange(8) + 3) % 8, 9, mask="random", scene="fast")
    assert found is not None
    assert is_cycle(found)
    assert not is_cycle(tuple(shuffled(8)))
