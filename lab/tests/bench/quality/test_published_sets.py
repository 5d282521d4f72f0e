"""The quality benchmark on a file of the published layout that is made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import scipy.io
from rich.console import Console

import sci_stream
from sci_stream.cli import app
from sci_stream.config import ReconstructSection
from sci_stream.errors import ConfigError, FileFormatError
from sci_stream_lab.bench.quality.published_sets import bench, bench_priors, paper_row
from sci_stream_lab.bench.result import print_result, write_json
from sci_stream_lab.paper.printed import published_mean_db


@pytest.fixture
def published(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    smooth = np.linspace(40, 200, 32)[:, None, None] * np.ones((32, 24, 8))
    mask = rng.integers(0, 2, (32, 24, 4)).astype(np.float64)
    meas = np.stack(
        [(mask * smooth[..., 4 * shot : 4 * shot + 4]).sum(-1) for shot in range(2)], axis=-1
    )
    scipy.io.savemat(tmp_path / "traffic_like.mat", {"meas": meas, "mask": mask, "orig": smooth})
    return tmp_path


def test_bench_quality_json_covers_every_shot(published: Path) -> None:
    said: list[str] = []
    result = bench(published, ReconstructSection(solver="tv", iterations=6), "cpu", said.append)
    (row,) = result.sets
    assert (row.name, row.shots, len(row.per_shot)) == ("traffic_like", 2, 2)
    assert row.psnr_db > 25
    assert 0 < row.ssim <= 1
    assert row.iterations == 6
    assert row.seconds_per_shot > 0
    assert row.psnr_db == pytest.approx(np.mean([shot.psnr_db for shot in row.per_shot]))
    assert len(said) == 2
    assert result.settings["denoiser"] == "tv"
    assert result.environment.versions["numpy"] == np.__version__

    out = published / "out.json"
    console = Console(width=120, record=True, file=(published / "table.txt").open("w"))
    print_result(result, console)
    said_to_user = console.export_text()
    for figure in ("24.18", "26.17", "27.67", "Yuan et al., CVPR 2020"):
        assert figure in said_to_user
    assert "…" not in said_to_user
    console.file.close()
    write_json(result, out)
    (written,) = json.loads(out.read_text())["sets"]
    assert written["psnr_db"] == row.psnr_db
    assert [shot["ssim"] for shot in written["per_shot"]] == [shot.ssim for shot in row.per_shot]


def test_bench_quality_of_several_priors_compares_them(published: Path) -> None:
    sections = [ReconstructSection(solver=name, iterations=4) for name in ("tv", "identity")]
    result = bench_priors(published, sections, "cpu", lambda _line: None)
    assert [row.prior for row in result.priors] == ["tv", "identity"]
    tv, identity = result.priors
    assert tv.gain_db == 0
    assert identity.gain_db == pytest.approx(identity.psnr_db - tv.psnr_db)
    assert tv.psnr_db == pytest.approx(tv.sets[0].psnr_db)
    assert [table.title for table in result.tables][-1] == "mean over sets: 1, prior by prior"
    arguments = [
        "bench",
        "quality",
        "--data",
        str(published),
        "--solver",
        "tv",
        "--solver",
        "identity",
    ]
    with pytest.raises(ConfigError, match="--plot and --weights are for one solver"):
        app([*arguments, "--plot", str(published / "plot.png")], standalone_mode=False)


def test_bench_quality_with_wrong_masks_needs_full_scale(published: Path) -> None:
    path = published / "traffic_like.mat"
    content = scipy.io.loadmat(path)
    wrong = {key: content[key] for key in ("meas", "orig")} | {
        "mask": np.roll(content["mask"], 1, axis=0)
    }
    scipy.io.savemat(path, wrong)
    section, said = ReconstructSection(solver="tv", iterations=2), list[str]()
    with pytest.raises(FileFormatError, match="--full-scale-dn"):
        bench(published, section, "cpu", said.append)
    assert "do not explain" in said[0]
    (row,) = bench(published, section, "cpu", said.append, full_scale_dn=255.0).sets
    assert 5 < row.psnr_db < 40


def test_bench_quality_is_that_of_reconstruct(tmp_path: Path) -> None:
    """The masks of the file lie 0.3 px beside the true ones; the guard corrects them."""
    rng, size = np.random.default_rng(0), 96
    rows, columns = np.mgrid[:size, :size]
    film = (
        120 + 60 * np.sin(rows[..., None] / 9 + np.arange(4) / 4) * np.cos(columns / 7)[..., None]
    )
    mask = rng.integers(0, 2, (size, size, 4)).astype(np.float64)
    true = 0.7 * mask + 0.3 * np.roll(mask, 1, 1)
    content = {"meas": (true * film).sum(-1), "mask": mask, "orig": film}
    scipy.io.savemat(tmp_path / "film.mat", content)
    section = ReconstructSection(solver="tv", iterations=6)
    guarded, bare = (
        bench(tmp_path, section, "cpu", lambda _: None, full_scale_dn=255.0, bare=bare).sets[0]
        for bare in (False, True)
    )
    with pytest.warns(sci_stream.DataWarning):
        result = sci_stream.reconstruct(
            content["meas"],
            np.moveaxis(mask, -1, 0),
            truth=np.moveaxis(film, -1, 0) / 255,
            white=255.0,
            solver="tv",
            iterations=6,
            device="cpu",
        )
    assert guarded.psnr_db == pytest.approx(result.psnr_db, abs=0.01)
    assert guarded.psnr_db > bare.psnr_db + 3


def test_bench_quality_without_files_raises(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="Nothing to measure"):
        bench(tmp_path, ReconstructSection(), "cpu", lambda _: None)


def test_bench_quality_skips_damaged_file_with_message(published: Path) -> None:
    (published / "broken.mat").write_bytes(b"not a mat file")
    said: list[str] = []
    figures = bench(published, ReconstructSection(solver="tv", iterations=2), "cpu", said.append)
    assert len(figures.sets) == 1
    assert any("broken.mat" in line for line in said)


def test_bench_quality_plot_shows_each_set(published: Path) -> None:
    picture = published / "quality.png"
    bench(published, ReconstructSection(solver="tv", iterations=3), "cpu", lambda _: None, picture)
    height, width, _ = cv2.imread(str(picture)).shape
    assert width > height > 200


def test_bench_quality_unknown_plot_format_fails_early(published: Path) -> None:
    said: list[str] = []
    with pytest.raises(ConfigError, match=r"png.*'\.jpgg'"):
        bench(
            published,
            ReconstructSection(solver="tv"),
            "cpu",
            said.append,
            published / "quality.jpgg",
        )
    assert said == []


def _command(published: Path, *options: str) -> dict[str, Any]:
    out = published / "out.json"
    arguments = [
        "bench",
        "quality",
        "--data",
        str(published),
        "--solver",
        "tv",
        "--iterations",
        "3",
        "--device",
        "cpu",
    ]
    with pytest.raises(SystemExit, match=r"^0$"):
        app([*arguments, "--json", str(out), *options])
    settings: dict[str, Any] = json.loads(out.read_text())["settings"]
    return settings


def test_bench_command_accepts_reconstruct_settings(published: Path) -> None:
    settings = _command(published, "--set", "relaxation=1.2", "--set", "along_time=false")
    assert (settings["relaxation"], settings["along_time"]) == (1.2, False)
    assert settings["iterations"] == 3


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("relaxaton=0.2", r"\[reconstruct\] relaxaton is unknown.*relaxation"),
        ("relaxation=-1", r"relaxation is wrong"),
        ("relaxation", r"KEY=VALUE.*'relaxation'"),
        ("along_time=fast", "along_time.*true or false"),
    ],
)
def test_bench_command_rejects_invalid_settings(
    published: Path, assignment: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        app(
            ["bench", "quality", "--data", str(published), "--set", assignment],
            standalone_mode=False,
        )


def test_paper_row_is_found_by_set_name() -> None:
    assert paper_row("traffic48_cacti")["PnP-FFDNet"] == (24.18, 0.8279)
    assert paper_row("nothing_known") == {}


def test_published_means_are_of_the_sets_that_are_there() -> None:
    six = ["kobe_cacti", "traffic48", "runner", "drop", "crash32", "aerial"]
    assert published_mean_db("PnP-FFDNet", six) == pytest.approx(29.70, abs=0.01)
    assert published_mean_db("PnP-FastDVDnet", six) == pytest.approx(31.79, abs=0.01)
    assert published_mean_db("GAP-net", six) == pytest.approx(32.45, abs=0.01)
    assert published_mean_db("EfficientSCI", six) == 36.4
    assert published_mean_db("EfficientSCI", six[:5]) is None
    assert published_mean_db("GAP-net", ["traffic48", "mine"]) is None
