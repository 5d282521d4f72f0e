"""The commands for after the run, applied to a rig's recording."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from sci_stream.recording.reader import Recording
from sci_stream.recording.segments import existing_segments
from tests.e2e.conftest import CommandHere
from tests.e2e.kit import RunningRig, assert_accounted_for, sci_stream
from tests.rig_in_process import RigInProcess
from tests.tools.replay_kit import differences

pytestmark = pytest.mark.rig


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The folder of a run with two nodes, segments; its recording is ``run.h5``."""
    folder = tmp_path_factory.mktemp("run")
    changes = {
        "record": {"segment_minutes": 0.01},
        "reconstruct": {"nodes": 2},
    }
    with RigInProcess(folder, changes, snapshots=16) as rig:
        rig.reconstruct(8)
        time.sleep(1.0)  # the first segment is old
        rig.expose(8)
        summary = rig.finish()
        assert assert_accounted_for(summary)["reconstructed"] == 16
        assert len(rig.segments()) >= 2
        first = rig.segments()[0]
        for path in sorted(first.parent.iterdir()):
            path.rename(folder / path.name.replace(first.stem, "run"))
    return folder


def test_replay_equals_live_result(run: Path, command_here: CommandHere) -> None:
    said = command_here("replay", "run.h5", cwd=run)
    assert said.status == 0, said.output
    assert "done: 16 snapshots in run_replay.h5" in said.output
    found = differences(run / "run.h5", run / "run_replay.h5")
    assert list(found) == list(range(16))
    assert max(found.values()) <= 2**-10


def test_inspect_describes_the_run(run: Path, command_here: CommandHere) -> None:
    said = command_here("inspect", "run.h5", "--json", cwd=run)
    found = json.loads(said.output)
    assert found["state"] == "complete"
    assert found["stored"]["raw"] == found["stored"]["video"] == 16
    assert found["ledger"]["closed"]
    assert found["gaps"] == {"raw": [], "video": []}
    assert {result["denoiser"] for result in found["solving"]["solvers"].values()} == {"tv"}
    assert set(found["solving"]["by_solver"]) == set(found["solving"]["solvers"])
    words = command_here("inspect", "run.h5", cwd=run).output
    assert "16 acquired = 16 reconstructed + 0 raw only: closes" in words


def test_exported_movie_plays(run: Path, command_here: CommandHere) -> None:
    av = pytest.importorskip("av")
    said = command_here("export", "run.h5", "film.mp4", cwd=run)
    assert "16 snapshots, 64 frames, mp4" in said.output
    with av.open(str(run / "film.mp4")) as film:
        assert sum(1 for _ in film.decode(video=0)) == 64
    again = command_here("export", "run.h5", "film.mp4", cwd=run)
    assert again.status == 3
    assert "film.mp4 exists" in again.output


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_repeatedly_killed_sink_loses_nothing(tmp_path: Path) -> None:
    changes = {
        "camera": {"options": {"snapshot_rate_hz": 20.0}},
        "policy": {"mode": "record"},
        "record": {"segment_minutes": 0.02},
    }
    chance = random.Random(0)
    with RunningRig(tmp_path, changes, "--snapshots", "400") as rig:
        rig.wait_for_count("reconstructed", 5)
        for _ in range(5):
            before = rig.wait_until("it is up", lambda report: "ledger.acquired" in report)[
                "ledger.reconstructed"
            ]
            rig.wait_for_count("reconstructed", int(before) + 1)
            time.sleep(chance.uniform(0.0, 1.0))
            rig.kill("sink")
        ledger = assert_accounted_for(rig.finish(timeout_s=300.0))
        first = rig.segments()[0]
    assert ledger["acquired"] == ledger["reconstructed"] == 400
    unfinished = [path for path in existing_segments(first) if not is_finished(path)]
    assert 1 <= len(unfinished) <= 6
    said = sci_stream("repair", first, cwd=tmp_path)
    assert said.status == 0, said.output
    found = json.loads(sci_stream("inspect", first, "--json", cwd=tmp_path).output)
    assert found["state"] == "complete"
    assert found["stored"]["raw"] == found["stored"]["video"] == 400
    assert found["gaps"] == {"raw": [], "video": []}


def is_finished(path: Path) -> bool:
    with Recording(path) as recording:
        return recording.finished
