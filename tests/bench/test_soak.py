"""The soak benchmark separates growth from noise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sci_stream.bench.soak import growths, is_flat, process_figures, verdicts
from tests.e2e.kit import sci_stream


def sample(acquired: int, **node: float) -> dict[str, Any]:
    return {"s": acquired / 100, "acquired": acquired, "nodes": {"sink": node}}


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
    # Another one: in this one threads of other tests come to their ends.
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
    assert after["threads"] == before["threads"] + 1
    assert after["handles"] == before["handles"] + 1
    assert before["rss_mib"] + 31 < after["rss_mib"] < before["rss_mib"] + 40


def test_process_figures_of_ended_process_are_none() -> None:
    assert process_figures(2**22 + 1) is None


@pytest.mark.parametrize(
    ("last", "flat"),
    [
        ({"rss_mib": 104.0, "threads": 5, "handles": 21}, True),
        ({"rss_mib": 90.0, "threads": 4, "handles": 20}, True),
        ({"rss_mib": 106.0, "threads": 5, "handles": 20}, False),
        ({"rss_mib": 100.0, "threads": 6, "handles": 20}, False),
        ({"rss_mib": 100.0, "threads": 5, "handles": 23}, False),
    ],
)
def test_growth_counts_only_after_settling(last: dict[str, float], flat: bool) -> None:
    samples = [
        sample(10, rss_mib=50.0, threads=2, handles=9),
        sample(2100, rss_mib=100.0, threads=5, handles=20),
        sample(9000, rss_mib=300.0, threads=9, handles=99),
        sample(20_000, **last),
    ]
    grown = growths(samples, settled=2000)["sink"]
    assert grown["rss_mib"] == [100.0, last["rss_mib"]]
    assert all(is_flat(grown).values()) == flat


@pytest.mark.parametrize(("first", "last", "flat"), [(4.0, 8.5, True), (40.0, 55.0, True), (40.0, 70.0, False)])
def test_latency_verdict_allows_growth_below_half(first: float, last: float, flat: bool) -> None:
    node = {"rss_change": 0.0, "threads": [3, 3], "handles": [9, 9]}
    report = verdicts({"sink": node}, {"first_p50_ms": first, "last_p50_ms": last})
    assert report == {"memory": True, "threads": True, "handles": True, "latency": flat}


def test_verdict_of_unmeasured_figure_is_not_flat() -> None:
    report = verdicts({}, {"first_p50_ms": None, "last_p50_ms": None})
    assert not any(report.values())


def test_latency_verdict_needs_enough_samples() -> None:
    assert growths([sample(3000, rss_mib=1.0, threads=1, handles=1)], settled=2000) == {}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_short_soak_is_measured_and_plotted(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    # With a rate: the one that is found on a busy machine may be so low that it takes for ever.
    size = ("--snapshots", "300", "--rate", "20")
    done = sci_stream("bench", "soak", *size, "--json", "out.json", "--plot", "out.png", cwd=tmp_path, timeout_s=240.0)
    assert done.status == 0, done.output
    figures = json.loads((tmp_path / "out.json").read_text())
    assert set(figures["growth"]) == {"acquire", "reconstruct-0", "sink"}
    assert figures["ledger"]["closed"]
    assert figures["restarts"] == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
