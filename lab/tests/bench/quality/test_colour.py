"""The colour benchmark: colours survive the simulated optics, and its figures match their
definitions.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
from rich.console import Console

from sci_stream.config import ReconstructSection
from sci_stream.errors import FileFormatError
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import BayerPhase
from sci_stream_lab.bench.quality.colour import CHART_SRGB, bench, chart_delta_e
from sci_stream_lab.bench.quality.colour_difference import delta_e_2000, lab
from sci_stream_lab.bench.result import print_result, write_json

MEAN_DELTA_E, MAX_DELTA_E = 1.0, 2.0
"""The project's promise: the difference of a patch of the chart, through the simulated optics and
back."""

TV = ReconstructSection(solver="tv", iterations=16)


@pytest.mark.parametrize("phase", BayerPhase)
def test_chart_after_capture_and_reconstruction_keeps_colours(phase: BayerPhase) -> None:
    difference = chart_delta_e(phase, TV, "cpu")
    assert difference.shape == (4, 6)
    assert difference.mean() < MEAN_DELTA_E
    assert difference.max() < MAX_DELTA_E


def test_chart_delta_e_detects_wrong_white_balance() -> None:
    tone = ToneSettings().changed({"white_balance": "fixed", "gains": [1.3, 1.0, 0.8]})
    assert chart_delta_e(BayerPhase.RGGB, TV, "cpu", tone).mean() > 3 * MEAN_DELTA_E


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        # Some of the pairs of Sharma, Wu and Dalal's table 1, the formula's known pitfalls.
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, -1.3802, -84.2814), (50.0, 0.0, -82.7485), 1.0000),
        ((50.0, 0.0, 0.0), (50.0, -1.0, 2.0), 2.3669),
        ((50.0, 2.4900, -0.0010), (50.0, -2.4900, 0.0009), 7.1792),
        ((50.0, -0.0010, 2.4900), (50.0, 0.0010, -2.4900), 4.8045),
        ((50.0, -0.0010, 2.4900), (50.0, 0.0011, -2.4900), 4.7461),
        ((50.0, 2.5, 0.0), (50.0, 0.0, -2.5), 4.3065),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_delta_e_2000_matches_standard(one, other, difference: float) -> None:
    assert delta_e_2000(one, other) == pytest.approx(difference, abs=5e-5)
    assert delta_e_2000(other, one) == pytest.approx(difference, abs=5e-5)


def test_lab_of_white_black_and_grey_is_nominal() -> None:
    assert lab([255, 255, 255]) == pytest.approx([100, 0, 0], abs=1e-4)
    assert lab([0, 0, 0]) == pytest.approx([0, 0, 0], abs=1e-9)
    assert lab(CHART_SRGB)[3, 1] == pytest.approx([80.6, 0, 0], abs=0.1)


def test_bench_colour_reports_every_method_and_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCI_STREAM_DATA", raising=False)
    noise = cv2.GaussianBlur(
        np.random.default_rng(0).random((64, 80, 3)).astype(np.float32), (0, 0), 1.2
    )
    cv2.imwrite(str(tmp_path / "a.png"), 255 * (noise - noise.min()) / np.ptp(noise))
    (tmp_path / "b.png").write_bytes(b"no image")
    said: list[str] = []
    result = bench(tmp_path, TV, "cpu", said.append, scenes=())
    assert said[0] == "a.png"
    assert re.fullmatch(r"skipped: .*b\.png cannot be read as an image; expected .*", said[1])
    assert len(said) == 2
    assert [row.method for row in result.demosaic] == ["bilinear", "directional"]
    assert result.demosaic[0].lead_db == 0
    for row in result.demosaic:
        by_phase = (row.rggb_db, row.grbg_db, row.gbrg_db, row.bggr_db)
        assert all(15 < value < 60 for value in by_phase)
        assert row.psnr_db == pytest.approx(np.mean(by_phase))
    assert [row.phase for row in result.chart] == list(BayerPhase)
    console = Console(width=120, record=True)
    print_result(result, console)
    assert "vs bilinear" in console.export_text()
    write_json(result, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["images"] == 1


def test_bench_colour_without_photographs_raises(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="No photographs"):
        bench(tmp_path, TV, "cpu", lambda _: None)
