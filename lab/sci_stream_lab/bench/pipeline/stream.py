"""``sci-stream bench stream``: cost of the pipeline itself, with a worker that passes counts
through.

Three processes as in a real rig, with the real nodes and sockets: an acquire node whose camera
returns precomputed frames, a reconstruct node whose solver does nothing, and a sink that neither
records nor displays.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from sci_stream.clock import unix_ns
from sci_stream.config import load_rig
from sci_stream.model import Array, CameraCapabilities, CameraFrame, Snapshot, StageTimes
from sci_stream.nodes.acquire.managed_camera import ManagedCamera
from sci_stream.nodes.acquire.node import AcquireNode
from sci_stream.nodes.reconstruct.node import ReconstructNode
from sci_stream.nodes.reconstruct.solver import Ready, Result, Solved
from sci_stream.nodes.reconstruct.solver_thread import SolverThread
from sci_stream.nodes.runtime.process import StopRequest, stop_on_signals
from sci_stream.nodes.sink.node import SinkNode
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import Parameter, Value
from sci_stream.reports import SolveReport, Start
from sci_stream.transport.sockets import FOLDER_VARIABLE
from sci_stream_lab.bench.environment import CpuTimeMeter, environment
from sci_stream_lab.bench.pipeline.supervised_rig import RigTables, RunSummary, write_rig
from sci_stream_lab.bench.pipeline.zmq_baseline import WINDOW, StreamPart, measure_zmq_baseline
from sci_stream_lab.bench.result import BenchResult, ResultColumn, ResultTable

BARE = ", bare ZeroMQ"
"""Suffix of the name of a part's baseline."""
RAW_ONLY = "raw only"
"""Name of the part without reconstruct nodes."""
CHUNKS = ", h5py chunks"
"""Suffix of its baseline: the same bytes through HDF5 alone."""
_RANKS = ("p50", "p99")
# Slow enough that one snapshot is in flight at a time: the latency is that of the pipeline, not of
# a queue.
_UNLOADED_HZ = 50.0
# Noise costs more to make than to send; a few frames in turn keep it out of the measurement, and
# out of caches.
_MADE = 16
# Interval between polls of the number in flight: far shorter than a snapshot, and little work.
_PATIENCE_S = 300e-6


class LoopCamera:
    """A camera that repeats a few frames of 12-bit noise, at a fixed rate or limited by the number
    in flight.
    """

    def __init__(self, shape: tuple[int, int], rate_hz: float) -> None:
        generator = np.random.default_rng(0)
        self._frames = [generator.integers(0, 4096, shape, dtype=np.uint16) for _ in range(_MADE)]
        self._shape = shape
        self._rate_hz = rate_hz
        self._next = 0
        self._start_s = 0.0
        self.under_way: Callable[[], int] = lambda: 0
        self.on_start: Callable[[], None] = lambda: None

    @property
    def frame_bytes(self) -> int:
        """Size of a frame."""
        return self._frames[0].nbytes

    def open(self) -> CameraCapabilities:
        """Return the capabilities."""
        height, width = self._shape
        return CameraCapabilities(
            "bench", "0", height, width, "Mono12", 12, n_frames=1, clock="none"
        )

    def calibration(self) -> Calibration:
        """Return a calibration of fully open masks."""
        return Calibration(np.ones((1, *self._shape), np.float32), full_scale_dn=4095.0)

    def start(self) -> None:
        """Begin."""
        self.on_start()
        self._start_s = time.monotonic()

    def read(self, timeout_s: float) -> CameraFrame | None:
        """Return the next frame when it is due."""
        now_s = time.monotonic()
        deadline_s = now_s + timeout_s
        if self._rate_hz:
            due_s = self._start_s + self._next / self._rate_hz
            time.sleep(max(0.0, min(due_s, deadline_s) - now_s))
            if due_s > deadline_s:
                return None
        # A window instead of a full queue: an unbounded rate would measure the drop policy.
        while not self._rate_hz and self.under_way() >= WINDOW:
            if time.monotonic() > deadline_s:
                return None
            time.sleep(_PATIENCE_S)
        counts: Array = self._frames[self._next % _MADE]
        frame = CameraFrame(counts, self._next, None, unix_ns())
        self._next += 1
        return frame

    @property
    def exhausted(self) -> bool:
        """Never."""
        return False

    def counters(self) -> Mapping[str, int]:
        """Nothing to count."""
        return {}

    def stop(self) -> None:
        """Nothing to stop."""

    def close(self) -> None:
        """Nothing to close."""


class IdentitySolver:
    """A solver that returns the counts as video, bit for bit."""

    device_name = "identity"
    prepares = False

    def __init__(self) -> None:
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._known: set[str] = set()

    def start(self, wake: Callable[[], None]) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def stalled(self) -> None:
        """Return None: it never hangs."""

    def has(self, calibration_hash: str) -> bool:
        """Return whether the calibration is known."""
        return calibration_hash in self._known

    def adopt(self, calibration: Calibration) -> None:
        """Store a calibration."""
        self._known.add(calibration.hash)
        self._results.put(Ready(calibration.hash, self.device_name))

    def submit(self, snapshot: Snapshot) -> None:
        """Pass the counts through."""
        now_ns = unix_ns()
        report = SolveReport(
            iterations=1,
            start=Start.COLD,
            start_reason="identity",
            budget_limited=False,
            solve_ns=0,
            residual=0.0,
        )
        # The same bytes as the input: the way back carries as much as the way in, without any
        # computation.
        video = snapshot.counts.view(np.float16)[np.newaxis]
        self._results.put(
            Solved(snapshot, video, report, StageTimes(started_ns=now_ns, finished_ns=now_ns))
        )

    def results(self) -> Iterator[Result]:
        """Return the finished results."""
        while not self._results.empty():
            yield self._results.get_nowait()

    def status(self) -> dict[str, int | float | str]:
        """Nothing to report."""
        return {}

    def parameters(self) -> Sequence[Parameter]:
        """Nothing to set."""
        return ()

    def change(self, request: str, changes: Mapping[str, Value]) -> None:
        """Unused: there are no parameters."""


def _sink(path: Path, summary: Path) -> None:
    with stop_on_signals() as stop:
        SinkNode(load_rig(path), stop, summary=summary).run()


def _worker(path: Path) -> None:
    with stop_on_signals() as stop:
        ReconstructNode(load_rig(path), cast(SolverThread, IdentitySolver()), stop).run()


@contextlib.contextmanager
def _local_sockets(folder: Path) -> Iterator[None]:
    """Set the folder for local sockets in this process and its children, as a supervisor does for
    its nodes.
    """
    os.environ[FOLDER_VARIABLE] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(FOLDER_VARIABLE, None)


def run_part(
    name: str,
    folder: Path,
    camera: LoopCamera,
    snapshots: int,
    *,
    record: Mapping[str, object] | None = None,
    policy: Mapping[str, object] | None = None,
    nodes: int = 1,
    tcp: bool = False,
) -> tuple[StreamPart, int]:
    """Run the pipeline once, with its files in a folder; return its figures and the number of
    snapshots acquired.

    ``record`` is the [record] table of the rig, which has policy ``record`` then; None to record
    nothing. ``policy`` has further keys of [policy]. ``nodes`` is 1, or 0 to reconstruct nothing.
    """
    tables: RigTables = {
        "policy": {
            "mode": "live" if record is None else "record",
            "queue_snapshots": 4 * WINDOW,
            "max_wait_s": 3600.0,
            **(policy or {}),
        },
        "reconstruct": {"credit": WINDOW, "nodes": nodes},
        "record": record or {"enabled": False},
    }
    path = write_rig(folder, tables)
    with contextlib.nullcontext() if tcp else _local_sockets(folder):
        summary, seconds, used_s = _run(path, camera, snapshots, nodes)
    ledger = summary.ledger
    through = ledger.reconstructed + ledger.raw_only
    part = StreamPart.measured(
        name,
        camera.frame_bytes,
        snapshots,
        seconds,
        used_s,
        through=through,
        lost=ledger.acquired - through,
        latency_ms=summary.latency_ms,
        ledger_closed=ledger.closed,
    )
    return part, ledger.acquired


def _run(
    path: Path, camera: LoopCamera, snapshots: int, nodes: int
) -> tuple[RunSummary, float, dict[str, float]]:
    """Return the sink's summary, the seconds from the first to the last snapshot, and processor
    seconds by process.
    """
    summary = path.with_suffix(".json")
    # Not fork: ZeroMQ contexts and torch's threads do not survive it.
    spawn = multiprocessing.get_context("spawn")
    processes = {"sink": spawn.Process(target=_sink, args=(path, summary), daemon=True)}
    if nodes:
        processes["reconstruct"] = spawn.Process(target=_worker, args=(path,), daemon=True)
    for process in processes.values():
        process.start()
    node = AcquireNode(
        load_rig(path), ManagedCamera(camera, "loop"), None, StopRequest(), snapshots=snapshots
    )
    camera.under_way = lambda: node.under_way
    pids = {name: process.pid or 0 for name, process in processes.items()}
    meter = CpuTimeMeter({"acquire": os.getpid(), **pids})
    camera.on_start = meter.start
    try:
        node.run()
        used_s = meter.used_s()
    finally:
        # The reconstruct node first: the sink then sees it leave instead of timing out.
        for process in reversed(processes.values()):
            process.terminate()
            process.join(10.0)
    return RunSummary.read(summary), node.running_s, used_s


@dataclass(frozen=True)
class StreamResult(BenchResult):
    """Every part, in the order in which they were measured; the kind of sockets."""

    sockets: str = "local"
    parts: tuple[StreamPart, ...] = ()


_COLUMNS = (
    ResultColumn("part", "part", left=True),
    ResultColumn("snapshot_mib", "MiB", unit="MiB"),
    ResultColumn("snapshots", "snapshots"),
    ResultColumn("mb_per_s", "MB/s", unit="MB/s"),
    ResultColumn("snapshots_per_s", "snapshots/s", unit="1/s"),
    ResultColumn("total_cpu_ms", "CPU ms", unit="ms"),
    ResultColumn("p50_ms", "p50 ms", unit="ms"),
    ResultColumn("p99_ms", "p99 ms", unit="ms"),
    ResultColumn("lost", "lost"),
)


def bench(*, snapshots: int, height_px: int, width_px: int, tcp: bool = False) -> list[StreamPart]:
    """Measure throughput with all stages busy, and latency with one snapshot in flight.

    Parameters
    ----------
    snapshots, height_px, width_px
        Number in each part, and their size.
    tcp
        Connect the nodes over TCP, as on several hosts, instead of local sockets as in one
        ``sci-stream run``.

    Returns
    -------
    Figures by part, each followed by its baseline, the same bytes over bare ZeroMQ.
    """
    measured = []
    parts = (("loaded", 0.0, snapshots), ("unloaded", _UNLOADED_HZ, min(snapshots, 500)))
    for name, rate_hz, count in parts:
        with tempfile.TemporaryDirectory(prefix="sci-stream-bench-") as folder:
            camera = LoopCamera((height_px, width_px), rate_hz)
            part, _ = run_part(name, Path(folder), camera, count, tcp=tcp)
            bare = measure_zmq_baseline(
                Path(folder), name + BARE, camera.frame_bytes, count, rate_hz, tcp=tcp
            )
            measured += [part, bare]
    return measured


def stream_result(parts: Sequence[StreamPart], *, tcp: bool = False) -> StreamResult:
    """Return the result of these parts, with the ratio of each to its baseline as a note."""
    here, sockets = environment(), "tcp" if tcp else "local"
    title = f"camera → identity worker → sink ({here.machine}, {sockets} sockets)"
    by_name = {part.part: part for part in parts}
    return StreamResult(
        name="stream",
        environment=here,
        tables=(ResultTable(title, _COLUMNS, tuple(parts)),),
        notes=tuple(
            note
            for suffix, compare in ((BARE, _against_zmq), (CHUNKS, _against_chunks))
            for part in parts
            if part.part + suffix in by_name
            for note in [compare(part, by_name[part.part + suffix])]
        ),
        sockets=sockets,
        parts=tuple(parts),
    )


def _against_zmq(part: StreamPart, bare: StreamPart) -> str:
    rate, cpu = (
        part.mb_per_s / bare.mb_per_s,
        sum(part.cpu_ms.values()) / max(sum(bare.cpu_ms.values()), 1e-3),
    )
    p50, p99 = (part.latency_ms["total"][rank] / bare.latency_ms["total"][rank] for rank in _RANKS)
    return (
        f"{part.part}: {rate:.2f} × the rate, {cpu:.2f} × the processor time, {p50:.1f} and "
        f"{p99:.1f} × the latency "
        "(p50, p99) of the same bytes over bare ZeroMQ"
    )


def _against_chunks(part: StreamPart, chunks: StreamPart) -> str:
    ms = part.total_cpu_ms
    alone_ms = chunks.total_cpu_ms
    return (
        f"{part.part}: {ms:.2f} ms of processor time a snapshot, {ms / alone_ms:.1f} × that of "
        f"h5py's direct chunks ({alone_ms:.2f} ms)"
    )
