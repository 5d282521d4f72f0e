"""The benchmark of recording reads back its recording, and its table holds every part."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from sci_stream.cli import app
from sci_stream.recording.layout import Compression
from sci_stream_lab.bench.pipeline.record import recorder_alone
from sci_stream_lab.bench.pipeline.stream import stream_result
from sci_stream_lab.bench.result import print_result
from tests.e2e.kit import sci_stream


def test_bench_recorder_alone_loses_nothing(tmp_path: Path) -> None:
    parts = [recorder_alone(tmp_path, (32, 48), 40, compression) for compression in Compression]
    assert [(part.snapshots, part.lost) for part in parts] == [(40, 0), (40, 0)]
    assert all(part.snapshots_per_s > 0 for part in parts)
    assert list(tmp_path.iterdir()) == [], "temporary recordings are deleted"
    shown = io.StringIO()
    print_result(stream_result(parts), Console(file=shown, width=120))
    assert "recorder alone, LZ4" in shown.getvalue()


def test_bench_record_missing_folder_is_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(
        app, ["bench", "stream", "--record", "--folder", str(tmp_path / "nowhere")]
    )
    assert refused.exit_code == 2
    assert "does not exist" in refused.output


@pytest.mark.slow
def test_bench_record_measures_all_parts_without_loss(tmp_path: Path) -> None:
    size = ("--snapshots", "60", "--height", "64", "--width", "64", "--rate", "50")
    done = sci_stream(
        "bench", "stream", "--record", *size, "--json", "out.json", cwd=tmp_path, timeout_s=170.0
    )
    assert done.status == 0, done.output
    parts = json.loads((tmp_path / "out.json").read_text())["parts"]
    assert [part["part"] for part in parts][:4] == [
        "loaded", "loaded, bare ZeroMQ", "unloaded", "unloaded, bare ZeroMQ",
    ]  # fmt: skip
    assert [part["part"] for part in parts][4:] == [
        "raw only, h5py chunks", "raw only",
        "recorder alone", "recorder alone, LZ4", "recorded, 50/s", "recorded, loaded",
    ]  # fmt: skip
    assert all(part["lost"] == 0 and part["ledger_closed"] for part in parts)
