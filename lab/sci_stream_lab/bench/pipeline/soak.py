"""``sci-stream bench soak``: run a rig for tens of thousands of snapshots and look for growth."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sci_stream_lab.bench.environment import CpuTimeMeter, environment
from sci_stream_lab.bench.pipeline.supervised_rig import (
    LedgerFigures,
    RigTables,
    SupervisedRig,
    small_rig,
    supervised,
)
from sci_stream_lab.bench.result import (
    BenchResult,
    Progress,
    ResultColumn,
    ResultTable,
    figure_file,
)

_SIZE_PX = 32
_SAMPLE_S = 1.0
_START_S = 120.0
# Snapshots after which caches and pools have reached their size.
_SETTLED = 2000
_MAX_GROWTH = 0.05
# Permitted growth of the median latency: machines with other work vary by this much.
_MAX_DELAY = 1.5
# A latency of a few milliseconds may grow by more than half without meaning anything.
_MIN_DELAY_MS = 5.0
# A rate that machines keep up with: the probe measures the cost of a snapshot, not of a backlog.
_EASY_HZ = 50.0
_PROBED = 250
# Other work on the machine must not turn the soak into an overload.
_SPARE_FRACTION = 1 / 3
# Permitted growth of open handles: a reconnecting page or tap holds two for a moment.
_MAX_HANDLES = 2


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Resident memory, threads and open handles of a process."""

    rss_mib: float
    threads: int
    handles: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A look at the rig: time, snapshots so far, latency (None: not yet reported), and figures by
    node.
    """

    s: float
    acquired: int
    reconstructed: int
    p50_ms: float | None
    p99_ms: float | None
    nodes: dict[str, ProcessFigures]


@dataclass(frozen=True, slots=True)
class Growth:
    """Figures of a node in the first sample after settling, and in the last one."""

    node: str
    first: ProcessFigures
    last: ProcessFigures

    @property
    def change(self) -> float:
        """Relative change of the resident memory."""
        return self.last.rss_mib / self.first.rss_mib - 1

    @property
    def is_flat(self) -> dict[str, bool]:
        """Whether memory, threads and handles stayed flat."""
        return {
            "memory": self.change <= _MAX_GROWTH,
            "threads": self.last.threads <= self.first.threads,
            "handles": self.last.handles - self.first.handles <= _MAX_HANDLES,
        }

    @property
    def memory(self) -> str:
        """Resident memory, before and after."""
        return f"{round(self.first.rss_mib, 1):g} → {round(self.last.rss_mib, 1):g}"

    @property
    def threads(self) -> str:
        """Threads, before and after."""
        return f"{self.first.threads:g} → {self.last.threads:g}"

    @property
    def handles(self) -> str:
        """Open handles, before and after."""
        return f"{self.first.handles:g} → {self.last.handles:g}"

    @property
    def verdict(self) -> str:
        """Whether everything stayed flat, in a word."""
        return "yes" if all(self.is_flat.values()) else "NO"


@dataclass(frozen=True, slots=True)
class LatencyChange:
    """Median p50 and p99 of the first and the last quarter after settling, ms; None: unmeasured."""

    first_p50_ms: float | None
    first_p99_ms: float | None
    last_p50_ms: float | None
    last_p99_ms: float | None


@dataclass(frozen=True)
class SoakResult(BenchResult):
    """Samples, growth by node, verdicts by figure; ``flat`` if memory, threads and handles stayed
    flat.
    """

    samples: tuple[Sample, ...] = ()
    growth: dict[str, Growth] = field(default_factory=dict)
    verdicts: dict[str, bool] = field(default_factory=dict)
    flat: bool = False
    latency_ms: LatencyChange | None = None
    restarts: int = 0
    ledger: LedgerFigures | None = None
    status: int | None = None


_COLUMNS = (
    ResultColumn("node", "node", left=True),
    ResultColumn("memory", "memory MiB", unit="MiB"),
    ResultColumn("change", "change", "+.1%"),
    ResultColumn("threads", "threads"),
    ResultColumn("handles", "handles"),
    ResultColumn("verdict", "flat"),
)


def process_figures(pid: int) -> ProcessFigures | None:
    """Return the figures of a process, from /proc; None if it has ended."""
    folder = Path("/proc") / str(pid)
    try:
        fields = dict(
            line.split(":", 1)
            for line in (folder / "status").read_text("utf-8").splitlines()
            if ":" in line
        )
        handles = sum(1 for _ in (folder / "fd").iterdir())
        return ProcessFigures(
            int(fields["VmRSS"].split()[0]) / 1024, int(fields["Threads"]), handles
        )
    except (OSError, KeyError):
        return None


def bench(
    *,
    snapshots: int,
    rate_hz: float | None = None,
    denoiser: str = "identity",
    record: bool = True,
    folder: Path | None = None,
    progress: Progress = lambda _line: None,
) -> SoakResult:
    """Run a rig with small frames and watch its processes.

    Parameters
    ----------
    snapshots, rate_hz
        Number and rate. None for a third of the rate that this machine sustains: in an overloaded
        rig, latency only shows how long its queues are. Drops are counted.
    denoiser
        ``"identity"``, or ``"tv"`` with one iteration.
    record, folder
        Whether to record, and where: a temporary folder if None, deleted afterwards.
    """
    if rate_hz is None:
        progress("measuring the rate that this machine sustains …")
        rate_hz = _sustainable_hz(denoiser, record=record, folder=folder)
        progress(f"{rate_hz:g} snapshots/s: {snapshots / rate_hz / 60:.0f} minutes")
    with tempfile.TemporaryDirectory(prefix="sci-stream-soak-", dir=folder) as scratch:
        path = _write_rig(Path(scratch), rate_hz, denoiser, record=record)
        with supervised(path, snapshots=snapshots) as rig:
            rig.wait_for("ledger.acquired", 1, _START_S)
            samples = _watch(rig, snapshots, progress)
            summary = rig.join(_START_S)
    settled = min(_SETTLED, snapshots // 10)
    growth, latency, here = (
        growths(samples, settled),
        _latency_change(samples, settled),
        environment(),
    )
    judged, ledger = verdicts(growth, latency), summary.ledger
    title = f"{ledger.acquired} snapshots at {rate_hz:g}/s ({here.machine})"
    return SoakResult(
        name="soak",
        environment=here,
        tables=(ResultTable(title, _COLUMNS, tuple(growth.values())),),
        notes=(
            f"latency, first and last quarter: p50 {latency.first_p50_ms} → {latency.last_p50_ms} "
            "ms, "
            f"p99 {latency.first_p99_ms} → {latency.last_p99_ms} ms; "
            f"{ledger.reconstructed} reconstructed, {ledger.n_dropped} dropped, ledger "
            f"{ledger.state}",
            "; ".join(f"{what} {'flat' if flat else 'NOT FLAT'}" for what, flat in judged.items()),
        ),
        settings={
            **{"snapshots": snapshots, "rate_hz": rate_hz, "denoiser": denoiser},
            **{"recorded": record, "settled_after": settled},
        },
        samples=tuple(samples),
        growth=growth,
        verdicts=judged,
        flat=all(judged[what] for what in ("memory", "threads", "handles")),
        latency_ms=latency,
        restarts=rig.supervisor.restarts,
        ledger=ledger,
        status=rig.status,
    )


def _write_rig(folder: Path, rate_hz: float, denoiser: str, *, record: bool) -> Path:
    tables: RigTables = {
        "policy": {"queue_snapshots": 64, "max_wait_s": 3600.0},
        # A snapshot is done only once it is recorded: with few in flight, the disk would limit the
        # rate.
        "reconstruct": {"solver": denoiser, "credit": 32},
        "record": {"enabled": record},
    }
    return small_rig(folder, rate_hz=rate_hz, size_px=_SIZE_PX, tables=tables)


def _sustainable_hz(denoiser: str, *, record: bool, folder: Path | None) -> float:
    """Return a rate without queueing, from the processor time of a snapshot at a low rate.

    The throughput under overload would mislead: there most of the time goes into dropping
    snapshots.
    """
    with tempfile.TemporaryDirectory(prefix="sci-stream-soak-", dir=folder) as scratch:
        path = _write_rig(Path(scratch), _EASY_HZ, denoiser, record=record)
        with supervised(path) as rig:
            rig.wait_for("ledger.reconstructed", 10, _START_S)
            before, began_s = int(rig.latest["ledger.reconstructed"]), time.monotonic()
            meter = CpuTimeMeter(rig.supervisor.processes)
            meter.start()
            rig.wait_for("ledger.reconstructed", before + _PROBED, _START_S)
            through = int(rig.latest["ledger.reconstructed"]) - before
            each_s = sum(meter.used_s().values()) / through
            per_s = through / (time.monotonic() - began_s)
            rig.kill()
    # The camera fell behind: other work takes the cores, so the sustainable rate is lower still.
    most_hz = per_s if per_s < 0.9 * _EASY_HZ else float("inf")
    return float(max(1, int(_SPARE_FRACTION * min((os.cpu_count() or 1) / each_s, most_hz))))


def _watch(rig: SupervisedRig, snapshots: int, progress: Progress) -> list[Sample]:
    samples: list[Sample] = []
    began_s = time.monotonic()
    while rig.running:
        latest = rig.latest
        acquired = int(latest.get("ledger.acquired", 0))
        nodes = {name: process_figures(pid) for name, pid in rig.supervisor.processes.items()}
        if acquired >= snapshots:
            # Ending nodes free memory. Reports are half a second old, so the last sample may be
            # affected too.
            return samples[:-1]
        samples.append(
            Sample(
                s=round(time.monotonic() - began_s, 2),
                acquired=acquired,
                reconstructed=int(latest.get("ledger.reconstructed", 0)),
                p50_ms=latest.get("latency_ms.p50"),
                p99_ms=latest.get("latency_ms.p99"),
                nodes={name: figures for name, figures in nodes.items() if figures is not None},
            )
        )
        if len(samples) % 10 == 0:
            progress(f"{acquired}/{snapshots} snapshots")
        time.sleep(_SAMPLE_S)
    return samples


def growths(samples: Sequence[Sample], settled: int) -> dict[str, Growth]:
    """Return by node its figures in the first sample after ``settled`` snapshots, and in the last
    one.
    """
    later = [sample for sample in samples if sample.acquired >= settled]
    if len(later) < 2:
        return {}
    first, last = later[0].nodes, later[-1].nodes
    return {name: Growth(name, first[name], last[name]) for name in sorted(set(first) & set(last))}


def verdicts(growth: Mapping[str, Growth], latency: LatencyChange) -> dict[str, bool]:
    """Return by figure whether it stayed flat in all nodes; an unmeasured figure counts as not
    flat.
    """
    nodes = [node.is_flat for node in growth.values()]
    verdicts = {
        what: bool(nodes) and all(node[what] for node in nodes)
        for what in ("memory", "threads", "handles")
    }
    first, last = latency.first_p50_ms, latency.last_p50_ms
    flat = (
        first is not None
        and last is not None
        and last <= max(first * _MAX_DELAY, first + _MIN_DELAY_MS)
    )
    return {**verdicts, "latency": flat}


def _latency_change(samples: Sequence[Sample], settled: int) -> LatencyChange:
    later = [
        sample for sample in samples if sample.acquired >= settled and sample.p50_ms is not None
    ]
    quarter = max(1, len(later) // 4)
    first, last = later[:quarter], later[-quarter:]
    return LatencyChange(
        _median(sample.p50_ms for sample in first),
        _median(sample.p99_ms for sample in first),
        _median(sample.p50_ms for sample in last),
        _median(sample.p99_ms for sample in last),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 2) if known else None


def plot(result: SoakResult, path: Path) -> None:
    """Draw memory, threads and handles by node, and latency, over time."""
    samples = result.samples
    with figure_file(path, (9, 9)) as figure:
        rows = (("rss_mib", "memory, MiB"), ("threads", "threads"), ("handles", "open handles"))
        axes = figure.subplots(len(rows) + 1, 1, sharex=True)
        nodes = sorted({name for sample in samples for name in sample.nodes})
        for axis, (key, words) in zip(axes, rows, strict=False):
            for name in nodes:
                points = [
                    (sample.s, getattr(sample.nodes[name], key))
                    for sample in samples
                    if name in sample.nodes
                ]
                axis.plot(*zip(*points, strict=True), label=name)
            axis.set_ylabel(words)
            axis.set_ylim(bottom=0)
        axes[0].legend(loc="lower right", ncols=len(nodes))
        timed = [sample for sample in samples if sample.p50_ms is not None]
        seconds = [sample.s for sample in timed]
        axes[-1].plot(seconds, [sample.p50_ms for sample in timed], label="p50")
        axes[-1].plot(seconds, [sample.p99_ms for sample in timed], label="p99")
        axes[-1].set_ylabel("camera to sink, ms")
        axes[-1].set_ylim(bottom=0)
        axes[-1].set_xlabel("s")
        axes[-1].legend(loc="upper right")
        figure.suptitle(result.tables[0].title)
