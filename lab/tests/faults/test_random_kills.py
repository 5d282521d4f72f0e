"""Random kills of any node at any time: the run recovers and accounts for every snapshot."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from lab.tests.faults import faults
from lab.tests.faults.random_kills import KillsOutcome, bench
from sci_stream_lab.bench.pipeline.supervised_rig import LedgerFigures
from sci_stream_lab.bench.result import print_result

pytestmark = pytest.mark.rig


def assert_all_there(outcome: KillsOutcome, kills: int) -> None:
    assert sum(outcome.kills.values()) + sum(outcome.freezes.values()) == kills
    assert outcome.wrong == "", outcome
    assert outcome.ledger.closed
    if outcome.policy == "record":
        assert outcome.ledger.dropped == {}, "no acquired snapshot is lost"


def test_few_random_kills_lose_nothing(tmp_path: Path) -> None:
    result = faults.bench([faults.RANDOM_KILLS], n_kills=2, seed=3, folder=tmp_path)
    assert result.kills is not None
    assert_all_there(result.kills, 2)
    assert result.kills.restarts >= 2
    assert result.wrong == {}
    assert list(tmp_path.iterdir()) == [], "temporary recordings are deleted"
    shown = io.StringIO()
    print_result(result, Console(file=shown, width=160))
    assert "2 nodes killed at random moments" in shown.getvalue()
    assert "random kills: killed" in shown.getvalue()


def test_violated_expectations_of_kills_are_named() -> None:
    ledger = LedgerFigures(9, 5, 0, {}, redelivered=0, duplicates=0, camera_missed=0, closed=False)
    outcome = KillsOutcome("record", 1.0, {"sink": 2}, {"acquire": 1}, 2, ledger, 1, 0, 3, 4)
    assert (
        outcome.wrong
        == "4 lost; 1 twice; 3 videos missing; the ledger is not closed; exit status 4"
    )


def test_few_kill_rounds_close_every_ledger(tmp_path: Path) -> None:
    result = faults.bench([faults.KILL_ROUNDS], n_kills=2, seed=4, folder=tmp_path)
    assert result.wrong == {}
    assert sum(each.n_kills for each in result.rounds) == 2
    shown = io.StringIO()
    print_result(result, Console(file=shown, width=160))
    assert "kill rounds: 2 processes killed in 1 runs" in shown.getvalue()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(8 * 3600)
def test_thousand_kills_close_every_ledger(tmp_path: Path) -> None:
    result = faults.bench([faults.KILL_ROUNDS], n_kills=1000, seed=5, folder=tmp_path)
    assert result.wrong == {}


@pytest.mark.slow
def test_frozen_nodes_resume_or_are_replaced(tmp_path: Path) -> None:
    outcome = bench(kills=4, seed=5, freeze=1.0, pause_s=0.3, folder=tmp_path)
    assert_all_there(outcome, 4)
    assert sum(outcome.freezes.values()) == 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("policy", "kills"), [("record", 200), ("live", 50)])
def test_many_random_kills_and_freezes_lose_nothing(
    tmp_path: Path, policy: str, kills: int
) -> None:
    outcome = bench(kills=kills, seed=11, policy=policy, freeze=0.2, folder=tmp_path)
    assert_all_there(outcome, kills)
