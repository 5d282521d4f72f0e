"""The summary of finished and unfinished recordings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sci_stream.cli.recording_tables import describe
from sci_stream.optics.displacement import Displacement
from sci_stream.recording.inspection import inspect_recording
from sci_stream.recording.writer import RecordingWriter
from sci_stream.reports import CalibrationHealth

_SPREAD = ("min", "median", "mean", "max")


def test_inspect_counts_stored_missing_and_dropped(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        for seq in (0, 1, 4):
            writer.write_reconstruction(series.reconstruction(seq))
        writer.write_raw(series.snapshot(5))
        writer.write_outcome(5, "raw_only")
        writer.write_outcome(3, "dropped", "queue_full")
        writer.write_raw(series.snapshot(8))
        writer.close(
            {
                "acquired": 9,
                "closed": False,
                "reconstructed": 3,
                "raw_only": 1,
                "dropped": {"queue_full": 1},
            }
        )
    found = inspect_recording(tmp_path / "run.h5").figures
    assert found["state"] == "complete"
    assert found["stored"]["raw"] == 5
    assert found["stored"]["video_frames"] == 9
    assert found["rows"] == {
        **{
            "settled": 5,
            "reconstructed": 3,
            "raw_only": 1,
            "not_kept": 0,
            "dropped": {"queue_full": 1},
        },
        **{"open": 1, "redelivered": 3, "camera_missed": 4, "epochs": 1},
    }
    assert found["gaps"] == {"raw": [(2, 3), (6, 7)], "video": [(2, 3), (5, 8)]}
    assert found["solving"]["iterations"] == dict.fromkeys(_SPREAD, 12)
    assert found["solving"]["starts"] == {"warm: motion": 3}
    assert found["solving"]["nodes"] == {"reconstruct-0": 3}
    assert found["calibration"]["hash"] == series.calibration.hash
    assert found["calibration"]["grey"]
    json.dumps(found, allow_nan=False)


def test_inspect_reports_calibration_and_chunk_data(tmp_path: Path, series) -> None:
    info = replace(series.info, chunks={"ExposureTime": "us", "LineStatusAll": "", "Gain": "dB"})
    looks = {0: (0.0, 0.0), 2: (0.3, -0.4), 4: (0.25, -0.3)}
    with RecordingWriter(tmp_path / "run.h5", info, series.calibration) as writer:
        for seq in range(5):
            done = series.reconstruction(seq)
            x_px, y_px = looks.get(seq, (None, None))
            health = CalibrationHealth(
                shift_x_px=x_px,
                shift_y_px=y_px,
                shift_sd_px=0.01,
                match=0.9,
                contrast=1.1,
                order="forward",
                corrected=True,
                below_black_fraction=0.02 * seq,
                brightness=0.5,
                gain=2.0,
                error_log_odds=84.0,
            )
            moved = Displacement((1, 0)).to_text if seq in (3, 4) else ""
            report = replace(
                done.report,
                health=health if seq in looks else None,
                masks_at=moved,
                noise=0.02,
                mismatch=0.015,
            )
            chunks = {"ExposureTime": 100.0 + seq, "LineStatusAll": seq, "Format": "Mono12"}
            writer.write_reconstruction(replace(done, report=report, chunks=chunks))
        writer.close(
            {"acquired": 5, "closed": True, "reconstructed": 5, "raw_only": 0, "dropped": {}}
        )
    summary = inspect_recording(tmp_path / "run.h5")
    found, health = summary.figures, summary.figures["health"]
    assert health["looks"] == 3
    assert health["last_shift_px"] == pytest.approx([0.25, -0.3])
    assert health["largest_shift_px"] == pytest.approx(0.5)
    assert (health["corrected"], health["orders"]) == (2, {"forward": 3})
    assert health["mask_match"]["mean"] == pytest.approx(0.9)
    assert health["below_black_fraction"]["max"] == pytest.approx(0.08)
    assert health["camera_gain"] == dict.fromkeys(_SPREAD, 2.0)
    assert found["chunks"]["ExposureTime"]["values"]["max"] == 104.0
    assert found["chunks"]["Gain"] == {"frames": 0, "unit": "dB", "values": None}
    lines = list(describe(summary))
    assert ("masks", "measured 3 times") in lines
    assert ("", "shift (+0.250, -0.300) ± 0.010 px at last, 0.500 px at most") in lines
    assert ("", "log odds for errors of masks 84 at last") in lines
    words = dict(lines)
    assert words["noise"] == "2.00% of the measurement, 1.50% by the masks"
    assert (
        words["chunk data"]
        == "ExposureTime 100–104 us (5 frames), Gain never, LineStatusAll 0–4 (5 frames)"
    )
    json.dumps(found, allow_nan=False)


def test_rates_come_from_host_times(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        for seq in range(11):
            writer.write_raw(series.snapshot(seq, host_time_ns=10**9 + seq * 50_000_000))
        writer.close({})
    rates = inspect_recording(tmp_path / "run.h5").figures["rates"]
    assert rates["snapshots_hz"] == pytest.approx(20.0)
    assert rates["video_hz"] == pytest.approx(60.0)
    assert rates["duration_s"] == pytest.approx(0.5)
    assert rates["interval_ms"]["max"] == pytest.approx(50.0)


def test_unfinished_recording_is_marked(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        writer.write_raw(series.snapshot(0))
        writer.flush()
        found = inspect_recording(tmp_path / "run.h5")
    assert found.figures["state"] == "unfinished"
    words = dict(describe(found))
    assert words["state"].startswith("unfinished (run.h5)")
    assert "sci-stream repair" in words["state"]
    assert (
        words["ledger"]
        == "none stored; counted from the rows: 0 reconstructed + 0 raw only + 1 without an outcome"
    )


def test_printed_summary_names_gaps_and_ledger(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        for seq in (0, 1, 5):
            writer.write_reconstruction(series.reconstruction(seq))
        ledger = {
            "acquired": 6,
            "reconstructed": 3,
            "raw_only": 0,
            "dropped": {"queue_full": 3},
            "closed": True,
        }
        writer.close(ledger)
    words = dict(describe(inspect_recording(tmp_path / "run.h5")))
    assert words["raw gaps"] == "3 missing: 2–4"
    assert (
        words["ledger"]
        == "6 acquired = 3 reconstructed + 0 raw only + 3 dropped (queue_full): closes"
    )
    assert words["size"] == "16×24 pixels, B = 3 frames per snapshot"
    assert words["state"] == "complete"


def test_empty_recording_is_summarised(tmp_path: Path, series) -> None:
    RecordingWriter(tmp_path / "run.h5", series.info, series.calibration).close({"acquired": 0})
    found = inspect_recording(tmp_path / "run.h5").figures
    assert found["rates"]["snapshots_hz"] is None
    assert found["solving"]["iterations"] is None
    assert found["gaps"] == {"raw": [], "video": []}
