"""Statistics of a series: latency by stage, quality, iterations and nodes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sci_stream.delivery.ledger import Ledger, Outcome
from sci_stream.errors import DataError
from sci_stream.model import Policy, Reconstruction, SeriesInfo, SnapshotId, StageTimes
from sci_stream.nodes.launcher.run import complete_summary, result_lines
from sci_stream.nodes.sink.statistics import SeriesStatistics, stage_seconds
from sci_stream.reports import SolveReport, Start

INFO = SeriesInfo("s-1", 1, "rig", Policy.LIVE, "camera", "7", 4, 6, "Mono12", 12, 2, "0" * 32)
MS = 1_000_000


def reconstruction(
    seq: int,
    psnr_db: float | None = 30.0,
    *,
    start: Start = Start.COLD,
    node: str = "reconstruct-0",
) -> Reconstruction:
    report = SolveReport(
        iterations=10 + seq,
        start=start,
        start_reason="first",
        budget_limited=seq == 1,
        solve_ns=4 * MS,
        residual=0.1,
        psnr_db=psnr_db,
    )
    times = StageTimes(1 * MS, 2 * MS, 4 * MS, 8 * MS, 16 * MS, 32 * MS)
    return Reconstruction(
        id=SnapshotId("s-1", 0, seq),
        video=np.zeros((2, 4, 6), np.float16),
        calibration_hash="0" * 32,
        report=report,
        times=times,
        node=node,
        device="cpu",
    )


def book_of(*taken: Reconstruction) -> SeriesStatistics:
    book = SeriesStatistics(INFO, Ledger())
    for number, each in enumerate(taken):
        book.add(each, stage_seconds(each.times), float(number))
        book.ledger.settle(each.id.seq, Outcome.RECONSTRUCTED)
    book.ledger.end(len(taken))
    return book


def test_stage_is_the_time_between_two_stamps() -> None:
    stages = book_of(reconstruction(0)).latency_ms()
    assert {name: stage["p50"] for name, stage in stages.items()} == {
        "queue": 1,
        "transfer": 2,
        "wait": 4,
        "solve": 8,
        "deliver": 16,
        "total": 31,
    }


def test_summary_has_quality_and_iterations() -> None:
    book = book_of(
        reconstruction(1, 28.0), reconstruction(0, 32.0, start=Start.WARM, node="reconstruct-1")
    )
    summary = book.summary({"python": "3"}, Counter(crc=2), {"enabled": False})
    assert summary["psnr_db"]["mean"] == 30.0
    assert summary["psnr_db"]["min"] == 28.0
    assert [entry["seq"] for entry in summary["psnr_db"]["per_snapshot"]] == [0, 1]
    assert summary["iterations"] == {"mean": 10.5, "min": 10, "max": 11, "budget_limited": 1}
    assert summary["warm_starts"] == 1
    assert summary["starts"] == {"cold: first": 1, "warm: first": 1}
    assert summary["by_node"] == {"reconstruct-0": 1, "reconstruct-1": 1}
    assert summary["wire_errors"] == {"crc": 2}
    assert summary["ledger"]["closed"]


def test_summary_without_truth_or_snapshots_has_no_psnr() -> None:
    assert book_of(reconstruction(0, None)).summary({}, Counter(), {})["psnr_db"] is None
    empty = book_of().summary({}, Counter(), {"enabled": False})
    assert empty["iterations"]["mean"] is None
    assert empty["latency_ms"] == {}
    assert next(result_lines({**empty, "restarts": 0, "earlier": []})).startswith("0 acquired")


def test_redelivered_snapshot_counts_once() -> None:
    assert (
        book_of(replace(reconstruction(0), redelivered=2), reconstruction(1)).ledger.redelivered
        == 1
    )


def test_open_ledger_is_stated_in_the_result() -> None:
    book = book_of(reconstruction(0))
    book.ledger.end(3)
    words = "\n".join(
        result_lines(
            {**book.summary({}, Counter(), {"enabled": False}), "restarts": 0, "earlier": []}
        )
    )
    assert "3 acquired = 1 reconstructed: THE LEDGER DOES NOT CLOSE: 2 missing" in words


def test_result_names_the_segment_that_opens_the_whole_recording(tmp_path: Path) -> None:
    for name in ("run.h5", "run_001.h5"):
        (tmp_path / name).touch()
    recording = {"enabled": True, "file": str(tmp_path / "run_001.h5")}
    summary = book_of(reconstruction(0)).summary({}, Counter(), recording)
    lines = list(result_lines({**summary, "restarts": 1, "earlier": []}))
    assert lines[-1] == f"recording: {tmp_path / 'run.h5'}"


def test_faulty_frames_are_stated_in_result_and_status(tmp_path: Path) -> None:
    book = book_of(reconstruction(0))
    book.ledger.end(1)
    book.ledger.camera_missed = 3
    book.frame_faults["identical"] = 2
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({**book.summary({}, Counter(), {"enabled": False}), "earlier": []}))
    lines, status = complete_summary(path, 0)
    assert lines[0] == "1 acquired, 3 missed by the camera = 1 reconstructed: the ledger closes"
    assert lines[1].startswith("2 frames repeat the frame before: a buffer was delivered twice")
    assert status == DataError.exit_status


def test_times_of_other_hosts_are_corrected_to_the_sink_clock() -> None:
    """A host whose clock is an hour behind makes no latency an hour longer."""
    hour = 3_600_000_000_000
    true = StageTimes(
        hour,
        hour + 1_000_000,
        hour + 3_000_000,
        hour + 4_000_000,
        hour + 9_000_000,
        hour + 10_000_000,
    )
    result = replace(true, received_ns=3_000_000, started_ns=4_000_000, finished_ns=9_000_000)
    assert stage_seconds(result, 0, hour) == pytest.approx(
        {
            "queue": 0.001,
            "transfer": 0.002,
            "wait": 0.001,
            "solve": 0.005,
            "deliver": 0.001,
            "total": 0.01,
        }
    )
    assert stage_seconds(result, 0, None) == pytest.approx(
        {"queue": 0.001, "wait": 0.001, "solve": 0.005, "total": 0.01}
    )
    assert set(stage_seconds(result, None, hour)) == {"queue", "wait", "solve", "deliver"}, (
        "unknown figures are omitted"
    )


def test_recent_latency_is_the_median_of_the_last_ten_seconds() -> None:
    book = book_of()
    assert book.recent_latency_ms(0.0) is None
    for now_s, total_s in [(0.0, 9.0), (1.0, 9.0), (12.0, 0.1), (15.0, 0.2), (20.0, 0.3)]:
        book.add(reconstruction(0), {"total": total_s}, now_s)
    assert book.recent_latency_ms(20.0) == 200.0
    assert book.latency_ms()["total"]["p50"] == 300.0
    # Nothing came for ten seconds: that of the newest snapshot.
    assert book.recent_latency_ms(31.0) == 300.0
