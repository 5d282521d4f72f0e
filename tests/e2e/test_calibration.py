"""The calibration commands as an operator uses them, from unknown masks to a run that tracks their
shift.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

import sci_stream
from sci_stream.arrays.api import DataWarning
from sci_stream.calibration.sensor import sensor_faults
from sci_stream.files.measurement_file import load_measurement
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.recording.calibration_file import load_calibration, save_calibration
from sci_stream.recording.inspection import inspect_recording
from sci_stream.recording.series import open_recording
from sci_stream.tools.replay.replay import ReplayPlan, replay
from sci_stream.tools.solve import SolveOptions, solve_file
from sci_stream_drivers.simulated.sensor import Sensor
from tests.conftest import RigMaker
from tests.e2e.conftest import CommandHere
from tests.e2e.kit import COMMAND, ITERATIONS, PATIENCE_S, environment, wait_for, write_rig
from tests.rig_in_process import RigInProcess
from tests.tools.modulated import masks
from tests.tools.replay_kit import differences

pytestmark = pytest.mark.rig

CAMERA = {"options": {"snapshot_rate_hz": 0.0, "loop_snapshots": 0}}
MODULATOR = {
    "driver": "simulated",
    "options": {"width_px": 64, "height_px": 64},
    "patterns": "masks.npy",
}


def write_modulated_rig(folder: Path) -> Path:
    """Write a rig file with a mask modulator, and its patterns; return its path."""
    np.save(folder / "masks.npy", masks(4, 64))
    return write_rig(folder, {"camera": CAMERA, "modulator": MODULATOR})


def test_calibrate_and_check_run_unattended(tmp_path: Path, command_here: CommandHere) -> None:
    rig = write_modulated_rig(tmp_path)
    made = command_here("calibrate", rig, "-o", "masks.h5", "--yes", "--frames", "8", cwd=tmp_path)
    assert made.status == 0, made.output
    assert "Traceback" not in made.output
    assert load_calibration(tmp_path / "masks.h5").n_frames == 4
    assert (tmp_path / "masks.png").read_bytes().startswith(b"\x89PNG")

    judged = command_here(
        "calibration",
        "check",
        "masks.h5",
        "--json",
        "report.json",
        "--report",
        "again.png",
        cwd=tmp_path,
    )
    assert judged.status == 0, judged.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "ok"
    assert {figure["name"] for figure in report["figures"]} >= {
        "blind",
        "contrast",
        "likeness",
        "read_noise_dn",
    }

    assert "SIM-0" in judged.output
    assert (tmp_path / "again.png").exists()

    again = command_here("calibrate", rig, "-o", "masks.h5", "--yes", cwd=tmp_path)
    assert again.status == 3
    assert "--force" in again.output


def test_import_accepts_published_and_flags_bad_masks(
    tmp_path: Path, command_here: CommandHere
) -> None:
    masks = np.random.default_rng(0).random((6, 32, 32))
    masks[3] = masks[2]
    np.save(tmp_path / "masks.npy", masks)
    made = command_here(
        "calibration", "import", "masks.npy", "-o", "masks.h5", "--bit-depth", "12", cwd=tmp_path
    )
    assert made.status == 0, made.output
    judged = command_here("calibration", "check", "masks.h5", cwd=tmp_path)
    assert judged.status == 2
    assert "masks 2 and 3 are duplicates" in judged.output


def test_interrupted_calibration_leaves_no_file(tmp_path: Path) -> None:
    rig = write_modulated_rig(tmp_path)
    with (
        (tmp_path / "said.txt").open("wb") as said,
        subprocess.Popen(
            [*COMMAND, "calibrate", str(rig), "-o", "masks.h5", "--manual"],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT,
            # A shell starts background jobs with SIGINT ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no thread is running
        ) as process,
    ):
        wait_for(
            lambda: b"press Enter" in (tmp_path / "said.txt").read_bytes(), "the first question"
        )
        # Python misses a signal that arrives just before it waits for input; a person would press
        # again.
        for _ in range(int(PATIENCE_S / 10)):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(AssertionError):
                wait_for(
                    lambda: b"stopped" in (tmp_path / "said.txt").read_bytes(),
                    "the message that it stopped",
                    10.0,
                )
                break
        assert process.wait(PATIENCE_S) == 130
    output = (tmp_path / "said.txt").read_text()
    assert "the same command resumes" in output
    assert "Traceback" not in output
    assert not (tmp_path / "masks.h5").exists()


def run(
    make: RigMaker, options: dict[str, object], snapshots: int, **calibration: object
) -> RigInProcess:
    """Run a rig with a grey camera of 128 × 128 pixels to its end."""
    size = {"width_px": 128, "height_px": 128, "bayer": "none", "loop_snapshots": 0}
    changes = {"camera": {"options": {**size, **options}}, "calibration": calibration}
    rig = make(changes, snapshots=snapshots)
    rig.expose(snapshots)
    rig.finish()
    return rig


def test_run_reports_and_corrects_mask_shift(
    rig_in_process: RigMaker, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"mask_shift_px": [0.4, -0.2]}
    rig = run(rig_in_process, options, 10, correct_shift=True, health_every=4)
    summary = rig.summary()
    (recorded,) = rig.segments()
    report = summary["calibration"]
    assert report["shift_x_px"] == pytest.approx(0.4, abs=0.1)
    assert report["shift_y_px"] == pytest.approx(-0.2, abs=0.1)
    assert report["corrected"]
    assert report["match"] > 0.6
    assert "the masks have moved by" in caplog.text
    by_seq = [entry["psnr_db"] for entry in summary["psnr_db"]["per_snapshot"]]
    assert min(by_seq) > 30.0, "as calibrated 26.7"

    again = replay(recorded, ReplayPlan()).path
    with open_recording(recorded) as live, open_recording(again) as offline:
        assert all(live.table["masks_at"] != b"")
        assert offline.table["masks_at"].tolist() == live.table["masks_at"].tolist()
    found = differences(recorded, again)
    assert len(found) == 10
    assert max(found.values()) <= 2**-10, "replay equals live, with shifted masks"


def test_replay_corrects_faults_of_the_sensor_as_the_run(
    rig_in_process: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Sensor.convert
    exposures: list[np.ndarray] = []

    def with_lag_and_taps(self: Sensor, y: np.ndarray, index: int) -> np.ndarray:
        light = right(self, y, index) - float(self.black_dn)
        counts = light + self.black_dn
        counts[:, :64] += 80
        counts += 0.1 * (exposures[-1] if exposures else 0)
        exposures.append(light)
        return counts.clip(0, 4095).astype(np.uint16)

    monkeypatch.setattr(Sensor, "convert", with_lag_and_taps)
    # Looks at each snapshot, however busy the machine is.
    monkeypatch.setattr(sensor_faults, "_PAUSES", 0)
    options = {"mask": "random", "scene": "fast"}
    rig = run(rig_in_process, options, 24, health_every=1)
    (recorded,) = rig.segments()
    again = replay(recorded, ReplayPlan()).path
    with open_recording(recorded) as live, open_recording(again) as offline:
        masks_at = [text.decode() for text in live.table["masks_at"].tolist()]
        assert offline.table["masks_at"].tolist() == live.table["masks_at"].tolist()
    sensor = MaskCorrection.from_text(masks_at[-1]).sensor
    assert sensor.left > 0
    assert sensor.lag == pytest.approx(0.1, abs=0.05)
    found = differences(recorded, again)
    assert len(found) == 24
    assert max(found.values()) <= 2**-10, "replay equals live"


def test_run_corrects_single_masks_and_states_the_evidence(rig_in_process: RigMaker) -> None:
    options = {"mask": "random", "mask_jitter_px": 0.2, "frame_gain_error": 0.05}
    rig = run(rig_in_process, options, 8, health_every=4)
    report = rig.summary()["calibration"]
    (recorded,) = rig.segments()
    assert report["jitter_px"] > 0.08
    assert report["gain_error"] > 0.015  # of 0.044: beside jitter part of it is not certain enough
    assert report["error_log_odds"] > 5
    health = inspect_recording(recorded).figures["health"]
    assert health["last_jitter_px"] > 0.08
    assert health["last_error_log_odds"] > 5
    with open_recording(recorded) as recording:
        assert recording.table["mismatch"].max() < 0.03, (
            "corrected errors are no noise any more: as calibrated 0.10"
        )
        live = [recording.frame_of("video", seq).astype(np.float32) for seq in range(8)]
        masks_at = [text.decode() for text in recording.table["masks_at"].tolist()]
        looked = np.isfinite(recording.table["moving_share"])
    # Every other door gives the same video and the same correction.
    data, options = (
        load_measurement(recorded),
        {"solver": "tv", "iterations": ITERATIONS, "device": "cpu"},
    )
    counts = np.stack(list(data.y))
    assert isinstance(data.masks, Calibration)
    with pytest.warns(DataWarning, match="the light changes by"):
        streamed = list(sci_stream.reconstruct_stream(counts, data.masks, **options))
    assert [solved.report.masks_at for solved in streamed] == masks_at
    for solved, video, has_looked in zip(streamed, live, looked, strict=True):
        if has_looked or not solved.report.moving_share:  # a rig looks for it where it has time
            np.testing.assert_allclose(solved.video, video, atol=2**-10)
    assert max(differences(recorded, replay(recorded, ReplayPlan()).path).values()) <= 2**-10
    # These know all snapshots from the beginning.
    with pytest.warns(DataWarning, match="the light changes by"):
        series = sci_stream.reconstruct(counts, data.masks, **options)
    solved = solve_file(data, None, SolveOptions(**options))
    corrections = {report.masks_at for report in (*series.reports, *solved.reports)}
    # Light is of each snapshot.
    of_masks, _, _ = masks_at[-1].partition("~")
    assert {correction.partition("~")[0] for correction in corrections} == {of_masks}


def test_run_with_other_cameras_masks_warns_and_shows_snapshots(
    tmp_path: Path,
    command_here: CommandHere,
    rig_in_process: RigMaker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    phi = np.random.default_rng(0).random((4, 128, 128), dtype=np.float32)
    save_calibration(tmp_path / "other.h5", Calibration(phi, full_scale_dn=500.0))
    rig = run(rig_in_process, {}, 4, file="other.h5")
    (recorded,) = rig.segments()
    assert rig.summary()["calibration"]["match"] == 0
    assert "the masks explain nothing of the snapshots" in caplog.text
    with open_recording(recorded) as live:
        assert set(live.table["start_reason"].tolist()) == {b"mismatch"}
        assert all((video == video[0]).all() for video in live.video)
    again = replay(recorded, ReplayPlan()).path
    found = differences(recorded, again)
    assert max(found.values()) == 0, "replay withholds them, too"
    shown = command_here("inspect", recorded, cwd=tmp_path)
    assert "the masks explain nothing" in shown.output


def test_calibration_of_other_camera_is_rejected(tmp_path: Path, command_here: CommandHere) -> None:
    phi = np.random.default_rng(0).random((4, 64, 64), dtype=np.float32)
    save_calibration(tmp_path / "other.h5", Calibration(phi, camera_serial="DMD-17"))
    rig = write_rig(tmp_path, {"calibration": {"file": "other.h5"}})
    checked = command_here("check", rig, cwd=tmp_path)
    assert checked.status == 2
    assert "SIM-0" in checked.output
    assert "DMD-17" in checked.output
