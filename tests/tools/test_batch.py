"""Batch replay: each recording once, equal to a single replay, even if workers are killed."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

import sci_stream
from sci_stream.cli import main
from sci_stream.errors import ConfigError, FileFormatError, InputError
from sci_stream.model import Policy, SeriesInfo, Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.recording import RecordingWriter
from sci_stream.tools.batch import ClusterOptions, connect, run_batch, worker_device
from sci_stream.tools.replay.jobs import JobState, plan_jobs, read_manifest, run_job_atomically, run_jobs
from sci_stream.tools.replay.replay import ReplayPlan, replay
from sci_stream.tools.replay.solver import SolverChanges

pytestmark = pytest.mark.rig(seconds=90)

B, H, W, N = 3, 24, 32, 3
PATIENCE_S = 150.0
SLURM = Path(__file__).parents[2] / "deploy" / "slurm"

RIG = '[reconstruct]\ndenoiser = "tv"\niterations = 3\n'

# A denoiser that takes time, and that ends its process for frames that are brighter than 0.9 in the mean.
SLEEPING = """
import os, time

class Sleeping:
    def __init__(self, device):
        self.seconds = float(os.environ.get("TEST_SLEEP_S", "0"))

    def __call__(self, x, sigma):
        time.sleep(self.seconds)
        if x[:, 0, 0].max() > 3:
            os._exit(1)
        mean = x.mean((1, 2), keepdim=True)
        return mean + (x - mean) / (1 + sigma)
"""


def record(path: Path, seed: int, *, deadly: bool = False, rig: str = RIG) -> Path:
    random = np.random.default_rng(seed)
    masks = (random.random((B, H, W)) < 0.5).astype(np.float32)
    masks[0, 0, 0] = 1
    calibration = Calibration(masks, full_scale_dn=500.0, bit_depth=12)
    info = SeriesInfo(
        path.stem, 10**9, "rig", Policy.RECORD, "simulated", "1", H, W, "Mono12", 12, B, calibration.hash, rig_toml=rig
    )
    with RecordingWriter(path, info, calibration, video=False) as writer:
        for seq in range(N):
            x = random.random((B, 1, 1)) * np.linspace(0.2, 1, W)
            counts = 500 * (masks * x).sum(0)
            counts[0, 0] = 4095 if deadly else counts[0, 0]
            name = SnapshotId(path.stem, 0, seq)
            writer.write_raw(Snapshot(name, counts.astype(np.uint16), calibration.hash, B, 10**9 + seq))
            writer.write_outcome(seq, "raw_only")
        writer.close({"acquired": N, "closed": True})
    return path


def video(path: Path) -> np.ndarray:
    with sci_stream.open(path) as recording:
        assert recording.parent is not None
        assert recording.finished
        return np.asarray(recording.video)


@pytest.fixture
def recordings(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "shelf"
    folder.mkdir()
    return [record(folder / f"run{seed:03d}.h5", seed) for seed in range(4)]


@pytest.fixture
def sleeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Install the sleeping denoiser for this process and its children; return its name."""
    (tmp_path / "sleeping_denoiser.py").write_text(SLEEPING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield "sleeping_denoiser:Sleeping"
    sys.modules.pop("sleeping_denoiser", None)


def test_public_replay_equals_the_command(recordings: list[Path], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    done = sci_stream.replay(recordings[0], tmp_path / "a.h5", device="cpu", progress=lambda i, n: seen.append((i, n)))
    assert (done.done, done.complete, seen) == (N, True, [(1, N), (2, N), (3, N)])
    (result,) = run_jobs(plan_jobs(recordings[:1], tmp_path / "b", ReplayPlan(device="cpu")))
    np.testing.assert_array_equal(video(Path(result.out)), video(tmp_path / "a.h5"))
    sci_stream.replay(recordings[0], tmp_path / "c.h5", denoiser="identity", iterations=1, device="cpu")
    assert not np.array_equal(video(tmp_path / "c.h5"), video(tmp_path / "a.h5"))


def test_manifest_names_files_and_patterns(recordings: list[Path], tmp_path: Path) -> None:
    (recordings[1].with_name("run001_001.h5")).touch()  # a segment: it belongs to run001.h5
    manifest = tmp_path / "manifest.txt"
    manifest.write_text(f"# a shelf\nshelf/run00[1-3]*.h5\n\n{recordings[0]}  # the first\nshelf/run002.h5\n")
    assert read_manifest(manifest) == [*recordings[1:], recordings[0]]
    manifest.write_text("shelf/run9*.h5\n")
    with pytest.raises(FileFormatError, match=r"Line 1 of .*manifest\.txt matches no file; got shelf/run9\*\.h5"):
        read_manifest(manifest)
    manifest.write_text("# nothing\n")
    with pytest.raises(FileFormatError, match="is empty"):
        read_manifest(manifest)
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_manifest(tmp_path)


def test_replays_of_one_name_are_refused(recordings: list[Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = record(tmp_path / "other" / "run000.h5", 9)
    with pytest.raises(InputError, match="Two recordings would be replayed to"):
        plan_jobs([recordings[0], other], tmp_path / "out", ReplayPlan())
    beside = plan_jobs([recordings[0], other, other], None, ReplayPlan())
    assert [job.out.name for job in beside] == ["run000_replay.h5", "run000_replay.h5"]


def test_job_output_appears_complete_and_is_not_repeated(recordings: list[Path], tmp_path: Path) -> None:
    (job,) = plan_jobs(recordings[:1], tmp_path / "out", ReplayPlan(device="cpu"))
    first = run_job_atomically(job)
    assert (first.state, first.snapshots) == (JobState.DONE, N)
    assert [path.name for path in job.out.parent.iterdir()] == ["run000.h5"]
    assert run_job_atomically(job).state is JobState.PRESENT
    other = dataclasses.replace(job, plan=dataclasses.replace(job.plan, solver=SolverChanges(iterations=1)))
    refused = run_job_atomically(other)
    assert (refused.state, "not from this replay" in refused.error) == (JobState.FAILED, True)


def test_failed_job_is_named_and_others_continue(recordings: list[Path], tmp_path: Path) -> None:
    recordings[1].write_text("not a recording")
    results = list(run_jobs(plan_jobs(recordings, tmp_path / "out", ReplayPlan(device="cpu"))))
    assert [result.state for result in results] == ["done", "failed", "done", "done"]
    assert "run001.h5" in results[1].error
    at_once = [run_job_atomically(job) for job in plan_jobs(recordings[:2], tmp_path / "at-once", ReplayPlan())]
    assert [result.state for result in at_once] == ["done", "failed"]
    assert [path.name for path in (tmp_path / "at-once").iterdir()] == ["run000.h5"]


def test_recording_may_not_import_a_module(recordings: list[Path], tmp_path: Path, sleeping: str) -> None:
    source = record(tmp_path / "plug.h5", 1, rig=f'[reconstruct]\ndenoiser = "{sleeping}"\niterations = 2\n')
    with pytest.raises(ConfigError, match=r"imported from modules; got sleeping_denoiser:Sleeping.*--denoiser sleep"):
        sci_stream.replay(source, device="cpu")
    assert "sleeping_denoiser" not in sys.modules
    done = sci_stream.replay(source, denoiser=sleeping, device="cpu")
    with sci_stream.open(done.path) as recording:
        assert set(recording.table["iterations"]) == {2}  # its own settings, as recorded


def run(monkeypatch, capsys, *arguments: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["sci-stream", *map(str, arguments)])
    try:
        main()
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    said = capsys.readouterr()
    return status, said.out, said.err


def test_replay_command_takes_many_files(recordings: list[Path], tmp_path: Path, monkeypatch, capsys) -> None:
    recordings[2].write_text("not a recording")
    arguments = ("replay", *recordings, "--out", tmp_path / "out", "--device", "cpu", "--json")
    status, out, said = run(monkeypatch, capsys, *arguments)
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == 2
    assert [line["state"] for line in lines] == ["done", "done", "failed", "done"]
    assert "1 of 4 recordings were not replayed" in said
    status, out, _ = run(monkeypatch, capsys, *arguments, "--resume")
    assert [json.loads(line)["state"] for line in out.splitlines()] == ["present", "present", "failed", "present"]


def test_killed_replay_resumes_and_equals_an_uninterrupted_one(
    recordings: list[Path], tmp_path: Path, sleeping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ReplayPlan(device="cpu", solver=SolverChanges(denoiser=sleeping, iterations=4))
    expected = replay(recordings[0], dataclasses.replace(plan, out=tmp_path / "whole.h5"))
    monkeypatch.setenv("TEST_SLEEP_S", "0.4")
    parts = tmp_path / "parts.h5"
    command = [sys.executable, "-P", "-m", "sci_stream", "replay", recordings[0], "--out", parts, "--device", "cpu"]
    command += ["--denoiser", sleeping, "--iterations", "4"]
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


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore")  # of Dask's own, at the end of killed workers
def test_batch_survives_killed_workers_and_equals_single_replays(
    recordings: list[Path], tmp_path: Path, sleeping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    recordings[3].write_text("not a recording")
    plan = ReplayPlan(device="cpu", solver=SolverChanges(denoiser=sleeping, iterations=4))
    expected = [replay(path, dataclasses.replace(plan, out=tmp_path / path.name)).path for path in recordings[:3]]
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
        thread = threading.Thread(target=lambda: results.extend(run_batch(jobs, client, kill_one)), daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"only {arrived} of {len(jobs)} arrived"
    assert [result.state for result in results] == ["done", "done", "done", "failed"]
    assert "run003.h5" in results[3].error
    assert sorted(arrived) == [path.name for path in recordings]
    for single, result in zip(expected, results[:3], strict=True):
        np.testing.assert_array_equal(video(Path(result.out)), video(single))
    # Nothing else is left, not even by the killed workers.
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [path.name for path in recordings[:3]]


@pytest.mark.filterwarnings("ignore")
def test_killed_worker_returns_however_long_its_start_takes() -> None:
    dask = pytest.importorskip("dask")
    pytest.importorskip("distributed")
    patience = {"distributed.deploy.lost-worker-timeout": "100ms"}  # as if starting took long
    with dask.config.set(patience), connect(ClusterOptions(workers=1, threads=1, dashboard="")) as client:
        (pid,) = client.run(os.getpid).values()
        os.kill(pid, signal.SIGKILL)
        client.submit(time.sleep, 6).result(timeout=PATIENCE_S)  # longer than a removed worker is allowed to live
        assert client.submit(os.getpid, pure=False).result(timeout=PATIENCE_S) != pid


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_recording_killing_workers_is_named_and_others_continue(
    recordings: list[Path], tmp_path: Path, sleeping: str
) -> None:
    pytest.importorskip("distributed")
    deadly = record(recordings[0].with_name("deadly.h5"), 5, deadly=True)
    plan = ReplayPlan(device="cpu", solver=SolverChanges(denoiser=sleeping, iterations=4))
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
    single = [replay(path, dataclasses.replace(plan, out=tmp_path / path.name)).path for path in sources]
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
    """The denoiser sleeps, as if a device of its own computed: the rest of the time is the cost of the cluster."""
    pytest.importorskip("distributed")
    monkeypatch.setenv("TEST_SLEEP_S", "2")
    plan = ReplayPlan(device="cpu", solver=SolverChanges(denoiser=sleeping, iterations=4))
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


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore")
def test_batch_command_runs_and_resumes(recordings: list[Path], tmp_path: Path, monkeypatch, capsys) -> None:
    pytest.importorskip("distributed")
    (tmp_path / "manifest.txt").write_text("shelf/run00[01].h5\n")
    arguments = ("batch", tmp_path / "manifest.txt", "--out", tmp_path / "out", "--device", "cpu", "--json")
    (earlier,) = run_jobs(plan_jobs(recordings[:1], tmp_path / "out", ReplayPlan(device="cpu")))
    assert earlier.state is JobState.DONE
    cluster = ("--workers", 1, "--threads", 1, "--dashboard", "")
    status, out, said = run(monkeypatch, capsys, *arguments, *cluster)
    assert status == 0, out + said
    lines = [json.loads(line) for line in out.splitlines()]
    assert {Path(line["out"]).name: line["state"] for line in lines} == {"run000.h5": "present", "run001.h5": "done"}


def test_slurm_array_job_replays_its_line_of_the_manifest(recordings: list[Path], tmp_path: Path) -> None:
    (tmp_path / "manifest.txt").write_text("".join(f"{path}\n" for path in recordings))
    sci = tmp_path / "sci-stream"
    sci.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m sci_stream "$@"\n')
    sci.chmod(0o755)
    environment = {**os.environ, "MANIFEST": str(tmp_path / "manifest.txt"), "OUT": str(tmp_path / "out")}
    environment |= {"SCI_STREAM": str(sci), "SLURM_ARRAY_TASK_ID": "3"}

    done = subprocess.run(
        ["bash", SLURM / "replay.sbatch"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["state"] == "done"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run002.h5"]


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
    assert worker_device("SLURMCluster-0", 1) == "cuda:0"
