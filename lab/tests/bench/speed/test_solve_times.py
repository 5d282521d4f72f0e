"""The speed benchmark: its figures are consistent, and it names missing measurements; no time is
asserted.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from typer.testing import CliRunner

from sci_stream.cli import app
from sci_stream.errors import ConfigError
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import FfdnetWeights, load_ffdnet
from sci_stream.recon.settings import SolverSettings, default_settings
from sci_stream_lab.bench.environment import matrix_rate
from sci_stream_lab.bench.speed import solve_times
from sci_stream_lab.bench.speed.solve_times import SIZES, Size, flop_per_pixel, parse_sizes
from sci_stream_lab.bench.speed.time_to_quality import LADDER, read_shots, time_to_reach
from sci_stream_lab.training.variants import VARIANTS
from tests.recon.backend.pretended_cuda import CUDA, pretended_cuda

LITE = str(shipped_weights("ffdnet-lite"))


@pytest.fixture(autouse=True)
def small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_times, "matrix_rate", functools.partial(matrix_rate, size=256))


def _run(tmp_path: Path, *arguments: str) -> dict[str, object]:
    out = tmp_path / "out.json"
    result = CliRunner().invoke(
        app,
        ["bench", "speed", "--device", "cpu", "--json", str(out), *arguments],
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    figures: dict[str, object] = json.loads(out.read_text())
    return figures


@pytest.mark.rig(30)
def test_live_rig_gives_latency_and_loses_nothing(tmp_path: Path) -> None:
    figures = _run(
        tmp_path,
        "--sizes",
        "32x32x4",
        "--solver",
        "tv",
        "--iterations",
        "4",
        "--live",
        "5",
        "--threads",
        "1",
    )
    live = figures["live"]
    assert isinstance(live, dict)
    assert (live["snapshots"], live["lost"]) == (5, 0)
    assert live["frames_per_s"] == pytest.approx(4 * live["snapshots_per_s"])
    assert 0 < live["p50_ms"] <= live["p99_ms"]


def test_parse_sizes_round_trips() -> None:
    text = "256x256x8,512x512x22:bayer"
    assert parse_sizes(text) == (Size(256, 256, 8), Size(512, 512, 22, bayer=True))
    assert ",".join(str(size) for size in parse_sizes(text)) == text
    assert parse_sizes(",".join(str(size) for size in SIZES)) == SIZES


@pytest.mark.parametrize(
    "text", ["256x256", "256x256x0", "axbxc", "255x256x8:bayer", "256x256x8;1x1x1"]
)
def test_parse_sizes_rejects_invalid_text(text: str) -> None:
    with pytest.raises(ConfigError, match="rows x columns x frames"):
        parse_sizes(text)


def test_flop_per_pixel_matches_model_card() -> None:
    lite = load_ffdnet(Path(LITE))
    assert flop_per_pixel(lite) == VARIANTS["ffdnet-lite"].flop_per_pixel


def test_matrix_rate_is_positive() -> None:
    assert matrix_rate(torch.device("cpu"), torch.float32, size=64, products=2) > 0


def test_recorded_iterations_are_timed_as_whole_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a rig: step by step, a GPU would be slower than what a node gets out of it."""
    settings = dataclasses.replace(default_settings(torch.device("cpu"), "tv"), iterations=6)
    launches = []
    with pretended_cuda(monkeypatch) as gpu:
        engine, (shot, _) = solve_times._scene(TvDenoiser(), settings, CUDA, Size(32, 40, 4))
        for times in (1, 2):
            gpu.reset()
            assert solve_times._solve_s(engine, shot, 3, times) > 0
            launches.append(gpu.launches)
    assert launches[1] - launches[0] < 12
    assert engine.settings.iterations == 3


def test_bench_speed_figures_are_consistent(tmp_path: Path) -> None:
    figures = _run(
        tmp_path,
        "--sizes",
        "32x32x3,32x36x2:bayer",
        "--solver",
        "ffdnet-lite",
        "--iterations",
        "3",
        "--chunks",
    )
    rows: list[dict[str, float]] = figures["sizes"]  # type: ignore[assignment]  # JSON
    assert [row["size"] for row in rows] == ["32x32x3", "32x36x2:bayer"]
    for row in rows:
        assert row["iterations"] == 3
        assert row["snapshots_per_s"] == pytest.approx(1e3 / row["snapshot_ms"])
        assert row["flop_per_s"] == pytest.approx(
            1e3 * row["flop_per_iteration"] / row["iteration_ms"]
        )
        assert row["of_matrix_rate"] == pytest.approx(
            row["flop_per_s"] / figures["matrix_flop_per_s"]
        )  # type: ignore[operator]
        assert row["memory_mib"] > 1
        assert row["fault"] == ""
    assert {chunk["pixels_per_chunk"] for chunk in figures["chunks"]} >= {2**20}  # type: ignore[attr-defined]
    assert figures["environment"]["device"]  # type: ignore[index]
    assert figures["environment"]["versions"]["torch"]  # type: ignore[index]


def test_bench_speed_of_tv_has_no_flop(tmp_path: Path) -> None:
    (row,) = _run(tmp_path, "--sizes", "16x16x2", "--solver", "tv", "--iterations", "2")["sizes"]  # type: ignore[misc]
    assert row["flop_per_s"] is None
    assert row["iteration_ms"] > 0


def test_bench_speed_skips_slow_size_with_message(tmp_path: Path) -> None:
    rows = _run(
        tmp_path,
        "--sizes",
        "16x16x2,512x512x64",
        "--solver",
        "tv",
        "--iterations",
        "1",
        "--most-seconds",
        "0.0001",
    )["sizes"]
    assert "would take about" in rows[1]["skipped"]  # type: ignore[index]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    # Fine texture that moves by a pixel per frame: as difficult as real scenes.
    texture = (
        np.random.default_rng(1)
        .integers(20, 235, (24, 24))
        .repeat(2, 0)
        .repeat(2, 1)
        .astype(np.float64)
    )
    orig = np.stack([texture[:, n : n + 40] for n in range(8)], axis=-1)
    mask = np.random.default_rng(0).integers(0, 2, (48, 40, 4)).astype(np.float64)
    meas = np.stack(
        [(mask * orig[..., 4 * shot : 4 * shot + 4]).sum(-1) for shot in range(2)], axis=-1
    )
    path = tmp_path / "small.mat"
    scipy.io.savemat(path, {"meas": meas, "mask": mask, "orig": orig})
    return path


def test_time_to_quality_stops_when_published_loop_is_matched(
    tmp_path: Path, published: Path
) -> None:
    plot = tmp_path / "out.png"
    figures = _run(
        tmp_path, "--sizes", "", "--solver", "ffdnet-lite", "--weights", LITE, "--against",
        str(published), "--shots",
        "2", "--plot", str(plot),
    )  # fmt: skip
    reach: dict[str, object] = figures["reach"]  # type: ignore[assignment]  # JSON
    baseline: dict[str, list[float]] = reach["baseline"]  # type: ignore[assignment]
    ours: list[dict[str, float]] = reach["ours"]  # type: ignore[assignment]
    assert reach["shots"] == 2
    assert len(baseline["seconds"]) == len(baseline["psnr_db"]) == 40
    assert baseline["seconds"] == sorted(baseline["seconds"])
    assert [row["iterations"] for row in ours] == list(LADDER[: len(ours)])
    # The instrument needs fewer iterations for the same quality: no timing, so it holds on any
    # machine.
    assert ours[-1]["psnr_db"] >= baseline["psnr_db"][-1]
    assert ours[-1]["iterations"] < 40
    assert reach["ratio"] == pytest.approx(ours[-1]["seconds"] / baseline["seconds"][-1])
    assert plot.stat().st_size > 1000


def test_time_to_quality_rejects_odd_sizes(tmp_path: Path) -> None:
    path = tmp_path / "odd.mat"
    mask = np.ones((5, 6, 2))
    scipy.io.savemat(path, {"meas": mask.sum(-1), "mask": mask, "orig": mask})
    with pytest.raises(ConfigError, match=r"even number of rows and columns.*5×6 pixels"):
        read_shots(path, 1)


def test_time_to_quality_without_weights_raises(tmp_path: Path, published: Path) -> None:
    with pytest.raises(ConfigError, match="--against needs a trained network"):
        _run(tmp_path, "--sizes", "", "--solver", "tv", "--against", str(published))


def test_bench_speed_unknown_plot_format_raises(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Unsupported plot format"):
        _run(tmp_path, "--sizes", "", "--solver", "tv", "--plot", str(tmp_path / "out.nothing"))


def test_time_to_quality_diverging_start_falls_back_to_still(published: Path) -> None:
    explosive = torch.zeros(4, 5, 3, 3)
    explosive[range(4), range(4), 1, 1] = 1.0
    # Leaves images alone, but amplifies values below black.
    hidden = torch.zeros(8, 5, 3, 3)
    hidden[:4], hidden[4:] = explosive, -explosive
    out = torch.zeros(4, 8, 3, 3)
    out[range(4), range(4), 1, 1], out[range(4), range(4, 8), 1, 1] = 1.0, -3.0
    weights = FfdnetWeights(
        (hidden, out), (torch.zeros(8), torch.zeros(4)), gives_noise=False, origin="own"
    )
    cpu, said = torch.device("cpu"), list[str]()
    prior, settings = FfdnetDenoiser(weights, cpu), SolverSettings(iterations=4)
    figures = time_to_reach(
        read_shots(published, 1), weights, prior, settings, device=cpu, progress=said.append
    )
    assert figures.baseline.start == "still image"
    assert figures.baseline.psnr_db[-1] > 10
    assert any("worse than the still image" in line for line in said)
