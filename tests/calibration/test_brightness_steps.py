"""Exposure time, gain or lamp that change while a rig runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from sci_stream.calibration.brightness_steps import BrightnessSteps
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import Guard, GuardedSolver
from sci_stream.recon.settings import default_settings
from tests.calibration.moved_masks import Rig

CPU = torch.device("cpu")
ONSET = 4


def named(factors: Sequence[float], offset: float = 0.0, scene: str = "splash") -> list[str]:
    """Return the texts after snapshots with such gains, the first ones right, and with an offset
    in units of the mean.
    """
    rig = Rig(width_px=128, height_px=128, mask="random", scene=scene, exposure=0.4)
    steps = BrightnessSteps(rig.calibration)
    for factor in [1.0] * ONSET + list(factors):
        snapshot = rig.snapshot()
        light = snapshot.counts - rig.calibration.dark
        added = offset * light.mean() * (snapshot.id.seq >= ONSET)
        counts = rig.calibration.dark + factor * light + added
        steps.add(snapshot.id, np.rint(counts).astype(np.uint16))
    return [defect.text for defect in steps.defects]


@pytest.mark.parametrize("scene", ["splash", "fast", "slow"])
@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_gain_that_changes_is_named(scene: str, factor: float) -> None:
    (text,) = named([factor] * 3, scene=scene)
    named_factor = float(text.split(" times")[0].rsplit(" ", 1)[1])
    assert named_factor == pytest.approx(factor, rel=0.02)


@pytest.mark.parametrize("scene", ["pan", "belt", "fan"])
def test_small_gain_behind_a_scene_that_moves_is_named(scene: str) -> None:
    (text,) = named([1.1] * 3, scene=scene)
    assert "times as bright" in text


@pytest.mark.parametrize("scene", ["slow", "drops", "static"])
@pytest.mark.parametrize("slope", [0.015, -0.015])
def test_gain_that_drifts_is_named(scene: str, slope: float) -> None:
    (text,) = named([1.0] * 4 + [1 + slope * number for number in range(1, 11)], scene=scene)
    assert f"became {1 + 10 * slope:.1f}"[:-1] in text


@pytest.mark.parametrize("scene", ["slow", "drops", "fan"])
def test_light_that_flickers_is_named(scene: str) -> None:
    (text,) = named([1.15, 0.9, 1.2, 0.85, 1.0, 1.15], scene=scene)
    assert "from snapshot to snapshot" in text


@pytest.mark.parametrize("scene", ["splash", "balloon", "drops", "pan", "belt", "fan"])
def test_scene_that_moves_changes_no_gain(scene: str) -> None:
    assert named([1.0] * 8, scene=scene) == []


def test_gain_that_is_set_back_is_not_named() -> None:
    assert named([2.0] * 3 + [1.0] * 3) == []


def test_flash_changes_no_gain() -> None:
    assert named([2.0]) == []


def test_stray_light_changes_no_gain() -> None:
    assert named([1.0] * 4, offset=0.5) == []


def test_longer_exposure_is_named_and_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"n_frames": 8, "mask": "shifting", "scene": "belt", "speed": 0.5, "exposure": 0.6}
    rig = Rig(width_px=128, height_px=128, bayer="GBRG", seed=3965, **options)
    calibration = rig.calibration
    engine = Engine(calibration, make_denoiser("tv", CPU), CPU, default_settings(CPU, "tv"))
    solver = GuardedSolver(engine, Guard(every=3, live=True))
    gains = np.array([2, 2, 1, 1, 1, 1, 1, 1], np.float32)
    names: set[str] = set()
    for snapshot in [rig.snapshot() for _ in range(8)]:
        now_s = float(snapshot.id.seq)
        monkeypatch.setattr("time.monotonic", lambda now_s=now_s: now_s)
        counts = snapshot.counts
        if snapshot.id.seq >= ONSET:
            assert snapshot.truth is not None
            frames = snapshot.truth / np.float32(255) * gains[:, np.newaxis, np.newaxis]
            y = (calibration.phi * frames).sum(0)
            dn = calibration.dark + calibration.full_scale_dn * y
            counts = np.rint(dn).clip(0, 4095).astype(np.uint16)
        delivered = solver.solve(replace(snapshot, counts=counts), 1)
        names |= {defect.name for defect in delivered.defects}
    assert names == {"uneven_exposure"}
    used = [1 + mask.gain for mask in engine.masks.correction.masks]
    assert np.allclose(used, gains, atol=0.15)
