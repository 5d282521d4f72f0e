"""Many replays: equal to single ones, resumed, and failed ones named."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import sci_stream
from sci_stream.errors import ConfigError, FileFormatError, InputError
from sci_stream.tools.replay.jobs import JobState, plan_jobs, run_jobs
from sci_stream.tools.replay.replay import ReplayPlan, replay
from sci_stream.tools.replay.solver import SolverChanges
from tests.tools.replay_kit import PATIENCE_S, N, record, run, video

pytestmark = pytest.mark.rig(seconds=90)

SLURM = Path(__file__).parents[2] / "deploy" / "slurm"


def test_public_replay_equals_the_command(recordings: list[Path], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    done = sci_stream.replay(
        recordings[0], tmp_path / "a.h5", device="cpu", progress=lambda i, n: seen.append((i, n))
    )
    assert (done.done, done.complete, seen) == (N, True, [(1, N), (2, N), (3, N)])
    (result,) = run_jobs(plan_jobs(recordings[:1], tmp_path / "b", ReplayPlan(device="cpu")))
    np.testing.assert_array_equal(video(Path(result.out)), video(tmp_path / "a.h5"))
    sci_stream.replay(
        recordings[0], tmp_path / "c.h5", solver="identity", iterations=1, device="cpu"
    )
    assert not np.array_equal(video(tmp_path / "c.h5"), video(tmp_path / "a.h5"))


def test_replay_stops_before_the_disk_is_full_and_resumes(
    recordings: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_bytes = iter([900 << 20, 800 << 20, 100 << 20])
    with monkeypatch.context() as patched:
        patched.setattr("sci_stream.tools.replay.jobs.free_bytes", lambda _path: next(free_bytes))
        jobs = plan_jobs(recordings[:1], tmp_path / "out", ReplayPlan(device="cpu"))
        (stopped,) = run_jobs(jobs, keep_free_mib=200)
    assert (stopped.state, "its disk is nearly full" in stopped.error) == (JobState.FAILED, True)
    with sci_stream.open(jobs[0].out) as begun:
        assert len(begun.video) == 1
    jobs = plan_jobs(recordings[:1], tmp_path / "out", ReplayPlan(device="cpu", resume=True))
    (resumed,) = run_jobs(jobs, keep_free_mib=0)
    assert (resumed.state, resumed.snapshots) == (JobState.DONE, N)


def test_replays_of_one_name_are_refused(recordings: list[Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = record(tmp_path / "other" / "run000.h5", 9)
    with pytest.raises(InputError, match="Two recordings would be replayed to"):
        plan_jobs([recordings[0], other], tmp_path / "out", ReplayPlan())
    beside = plan_jobs([recordings[0], other, other], None, ReplayPlan())
    assert [job.out.name for job in beside] == ["run000_replay.h5", "run000_replay.h5"]


def test_later_segments_of_named_recordings_are_left_out(recordings: list[Path]) -> None:
    record(recordings[0], 0)  # run000_001.h5, of the same series
    record(recordings[1].with_stem("run001_001"), 9)  # of its own
    recordings[2].with_stem("run002_001").write_text("not a recording")
    shelf = sorted(recordings[0].parent.iterdir())
    segment = shelf.pop(1)
    assert [job.source for job in plan_jobs([segment, *shelf], None, ReplayPlan())] == shelf
    assert [job.source for job in plan_jobs([segment], None, ReplayPlan())] == [segment], (
        "named alone"
    )


def test_replays_of_other_recordings_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    run, other = Path("run.h5"), Path("run_replay.h5")
    assert [job.source for job in plan_jobs([other, run], None, ReplayPlan())] == [run]
    assert "run_replay.h5 is left out: it is the replay of run.h5" in caplog.text
    assert [job.source for job in plan_jobs([other], None, ReplayPlan())] == [other]


def test_failed_job_is_named_and_others_continue(recordings: list[Path], tmp_path: Path) -> None:
    recordings[1].write_text("not a recording")
    results = list(run_jobs(plan_jobs(recordings, tmp_path / "out", ReplayPlan(device="cpu"))))
    assert [result.state for result in results] == ["done", "failed", "done", "done"]
    assert "run001.h5" in results[1].error


def test_recording_may_not_import_a_module(
    recordings: list[Path], tmp_path: Path, sleeping: str
) -> None:
    source = record(
        tmp_path / "plug.h5", 1, rig=f'[reconstruct]\ndenoiser = "{sleeping}"\niterations = 2\n'
    )
    with pytest.raises(
        ConfigError,
        match=r"run code of their own; got sleeping_denoiser:Sleeping.*--solver sleep",
    ):
        sci_stream.replay(source, device="cpu")
    assert "sleeping_denoiser" not in sys.modules
    done = sci_stream.replay(source, solver=sleeping, device="cpu")
    with sci_stream.open(done.path) as recording:
        assert set(recording.table["iterations"]) == {2}  # its own settings, as recorded


def test_replay_command_takes_many_files(
    recordings: list[Path], tmp_path: Path, monkeypatch, capsys
) -> None:
    recordings[2].write_text("not a recording")
    arguments = ("replay", *recordings, "--out", tmp_path / "out", "--device", "cpu", "--json")
    status, out, said = run(monkeypatch, capsys, *arguments)
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == 2
    assert [line["state"] for line in lines] == ["done", "done", "failed", "done"]
    assert "1 of 4 recordings were not replayed" in said
    status, out, _ = run(monkeypatch, capsys, *arguments, "--resume")
    assert [json.loads(line)["state"] for line in out.splitlines()] == [
        "present",
        "present",
        "failed",
        "present",
    ]


def test_killed_replay_resumes_and_equals_an_uninterrupted_one(
    recordings: list[Path], tmp_path: Path, sleeping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ReplayPlan(device="cpu", solver=SolverChanges(solver=sleeping, iterations=4))
    expected = replay(recordings[0], dataclasses.replace(plan, out=tmp_path / "whole.h5"))
    monkeypatch.setenv("TEST_SLEEP_S", "0.4")
    parts = tmp_path / "parts.h5"
    command = [
        sys.executable,
        "-P",
        "-m",
        "sci_stream",
        "replay",
        recordings[0],
        "--out",
        parts,
        "--device",
        "cpu",
    ]
    command += ["--solver", sleeping, "--iterations", "4"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        until_s = time.monotonic() + PATIENCE_S
        while not stored(parts):
            assert time.monotonic() < until_s, "nothing was stored"
            time.sleep(0.2)
        process.kill()
    assert 1 <= stored(parts) < N
    monkeypatch.setenv("TEST_SLEEP_S", "0")
    resumed = replay(recordings[0], dataclasses.replace(plan, out=parts, resume=True))
    assert (1 <= resumed.before < N, resumed.complete) == (True, True)
    with sci_stream.open(parts) as recording, sci_stream.open(expected.path) as whole:
        assert recording.parent == whole.parent
        np.testing.assert_array_equal(np.asarray(recording.video), np.asarray(whole.video))
    assert replay(recordings[0], dataclasses.replace(plan, out=parts, resume=True)).before == N


def stored(path: Path) -> int:
    """Return how many videos a recording holds that may not exist yet."""
    try:
        with sci_stream.open(path) as recording:
            return len(recording.video)
    except FileFormatError:
        return 0


def test_slurm_array_job_replays_its_line_of_the_manifest(
    recordings: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "manifest.txt").write_text("".join(f"{path}\n" for path in recordings))
    sci = tmp_path / "sci-stream"
    sci.write_text('#!/bin/sh\necho "$@"\n')
    sci.chmod(0o755)
    environment = {
        **os.environ,
        "MANIFEST": str(tmp_path / "manifest.txt"),
        "OUT": str(tmp_path / "out"),
    }
    environment |= {"SCI_STREAM": str(sci), "SLURM_ARRAY_TASK_ID": "3"}

    done = subprocess.run(
        ["bash", SLURM / "replay.sbatch"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == [
        "replay",
        str(recordings[2]),
        "--out",
        str(tmp_path / "out"),
        "--resume",
        "--json",
    ]
    assert (tmp_path / "out").is_dir(), "so that the replay is named after its recording"
