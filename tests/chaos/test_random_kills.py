"""Random kills of any node at any time: the run recovers and accounts for every snapshot."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sci_stream.transport.remote_memory import LEND_FROM_VARIABLE
from tests.chaos.random_kills import bench, print_figures


def assert_all_there(figures: dict[str, Any], kills: int) -> None:
    ledger = figures["ledger"]
    assert sum(figures["kills"].values()) + sum(figures["freezes"].values()) == kills
    assert ledger["closed"]
    assert (figures["lost"], figures["twice"], figures["missing_raw"], figures["missing_video"]) == (0, 0, 0, 0), (
        figures
    )
    assert figures["status"] == 0
    if figures["policy"] == "record":
        assert ledger["dropped"] == {}, "nothing that was acquired is lost"


def test_few_random_kills_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        LEND_FROM_VARIABLE, "1024"
    )  # export these snapshots too: a node may crash while its memory is read
    figures = bench(kills=3, seed=3, nodes=1, pause_s=1.0, folder=tmp_path)
    assert_all_there(figures, 3)
    assert figures["restarts"] >= 3
    assert list(tmp_path.iterdir()) == [], "what was recorded to measure is gone"
    shown = io.StringIO()
    print_figures(figures, Console(file=shown, width=100), tmp_path / "figures.json")
    assert "twice in the recording" in shown.getvalue()
    assert json.loads((tmp_path / "figures.json").read_text())["ledger"] == figures["ledger"]


@pytest.mark.slow
def test_frozen_nodes_resume_or_are_replaced(tmp_path: Path) -> None:
    figures = bench(kills=4, seed=5, freeze=1.0, pause_s=0.3, folder=tmp_path)
    assert_all_there(figures, 4)
    assert sum(figures["freezes"].values()) == 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("policy", "kills"), [("record", 200), ("live", 50)])
def test_many_random_kills_and_freezes_lose_nothing(
    tmp_path: Path, policy: str, kills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEND_FROM_VARIABLE, "1024")
    figures = bench(kills=kills, seed=11, policy=policy, freeze=0.2, folder=tmp_path)
    assert_all_there(figures, kills)
