"""Signals: the first drains and ends cleanly, the second ends at once; a dead supervisor leaves no
process behind.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.conftest import RigMaker
from tests.e2e.kit import RunningRig, assert_accounted_for, wait_for

pytestmark = pytest.mark.rig

ENDLESS = {"camera": {"options": {"snapshot_rate_hz": 20.0}}}
# One snapshot takes longer than any of these tests.
STUCK = {
    "camera": {"options": {"width_px": 256, "height_px": 256, "snapshot_rate_hz": 20.0}},
    "reconstruct": {"iterations": 10_000},
}


@pytest.mark.slow  # `test_next_series.py` ends its rig by SIGINT
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_drains_and_exits_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with RunningRig(tmp_path, ENDLESS) as rig:
        rig.wait_for_count("reconstructed", 3)
        rig.process.send_signal(number)
        summary = rig.finish()
        ledger = assert_accounted_for(summary)
        assert ledger["acquired"] == ledger["reconstructed"] >= 3
        assert summary["ended"] == "stopped"
        assert rig.nodes() == {}
        with rig.recordings() as (recording,):
            assert recording.clean


def test_drain_timeout_drops_and_counts(rig_in_process: RigMaker) -> None:
    rig = rig_in_process({**STUCK, "drain": {"timeout_s": 2.0}})
    rig.expose(5)
    rig.wait_for(lambda: rig.counts()["acquired"] == 5, "all are acquired")
    assert assert_accounted_for(rig.finish())["dropped"] == {"drain_timeout": 5}


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_second_signal_stops_immediately(tmp_path: Path, number: signal.Signals) -> None:
    with RunningRig(tmp_path, STUCK) as rig:
        rig.wait_for_count("acquired", 3)
        assert len(rig.nodes()) == 3
        rig.process.send_signal(number)
        wait_for(lambda: "a second Ctrl-C stops immediately" in rig.output, "it drains")
        assert rig.process.poll() is None
        rig.process.send_signal(number)
        # Draining would take until `[drain] timeout_s`.
        assert rig.wait(rig.rig.drain.timeout_s / 2) == 130
        wait_for(lambda: not rig.nodes(), "no node is left behind")
        assert "Traceback" not in rig.output


def test_nodes_stop_after_supervisor_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with RunningRig(tmp_path, ENDLESS) as rig:
        rig.wait_for_count("reconstructed", 3)
        slow = [rig.nodes()[name] for name in ("acquire", "sink")]
        rig.process.kill()
        rig.process.wait()
        # As on a busy machine: silent for longer than three heartbeats, they still have to drain.
        for node in slow:
            node.suspend()
        time.sleep(4 * rig.rig.network.heartbeat_s)
        for node in slow:
            node.resume()
        wait_for(lambda: not rig.nodes(), "no node is left behind")
        # They drained: the recording is finished and its ledger is closed. A busy machine solves
        # not all.
        with rig.recordings() as (recording,):
            assert recording.clean
            ledger = recording.ledger
        assert ledger is not None
        assert ledger["closed"]
        assert ledger["dropped"] == {}, ledger
    # Its files are in a run folder, which the next run deletes.
    assert not list(temporary.glob("sci-stream-*"))
