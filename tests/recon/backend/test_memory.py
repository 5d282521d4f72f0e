"""Chunk sizes for a network, and the memory of a solve."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sci_stream.model import BayerPhase, Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.algorithms.unrolled import LEAST_BEFORE, UnrolledSolver
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.backend.memory import PIXELS_PER_CHUNK, plan_chunks, solve_bytes
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.registry import named_prior
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import load_ffdnet
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import SolverSettings, default_settings
from tests.recon.networks import random_weights


@given(n=st.integers(0, 500), pixels=st.integers(1, 10**7), most=st.integers(1, 10**8))
def test_chunks_are_nearly_equal_and_within_the_limit(n: int, pixels: int, most: int) -> None:
    sizes = plan_chunks(n, pixels, most)
    assert sum(sizes) == n
    assert all(size >= 1 for size in sizes)
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert all(size * pixels <= most or size == 1 for size in sizes)
    assert not sizes or len(sizes) == -(-n // max(1, most // pixels))


def test_frame_larger_than_limit_is_its_own_chunk() -> None:
    assert plan_chunks(3, 6_312_960, 2**20) == [1, 1, 1]


class Tracker(TorchDispatchMode):
    """Counts the bytes of all tensors alive."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if (
                isinstance(tensor, torch.Tensor)
                and tensor.untyped_storage()._cdata not in self._sizes
            ):
                storage = tensor.untyped_storage()
                self._sizes[storage._cdata] = storage.nbytes()
                self._now += storage.nbytes()
                self.peak = max(self.peak, self._now)
                weakref.finalize(storage, self._gone, storage._cdata)
        return out

    def _gone(self, key: int) -> None:
        self._now -= self._sizes.pop(key)


@pytest.mark.parametrize("bayer", [None, BayerPhase.GBRG])
@pytest.mark.parametrize(
    ("chunk", "along_time", "from_linear"),
    [(1, False, False), (10**9, False, False), (10**9, True, False), (1, True, True)],
)
def test_solve_takes_the_planned_memory(
    bayer: BayerPhase | None, chunk: int, along_time: bool, from_linear: bool
) -> None:
    phi = np.random.default_rng(0).random((12, 64, 48)).astype(np.float32)
    calibration = Calibration(phi=phi, bayer=bayer)
    # As wide as the published network, and not as deep: its layers are of one size.
    denoise = FfdnetDenoiser(random_weights(4, 64), torch.device("cpu"), pixels_per_chunk=chunk)
    snapshot = Snapshot(
        SnapshotId("test", 0, 0), 0.5 * phi.sum(0), calibration.hash, 12, 0, bayer=bayer
    )
    settings = SolverSettings(
        iterations=4,
        relaxation=1.5,
        along_time=along_time,
        linear_start=from_linear,
        correlated=4 if from_linear else 0,
    )
    with Tracker() as tracker:
        engine = Engine(
            calibration, denoise, torch.device("cpu"), settings, video_dtype=torch.float16
        )
        engine.reconstruct(snapshot)
    planned = solve_bytes(12, 64, 48, planes=1 if bayer is None else 4, pixels_per_chunk=chunk)
    assert 0.4 * planned < tracker.peak <= planned


@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.HALF])
def test_solve_with_stages_takes_the_planned_memory(precision: Precision) -> None:
    phi = np.random.default_rng(0).random((24, 96, 96)).astype(np.float32)
    calibration, cpu = Calibration(phi=phi), torch.device("cpu")
    prior = named_prior("unrolled", cpu, None, precision)
    assert isinstance(prior, UnrolledSolver)
    assert isinstance(prior.before, FfdnetDenoiser)
    prior.pixels_per_chunk = prior.before.pixels_per_chunk = 2**15
    snapshot = Snapshot(SnapshotId("test", 0, 0), 0.5 * phi.sum(0), calibration.hash, 24, 0)
    with Tracker() as tracker:
        engine = Engine(
            calibration, prior, cpu, default_settings(cpu, "unrolled"), video_dtype=torch.float16
        )
        engine.reconstruct(snapshot, LEAST_BEFORE + 2)
    planned = solve_bytes(24, 96, 96, pixels_per_chunk=2**15, features=prior.dtype)
    assert 0.4 * planned < tracker.peak <= planned


@pytest.mark.parametrize("bayer", [None, BayerPhase.GBRG])
def test_solve_in_chunks_equals_one_piece(bayer: BayerPhase | None) -> None:
    phi = (np.random.default_rng(0).random((12, 64, 48)) < 0.5).astype(np.float32)
    calibration = Calibration(phi=phi, bayer=bayer)
    snapshot = Snapshot(
        SnapshotId("test", 0, 0), 0.5 * phi.sum(0), calibration.hash, 12, 0, bayer=bayer
    )
    weights, settings = (
        load_ffdnet(shipped_weights("ffdnet-lite")),
        default_settings(torch.device("cpu"), "ffdnet-lite"),
    )
    small, whole = (
        Engine(
            calibration,
            FfdnetDenoiser(weights, torch.device("cpu"), pixels_per_chunk=chunk),
            torch.device("cpu"),
            settings,
        ).reconstruct(snapshot, 6)[0]
        for chunk in (1, 10**9)
    )
    np.testing.assert_allclose(small, whole, atol=1e-5)


def test_largest_published_measurement_fits_24_gb() -> None:
    assert solve_bytes(48, 3840, 1644, pixels_per_chunk=PIXELS_PER_CHUNK["cuda"]) < 0.6 * 24e9


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_largest_published_measurement_is_solved_in_24_gb() -> None:
    device = torch.device("cuda")
    phi = (np.random.default_rng(0).random((48, 3840, 1644), dtype=np.float32) < 0.5).astype(
        np.float32
    )
    calibration = Calibration(phi=phi)
    snapshot = Snapshot(SnapshotId("test", 0, 0), 0.5 * phi.sum(0), calibration.hash, 48, 0)
    torch.cuda.reset_peak_memory_stats(device)
    for precision in (Precision.HALF, Precision.FLOAT32):
        denoise = FfdnetDenoiser(random_weights(15, 64), device, precision)
        engine = Engine(
            calibration, denoise, device, SolverSettings(iterations=4), video_dtype=torch.float16
        )
        assert np.isfinite(engine.reconstruct(snapshot, 4)[0]).all()
    assert torch.cuda.max_memory_reserved(device) < 24e9
