"""The paper's table of methods: rows, choice and figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sci_stream.errors import ConfigError, FileFormatError
from sci_stream.optics.calibration import Calibration
from sci_stream_lab.bench.datasets import Footage
from sci_stream_lab.bench.quality.paper_table import bench, chosen_methods, plot
from sci_stream_lab.paper.methods import METHODS, LinearStart, PaperMethod, Stage
from sci_stream_lab.paper.printed import PAPER, PAPER_MINUTES


@pytest.fixture
def footage() -> Footage:
    """Return two shots of 24×24 pixels and 4 frames under the name of a published set."""
    random = np.random.default_rng(0)
    phi = random.integers(0, 2, (4, 24, 24)).astype(np.float32)
    calibration = Calibration(phi=phi)
    rows, columns = np.mgrid[:24, :24]
    shots = []
    for seq in range(2):
        truth = np.stack(
            [0.5 + 0.3 * np.sin((columns + b + 4 * seq) / 3) * np.cos(rows / 4) for b in range(4)]
        )
        truth = truth.astype(np.float32)
        shots.append(calibration.snapshot("bench", seq, (phi * truth).sum(0), truth))
    return Footage("kobe_test", calibration, tuple(shots))


def ignore(_line: str) -> None:
    """Take a line of progress."""


def test_every_printed_row_of_the_paper_has_a_method() -> None:
    printed = {method.printed for method in METHODS if method.printed}
    assert printed == set(PAPER_MINUTES) == set(PAPER["traffic"])
    assert PAPER["drop"]["PnP-WNNM-FFDNet"] == (43.45, 0.9930)
    assert PAPER["aerial"]["PnP-VBM4D"] == (26.89, 0.8521)
    averages = {
        "GAP-TV": 26.73,
        "DeSCI": 32.65,
        "PnP-VBM4D": 27.68,
        "PnP-FFDNet": 29.70,
        "PnP-WNNM-TV": 32.14,
    }
    for method, average in averages.items():
        assert np.mean([PAPER[name][method][0] for name in PAPER]) == pytest.approx(
            average, abs=0.02
        )


def test_methods_are_chosen_by_prefix() -> None:
    assert chosen_methods(()) == METHODS
    chosen = chosen_methods(("desci", "PnP-WNNM-TV"))
    assert [(type(method), method.printed) for method in chosen] == [
        (PaperMethod, "DeSCI"), (LinearStart, "DeSCI"), (PaperMethod, "PnP-WNNM-TV")
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="DeSCI"):
        chosen_methods(("BIRNAT",))


def test_bench_measures_each_method_on_each_shot(
    footage: Footage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sci_stream_lab.bench.quality.paper_table._REPORT_S", 0.0)
    lines: list[str] = []
    methods = chosen_methods(("GAP-TV", "ADMM-TV", "PnP-VBM4D"))
    result = bench([footage], methods, "cpu", lines.append)
    assert [row.method for row in result.rows] == [method.name for method in methods]
    for row in result.rows:
        assert (row.shots, len(row.psnr_at)) == (2, row.iterations)
        assert row.psnr_db > 18
        assert list(row.seconds_at) == sorted(row.seconds_at)
    assert result.rows[0].paper_psnr_db == 26.46
    assert result.rows[0].difference_db == pytest.approx(result.rows[0].psnr_db - 26.46)
    assert result.rows[1].difference_db is None
    assert any("iteration 2/24" in line and "s left" in line for line in lines)
    plot(result, tmp_path / "paper.png")
    assert (tmp_path / "paper.png").stat().st_size > 1000


def test_stage_begins_with_the_video_of_the_one_before(footage: Footage) -> None:
    first, then = Stage("tv", (27.5,), each=4), Stage("tv", (20.0, 10.0), each=2)
    stages = (first,), (first, then)
    methods = [PaperMethod("GAP-TV", "", each) for each in stages]
    short, long = bench([footage], methods, "cpu", ignore, shots=1).rows
    assert long.psnr_at[:4] == short.psnr_at
    assert len(long.psnr_at) == long.iterations == 8
    assert min(long.psnr_at[4:]) > short.psnr_at[0]


def test_stage_by_frames_is_not_one_through_all_frames(footage: Footage) -> None:
    stages = [(Stage("wnnm", (25.0,), each=1, by_frames=alone),) for alone in (False, True)]
    methods = [PaperMethod("GAP-TV", "", each) for each in stages]
    together, alone = bench([footage], methods, "cpu", ignore, shots=1).rows
    assert abs(together.psnr_db - alone.psnr_db) > 1e-3


def test_bench_times_one_thread_by_its_processor_time(
    footage: Footage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    readings = iter(range(1000))
    monkeypatch.setattr("time.process_time", lambda: next(readings))
    (row,) = bench([footage], chosen_methods(("GAP-TV",)), "cpu", ignore, shots=1).rows
    assert row.seconds_at == tuple(range(1, 25))


def test_bench_of_shots_is_bounded_and_nothing_is_an_error(footage: Footage) -> None:
    (row,) = bench([footage], chosen_methods(("GAP-TV",)), "cpu", ignore, shots=1).rows
    assert row.shots == 1
    with pytest.raises(FileFormatError, match="Nothing to measure"):
        bench([], METHODS, "cpu", ignore)
