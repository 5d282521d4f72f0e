"""``sci-stream bench soak``: run a rig for tens of thousands of snapshots and look for growth."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sci_stream.bench.environment import environment
from sci_stream.bench.supervised_rig import SupervisedRig, small_rig, supervised
from sci_stream.optional import need

_SIZE_PX = 32
_SAMPLE_S = 1.0
_START_S = 120.0
_SETTLED = 2000
"""Snapshots after which caches and pools have reached their size."""
_MOST_GROWTH = 0.05
_MOST_DELAY = 1.5
"""Permitted growth of the median latency: machines with other work vary by this much."""
_LEAST_DELAY_MS = 5.0
_EASY_HZ = 50.0
_PROBED = 250
_SPARE_FRACTION = 1 / 3
_MOST_HANDLES = 2
"""Permitted growth of open handles: a reconnecting page or tap holds two for a moment."""

Sample = dict[str, Any]


def process_figures(pid: int) -> dict[str, float] | None:
    """Return resident memory (MiB), threads and open handles of a process, from /proc; None if it has ended."""
    folder = Path("/proc") / str(pid)
    try:
        fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
        handles = sum(1 for _ in (folder / "fd").iterdir())
        return {
            "rss_mib": int(fields["VmRSS"].split()[0]) / 1024,
            "threads": int(fields["Threads"]),
            "handles": handles,
        }
    except (OSError, KeyError):
        return None


def bench(
    *,
    snapshots: int,
    rate_hz: float | None = None,
    denoiser: str = "identity",
    record: bool = True,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> dict[str, Any]:
    """Run a rig with small frames and watch its processes.

    Parameters
    ----------
    snapshots, rate_hz
        Number and rate. None for a third of the rate that this machine sustains: in an overloaded rig, latency only
        shows how long its queues are. Drops are counted.
    denoiser
        ``"identity"``, or ``"tv"`` with one iteration.
    record, folder
        Whether to record, and where: a temporary folder if None, deleted afterwards.
    say
        Called with a line of progress every few seconds.

    Returns
    -------
    ``samples`` (seconds, snapshots, latency, and memory, threads and handles by node), ``growth`` by node from
    the first sample with `_SETTLED` snapshots (a tenth of all if there are fewer) to the last one, ``verdicts``:
    whether memory, threads, handles and latency stayed flat, ``flat`` if the first three did, and the ``ledger`` as in
    the summary.
    """
    if rate_hz is None:
        say("measuring the rate that this machine sustains …")
        rate_hz = _sustainable_hz(denoiser, record=record, folder=folder)
        say(f"{rate_hz:g} snapshots/s: {snapshots / rate_hz / 60:.0f} minutes")
    with tempfile.TemporaryDirectory(prefix="sci-stream-soak-", dir=folder) as scratch:
        path = _write_rig(Path(scratch), rate_hz, denoiser, record=record)
        with supervised(path, snapshots=snapshots) as rig:
            rig.wait_for("ledger.acquired", 1, _START_S)
            samples = _watch(rig, snapshots, say)
            summary = rig.join(_START_S)
    settled = min(_SETTLED, snapshots // 10)
    growth = growths(samples, settled)
    latency = _latency_change(samples, settled)
    judged = verdicts(growth, latency)
    return {
        **environment(),
        "snapshots": snapshots,
        "rate_hz": rate_hz,
        "denoiser": denoiser,
        "recorded": record,
        "settled_after": settled,
        "samples": samples,
        "growth": growth,
        "verdicts": judged,
        "flat": all(judged[what] for what in ("memory", "threads", "handles")),
        "latency_ms": latency,
        "restarts": rig.supervisor.restarts,
        "ledger": summary["ledger"],
        "status": rig.status,
    }


def _write_rig(folder: Path, rate_hz: float, denoiser: str, *, record: bool) -> Path:
    tables: dict[str, dict[str, Any]] = {
        "policy": {"queue_snapshots": 64},
        # A snapshot is done only once it is recorded: with few in flight, the disk would limit the rate.
        "reconstruct": {"denoiser": denoiser, "credit": 32},
        "record": {"enabled": record},
    }
    return small_rig(folder, rate_hz=rate_hz, size_px=_SIZE_PX, tables=tables)


def _sustainable_hz(denoiser: str, *, record: bool, folder: Path | None) -> float:
    """Return a rate without queueing, from the processor time of a snapshot at a low rate.

    The throughput under overload would mislead: there most of the time goes into dropping snapshots.
    """
    with tempfile.TemporaryDirectory(prefix="sci-stream-soak-", dir=folder) as scratch:
        path = _write_rig(Path(scratch), _EASY_HZ, denoiser, record=record)
        with supervised(path) as rig:
            rig.wait_for("ledger.reconstructed", 10, _START_S)
            before, began_s, spent_s = int(rig.latest["ledger.reconstructed"]), time.monotonic(), _processor_s(rig)
            rig.wait_for("ledger.reconstructed", before + _PROBED, _START_S)
            through = int(rig.latest["ledger.reconstructed"]) - before
            each_s = (_processor_s(rig) - spent_s) / through
            per_s = through / (time.monotonic() - began_s)
            rig.kill()
    # The camera fell behind: other work takes the cores, so the sustainable rate is lower still.
    most_hz = per_s if per_s < 0.9 * _EASY_HZ else float("inf")
    return float(max(1, int(_SPARE_FRACTION * min((os.cpu_count() or 1) / each_s, most_hz))))


def _processor_s(rig: SupervisedRig) -> float:
    """Return the processor time that all nodes have used so far, s."""
    ticks = 0
    for pid in rig.supervisor.processes.values():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _watch(rig: SupervisedRig, snapshots: int, say: Callable[[str], None]) -> list[Sample]:
    samples: list[Sample] = []
    began_s = time.monotonic()
    while rig.running:
        report = rig.latest
        acquired = int(report.get("ledger.acquired", 0))
        nodes = {name: process_figures(pid) for name, pid in rig.supervisor.processes.items()}
        if acquired >= snapshots:
            # Ending nodes free memory. Reports are half a second old, so the last sample may be affected too.
            return samples[:-1]
        samples.append(
            {
                "s": round(time.monotonic() - began_s, 2),
                "acquired": acquired,
                "reconstructed": int(report.get("ledger.reconstructed", 0)),
                "p50_ms": report.get("latency_ms.p50"),
                "p99_ms": report.get("latency_ms.p99"),
                "nodes": {name: figures for name, figures in nodes.items() if figures is not None},
            }
        )
        if len(samples) % 10 == 0:
            say(f"{acquired}/{snapshots} snapshots")
        time.sleep(_SAMPLE_S)
    return samples


def growths(samples: Sequence[Sample], settled: int) -> dict[str, dict[str, Any]]:
    """Return by node the first sample after ``settled`` snapshots, and the last one."""
    later = [sample for sample in samples if sample["acquired"] >= settled]
    if len(later) < 2:
        return {}
    out: dict[str, dict[str, Any]] = {}
    for name in sorted(set(later[0]["nodes"]) & set(later[-1]["nodes"])):
        first, last = later[0]["nodes"][name], later[-1]["nodes"][name]
        out[name] = {
            "rss_mib": [round(first["rss_mib"], 1), round(last["rss_mib"], 1)],
            "rss_change": round(last["rss_mib"] / first["rss_mib"] - 1, 4),
            "threads": [first["threads"], last["threads"]],
            "handles": [first["handles"], last["handles"]],
        }
    return out


def is_flat(node: Mapping[str, Any]) -> dict[str, bool]:
    """Return whether memory, threads and handles of a node stayed flat."""
    return {
        "memory": node["rss_change"] <= _MOST_GROWTH,
        "threads": node["threads"][1] <= node["threads"][0],
        "handles": node["handles"][1] - node["handles"][0] <= _MOST_HANDLES,
    }


def verdicts(growth: Mapping[str, Mapping[str, Any]], latency_ms: Mapping[str, float | None]) -> dict[str, bool]:
    """Return by figure whether it stayed flat in all nodes; an unmeasured figure counts as not flat."""
    nodes = [is_flat(node) for node in growth.values()]
    verdicts = {what: bool(nodes) and all(node[what] for node in nodes) for what in ("memory", "threads", "handles")}
    first, last = latency_ms["first_p50_ms"], latency_ms["last_p50_ms"]
    flat = first is not None and last is not None and last <= max(first * _MOST_DELAY, first + _LEAST_DELAY_MS)
    return {**verdicts, "latency": flat}


def _latency_change(samples: Sequence[Sample], settled: int) -> dict[str, float | None]:
    """Return the median p50 and p99 of the first and the last quarter after settling, ms."""
    later = [sample for sample in samples if sample["acquired"] >= settled and sample["p50_ms"] is not None]
    quarter = max(1, len(later) // 4)
    out: dict[str, float | None] = {}
    for name, part in (("first", later[:quarter]), ("last", later[-quarter:])):
        for figure in ("p50_ms", "p99_ms"):
            values = [sample[figure] for sample in part]
            out[f"{name}_{figure}"] = round(statistics.median(values), 2) if values else None
    return out


def print_figures(figures: Mapping[str, Any], console: Console, json_path: Path | None) -> None:
    """Print a table; write the figures as JSON if requested."""
    ledger = figures["ledger"]
    title = f"{ledger['acquired']} snapshots at {figures['rate_hz']:g}/s ({figures['machine']})"
    table = Table(title=title)
    for column in ("node", "memory MiB", "change", "threads", "handles", "flat"):
        table.add_column(column, justify="left" if column == "node" else "right", no_wrap=True)
    for name, node in figures["growth"].items():
        pairs = [" → ".join(f"{value:g}" for value in node[what]) for what in ("rss_mib", "threads", "handles")]
        table.add_row(
            name, pairs[0], f"{node['rss_change']:+.1%}", *pairs[1:], "yes" if all(is_flat(node).values()) else "NO"
        )
    console.print(table)
    latency = figures["latency_ms"]
    dropped = sum(ledger["dropped"].values())
    console.print(
        f"latency, first and last quarter: p50 {latency['first_p50_ms']} → {latency['last_p50_ms']} ms, "
        f"p99 {latency['first_p99_ms']} → {latency['last_p99_ms']} ms; "
        f"{ledger['reconstructed']} reconstructed, {dropped} dropped, "
        f"ledger {'closed' if ledger['closed'] else 'NOT CLOSED'}",
        highlight=False,
    )
    words = (f"{what} {'flat' if flat else 'NOT FLAT'}" for what, flat in figures["verdicts"].items())
    console.print("; ".join(words), highlight=False)
    if json_path is not None:
        json_path.write_text(json.dumps(figures, indent=2) + "\n")


def plot(figures: Mapping[str, Any], path: Path) -> None:
    """Draw memory, threads and handles by node, and latency, over time.

    Raises
    ------
    ConfigError
        If matplotlib is not installed.
    """
    need("matplotlib", "plot", "--plot")
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    samples = figures["samples"]
    drawing = Figure(figsize=(9, 9), layout="constrained")
    rows = (("rss_mib", "memory, MiB"), ("threads", "threads"), ("handles", "open handles"))
    axes = drawing.subplots(len(rows) + 1, 1, sharex=True)
    nodes = sorted({name for sample in samples for name in sample["nodes"]})
    for axis, (figure, words) in zip(axes, rows, strict=False):
        for name in nodes:
            points = [(sample["s"], sample["nodes"][name][figure]) for sample in samples if name in sample["nodes"]]
            axis.plot(*zip(*points, strict=True), label=name)
        axis.set_ylabel(words)
        axis.set_ylim(bottom=0)
    axes[0].legend(loc="lower right", ncols=len(nodes))
    timed = [sample for sample in samples if sample["p50_ms"] is not None]
    for figure in ("p50_ms", "p99_ms"):
        axes[-1].plot([sample["s"] for sample in timed], [sample[figure] for sample in timed], label=figure[:3])
    axes[-1].set_ylabel("camera to sink, ms")
    axes[-1].set_ylim(bottom=0)
    axes[-1].set_xlabel("s")
    axes[-1].legend(loc="upper right")
    drawing.suptitle(f"{figures['ledger']['acquired']} snapshots, {figures['machine']}")
    drawing.savefig(path)
