"""Comparison of two recordings by PSNR and SSIM."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from sci_stream.errors import InputError
from sci_stream.recording.writer import RecordingWriter
from sci_stream_lab.bench.quality.comparison import compare_recordings
from sci_stream_lab.bench.quality.similarity import ssim
from sci_stream_lab.cli.compare import compare_app


def record(path: Path, series, seqs: list[int], error: float = 0.0) -> Path:
    info = dataclasses.replace(series.info, series=path.stem)
    with RecordingWriter(path, info, series.calibration, raw=False) as writer:
        for seq in seqs:
            video = (series.video(seq).astype(np.float32) + error).astype(np.float16)
            writer.write_reconstruction(series.reconstruction(seq, video=video))
    return path


def test_equal_video_has_infinite_psnr(tmp_path: Path, series) -> None:
    a = record(tmp_path / "a.h5", series, [0, 1, 2])
    b = record(tmp_path / "b.h5", series, [1, 2, 3, 4])
    c = record(tmp_path / "c.h5", series, [2], error=0.125)
    found = compare_recordings(a, b)
    assert [one.seq for one in found.snapshots] == [1, 2]
    assert all(
        math.isinf(one.psnr_db) and one.ssim == pytest.approx(1.0) for one in found.snapshots
    )
    assert (found.only_first, found.only_second) == (1, 2)
    (one,) = compare_recordings(a, c).snapshots
    assert one.psnr_db == pytest.approx(-20 * math.log10(0.125), abs=0.05)
    assert one.max_difference == pytest.approx(0.125, abs=1e-3)


def test_ssim_is_the_mean_of_the_frames(tmp_path: Path, series) -> None:
    a = record(tmp_path / "a.h5", series, [0])
    b = record(tmp_path / "b.h5", series, [0], error=0.2)
    (one,) = compare_recordings(a, b).snapshots
    frames = series.video(0).astype(np.float32)
    other = (frames + 0.2).astype(np.float16).astype(np.float32)
    assert one.ssim == pytest.approx(ssim(torch.from_numpy(other), torch.from_numpy(frames)))
    assert 0.5 < one.ssim < 1.0


def test_incompatible_recordings_are_refused(tmp_path: Path, series) -> None:
    a = record(tmp_path / "a.h5", series, [0])
    with pytest.raises(InputError, match="no reconstructed snapshot in common"):
        compare_recordings(a, record(tmp_path / "b.h5", series, [1]))
    smaller = dataclasses.replace(series.info, series="c", width_px=12)
    RecordingWriter(tmp_path / "c.h5", smaller, series.calibration).close({})
    with pytest.raises(InputError, match=r"\(3, 16, 24\).*\(3, 16, 12\)"):
        compare_recordings(a, tmp_path / "c.h5")


def test_compare_prints_a_table_and_json(tmp_path: Path, series) -> None:
    a, other = record(tmp_path / "a.h5", series, [0, 1, 4]), tmp_path / "b.h5"
    with RecordingWriter(other, series.info, series.calibration, raw=False) as writer:
        writer.write_reconstruction(series.reconstruction(0, video=series.video(0) * 0.5))
        writer.write_reconstruction(series.reconstruction(1))
    said = CliRunner().invoke(compare_app, [str(a), str(other)], env={"COLUMNS": "200"})
    assert said.exit_code == 0, said.output
    assert "equal" in said.output
    assert "not compared: 1 only in the first, 0 only in the second" in " ".join(
        said.output.split()
    )
    figures = json.loads(CliRunner().invoke(compare_app, [str(a), str(other), "--json"]).output)
    assert (figures["snapshots"], figures["equal"], figures["only_first"]) == (2, 1, 1)
    mean_square = float(((series.video(0).astype(float) * 0.5) ** 2).mean())
    assert figures["psnr_db"]["min"] == pytest.approx(-10 * math.log10(mean_square), abs=0.05)
    assert figures["per_snapshot"][1]["psnr_db"] is None, "JSON has no infinity"
