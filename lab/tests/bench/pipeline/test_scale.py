"""A second reconstruct node joins a running rig: it takes its share, and nothing is lost or out of
order.

Its gain and its delay are figures of the machine: `sci-stream bench scale` prints them.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from sci_stream.errors import ConfigError
from sci_stream.ports import Recordable
from sci_stream.recon.denoisers.registry import DENOISERS, denoiser_spec
from sci_stream_lab.bench.pipeline.scale import bench
from sci_stream_lab.bench.pipeline.scale_node import SLEEPING, SleepingDenoiser, register
from sci_stream_lab.bench.result import print_result, write_json


def test_bench_scale_joining_node_takes_its_share(tmp_path: Path) -> None:
    result = bench(nodes=2, snapshots=30, solve_s=0.04, folder=tmp_path)
    ledger = result.ledger
    assert ledger is not None
    assert ledger.closed
    assert ledger.acquired == ledger.reconstructed == result.snapshots == 90
    assert ledger.dropped == {}
    assert result.adds_up
    assert (result.twice, result.missing, result.out_of_order, result.status) == (0, 0, 0, 0)
    one, two = result.phases
    assert set(one.share) == {"reconstruct-0"}
    # Neither waits for the other: the node that is free gets the next block of eight.
    assert set(two.share) == {"reconstruct-0", "reconstruct-1"}
    assert min(two.share.values()) > 0.25
    assert list(tmp_path.iterdir()) == [], "temporary recordings are deleted"
    shown = io.StringIO()
    print_result(result, Console(file=shown, width=120))
    assert "90 of 90 reconstructed, ledger closed" in shown.getvalue()
    write_json(result, tmp_path / "figures.json")
    assert json.loads((tmp_path / "figures.json").read_text())["phases"][1]["share"] == two.share


def test_sleeping_denoiser_needs_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="Unknown solver"):
        denoiser_spec(SLEEPING)
    monkeypatch.setitem(DENOISERS, SLEEPING, DENOISERS["identity"])  # removed after the test
    register(0.0)
    assert isinstance(SleepingDenoiser(0.0), Recordable)
    assert denoiser_spec(SLEEPING).make is not DENOISERS["identity"].make
