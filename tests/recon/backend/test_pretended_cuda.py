"""Solves on a pretended GPU: no tensors of two devices, no wait of the host, two copies each way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sci_stream.model import BayerPhase, Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.displacement import Displacement
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.registry import named_prior
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings
from sci_stream.reports import Start
from tests.recon.backend.pretended_cuda import CUDA, PretendedCuda, pretended_cuda

CPU = torch.device("cpu")
SHAPE = (4, 32, 40)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedCuda]:
    with pretended_cuda(monkeypatch) as device:
        yield device


def snapshots(calibration: Calibration, expose: Callable[..., Snapshot]) -> list[Snapshot]:
    """Return four consecutive snapshots of a pattern that moves."""
    rows, columns = np.mgrid[: SHAPE[1], : SHAPE[2]].astype(np.float32)
    found = []
    for seq in range(4):
        times = range(seq * SHAPE[0], (seq + 1) * SHAPE[0])
        frames = [
            0.5 + 0.3 * np.sin((columns + 0.5 * t) / 4) * np.cos((rows - 0.3 * t) / 6)
            for t in times
        ]
        found.append(expose(calibration, np.stack(frames), seq=seq))
    return found


def test_mixed_devices_and_waits_are_seen(gpu: PretendedCuda) -> None:
    there = torch.ones(3, device=CUDA)
    here = torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        there + here
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    assert not gpu.waits
    assert float(there.sum()) == 3.0
    assert gpu.waits


@pytest.mark.parametrize("name", ["tv", "ffdnet-lite", "unrolled"])
@pytest.mark.parametrize("bayer", [None, BayerPhase.RGGB])
def test_solve_waits_for_nothing_and_copies_twice(
    name: str,
    bayer: BayerPhase | None,
    gpu: PretendedCuda,
    make_calibration: Callable[..., Calibration],
    expose: Callable[..., Snapshot],
) -> None:
    calibration = make_calibration(*SHAPE, bayer=bayer)
    settings = dataclasses.replace(
        default_settings(CPU, name),
        warm_start=True,
        iterations=10 if name == "unrolled" else 5,
    )
    plain, engine = (_engine(name, calibration, on, settings) for on in (CPU, CUDA))
    shots = snapshots(calibration, expose)
    starts = []
    for n, snapshot in enumerate(shots):
        if n == 3:
            for each in (plain, engine):
                each.correct_masks(MaskCorrection(Displacement((1, 0))))
        gpu.reset()
        pending = engine.begin(snapshot)
        assert not gpu.waits
        if n > 1:  # what follows from the masks and sizes is on the device by then
            assert gpu.up.total() == gpu.down.total() == 2
        video, report = pending.finish()
        wanted, expected = plain.reconstruct(snapshot)
        assert report.start is expected.start
        starts.append(report.start)
        np.testing.assert_allclose(video, wanted, atol=1e-4)
    assert starts[:3] == [Start.COLD, Start.WARM, Start.WARM]


def _engine(name: str, calibration: Calibration, device: torch.device, settings: Any) -> Engine:
    prior = named_prior(name, device, None, Precision.FLOAT32)
    return Engine(calibration, prior, device, settings, cuda_graphs=False)
