"""A rig that commands its mask modulator, and recovers from the faults of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from sci_stream.config import load_rig
from sci_stream.devices.modulators import make_coded_camera
from sci_stream.model import Array
from sci_stream.optics.white import fit_white
from sci_stream.recording.calibration_file import save_calibration
from sci_stream.recording.reader import Recording
from sci_stream.tools.calibrate import CalibrationPlan, calibrate
from sci_stream.tools.replay.replay import ReplayPlan, replay
from tests.conftest import RigMaker
from tests.e2e.conftest import CommandHere
from tests.e2e.kit import assert_accounted_for, write_rig
from tests.rig_in_process import RigInProcess
from tests.tools.modulated import masks, modulated
from tests.tools.replay_kit import differences

pytestmark = pytest.mark.rig(seconds=40)

SIZE = 96
B = 8


def coded(
    folder: Path, faults: Mapping[str, object] | None = None, **section: object
) -> dict[str, dict[str, object]]:
    """Return the tables of a rig with a simulated modulator whose masks are in a file."""
    np.save(folder / "masks.npy", masks(B, SIZE))
    size = {"width_px": SIZE, "height_px": SIZE}
    camera = {**size, "n_frames": B, "bayer": "none", "loop_snapshots": 0}
    return {
        "camera": {"options": camera},
        "modulator": {
            "driver": "simulated",
            "options": {**size, "faults": dict(faults or {})},
            "patterns": str(folder / "masks.npy"),
            "pattern_us": 1000.0,
            **section,
        },
        "reconstruct": {"iterations": 8},
    }


def columns(rig: RigInProcess, *names: str) -> dict[str, Array]:
    (path,) = rig.segments()
    with Recording(path) as recording:
        return {name: np.asarray(recording.rows[name]) for name in names}


def test_faults_of_the_modulator_are_recovered_and_marked(
    rig_in_process: RigMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    faults = {"first_pattern": 3, "lost_pulses": [16], "underruns": [30], "restarts": [40]}
    rig = rig_in_process(coded(tmp_path, faults), snapshots=52)
    for _ in range(
        52
    ):  # one after the other: evidence arrives before the next exposure, however slow the machine
        rig.reconstruct()
    rig.finish()
    seen = columns(rig, "psnr_db", "start_mask", "chunk_MaskState", "chunk_MaskAdvance")
    psnr_db = seen["psnr_db"]
    undisturbed = np.median(psnr_db[8:16])
    for begin, end in ((0, 16), (16, 30), (30, 40), (40, 52)):
        assert (
            np.median(psnr_db[begin + 10 : end] if end - begin > 10 else psnr_db[end - 2 : end])
            > undisturbed - 1.0
        )
    assert seen["chunk_MaskState"][30] == 1
    assert seen["chunk_MaskState"][40] == 1
    advance, began = seen["chunk_MaskAdvance"], seen["start_mask"]
    assert (advance[10], advance[15], advance[26]) == (-3, -3, -4), "within ten snapshots"
    for begin, corrected in ((0, -3), (16, -4)):
        end = begin + int(np.argmax(advance[begin:] == corrected))
        assert not (began[begin:end] == 0).any(), "marked: another first mask, or none that is sure"
        assert (began[begin:end] > 0).any()
    assert rig.summary()["ledger"]["closed"]
    assert "modulator corrected" in caplog.text
    (recorded,) = rig.segments()
    found = differences(recorded, replay(recorded, ReplayPlan(last=20)).path)
    assert len(found) == 21
    assert max(found.values()) <= 2**-10, "replay equals live, with its corrections"


def test_figure_advances_a_modulator_that_is_not_corrected(
    rig_in_process: RigMaker, tmp_path: Path
) -> None:
    tables = coded(tmp_path, correct=False)
    tables["reconstruct"]["reactions"] = ["residual > 0, at most 1: acquire advance_masks"]
    rig = rig_in_process(tables)
    offered = rig.sink._operators.describe
    rig.wait_for(lambda: "advance_masks" in str(offered()), "the action is offered")
    rig.reconstruct(2)
    rig.wait_for(lambda: rig.sink._operators.recent, "the reaction is carried out")
    rig.reconstruct(3)
    (change,) = rig.finish()["changes"]
    assert (change["node"], change["name"]) == ("acquire", "advance_masks")
    advance = columns(rig, "chunk_MaskAdvance")["chunk_MaskAdvance"]
    assert (advance[0], *advance[-2:]) == (0, 1, 1)


def test_action_advances_the_masks_by_one_pattern() -> None:
    both = modulated(correct=False)
    both.open()
    calibration = both.calibration()
    assert calibration is not None
    both.start()
    both.actions["advance_masks"]()
    frame = both.read(1.0)
    both.close()
    assert frame is not None
    assert frame.truth is not None
    truth = frame.truth.reshape(calibration.phi.shape)
    y = calibration.measurement(frame.counts)
    rolled = [fit_white(y[None], np.roll(calibration.phi, -k, 0), truth[None])[1] for k in range(B)]
    assert np.argmin(rolled) == 1


def test_modulator_that_is_corrected_has_no_such_action() -> None:
    assert not modulated().actions


def test_calibrate_check_and_run_with_two_devices(
    tmp_path: Path, command_here: CommandHere, rig_in_process: RigMaker
) -> None:
    calibrated = {"calibration": {"file": "calibration.h5"}, "preview": {"enabled": True}}
    path = write_rig(tmp_path, coded(tmp_path), calibrated)
    made = command_here(
        "calibrate", path, "-o", "calibration.h5", "--yes", "--frames", "8", cwd=tmp_path
    )
    assert made.status == 0, made.output
    checked = command_here("check", path, cwd=tmp_path)
    assert checked.status == 0, checked.output
    assert "8 masks of 1000 µs" in checked.output
    rig = rig_in_process({**coded(tmp_path), **calibrated}, snapshots=6)
    rig.expose(6)
    assert assert_accounted_for(rig.finish())["acquired"] == 6


def test_moving_mask_is_calibrated_by_phase_and_filmed_through(
    rig_in_process: RigMaker, tmp_path: Path
) -> None:
    tables = coded(tmp_path, pattern_us=1000.0, n_frames=B)
    tables["modulator"] = {
        "driver": "simulated", "options": {"motion": "sine"}, "n_frames": B, "pattern_us": 1000.0,
    }  # fmt: skip
    field = {
        "camera": {
            "options": {"white_field": True, "calibration_light": 1.0, "snapshot_rate_hz": 0.0}
        }
    }
    rig = load_rig(write_rig(tmp_path, tables, field))
    plan = CalibrationPlan(frames=8, settle=0, unattended=True)
    calibration, measured = calibrate(
        make_coded_camera(rig), plan, lambda *_: None, lambda *_: None
    )
    save_calibration(tmp_path / "calibration.h5", calibration, measured)
    filmed = rig_in_process(
        {**tables, "calibration": {"file": str(tmp_path / "calibration.h5")}}, snapshots=6
    )
    for _ in range(6):
        filmed.reconstruct()
    filmed.finish()
    assert columns(filmed, "psnr_db")["psnr_db"].min() > 27
