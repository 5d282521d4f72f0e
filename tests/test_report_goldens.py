"""Outputs of reported quantities stay as they were: inspect, its JSON, columns, the summary of a
run, metrics.

The files in `goldens` were written by the version in which each output named its quantities itself.
Later quantities may add to the outputs: each golden must be part of the present one.
"""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from typer.testing import CliRunner

from sci_stream.cli import app
from sci_stream.delivery.ledger import Ledger, Outcome
from sci_stream.health import NodeMetrics
from sci_stream.model import StageTimes
from sci_stream.nodes.sink.statistics import SeriesStatistics, stage_seconds
from sci_stream.optics.mask_errors import MaskCorrection, MaskError
from sci_stream.quantities import gauges
from sci_stream.recording.writer import RecordingWriter
from sci_stream.reports import CalibrationHealth, SolveReport, Start
from tests.series_fixtures import Series

GOLDENS = Path(__file__).parent / "goldens"
OLD = Path(__file__).parent / "recording" / "data" / "recording.h5.xz"
MS = 1_000_000
CORRECTION = MaskCorrection(masks=(MaskError(x_px=0.3, y_px=0.4), MaskError(gain=0.05))).to_text
UNKNOWN = dict.fromkeys(
    (
        "shift_x_px",
        "shift_y_px",
        "shift_sd_px",
        "match",
        "contrast",
        "brightness",
        "gain",
        "error_log_odds",
    )
)
# Of the HDF5 version, not of the content.
SIZES = {"bytes", "disk_bytes"}


def report(seq: int, **changes: Any) -> SolveReport:
    values = {
        "iterations": 10 + seq % 3,
        "start": Start.WARM if seq else Start.COLD,
        "start_reason": "motion" if seq else "first",
        "budget_limited": seq == 3,
        "solve_ns": (30 + seq) * MS,
        "residual": 0.02 + 0.001 * seq,
        "saturated_fraction": 0.001 * seq,
        "solver": "0123abcd",
    }
    return SolveReport(**{**values, **changes})


def with_truth(seq: int) -> SolveReport:
    """Return the report on a snapshot with truth; most start warm."""
    return report(
        seq, psnr_db=30.0 + seq / 7 if seq != 4 else None, noise=0.02 + seq / 1000, mismatch=0.015
    )


def watched(seq: int) -> SolveReport:
    """Return the report on a snapshot of a rig that watches its calibration and corrects
    the masks.
    """
    values: dict[str, Any] = {
        **{
            "shift_x_px": 0.1 * seq,
            "shift_y_px": -0.05 * seq,
            "shift_sd_px": 0.01234567,
            "match": 0.95 - 0.01 * seq,
        },
        **{"contrast": 1.0 + 0.01 * seq, "order": "forward", "corrected": seq > 3, "gain": 1.5},
        **{
            "below_black_fraction": 0.001 * seq,
            "brightness": 0.4 + 0.01 * seq,
            "error_log_odds": 10.0 * seq,
        },
    }
    values |= {**UNKNOWN, "match": 0.0, "order": "shuffled"} if seq == 2 else {}
    return report(
        seq,
        noise=0.02,
        mismatch=0.01 + seq / 999,
        masks_at=CORRECTION if seq > 3 else "",
        start_reason="mismatch" if seq == 6 else "motion",
        health=None if seq == 5 else CalibrationHealth(**values),
    )


def golden(name: str) -> str:
    return (GOLDENS / name).read_text()


def require_part(old: Any, new: Any, where: str = "") -> None:
    """Raise unless a document is part of another: members of maps may be added, nothing else may
    differ.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for name, value in old.items():
            if name not in SIZES:
                require_part(value, new[name], f"{where}.{name}")
    elif isinstance(old, list) and isinstance(new, list):
        assert len(old) == len(new), where
        for index, (before, now) in enumerate(zip(old, new, strict=True)):
            require_part(before, now, f"{where}[{index}]")
    else:
        assert old == new, where


def inspected(path: Path, *options: str) -> str:
    result = CliRunner().invoke(
        app, ["inspect", str(path), *options], env={"COLUMNS": "400", "NO_COLOR": "1"}
    )
    assert result.exit_code == 0, result.output
    return result.output.replace(str(path.parent), "DIR")


def require_same_summary(path: Path, name: str) -> None:
    require_part(json.loads(golden(f"{name}.inspect.json")), json.loads(inspected(path, "--json")))
    lines = inspected(path).splitlines()
    assert [line for line in golden(f"{name}.inspect.txt").splitlines() if line not in lines] == []


@pytest.mark.parametrize(("name", "make"), [("truth", with_truth), ("watch", watched)])
def test_reports_are_written_as_before_they_were_declared(
    name: str, make: Callable[[int], SolveReport], tmp_path: Path, series: Series
) -> None:
    path, ledger = tmp_path / f"{name}.h5", Ledger()
    book = SeriesStatistics(series.info, ledger)
    with RecordingWriter(path, series.info, series.calibration) as writer:
        for seq in range(8):
            times = StageTimes(1 * MS, 2 * MS, 4 * MS, 8 * MS, (16 + seq) * MS, 32 * MS)
            node = f"reconstruct-{seq % 2}"
            done = series.reconstruction(
                seq, report=make(seq), redelivered=int(seq == 1), node=node, times=times
            )
            writer.write_reconstruction(done)
            book.add(done, stage_seconds(times), float(seq))
            ledger.settle(seq, Outcome.RECONSTRUCTED)
        ledger.end(8)
        writer.close(ledger.counts())
    require_same_summary(path, name)
    summary = book.summary({"v": "1"}, Counter(crc=2), {"enabled": False})
    require_part(json.loads(golden(f"{name}.summary.json")), json.loads(json.dumps(summary)))
    with h5py.File(path) as file:
        for line in golden(f"{name}.columns.txt").splitlines():
            column, dtype, attributes, values = line.split("\t")
            node = file["rows"][column]
            assert (node.dtype.str, dict(node.attrs), repr(node[:].tolist())) == (
                dtype,
                json.loads(attributes),
                values,
            )
    metrics, solve = NodeMetrics("sink", "sink"), make(7)
    metrics.report({**gauges(solve), **({} if solve.health is None else gauges(solve.health))})
    exposed = metrics.exposition().decode().splitlines()
    assert [
        line for line in golden(f"{name}.metrics.txt").splitlines() if line not in exposed
    ] == []


def test_old_recording_is_summarised_as_before(tmp_path: Path) -> None:
    path = tmp_path / "old.h5"
    path.write_bytes(lzma.decompress(OLD.read_bytes()))
    require_same_summary(path, "old")
