"""Faults of a sensor that only several snapshots show, each behind a scene that moves on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from sci_stream.calibration import sensor_faults
from sci_stream.calibration.sensor_faults import SensorFaults
from sci_stream.model import Array
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import Guard, GuardedSolver
from sci_stream.recon.settings import default_settings
from tests.calibration.moved_masks import Rig

SNAPSHOTS = 10
Fault = Callable[[Array, Array], Array]
"""Takes the counts of a snapshot and of the one before, less the black level, DN."""


def right(counts: Array, _before: Array) -> Array:
    return counts


def with_taps(counts: Array, _before: Array) -> Array:
    offset = np.zeros(counts.shape[1])
    offset[: len(offset) // 2] = 80
    return counts + offset


def with_lag(counts: Array, before: Array) -> Array:
    return counts + 0.1 * before


def with_gains(counts: Array, _before: Array) -> Array:
    gains = 1 + 0.05 * np.random.default_rng(8).standard_normal(counts.shape)
    return counts * gains


def names(rig: Rig, fault: Fault) -> list[str]:
    """Return the names of what snapshots and their true frames show."""
    sensor = SensorFaults(rig.calibration, paced=False)
    dark = rig.calibration.dark
    before = np.zeros(rig.calibration.shape)
    frames_before = np.zeros(rig.calibration.phi.shape, np.float32)
    for _ in range(SNAPSHOTS):
        snapshot = rig.snapshot()
        assert snapshot.truth is not None
        light = snapshot.counts - dark
        counts = (fault(light, before) + dark).clip(0, 4095).astype(np.uint16)
        frames = snapshot.truth / np.float32(255)
        # Frames with lag explain such a snapshot: the masks are the same.
        video = frames + np.float32(0.1) * frames_before if fault is with_lag else frames
        before = light
        frames_before = frames
        sensor.add(snapshot.id, counts, video)
    return [defect.name for defect in sensor.defects]


@pytest.mark.parametrize("bayer", ["none", "RGGB"])
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (right, []),
        (with_taps, ["two_taps"]),
        (with_lag, ["image_lag"]),
        (with_gains, ["pixel_gains"]),
    ],
)
def test_fault_of_sensor_is_named(bayer: str, fault: Fault, expected: list[str]) -> None:
    rig = Rig(width_px=128, height_px=128, mask="random", bayer=bayer, scene="fast")
    assert names(rig, fault) == expected


@pytest.mark.parametrize("scene", ["slow", "static", "fan", "balloon", "splash"])
@pytest.mark.parametrize("mask", ["random", "shifting"])
def test_right_sensor_has_no_fault(scene: str, mask: str) -> None:
    assert names(Rig(width_px=128, height_px=128, mask=mask, scene=scene), right) == []


def test_motion_that_a_solve_smooths_is_no_lag() -> None:
    rig = Rig(width_px=96, height_px=96, mask="shifting", bayer="none", speed=0.5)
    cpu = torch.device("cpu")
    settings = dataclasses.replace(default_settings(cpu, "tv"), warm_start=True)
    engine = Engine(rig.calibration, make_denoiser("tv", cpu), cpu, settings)
    sensor = SensorFaults(rig.calibration, paced=False)
    for _ in range(9):
        snapshot = rig.snapshot()
        sensor.add(snapshot.id, snapshot.counts, engine.reconstruct(snapshot, 4)[0])
        assert "image_lag" not in [defect.name for defect in sensor.defects]


def test_guarded_solve_of_a_rig_names_two_taps(monkeypatch: pytest.MonkeyPatch) -> None:
    # Looks at each snapshot, also where other programs take the time of this one.
    monkeypatch.setattr(sensor_faults, "_PAUSES", 0)
    rig = Rig(width_px=128, height_px=128, mask="random", scene="fast")
    cpu = torch.device("cpu")
    engine = Engine(rig.calibration, make_denoiser("tv", cpu), cpu, default_settings(cpu, "tv"))
    solver = GuardedSolver(engine, Guard(every=1, live=True))
    for _ in range(SNAPSHOTS):
        snapshot = rig.snapshot()
        counts = with_taps(snapshot.counts, snapshot.counts).clip(0, 4095)
        delivered = solver.solve(dataclasses.replace(snapshot, counts=counts.astype(np.uint16)), 4)
    assert [defect.name for defect in delivered.defects] == ["two_taps"]
    assert "left half" in delivered.defects[0].text
