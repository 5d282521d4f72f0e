"""`bench reality` end to end on scenes that need no data, and its messages without any scene."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from sci_stream.cli import app
from sci_stream.config import ReconstructSection
from sci_stream.errors import FileFormatError
from sci_stream_lab.bench.reality import compare
from sci_stream_lab.bench.reality.compare import (
    Cell,
    ComparisonPlan,
    bench,
    cell_table,
    plot,
    summarise,
    verdicts,
)
from sci_stream_lab.bench.reality.cost import bench_cost
from sci_stream_lab.bench.reality.rigs import OpticalSetup
from sci_stream_lab.bench.reality.scenes import (
    DATA_VARIABLE,
    SCENES,
    Half,
    NamedScene,
    SceneFormat,
    SceneUnavailableError,
)
from sci_stream_lab.bench.reality.solving import SolverSpec
from sci_stream_lab.bench.result import markdown, write_json

SPEC = SolverSpec(ReconstructSection(solver="tv", warm_start=False), "cpu", iterations=4)


@pytest.fixture(autouse=True)
def _without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)


def small_plan(**changes: object) -> ComparisonPlan:
    plan = {
        "rigs": (OpticalSetup("random", 0.5, 4), OpticalSetup("shift", 0.3, 4, colour=True)),
        "perturbations": ("none", "all"),
        "snapshots": 2,
        "size": 32,
        "scenes_per_rig": 1,
    }
    return ComparisonPlan(**{**plan, **changes})  # type: ignore[arg-type]


def test_bench_measures_all_cells_and_writes_table_json_and_plot(tmp_path: Path) -> None:
    said: list[str] = []
    result = bench(small_plan(), SPEC, said.append, jobs=1)
    assert len(result.cells) == 8
    assert {cell.half for cell in result.cells} == {Half.TUNING, Half.REPORTING}
    assert any(DATA_VARIABLE in line for line in said), (
        "scenes without data are skipped with a message"
    )
    for cell in result.cells:
        assert np.isfinite([cell.exact_db, cell.plain_db]).all()
        assert (cell.loss_db == 0) == (cell.perturbation == "none")
    write_json(result, tmp_path / "out.json")
    content = json.loads((tmp_path / "out.json").read_text())
    assert len(content["cells"]) == 8
    assert content["tables"][0]["units"]["exact_db"] == "dB"
    assert content["settings"]["snapshots"] == 2
    assert markdown(cell_table(result)).count("\n") == 10
    plot(result, tmp_path / "out.png")
    assert cv2.imread(str(tmp_path / "out.png")) is not None


def test_bench_in_processes_gives_equal_figures() -> None:
    # One piece of work: for more, more processes would be started, each of which imports for
    # seconds.
    plan = small_plan(halves=(Half.TUNING,), snapshots=1, rigs=(OpticalSetup("random", 0.5, 4),))
    here, there = (bench(plan, SPEC, lambda _: None, jobs=jobs).cells for jobs in (1, 2))
    for mine, its in zip(here, there, strict=True):
        assert (mine.scene, mine.rig, mine.perturbation) == (its.scene, its.rig, its.perturbation)
        assert mine.defaults_db == pytest.approx(its.defaults_db, abs=1e-3)


def test_command_prints_table(capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--frames",
        "14",
        "--masks",
        "random",
        "--perturbation",
        "gain",
        "--scenes",
        "reporting",
    ]
    small = [
        "--size",
        "32",
        "--iterations",
        "2",
        "--snapshots",
        "1",
        "--solver",
        "tv",
        "--jobs",
        "1",
        "--cells",
    ]
    with pytest.raises(SystemExit, match=r"^0$"):
        app(["bench", "reality", *options, *small])
    shown = capsys.readouterr().out
    assert "simulated faster" in shown
    assert "tuning" not in shown


@pytest.mark.parametrize(("given", "warm"), [([], True), (["--set", "warm_start=false"], False)])
def test_command_solves_series_as_a_rig_does(
    monkeypatch: pytest.MonkeyPatch, given: list[str], warm: bool
) -> None:
    specs: list[SolverSpec] = []

    def measure_nothing(_plan: ComparisonPlan, spec: SolverSpec, *_: object, **__: object) -> None:
        specs.append(spec)
        raise FileFormatError("Nothing to measure", expected="a spec", got="one")

    monkeypatch.setattr(compare, "bench", measure_nothing)
    with pytest.raises(FileFormatError, match="Nothing to measure"):
        app(["bench", "reality", *given])
    assert [spec.section.warm_start for spec in specs] == [warm]


def test_rigs_have_number_of_scenes_asked_for() -> None:
    rig = (OpticalSetup("random", 0.5, 4),)
    for wanted, expected in ((2, 2), (0, 2)):  # without data there are two
        plan = small_plan(
            rigs=rig,
            perturbations=("none",),
            halves=(Half.TUNING,),
            scenes_per_rig=wanted,
            snapshots=1,
        )
        assert (
            len({cell.scene for cell in bench(plan, SPEC, lambda _: None, jobs=1).cells})
            == expected
        )


def test_bench_without_available_masks_raises() -> None:
    with pytest.raises(FileFormatError, match="Nothing to measure"):
        bench(small_plan(rigs=(OpticalSetup("published", 0.5, 8),)), SPEC, lambda _: None, jobs=1)


def test_halves_share_no_scene_and_both_have_all_kinds() -> None:
    names = {half: {scene.name for scene in SCENES if scene.half is half} for half in Half}
    assert not names[Half.TUNING] & names[Half.REPORTING]
    assert len(names[Half.TUNING]) == len(names[Half.REPORTING])


def test_simulated_scene_gives_video_of_each_snapshot() -> None:
    scene = next(scene for scene in SCENES if scene.name == "simulated fast")
    videos = scene.frames(SceneFormat(size=32, n_frames=3, colour=True, snapshots=2))
    assert videos.shape == (2, 3, 32, 32)
    assert 0 <= videos.min() < videos.max() <= 1
    assert np.abs(videos[0, 0] - videos[1, 0]).max() > 0.02, "it moves"


def test_grey_or_short_scene_is_unavailable() -> None:
    short = NamedScene(
        "short", Half.TUNING, lambda _: np.zeros((5, 8, 8), np.float32), in_colour=False
    )
    with pytest.raises(SceneUnavailableError, match="5 frames, fewer than 6"):
        short.frames(SceneFormat(8, 6, False, 1))
    with pytest.raises(SceneUnavailableError, match="not in colour"):
        short.frames(SceneFormat(8, 4, True, 1))
    assert short.frames(SceneFormat(8, 2, False, 9)).shape == (2, 2, 8, 8), (
        "as many snapshots as there are"
    )


def test_photograph_pans_and_missing_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    scene = next(scene for scene in SCENES if scene.name == "kodak 5 panned")
    take = SceneFormat(32, 2, False, 2)
    with pytest.raises(SceneUnavailableError, match=r"no test/kodak24/5\.png"):
        scene.frames(take)
    (tmp_path / "test/kodak24").mkdir(parents=True)
    picture = np.random.default_rng(0).integers(0, 255, (80, 90, 3), np.uint8)
    cv2.imwrite(str(tmp_path / "test/kodak24/5.png"), cv2.GaussianBlur(picture, (0, 0), 2))
    videos = scene.frames(take)
    longer = scene.frames(SceneFormat(32, 2, False, 3))
    np.testing.assert_array_equal(longer[:2], videos)
    assert np.abs(np.diff(videos.reshape(4, 32, 32), axis=0)).max() > 0.005


def test_summary_has_means_and_worst_cells_of_each_half() -> None:
    def cell(defaults_db: float, plain_db: float, half: Half = Half.TUNING) -> Cell:
        return Cell("s", half, "r", "random", 0.5, 8, False, "gain", 1, 30.0, defaults_db, plain_db)

    cells = [cell(28.0, 27.0), cell(26.0, 26.5), cell(20.0, 10.0, Half.REPORTING)]
    rows = summarise(cells)
    row = next(row for row in rows if row.group == "gain" and row.half == "tuning")
    assert (row.cells, row.defaults_db, row.lead_db, row.worst_lead_db) == (2, 27.0, 0.25, -0.5)
    assert (row.loss_db, row.worst_loss_db) == (3.0, 4.0)
    assert "in 1 of 2 cells" in verdicts(cells)[0]
    assert "in 0 of 1 cells" in verdicts(cells)[1]
    assert compare.PLAIN_MARGIN_DB == 0.1


def test_cost_of_checks_is_stated_next_to_the_solves() -> None:
    result = bench_cost(SPEC, snapshots=11, size=64)
    solve, noise, first, later = result.tables[0].rows
    assert (solve.snapshots, first.snapshots, later.snapshots) == (3, 10, 1)
    assert 0 < noise.ms < solve.ms
    assert first.ms > 0
    assert solve.share == 1.0
    assert f"{noise.share + first.share:.1%} of a solve" in result.notes[0]
