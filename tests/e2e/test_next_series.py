"""Consecutive series in the same processes: each is complete and has its own recording, crashed or
not.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from sci_stream.web.control_client import control
from tests.e2e.kit import assert_accounted_for, wait_for
from tests.rig_in_process import RunningRigSolvedHere

pytestmark = pytest.mark.rig


def test_request_starts_series_and_sigint_closes_a_crashed_one(tmp_path: Path) -> None:
    changes = {
        "policy": {"mode": "record"}, "camera": {"options": {"truth": False}},
        "preview": {"enabled": True},
    }  # fmt: skip
    with RunningRigSolvedHere(tmp_path, changes) as run:
        series = [run.wait_for_count("acquired", 3)["series"]]
        nodes = {name: process.pid for name, process in run.nodes().items()}
        for _ in range(2):
            control(f"http://127.0.0.1:{run.rig.preview.port}").do("acquire", "next_series")
            report = run.wait_until(
                "another series",
                lambda report: report.get("series") not in series and report.get("ledger.acquired"),
            )
            series.append(report["series"])
        assert {name: process.pid for name, process in run.nodes().items()} == nodes, (
            "no process was restarted"
        )
        run.kill("acquire")
        wait_for(
            lambda: "acquire ended by SIGKILL" in run.output, "the supervisor detects the crash"
        )
        run.process.send_signal(signal.SIGINT)
        summary = run.finish()
        ledger = assert_accounted_for(summary)
        # A busy machine may leave a snapshot in the killed node: its frame is in the recording.
        assert ledger["acquired"] == ledger["reconstructed"] + ledger["raw_only"]
        assert (summary["series"], summary["ended"]) == (series[-1], "stopped"), (
            "no other series was started"
        )
        assert run.nodes() == {}
        with run.recordings() as recordings:
            # Series of the same second differ by a random suffix, which has no order.
            assert sorted(recording.info.series for recording in recordings) == sorted(series)
            for recording in recordings:
                assert recording.clean
                assert recording.ledger is not None
                assert recording.raw_seqs == list(range(recording.ledger["acquired"])), (
                    "each begins at 0, complete"
                )
