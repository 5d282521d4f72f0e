"""The warm-start benchmark on a moving scene with a cut."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from rich.console import Console

from sci_stream.cli import app
from sci_stream.config import ReconstructSection
from sci_stream.errors import ConfigError, FileFormatError
from sci_stream_lab.bench import datasets
from sci_stream_lab.bench.quality import warm_start
from sci_stream_lab.bench.result import print_result, write_json

TV = ReconstructSection(solver="tv")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows, columns, time = np.mgrid[:40, :48, :16].astype(float)
    c = columns - 0.8 * time
    orig = 127 + 60 * np.sin(0.4 * c + 0.2 * rows) + 50 * np.sin(0.25 * rows - 0.5 * c)
    orig[:10] += 15
    mask = np.random.default_rng(0).integers(0, 2, (40, 48, 4)).astype(np.float64)
    meas = np.stack(
        [(mask * orig[..., 4 * shot : 4 * shot + 4]).sum(-1) for shot in range(4)], axis=-1
    )
    path = tmp_path_factory.mktemp("published")
    scipy.io.savemat(path / "moving.mat", {"meas": meas, "mask": mask, "orig": orig})
    single = {"meas": meas[..., :1], "mask": mask, "orig": orig[..., :4]}
    scipy.io.savemat(path / "single.mat", single)
    (path / "broken.mat").write_bytes(b"not a mat file")
    return path


def test_bench_warm_compares_every_iteration_count(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    figures = warm_start.bench(
        datasets.published(folder, said.append),
        TV,
        "cpu",
        said.append,
        iterations=(3, 6),
        reference=9,
    )
    (row,) = figures.sets
    assert (row.name, row.shots) == ("moving", 4)
    assert [run.iterations for run in row.runs] == [3, 6]
    assert any("broken.mat" in line for line in said)
    assert any("single" in line for line in said)
    for run in row.runs:
        followed = run.per_shot[1:]
        gains = [shot.warm_db - shot.cold_db for shot in followed]
        assert run.gain_db == pytest.approx(np.mean(gains))
        assert run.gain_db > 0.5
        assert run.worst_gain_db == pytest.approx(min(gains))
        warm_starts = sum(shot.start == "warm: warm" for shot in (*run.per_shot, run.after_cut))
        assert run.starts["warm: warm"] == warm_starts >= 3
        assert run.per_shot[0].start == "cold: first"
        assert run.per_shot[0].warm_db == run.per_shot[0].cold_db
        assert 0 < run.start_share < 1
        assert run.warm_share < run.start_share
        assert run.cut_gain_db == run.after_cut.warm_db - run.after_cut.cold_db
    assert row.reaches_reference["warm"] in (3, 6, None)

    out = tmp_path / "out.json"
    with (tmp_path / "table.txt").open("w") as file:
        console = Console(width=140, record=True, file=file)
        print_result(figures, console)
    shown = console.export_text()
    assert "moving" in shown
    assert "9 cold iterations give" in shown
    write_json(figures, out)
    written = json.loads(out.read_text())["sets"][0]["runs"]
    assert [run["gain_db"] for run in written] == [run.gain_db for run in row.runs]


def test_bench_warm_plot_is_written(folder: Path, tmp_path: Path) -> None:
    footage = datasets.published(folder, lambda _: None)
    figures = warm_start.bench(footage, TV, "cpu", lambda _: None, iterations=(2,), reference=0)
    warm_start.plot(figures, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_footage_cut_uses_same_masks(folder: Path) -> None:
    (moving,) = (
        item for item in datasets.published(folder, lambda _: None) if item.name == "moving"
    )
    cut = moving.cut()
    assert cut.id.seq == len(moving.snapshots)
    assert cut.truth is not None
    first = datasets.truth_of(moving.snapshots[0])
    np.testing.assert_allclose(cut.truth, first[:, ::-1, ::-1])
    y = moving.calibration.measurement(cut.counts)
    np.testing.assert_allclose(y, (moving.calibration.phi * cut.truth).sum(0), atol=1e-5)


def test_bench_warm_without_data_raises() -> None:
    with pytest.raises(FileFormatError, match="Nothing to measure"):
        warm_start.bench([], TV, "cpu", lambda _: None)


def test_bench_command_accepts_reconstruct_settings(folder: Path, tmp_path: Path) -> None:
    command = [
        "bench",
        "warm",
        "--data",
        str(folder),
        "--solver",
        "tv",
        "--iterations",
        "3",
        "--reference",
        "0",
    ]
    out = tmp_path / "out.json"
    with pytest.raises(SystemExit, match=r"^0$"):
        app(
            [*command, "--set", "weigh_noise=false", "--set", "sigma_first=0.1", "--json", str(out)]
        )
    settings = json.loads(out.read_text())["settings"]
    assert (settings["weigh_noise"], settings["sigma_first"]) == (False, 0.1)
    with pytest.raises(ConfigError, match=r"weigh_noice is unknown.*weigh_noise"):
        app([*command, "--set", "weigh_noice=false"], standalone_mode=False)


def test_bench_command_unknown_plot_format_fails_early(folder: Path, tmp_path: Path) -> None:
    command = [
        "bench",
        "warm",
        "--data",
        str(folder),
        "--solver",
        "tv",
        "--iterations",
        "2",
        "--reference",
        "0",
    ]
    with pytest.raises(ConfigError, match="Unsupported plot format"):
        app(
            [
                *command,
                "--json",
                str(tmp_path / "out.json"),
                "--plot",
                str(tmp_path / "out.nothing"),
            ]
        )
    assert list(tmp_path.iterdir()) == [], "nothing was measured"
