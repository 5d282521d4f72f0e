"""A whole rig without faults, from the simulated camera to the summary and the recording."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sci_stream.model import CameraFrame
from sci_stream.recording.reader import Recording
from sci_stream_drivers.simulated import SimulatedCamera
from tests.conftest import RigMaker
from tests.e2e.kit import ITERATIONS, RunningRig, assert_accounted_for, camera_of, sci_stream

pytestmark = pytest.mark.rig

SNAPSHOTS = 12


@dataclass(frozen=True)
class Run:
    """A completed run and its camera's frames, generated again."""

    rig: RunningRig
    summary: dict[str, Any]
    recording: Recording
    frames: list[CameraFrame]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run the installed command in a folder that has modules with the names of those that it
    imports.
    """
    folder = tmp_path_factory.mktemp("run")
    for module in ("numpy.py", "drivers/__init__.py", "sci_stream_drivers/__init__.py"):
        path = folder / module
        path.parent.mkdir(exist_ok=True)
        path.write_text("raise SystemExit('imported from the working directory')\n")
    program = [Path(sys.executable).with_name("sci-stream")]
    patient = {"network": {"heartbeat_s": 5.0}}  # no node is lost on a busy machine
    with RunningRig(folder, patient, "--snapshots", str(SNAPSHOTS), program=program) as rig:
        summary = rig.finish()
        options = SimulatedCamera.Options.model_validate(
            {
                **rig.rig.camera.options,
                "snapshot_rate_hz": 0.0,
            }  # the same frames, without the pacing
        )
    (path,) = rig.segments()
    with Recording(path) as recording:
        yield Run(rig, summary, recording, deliver(SimulatedCamera(options), SNAPSHOTS))


def psnr_db(video: np.ndarray, truth: np.ndarray) -> float:
    """Return the mean over frames of the PSNR with peak 1.0."""
    error = ((video.astype(np.float64) - truth) ** 2).mean((1, 2))
    return float(np.mean(-10 * np.log10(error)))


def deliver(camera: SimulatedCamera, n: int) -> list[CameraFrame]:
    camera.open()
    camera.start()
    frames = [frame for _ in range(n) if (frame := camera.read(10.0)) is not None]
    camera.close()
    return frames


def test_run_reconstructs_every_snapshot(run: Run) -> None:
    ledger = assert_accounted_for(run.summary)
    assert ledger["acquired"] == ledger["reconstructed"] == SNAPSHOTS
    assert (ledger["duplicates"], ledger["redelivered"], ledger["camera_missed"]) == (0, 0, 0)


def test_summary_has_latency_of_each_stage(run: Run) -> None:
    stages = run.summary["latency_ms"]
    assert set(stages) == {"queue", "transfer", "wait", "solve", "deliver", "record", "total"}
    for stage in stages.values():
        assert 0 <= stage["p50"] <= stage["p99"] < 60_000


def test_summary_has_solver_and_versions(run: Run) -> None:
    report = run.summary
    assert report["iterations"] == {
        "mean": ITERATIONS,
        "min": ITERATIONS,
        "max": ITERATIONS,
        "budget_limited": 0,
    }
    assert 0 <= report["warm_starts"] <= SNAPSHOTS
    assert sum(report["starts"].values()) == SNAPSHOTS
    assert report["by_node"] == {"reconstruct-0": SNAPSHOTS}
    assert report["device"]
    assert {"python", "sci-stream", "numpy", "torch", "pyzmq", "h5py"} <= set(report["versions"])
    assert report["shape"] == [4, 64, 64]
    assert (report["ended"], report["restarts"], report["wire_errors"]) == ("finished", 0, {})


def test_recording_holds_each_snapshot_once_in_order(run: Run) -> None:
    recording = run.recording
    assert recording.clean
    assert recording.ledger == run.summary["ledger"]
    assert recording.first_seq == 0
    assert (
        recording.raw_seqs
        == recording.video_seqs
        == recording.settled_seqs
        == list(range(SNAPSHOTS))
    )
    assert {recording.outcome(seq) for seq in range(SNAPSHOTS)} == {("reconstructed", "")}


def test_recorded_counts_equal_camera_counts(run: Run) -> None:
    for seq, frame in enumerate(run.frames):
        np.testing.assert_array_equal(run.recording.raw(seq), frame.counts)
        assert run.recording.camera_frame_id(seq) == frame.frame_id


def test_recorded_video_matches_summary_psnr(run: Run) -> None:
    measured = []
    for seq, frame in enumerate(run.frames):
        assert frame.truth is not None
        measured.append(psnr_db(run.recording.video(seq), frame.truth / 255.0))
    report = run.summary["psnr_db"]
    assert [entry["seq"] for entry in report["per_snapshot"]] == list(range(SNAPSHOTS))
    # The video is recorded in half precision.
    np.testing.assert_allclose(
        [entry["psnr_db"] for entry in report["per_snapshot"]], measured, atol=0.05
    )
    assert report["mean"] == pytest.approx(np.mean(measured), abs=0.05)
    assert report["min"] == pytest.approx(np.min(measured), abs=0.05)
    assert report["min"] > 15.0


def test_recording_contains_calibration_and_rig(run: Run) -> None:
    camera = SimulatedCamera(SimulatedCamera.Options.model_validate(run.rig.rig.camera.options))
    camera.open()
    assert (
        run.recording.calibration.hash
        == run.recording.info.calibration_hash
        == camera.calibration().hash
    )
    assert 'driver = "simulated"' in run.recording.info.rig_toml


def test_run_prints_result_for_operator(run: Run) -> None:
    assert f"{SNAPSHOTS} acquired = {SNAPSHOTS} reconstructed: the ledger closes" in run.rig.output
    assert str(run.rig.segments()[0]) in run.rig.output


def test_demo_runs_and_ends_by_itself(tmp_path: Path) -> None:
    arguments = ("--snapshots", "5", "--no-browser", "--size", "64", "--summary", "out.json")
    ended = sci_stream("demo", *arguments, cwd=tmp_path, TMPDIR=str(tmp_path))
    assert ended.status == 0, ended.output
    assert "Traceback" not in ended.output
    summary = json.loads((tmp_path / "out.json").read_text())
    ledger = assert_accounted_for(summary)
    assert ledger["acquired"] == 5
    assert summary["psnr_db"]["min"] > 10.0
    (path,) = (tmp_path / "recordings").glob("*.h5")
    with Recording(
        path
    ) as recording:  # a machine that is busy drops the oldest, see [policy] max_wait_s
        assert len(recording.raw_seqs) == ledger["reconstructed"] + ledger["raw_only"]


def test_replay_camera_reproduces_the_run(run: Run, rig_in_process: RigMaker) -> None:
    original = run.rig.segments()[0]
    rig = rig_in_process({"camera": camera_of("replay", path=str(original))})
    rig.nodes["acquire"].join()
    summary = rig.finish()
    (copy,) = rig.segments()
    assert assert_accounted_for(summary)["reconstructed"] == SNAPSHOTS
    assert summary["ended"] == "finished", "the run ends with the recording"
    assert summary["psnr_db"] is None, "a recording has no ground truth"
    then = run.recording
    with Recording(copy) as now:
        assert now.info.calibration_hash == then.info.calibration_hash
        assert now.info.bayer == then.info.bayer
        for seq in range(SNAPSHOTS):
            np.testing.assert_array_equal(now.raw(seq), then.raw(seq))
            # Both were solved from a cold start with the same settings.
            np.testing.assert_allclose(now.video(seq), then.video(seq), atol=2e-3)


def test_modules_in_working_directory_are_not_imported(run: Run) -> None:
    assert (run.rig.folder / "numpy.py").is_file()
    assert "imported from the working directory" not in run.rig.output
