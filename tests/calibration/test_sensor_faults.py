"""Faults of a sensor that only several snapshots show, each behind a scene that moves on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from sci_stream.calibration.sensor import sensor_faults
from sci_stream.calibration.sensor.sensor_faults import SensorFaults
from sci_stream.model import Array, Snapshot
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.optics.sensor_errors import SensorErrors
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import NO_GUARD, Decision, Guard, GuardedSolver
from sci_stream.recon.settings import default_settings
from tests.calibration.moved_masks import Rig

SNAPSHOTS = 16
Fault = Callable[[Array, Array], Array]
"""Takes the counts of a snapshot and of the one before, less the black level, DN."""


def right(counts: Array, _before: Array) -> Array:
    return counts


def with_taps(counts: Array, _before: Array) -> Array:
    offset = np.zeros(counts.shape[1])
    offset[: len(offset) // 2] = 80
    return counts + offset


def with_stray_light(counts: Array, _before: Array) -> Array:
    place = np.linspace(0, 1, counts.shape[1])
    return counts + 160 * place**2


def with_lag(counts: Array, before: Array) -> Array:
    return counts + 0.1 * before


def with_gains(counts: Array, _before: Array) -> Array:
    gains = 1 + 0.05 * np.random.default_rng(8).standard_normal(counts.shape)
    return counts * gains


def in_other_light(counts: Array, _before: Array) -> Array:
    return counts * np.random.default_rng(int(counts.sum())).uniform(0.6, 1)


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
        # A solve explains lag and uneven light by its frames.
        video = frames + np.float32(0.1) * frames_before if fault is with_lag else frames
        if fault is in_other_light:
            video = frames * np.float32(fault(light, before).sum() / light.sum())
        if fault in (with_taps, with_stray_light):
            offset = (fault(light, before) - light) / rig.calibration.full_scale_dn
            video = frames + (offset / rig.calibration.phi.sum(0).mean()).astype(np.float32)
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
        (with_stray_light, ["stray_light"]),
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


@pytest.mark.parametrize("scene", ["static", "drops"])
def test_light_that_flickers_shows_no_gains_of_pixels(scene: str) -> None:
    """The same scene in another light has its texture in common."""
    rig = Rig(width_px=128, height_px=128, mask="random", scene=scene)
    assert names(rig, in_other_light) == []


@pytest.mark.parametrize("scene", ["pan", "belt"])
def test_gains_of_pixels_show_where_all_moves(scene: str) -> None:
    rig = Rig(width_px=128, height_px=128, mask="random", scene=scene)
    assert names(rig, with_gains) == ["pixel_gains"]


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


def guarded(rig: Rig, guard: Guard) -> GuardedSolver:
    cpu = torch.device("cpu")
    engine = Engine(rig.calibration, make_denoiser("tv", cpu), cpu, default_settings(cpu, "tv"))
    return GuardedSolver(engine, guard)


def faulty_series(rig: Rig, fault: Fault, count: int) -> list[Snapshot]:
    """Return consecutive snapshots of a sensor with a fault."""
    dark = rig.calibration.dark
    before = np.zeros(rig.calibration.shape)
    series = []
    for _ in range(count):
        snapshot = rig.snapshot()
        light = snapshot.counts - dark
        counts = np.rint(fault(light, before) + dark).clip(0, 4095).astype(np.uint16)
        before = light
        series.append(dataclasses.replace(snapshot, counts=counts))
    return series


@pytest.mark.parametrize(
    ("fault", "name", "words"),
    [
        (with_taps, "two_taps", "left half is made 0.1"),
        (with_stray_light, "stray_light", " to 0.2"),
        (with_lag, "image_lag", "% of the snapshot before is subtracted"),
    ],
)
def test_guarded_solve_of_a_rig_corrects_the_fault(
    monkeypatch: pytest.MonkeyPatch, fault: Fault, name: str, words: str
) -> None:
    # Looks at each snapshot, also where other programs take the time of this one.
    monkeypatch.setattr(sensor_faults, "_PAUSES", 0)
    rig = Rig(width_px=128, height_px=128, mask="random", scene="fast")
    series = faulty_series(rig, fault, 18)
    corrects = guarded(rig, Guard(every=1, live=True))
    names = guarded(rig, Guard(every=1, live=True, correct_sensor=False))
    for snapshot in series:
        corrected = corrects.solve(snapshot, 4)
        named = names.solve(snapshot, 4)
    for delivered, is_corrected in ((corrected, True), (named, False)):
        (defect,) = delivered.defects
        assert defect.name == name
        assert defect.corrected == is_corrected
        assert ("subtracted" in defect.text) == is_corrected
    assert words in MaskCorrection.from_text(corrected.report.masks_at).words
    assert "^" not in named.report.masks_at
    assert corrected.report.psnr_db is not None
    assert named.report.psnr_db is not None
    assert corrected.report.psnr_db > named.report.psnr_db + 1


def test_lag_is_subtracted_only_beside_the_snapshot_before() -> None:
    rig = Rig(width_px=64, height_px=64, mask="random", scene="fast")
    first, second, third = faulty_series(rig, with_lag, 3)
    lost = dataclasses.replace(third, dropped_before=1)
    correction = MaskCorrection(sensor=SensorErrors(lag=0.1))
    solver = guarded(rig, NO_GUARD)
    for snapshot, before, text in (
        (third, second, "^0,0,1000"),
        (third, first, ""),
        (lost, second, ""),
        (third, None, ""),
    ):
        decision = Decision(correction, withheld=False, before=before)
        assert solver.solve_as_decided(snapshot, decision, 2).report.masks_at == text
