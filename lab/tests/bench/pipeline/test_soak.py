"""The soak benchmark separates growth from noise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sci_stream_lab.bench.pipeline.soak import (
    Growth,
    LatencyChange,
    ProcessFigures,
    Sample,
    growths,
    process_figures,
    verdicts,
)
from tests.e2e.kit import sci_stream


def sample(acquired: int, sink: ProcessFigures) -> Sample:
    return Sample(acquired / 100, acquired, acquired, None, None, {"sink": sink})


GROWS = """
import sys, threading
print("small", flush=True)
sys.stdin.readline()
held = bytearray(b"x") * (32 << 20)
threading.Thread(target=threading.Event().wait, daemon=True).start()
more = open("/dev/null")
print("large", flush=True)
sys.stdin.readline()
"""


def test_process_figures_are_read_from_proc() -> None:
    # Another process: in this one threads of other tests end meanwhile.
    with subprocess.Popen(
        [sys.executable, "-c", GROWS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "small\n"
        before = process_figures(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "large\n"
        after = process_figures(process.pid)
        process.stdin.close()
    assert before is not None
    assert after is not None
    assert after.threads == before.threads + 1
    assert after.handles == before.handles + 1
    assert before.rss_mib + 31 < after.rss_mib < before.rss_mib + 40


def test_process_figures_of_ended_process_are_none() -> None:
    assert process_figures(2**22 + 1) is None


@pytest.mark.parametrize(
    ("last", "flat"),
    [
        (ProcessFigures(104.0, 5, 21), True),
        (ProcessFigures(90.0, 4, 20), True),
        (ProcessFigures(106.0, 5, 20), False),
        (ProcessFigures(100.0, 6, 20), False),
        (ProcessFigures(100.0, 5, 23), False),
    ],
)
def test_growth_counts_only_after_settling(last: ProcessFigures, flat: bool) -> None:
    samples = [
        sample(10, ProcessFigures(50.0, 2, 9)),
        sample(2100, ProcessFigures(100.0, 5, 20)),
        sample(9000, ProcessFigures(300.0, 9, 99)),
        sample(20_000, last),
    ]
    grown = growths(samples, settled=2000)["sink"]
    assert (grown.first.rss_mib, grown.last) == (100.0, last)
    assert all(grown.is_flat.values()) == flat
    assert grown.verdict == ("yes" if flat else "NO")


@pytest.mark.parametrize(
    ("first", "last", "flat"), [(4.0, 8.5, True), (40.0, 55.0, True), (40.0, 70.0, False)]
)
def test_latency_verdict_allows_growth_below_half(first: float, last: float, flat: bool) -> None:
    node = Growth("sink", ProcessFigures(90.0, 3, 9), ProcessFigures(90.0, 3, 9))
    report = verdicts({"sink": node}, LatencyChange(first, None, last, None))
    assert report == {"memory": True, "threads": True, "handles": True, "latency": flat}


def test_verdict_of_unmeasured_figure_is_not_flat() -> None:
    report = verdicts({}, LatencyChange(None, None, None, None))
    assert not any(report.values())


def test_latency_verdict_needs_enough_samples() -> None:
    assert growths([sample(3000, ProcessFigures(1.0, 1, 1))], settled=2000) == {}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_short_soak_is_measured_and_plotted(tmp_path: Path) -> None:
    # With a rate: the one that is found on a busy machine may be far too low for a test.
    size = ("--snapshots", "300", "--rate", "20")
    done = sci_stream(
        "bench",
        "soak",
        *size,
        "--json",
        "out.json",
        "--plot",
        "out.png",
        cwd=tmp_path,
        timeout_s=240.0,
    )
    assert done.status == 0, done.output
    figures = json.loads((tmp_path / "out.json").read_text())
    assert set(figures["growth"]) == {"acquire", "reconstruct-0", "sink"}
    assert figures["ledger"]["closed"]
    assert figures["restarts"] == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
