"""The solver thread: every submitted snapshot is returned once and in order, without unnecessary
waiting.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sci_stream.config import ReconstructSection, Rig
from sci_stream.devices.solver import make_prior
from sci_stream.errors import CaptureError, DeviceLostError, DeviceMemoryError
from sci_stream.model import Snapshot, SnapshotId
from sci_stream.nodes.reconstruct import solver_thread
from sci_stream.nodes.reconstruct.node import ReconstructNode
from sci_stream.nodes.reconstruct.solver_thread import (
    Failed,
    Ready,
    Result,
    Solved,
    SolverThread,
)
from sci_stream.nodes.runtime.health_reporter import HealthReporter
from sci_stream.nodes.runtime.process import StopRequest
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.backend.async_solve import AsyncSolve
from sci_stream.recon.engine import Engine

PATIENCE_S = 60.0

NO_MEMORY_ON_A_CPU = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate "
    "67108864 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.fixture
def calibration() -> Calibration:
    phi = np.random.default_rng(0).random((3, 12, 16)).astype(np.float32)
    return Calibration(phi=phi, full_scale_dn=900.0)


def _snapshot(calibration: Calibration, seq: int) -> Snapshot:
    video = np.full((3, 12, 16), 0.1 + 0.05 * seq, np.float32)
    return Snapshot(
        id=SnapshotId("test", 0, seq),
        counts=900.0 * (calibration.phi * video).sum(0),
        calibration_hash=calibration.hash,
        n_frames=3,
        host_time_ns=0,
    )


class Bench:
    """A solver thread and its results."""

    def __init__(self, **settings: Any) -> None:
        section = ReconstructSection(solver="tv", iterations=4, threads=1, **settings)
        self.solver = SolverThread(section, "cpu")
        self._woken = threading.Semaphore(0)
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._started = False

    def start(self) -> None:
        if not self._started:
            self._started = True
            self.solver.start(self._woken.release)

    def next(self) -> Result:
        """Return the next result.

        The first call starts the thread, so that everything submitted before is queued.
        """
        self.start()
        while self._results.empty():
            assert self._woken.acquire(timeout=PATIENCE_S), "no result"
            for result in self.solver.results():
                self._results.put(result)
        return self._results.get()


@pytest.fixture
def start() -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(**settings: Any) -> Bench:
        benches.append(Bench(**settings))
        return benches[-1]

    yield make
    for bench in benches:
        bench.start()
        bench.solver.stop()


@pytest.mark.parametrize("video_dtype", ["float16", "float32"])
def test_snapshots_are_solved_once_in_order(
    calibration: Calibration, start: Callable[..., Bench], video_dtype: str
) -> None:
    bench = start(video_dtype=video_dtype)
    bench.solver.adopt(calibration)
    for seq in range(6):
        bench.solver.submit(_snapshot(calibration, seq))
    assert isinstance(bench.next(), Ready)
    for seq in range(6):
        solved = bench.next()
        assert isinstance(solved, Solved)
        assert solved.snapshot.id.seq == seq
        assert solved.video.dtype == np.dtype(video_dtype)
        np.testing.assert_allclose(solved.video, 0.1 + 0.05 * seq, atol=0.05)
        assert solved.report.iterations == 4
        assert solved.times.started_ns <= solved.times.finished_ns


@pytest.mark.parametrize("period_ns", [0, 1])
def test_moving_image_is_looked_for_if_there_is_time(
    start: Callable[..., Bench], period_ns: int
) -> None:
    phi = np.random.default_rng(0).random((3, 64, 64)).astype(np.float32)
    calibration = Calibration(phi=phi, full_scale_dn=900.0)
    counts = 900.0 * (phi * 0.5).sum(0)
    snapshot = Snapshot(
        id=SnapshotId("test", 0, 0),
        counts=counts,
        calibration_hash=calibration.hash,
        n_frames=3,
        host_time_ns=0,
        period_ns=period_ns,
    )
    bench = start()
    bench.solver.adopt(calibration)
    bench.solver.submit(snapshot)
    assert isinstance(bench.next(), Ready)
    solved = bench.next()
    assert isinstance(solved, Solved)
    assert (solved.report.moving_share is None) == bool(period_ns)


def test_unfit_snapshot_fails_alone(calibration: Calibration, start: Callable[..., Bench]) -> None:
    bench = start()
    bench.solver.adopt(calibration)
    wrong = _snapshot(calibration, 1)
    wrong = Snapshot(wrong.id, wrong.counts[:5], calibration.hash, 3, host_time_ns=0)
    for snapshot in (_snapshot(calibration, 0), wrong, _snapshot(calibration, 2)):
        bench.solver.submit(snapshot)
    results = [bench.next() for _ in range(4)]
    assert [type(result) for result in results] == [Ready, Solved, Failed, Solved]
    assert "(12, 16) pixels" in str(results[2].error)  # type: ignore[union-attr]


@pytest.mark.parametrize("counts", [3e38, -3e38, np.inf, np.nan])
@pytest.mark.parametrize("pixels", [1, 12 * 16])
def test_counts_near_the_largest_float_are_left_out(
    calibration: Calibration, start: Callable[..., Bench], counts: float, pixels: int
) -> None:
    bench = start()
    bench.solver.adopt(calibration)
    good = _snapshot(calibration, 0)
    spoilt = good.counts.astype(np.float32)
    spoilt.reshape(-1)[:pixels] = counts
    bench.solver.submit(dataclasses.replace(good, counts=spoilt))
    assert isinstance(bench.next(), Ready)
    solved = bench.next()
    assert isinstance(solved, Solved), solved
    assert np.isfinite(solved.video).all()
    assert np.isfinite(solved.report.residual)
    if pixels == 1:
        np.testing.assert_allclose(solved.video.reshape(3, -1)[:, 1:], 0.1, atol=0.05)


def test_stopping_ends_a_long_solve_within_an_iteration(calibration: Calibration) -> None:
    bench = Bench()
    bench.solver._settings = dataclasses.replace(bench.solver._settings, iterations=1_000_000)
    bench.solver.adopt(calibration)
    assert isinstance(bench.next(), Ready)
    bench.solver.submit(_snapshot(calibration, 0))
    stopper = threading.Thread(target=bench.solver.stop)
    stopper.start()
    stopper.join(PATIENCE_S)
    assert not stopper.is_alive()


class SlowToArrive(AsyncSolve):
    """A video that a device is still working on until it is released, as one of a GPU would be."""

    log: list[str]
    released: threading.Event
    seq: int

    @property
    def ready(self) -> bool:
        return self.released.is_set()

    def finish(self) -> Any:
        self.released.wait(PATIENCE_S)
        self.log.append(f"finish {self.seq}")
        return super().finish()


@pytest.fixture
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have videos arrive when the next solve has done two iterations; return what happened, in
    order.
    """
    log: list[str] = []
    under_way: list[SlowToArrive] = []
    begin = Engine.begin

    def begun(
        engine: Engine, snapshot: Snapshot, iterations: int | None = None, **more: Any
    ) -> AsyncSolve:
        if snapshot.id.series == "warm-up":
            return begin(engine, snapshot, iterations, **more)
        log.append(f"begin {snapshot.id.seq}")
        between, count = engine._between, 0

        def counting() -> None:
            nonlocal count
            count += 1
            if count == 3 and under_way:
                under_way[-1].released.set()
            between()

        engine._between = counting
        try:
            pending = begin(engine, snapshot, iterations)
        finally:
            engine._between = between
        log.append(f"begun {snapshot.id.seq}")
        pending.__class__ = SlowToArrive
        assert isinstance(pending, SlowToArrive)
        pending.log, pending.released, pending.seq = log, threading.Event(), snapshot.id.seq
        under_way.append(pending)
        if snapshot.id.seq == 2:
            pending.released.set()
        return pending

    monkeypatch.setattr(Engine, "begin", begun)
    return log


def test_next_solve_starts_before_last_video_arrives(
    calibration: Calibration, start: Callable[..., Bench], like_a_gpu: list[str]
) -> None:
    bench = start()
    bench.solver.adopt(calibration)
    for seq in range(3):
        bench.solver.submit(_snapshot(calibration, seq))
    assert isinstance(bench.next(), Ready)
    assert [bench.next().snapshot.id.seq for _ in range(3)] == [0, 1, 2]  # type: ignore[union-attr]
    assert like_a_gpu == [
        "begin 0", "begun 0",
        "begin 1", "finish 0", "begun 1",
        "begin 2", "finish 1", "begun 2",
        "finish 2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), NO_MEMORY_ON_A_CPU]
)
@pytest.mark.parametrize("fits_with_less", [True, False])
def test_out_of_memory_costs_speed_or_one_snapshot(
    calibration: Calibration,
    start: Callable[..., Bench],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    fits_with_less: bool,
) -> None:
    iterate = Engine.solve
    tries = 0

    def exhausted(engine: Engine, *args: Any, **options: Any) -> Any:
        nonlocal tries
        calls.append(0)
        if len(calls) >= 4 and (
            tries == 0 or not fits_with_less
        ):  # after the two of the warm-up and snapshot 0
            tries += 1
            raise error
        return iterate(engine, *args, **options)

    calls: list[int] = []
    monkeypatch.setattr(Engine, "solve", exhausted)
    bench = start()
    bench.solver.adopt(calibration)
    for seq in range(3):
        bench.solver.submit(_snapshot(calibration, seq))
    results = [bench.next() for _ in range(4)]
    if fits_with_less:
        assert [type(result) for result in results] == [Ready, Solved, Solved, Solved]
        reasons = [
            result.report.start_reason for result in results[1:] if isinstance(result, Solved)
        ]
        assert reasons[:2] == ["first", "memory"], "the last video was released for this one"
    else:
        assert [type(result) for result in results] == [Ready, Solved, Failed, Failed]
        assert isinstance(results[2].error, DeviceMemoryError)  # type: ignore[union-attr]
        assert "ran out of memory" in str(results[2].error)  # type: ignore[union-attr]
    assert bench.solver.status()["out_of_memory"] == tries > 0


def test_changed_calibration_starts_cold_with_reason(calibration: Calibration) -> None:
    other = Calibration(phi=calibration.phi[::-1].copy(), full_scale_dn=900.0)
    bench = Bench(adapt_budget=False)
    try:
        for each in (calibration, other):
            bench.solver.adopt(each)
        for seq, each in enumerate((calibration, other, calibration)):
            bench.solver.submit(_snapshot(each, seq))
        results = [bench.next() for _ in range(5)]
        solved = [result for result in results if isinstance(result, Solved)]
        assert [result.report.start_reason for result in solved] == [
            "first",
            "calibration",
            "calibration",
        ]
    finally:
        bench.solver.stop()


def test_failed_capture_ends_the_node_and_not_only_the_snapshot(
    start: Callable[..., Bench], calibration: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's allocator may be broken then: every snapshot after it would fail too."""
    bench = start()
    bench.solver.adopt(calibration)
    assert isinstance(bench.next(), Ready)

    def begin(*_given: object, **_how: object) -> AsyncSolve:
        raise CaptureError("Capturing a CUDA graph failed")

    monkeypatch.setattr(Engine, "begin", begin)
    bench.solver.submit(_snapshot(calibration, 0))
    failed = bench.next()
    assert isinstance(failed, Failed)
    assert failed.snapshot is None
    assert isinstance(failed.error, CaptureError)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu_out_of_memory_continues_with_smaller_chunks() -> None:
    phi = np.random.default_rng(0).random((32, 512, 512), dtype=np.float32)
    calibration = Calibration(phi=phi, full_scale_dn=900.0)
    counts = (900.0 * phi.mean(0)).astype(np.float32)
    snapshots = [
        Snapshot(SnapshotId("test", 0, seq), counts, calibration.hash, 32, 0) for seq in range(3)
    ]
    section = ReconstructSection(
        solver="ffdnet-lite", iterations=3, min_iterations=3, warm_start=False
    )
    total = torch.cuda.get_device_properties(0).total_memory

    def peak(engine: Engine) -> int:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        engine.reconstruct(snapshots[0])
        return torch.cuda.max_memory_reserved()

    denoiser, settings = make_prior(section, torch.device("cuda", 0))
    engine = Engine(calibration, denoiser, torch.device("cuda", 0), settings)
    most = peak(engine)
    while engine.reduce_memory():
        pass
    least = peak(engine)
    assert least < most
    del engine, denoiser

    solver = SolverThread(section, "cuda:0")
    results: queue.SimpleQueue[Result] = queue.SimpleQueue()

    def collect() -> None:
        for result in solver.results():
            results.put(result)

    solver.start(collect)
    try:
        solver.adopt(calibration)
        assert isinstance(results.get(timeout=PATIENCE_S), Ready)
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((least + (most - least) / 2) / total)
        for snapshot in snapshots:
            solver.submit(snapshot)
        solved = [results.get(timeout=PATIENCE_S) for _ in snapshots]
        assert all(isinstance(result, Solved) for result in solved), solved
        assert int(solver.status()["out_of_memory"]) >= 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        solver.stop()


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), "is lost"),
        (RuntimeError("CUDA error: unspecified launch failure"), "is lost"),
        (SystemExit(3), "thread ended"),
    ],
    ids=["accelerator error", "older releases of torch", "sys.exit"],
)
def test_lost_device_ends_the_node_at_once(
    calibration: Calibration, monkeypatch: pytest.MonkeyPatch, failure: BaseException, reason: str
) -> None:
    def fail(*_: object, **__: object) -> AsyncSolve:
        raise failure

    bench = Bench()
    bench.solver.adopt(calibration)
    assert isinstance(bench.next(), Ready)
    monkeypatch.setattr(Engine, "begin", fail)
    bench.solver.submit(_snapshot(calibration, 0))
    failed = bench.next()
    assert isinstance(failed, Failed)
    assert failed.snapshot is None, "its snapshot is sent again"
    assert isinstance(failed.error, DeviceLostError)
    assert reason in str(failed.error)
    bench.solver.stop()


def test_node_that_fails_every_snapshot_ends(
    calibration: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> AsyncSolve:
        raise ValueError("a denoiser that fails")

    bench = Bench()
    bench.solver.adopt(calibration)
    assert isinstance(bench.next(), Ready)
    monkeypatch.setattr(Engine, "begin", fail)
    for seq in range(5):
        bench.solver.submit(_snapshot(calibration, seq))
    results = [bench.next() for _ in range(5)]
    assert [result.snapshot is None for result in results if isinstance(result, Failed)] == [
        False
    ] * 4 + [True]
    bench.solver.stop()


def test_solver_that_hangs_is_noticed_and_abandoned(
    calibration: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def hang(*_: object, **__: object) -> AsyncSolve:
        released.wait(PATIENCE_S)
        raise ValueError("at last")

    monkeypatch.setattr(solver_thread, "_LEAST_STALL_S", 0.2)
    monkeypatch.setattr(solver_thread, "_STALLED", 0.0)
    monkeypatch.setattr(solver_thread, "_JOIN_S", 0.1)
    bench = Bench()
    bench.solver.adopt(calibration)
    assert isinstance(bench.next(), Ready)
    assert bench.solver.stalled() is None, "it has nothing to do"
    monkeypatch.setattr(Engine, "begin", hang)
    bench.solver.submit(_snapshot(calibration, 0))
    deadline_s = time.monotonic() + PATIENCE_S
    while (error := bench.solver.stalled()) is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    assert "The solver hangs" in str(error)
    bench.solver.stop()
    released.set()


def test_watchdog_is_fed_while_an_engine_is_prepared(
    start: Callable[..., Bench], calibration: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler may take longer than the watchdog waits, with snapshots in hand."""
    step, idle = threading.Barrier(2), []
    monkeypatch.setattr(Engine, "warm_up", lambda _: step.wait(PATIENCE_S) + step.wait(PATIENCE_S))
    monkeypatch.setattr(HealthReporter, "report", lambda *_, **how: idle.append(how["idle"]))
    bench = start()
    bench.start()
    node = ReconstructNode(
        Rig.model_validate({"health": {"enabled": False}}), bench.solver, StopRequest()
    )
    node._held["test", 0] = 0
    bench.solver.adopt(calibration)
    step.wait(PATIENCE_S)
    node._publish_status()
    step.wait(PATIENCE_S)
    bench.solver.stop()
    node._publish_status()
    assert idle == [True, False]
    node._dispatch.close()
    node._link.connection.close()
    node._network.close()
