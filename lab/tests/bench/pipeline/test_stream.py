"""The benchmark of the pipeline compares each part with the same bytes over bare ZeroMQ."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from sci_stream_lab.bench.pipeline.stream import stream_result
from sci_stream_lab.bench.pipeline.zmq_baseline import StreamPart, measure_zmq_baseline
from sci_stream_lab.bench.result import print_result


@pytest.mark.parametrize("tcp", [False, True], ids=["local sockets", "tcp"])
def test_zmq_baseline_delivers_every_block(tmp_path: Path, tcp: bool) -> None:
    part = measure_zmq_baseline(tmp_path, "loaded, bare ZeroMQ", 8192, 50, 0.0, tcp=tcp)
    assert (part.snapshots, part.lost) == (50, 0)
    assert part.mb_per_s > 0
    assert 0 < part.latency_ms["total"]["p50"] <= part.latency_ms["total"]["p99"]
    assert set(part.cpu_ms) == {"source", "relay", "drain"}


def test_bench_stream_prints_ratio_to_baseline() -> None:
    bare = StreamPart(
        part="loaded, bare ZeroMQ",
        snapshot_mib=0.5,
        snapshots=10,
        mb_per_s=100.0,
        snapshots_per_s=190.0,
        cpu_ms={"source": 1.0, "relay": 1.0},
        latency_ms={"total": {"p50": 2.0, "p99": 4.0}},
        lost=0,
    )
    ours = dataclasses.replace(
        bare,
        part="loaded",
        mb_per_s=60.0,
        cpu_ms={"acquire": 3.0},
        latency_ms={"total": {"p50": 5.0, "p99": 6.0}},
    )
    shown = io.StringIO()
    print_result(stream_result([ours, bare]), Console(file=shown, width=160))
    assert (
        "loaded: 0.60 × the rate, 1.50 × the processor time, 2.5 and 1.5 × the latency"
        in shown.getvalue()
    )
