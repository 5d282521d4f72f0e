"""Batch replay: each recording once, equal to a single replay, even if workers are killed."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml

from sci_stream.errors import FileFormatError
from sci_stream.tools.replay.jobs import JobState, plan_jobs, run_jobs
from sci_stream.tools.replay.replay import ReplayPlan, replay
from sci_stream.tools.replay.solver import SolverChanges
from sci_stream_bridges.batch import ClusterOptions, connect, run_batch, worker_device
from sci_stream_bridges.batch_jobs import read_manifest, run_job_atomically
from tests.files.test_hostile_files import assert_refused_in_words, read_all
from tests.tools.replay_kit import PATIENCE_S, N, record, run, video

pytestmark = pytest.mark.rig(seconds=90)

SLURM = Path(__file__).parents[2] / "deploy" / "slurm"


def test_manifest_names_files_and_patterns(recordings: list[Path], tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.txt"
    manifest.write_text(
        f"# a shelf\nshelf/run00[1-3]*.h5\n\n{recordings[0]}  # the first\nshelf/run002.h5\n"
    )
    assert read_manifest(manifest) == [*recordings[1:], recordings[0]]
    manifest.write_text("shelf/run9*.h5\n")
    with pytest.raises(
        FileFormatError, match=r"Line 1 of .*manifest\.txt matches no file; got shelf/run9\*\.h5"
    ):
        read_manifest(manifest)
    manifest.write_text("# nothing\n")
    with pytest.raises(FileFormatError, match="is empty"):
        read_manifest(manifest)
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_manifest(tmp_path)


def test_job_output_appears_complete_and_is_not_repeated(
    recordings: list[Path], tmp_path: Path
) -> None:
    (job,) = plan_jobs(recordings[:1], tmp_path / "out", ReplayPlan(device="cpu"))
    first = run_job_atomically(job)
    assert (first.state, first.snapshots) == (JobState.DONE, N)
    assert [path.name for path in job.out.parent.iterdir()] == ["run000.h5"]
    assert run_job_atomically(job).state is JobState.PRESENT
    other = dataclasses.replace(
        job, plan=dataclasses.replace(job.plan, solver=SolverChanges(iterations=1))
    )
    refused = run_job_atomically(other)
    assert (refused.state, "not from this replay" in refused.error) == (JobState.FAILED, True)


def test_job_moves_all_segments_of_its_output(
    recordings: list[Path], tmp_path: Path, monkeypatch
) -> None:
    with h5py.File(recordings[0], "r+") as file:
        file["rows/state"][1] = 0  # a long quiet time, after which the replay begins a segment
        del file["rows_crc32"]  # changed rows would be damage
    for module in ("recording.writer", "tools.replay.replay"):
        monkeypatch.setattr(f"sci_stream.{module}.MAX_EMPTY_ROWS", 1)
    (job,) = plan_jobs(recordings[:1], tmp_path / "out", ReplayPlan(device="cpu"))
    shutil.copy(recordings[1], later := job.out.with_stem("run000_001"))
    refused = run_job_atomically(job)
    assert (refused.state, "run000_001.h5 exists" in refused.error) == (JobState.FAILED, True)
    later.unlink()
    assert run_job_atomically(job).state is JobState.DONE
    assert [len(video(job.out)), later.exists()] == [N - 1, True]


def test_failed_job_leaves_nothing(recordings: list[Path], tmp_path: Path) -> None:
    recordings[1].write_text("not a recording")
    at_once = [
        run_job_atomically(job)
        for job in plan_jobs(recordings[:2], tmp_path / "at-once", ReplayPlan())
    ]
    assert [result.state for result in at_once] == ["done", "failed"]
    assert [path.name for path in (tmp_path / "at-once").iterdir()] == ["run000.h5"]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore")  # of Dask's own, at the end of killed workers
def test_batch_survives_killed_workers_and_equals_single_replays(
    recordings: list[Path], tmp_path: Path, sleeping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    recordings[3].write_text("not a recording")
    plan = ReplayPlan(device="cpu", solver=SolverChanges(solver=sleeping, iterations=4))
    expected = [
        replay(path, dataclasses.replace(plan, out=tmp_path / path.name)).path
        for path in recordings[:3]
    ]
    monkeypatch.setenv("TEST_SLEEP_S", "0.05")
    jobs = plan_jobs(recordings, tmp_path / "out", plan)
    arrived: list[str] = []

    with connect(ClusterOptions(workers=2, threads=1, dashboard="")) as client:
        pids = list(client.run(os.getpid).values())

        def kill_one(result) -> None:
            arrived.append(Path(result.source).name)
            if len(arrived) == 1:
                os.kill(pids[0], signal.SIGKILL)

        results: list = []
        thread = threading.Thread(
            target=lambda: results.extend(run_batch(jobs, client, kill_one)), daemon=True
        )
        thread.start()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"only {arrived} of {len(jobs)} arrived"
    assert [result.state for result in results] == ["done", "done", "done", "failed"]
    assert "run003.h5" in results[3].error
    assert sorted(arrived) == [path.name for path in recordings]
    for single, result in zip(expected, results[:3], strict=True):
        np.testing.assert_array_equal(video(Path(result.out)), video(single))
    # Nothing else is left, not even by the killed workers.
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        path.name for path in recordings[:3]
    ]


@pytest.mark.filterwarnings("ignore")
def test_killed_worker_returns_however_long_its_start_takes() -> None:
    dask = pytest.importorskip("dask")
    pytest.importorskip("distributed")
    patience = {"distributed.deploy.lost-worker-timeout": "100ms"}  # as if starting took long
    with (
        dask.config.set(patience),
        connect(ClusterOptions(workers=1, threads=1, dashboard="")) as client,
    ):
        (pid,) = client.run(os.getpid).values()
        os.kill(pid, signal.SIGKILL)
        client.submit(time.sleep, 6).result(
            timeout=PATIENCE_S
        )  # longer than a removed worker is allowed to live
        assert client.submit(os.getpid, pure=False).result(timeout=PATIENCE_S) != pid


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_recording_killing_workers_is_named_and_others_continue(
    recordings: list[Path], tmp_path: Path, sleeping: str
) -> None:
    pytest.importorskip("distributed")
    deadly = record(recordings[0].with_name("deadly.h5"), 5, deadly=True)
    plan = ReplayPlan(device="cpu", solver=SolverChanges(solver=sleeping, iterations=4))
    with connect(ClusterOptions(workers=2, threads=1, dashboard="")) as client:
        results = run_batch(plan_jobs([deadly, *recordings], tmp_path / "out", plan), client)
    assert [result.state for result in results] == ["failed", "done", "done", "done", "done"]
    assert "every worker that ran it died" in results[0].error


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")
def test_batch_of_two_hundred_over_four_workers_two_killed(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    (tmp_path / "shelf").mkdir()
    sources = [record(tmp_path / "shelf" / f"run{seed:03d}.h5", seed) for seed in range(200)]
    plan = ReplayPlan(device="cpu")
    single = [
        replay(path, dataclasses.replace(plan, out=tmp_path / path.name)).path for path in sources
    ]
    arrived = 0
    with connect(ClusterOptions(workers=4, threads=1, dashboard="")) as client:

        def kill(_result) -> None:
            nonlocal arrived
            arrived += 1
            if arrived in (20, 60):
                os.kill(pids[arrived // 20], signal.SIGKILL)

        pids = list(client.run(os.getpid).values())
        results = run_batch(plan_jobs(sources, tmp_path / "out", plan), client, kill)
    assert [result.state for result in results] == [JobState.DONE] * 200
    for one, result in zip(single, results, strict=True):
        np.testing.assert_array_equal(video(Path(result.out)), video(one))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
def test_twice_the_workers_give_nearly_twice_the_throughput(
    recordings: list[Path], tmp_path: Path, sleeping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The denoiser sleeps, as if a device of its own computed: the rest of the time is the cost of
    the cluster.
    """
    pytest.importorskip("distributed")
    monkeypatch.setenv("TEST_SLEEP_S", "2")
    plan = ReplayPlan(device="cpu", solver=SolverChanges(solver=sleeping, iterations=4))
    seconds: dict[int, float] = {}
    for workers in (1, 2):
        with connect(ClusterOptions(workers=workers, threads=1, dashboard="")) as client:
            client.wait_for_workers(workers)
            client.run(importlib.import_module, "sci_stream.tools.replay.replay")
            began_s = time.monotonic()
            results = run_batch(plan_jobs(recordings, tmp_path / f"out{workers}", plan), client)
            seconds[workers] = time.monotonic() - began_s
        assert {result.state for result in results} == {JobState.DONE}
    print("seconds by number of workers:", seconds)
    assert seconds[1] / seconds[2] >= 1.8


def test_hostile_manifests_are_refused_in_words(tmp_path: Path) -> None:
    reports = read_all(tmp_path, 1, 8, 500, "bridges.tests.hostile_manifests")
    assert len(reports) >= 12
    assert_refused_in_words(reports)
    assert {report["outcome"] for report in reports if report["name"].startswith("text")} == {
        "refused"
    }


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore")
def test_batch_command_runs_and_resumes(
    recordings: list[Path], tmp_path: Path, monkeypatch, capsys
) -> None:
    pytest.importorskip("distributed")
    (tmp_path / "manifest.txt").write_text("shelf/run00[01].h5\n")
    arguments = (
        "batch",
        tmp_path / "manifest.txt",
        "--out",
        tmp_path / "out",
        "--device",
        "cpu",
        "--json",
    )
    (earlier,) = run_jobs(plan_jobs(recordings[:1], tmp_path / "out", ReplayPlan(device="cpu")))
    assert earlier.state is JobState.DONE
    cluster = ("--workers", 1, "--threads", 1, "--dashboard", "")
    status, out, said = run(monkeypatch, capsys, *arguments, *cluster)
    assert status == 0, out + said
    lines = [json.loads(line) for line in out.splitlines()]
    assert {Path(line["out"]).name: line["state"] for line in lines} == {
        "run000.h5": "present",
        "run001.h5": "done",
    }


def test_slurm_configuration_gives_each_worker_a_gpu() -> None:
    dask, jobqueue = pytest.importorskip("dask"), pytest.importorskip("dask_jobqueue")
    ours = yaml.safe_load((SLURM / "jobqueue.yaml").read_text())["jobqueue"]["slurm"]
    known = dask.config.get("jobqueue.slurm")
    assert ours.keys() <= known.keys()
    with (
        dask.config.set({"jobqueue.slurm": {**known, **ours, "interface": "lo"}}),
        jobqueue.SLURMCluster(scheduler_options={"dashboard_address": None}) as cluster,
    ):
        script = cluster.job_script()
    assert "#SBATCH --gres=gpu:1" in script
    assert "#SBATCH --cpus-per-task=4" in script
    assert "--nworkers" not in script or "--nworkers 1" in script


@pytest.mark.filterwarnings("ignore")
def test_workers_of_a_scheduler_take_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    worker = {"cls": distributed.Worker, "options": {"dashboard": False}}
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard": False}}
    workers = {"first": worker, "second": worker}

    def device(gpus: int) -> str:
        return worker_device(distributed.get_worker(), gpus)

    with (
        distributed.SpecCluster(workers, scheduler) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(2)

        def devices(gpus: int) -> set[str]:
            return {
                client.submit(device, gpus, workers=[name], pure=False).result(PATIENCE_S)
                for name in workers
            }

        assert devices(2) == {"cuda:0", "cuda:1"}
        assert devices(0) == {"cpu"}
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # as Slurm sets it
        assert devices(2) == {"cuda:0"}
