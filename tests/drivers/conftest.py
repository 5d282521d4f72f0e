"""Fixtures: small cameras of every driver, and files for the replay camera."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest

from sci_stream_drivers.harvesters import HarvestersCamera, HarvestersOptions
from sci_stream_drivers.replay import ReplayCamera, ReplayOptions
from tests.drivers.camera_kit import (
    SHOTS,
    SIMULATED,
    B,
    Clock,
    H,
    MakeCamera,
    Published,
    W,
    record,
    simulated,
)
from tests.drivers.harvesters.kit import wheel_options, wheel_producer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock of this test."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


@pytest.fixture
def published() -> Published:
    rng = np.random.default_rng(5)
    orig = rng.integers(0, 256, (H, W, SHOTS * B)).astype(np.uint8)
    mask = (rng.random((H, W, B)) < 0.5).astype(np.uint8)
    meas = (orig.reshape(H, W, SHOTS, B).astype(float) * mask[:, :, None, :]).sum(axis=-1)
    return Published(meas, mask, orig)


@pytest.fixture
def recording(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a recording and returns its path."""

    def write(
        seqs: Iterable[int] = range(SHOTS), dropped_before: Mapping[int, int] | None = None
    ) -> Path:
        return record(tmp_path / "run.h5", [seqs], dropped_before or {})

    return write


@pytest.fixture(
    params=[*SIMULATED, "replay .mat v5", "replay .mat v7.3", "replay recording", "harvesters"]
)
def make_camera(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    published: Published,
    recording: Callable[..., Path],
) -> MakeCamera:
    """Return a function that makes equal cameras of SHOTS snapshots."""
    kind: str = request.param
    if kind in SIMULATED:
        return lambda: simulated(**SIMULATED[kind])
    if kind == "harvesters":
        options = HarvestersOptions.model_validate(wheel_options(wheel_producer()))
        return lambda: HarvestersCamera(options)
    if kind == "replay recording":
        path = recording()
    else:
        path = (published.save_v73 if kind.endswith("7.3") else published.save_v5)(
            tmp_path / "scene.mat"
        )
    return lambda: ReplayCamera(ReplayOptions(path=path))
