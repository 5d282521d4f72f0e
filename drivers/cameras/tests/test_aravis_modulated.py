"""From masks to video with a GigE Vision camera behind a modulator that a program commands: as on
an optical table.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from typer.testing import CliRunner

from drivers.cameras.tests.fake_camera import fake_camera, library_file
from drivers.cameras.tests.optical_table import EXPOSURES, FAULTS, transmission
from sci_stream.cli import app
from sci_stream.config import load_rig
from sci_stream.devices import modulated_camera
from sci_stream.devices.modulated_camera import ModulatedCamera
from sci_stream.devices.modulators import make_coded_camera
from sci_stream.modulation.feedback import ADVANCE, STATE
from sci_stream.recording.calibration_file import save_calibration
from sci_stream.recording.reader import Recording
from sci_stream.tools.calibrate import CalibrationPlan, calibrate
from sci_stream.tools.preflight import check_rig
from sci_stream_drivers.simulated.scenes import make_world
from tests.e2e.kit import Tables, camera_of, write_rig
from tests.rig_in_process import RigInProcess

pytestmark = pytest.mark.rig(seconds=40)
pytest.importorskip("genicam", reason="genicam is not installed: pip install '.[genicam]'")
if library_file() is None:
    pytest.skip(
        "no Aravis on this machine (Debian: apt-get install libaravis-0.8-0)",
        allow_module_level=True,
    )

B, H, W = 4, 96, 128
PATTERN_US = 25_000.0  # slow enough for the fake camera
SNAPSHOTS = 48
SLIP, LOST, UNDERRUN, RESTART = 8, 20, 23, 35
"""Cycles of the faults: the pulse comes a pattern late from then on; no pulse; a late pattern; loss
of power."""
STATE_COLUMN, ADVANCE_COLUMN = f"chunk_{STATE}", f"chunk_{ADVANCE}"
DMD = Path(__file__).with_name("dmd.py")


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Path]:
    """An optical table with a scene, a DMD with its program, and the fake camera that sees its
    masks.
    """
    world = make_world((H, W), 3.0, seed=0)
    np.save(
        tmp_path / "scene.npy",
        np.stack([world.render(t).mean(-1) for t in range(2 * SNAPSHOTS * B)]),
    )
    with fake_camera(tmp_path):
        yield tmp_path


def dmd(table: Path, command: str) -> None:
    subprocess.run(
        [sys.executable, str(DMD), str(table / "dmd"), command],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def rig_on(table: Path) -> Tables:
    program = f"'{sys.executable}' '{DMD}' '{table / 'dmd'}'"
    modulator = {
        "driver": "command",
        "options": {
            "show": f"{program} show {{index}}", "load": f"{program} load {{file}}",
            "start": f"{program} start",
            "arm": f"{program} arm {{pattern_us}} {{dark_us}} {{gap_us}}",
            "stop": f"{program} stop",
            "counters": f"{program} counters", "height_px": H, "width_px": W,
            "min_pattern_us": 100.0,
        },
        "patterns": str(table / "masks.npy"),
        "pattern_us": PATTERN_US,
    }  # fmt: skip
    camera = {
        "features": [["PixelFormat", "Mono16"]],
        "trigger": {"source": "Line0"},
        "silence_s": 30.0,
    }
    return {
        "camera": camera_of("aravis", selector={"serial": "SCIGV1"}, **camera),
        "modulator": modulator,
        "calibration": {"file": str(table / "calibration.h5")},
        "reconstruct": {"iterations": 8},
    }


def film(table: Path, rig: RigInProcess) -> None:
    """Let cycles pass, the next when the video of one is there: evidence is in time, however slow
    the machine.
    """
    acquire = rig.nodes["acquire"]
    while acquire.running:
        before, until_s = rig.counts()["reconstructed"], time.monotonic() + 5.0
        dmd(table, "step")
        while (
            acquire.running
            and rig.counts()["reconstructed"] == before
            and time.monotonic() < until_s
        ):
            time.sleep(0.005)
    rig.finish()


def psnr_db(table: Path, recording: Recording) -> tuple[list[int], list[float]]:
    """Return the cycle and the PSNR of each snapshot, whose exposure the table has logged."""
    scene = np.load(table / "scene.npy")
    log = dict(
        map(int, line.split()) for line in (table / EXPOSURES).read_text().splitlines()
    )  # the last of an id
    cycles = [log[int(frame_id)] for frame_id in recording.rows["camera_frame_id"]]
    figures = []
    for seq, cycle in enumerate(cycles):
        truth = scene[np.arange(cycle * B, cycle * B + B) % len(scene)]
        figures.append(
            float(-10 * np.log10(np.mean((np.asarray(recording.video(seq)) - truth) ** 2)))
        )
    return cycles, figures


@pytest.mark.timeout(400)
def test_rig_recovers_from_faults_of_the_modulator(table: Path) -> None:
    path = write_rig(table, rig_on(table))
    sizes = (f"-n{B}", f"--height={H}", f"--width={W}", "--block=2")
    made = CliRunner().invoke(app, ["masks", "make", str(table / "masks.npy"), *sizes])
    assert made.exit_code == 0, made.output
    coded = make_coded_camera(load_rig(path))
    assert isinstance(coded, ModulatedCamera)
    coded.open()
    assert coded.plan.camera.source == "line"
    assert coded.plan.camera.exposure_us == pytest.approx(B * PATTERN_US)
    assert coded.camera.trigger_now() == coded.plan.camera, "armed over GVCP, and read back"
    plan = CalibrationPlan(frames=4, unattended=True)
    calibration, measured = calibrate(coded, plan, lambda *_: None, lambda *_: None)
    np.testing.assert_allclose(
        calibration.phi, transmission(np.load(table / "masks.npy")), atol=0.01
    )
    save_calibration(table / "calibration.h5", calibration, measured)
    found = {finding.what: finding for finding in check_rig(path)}
    assert not any(finding.exit_status for finding in found.values()), found
    assert f"{B} masks of {PATTERN_US:.0f} µs" in found["modulator"].text
    assert re.search(
        r"exposures begin within \d+\.\d µs of the first mask", found["modulator"].text
    )

    dmd(table, "step")
    faults = {"slips": {SLIP: 1}, "lost": [LOST], "underruns": [UNDERRUN], "restarts": [RESTART]}
    (table / FAULTS).write_text(json.dumps(faults))
    with (
        mock.patch.object(
            modulated_camera, "_IDLE", 0.0
        ),  # the program is asked at each frame, however slow it starts
        RigInProcess(table, rig_on(table), snapshots=SNAPSHOTS) as rig,
    ):
        film(table, rig)
    summary = rig.summary()
    assert summary["ledger"]["closed"]
    assert summary["ledger"]["reconstructed"] == SNAPSHOTS
    (path,) = rig.segments()
    with Recording(path) as recording:
        rows = {
            name: np.asarray(recording.rows[name])
            for name in ("start_mask", STATE_COLUMN, ADVANCE_COLUMN, "epoch")
        }
        cycles, figures = psnr_db(table, recording)
    begin = cycles.index(min(cycles))  # a pulse from before the run may have waited in the camera
    undisturbed_db = np.median(figures[begin + 2 : begin + SLIP])
    assert LOST not in cycles
    for fault, next_fault in (
        (SLIP, LOST),
        (LOST, UNDERRUN),
        (UNDERRUN, RESTART),
        (RESTART, cycles[-1] + 1),
    ):
        after = [n for n in range(begin, len(cycles)) if fault <= cycles[n] < next_fault]
        settled = after[10:] or after[-1:]  # the first after a lost pulse continues no video
        assert np.median([figures[n] for n in settled]) > undisturbed_db - 1.0, (
            fault,
            cycles,
            figures,
        )
        for n in after:
            marked = rows[STATE_COLUMN][n] != 0 or rows["start_mask"][n] != 0
            assert marked or figures[n] > undisturbed_db - 5.0, (
                f"snapshot {n} is disturbed and not marked"
            )
    assert rows["epoch"][-1] == 1, "it was loaded again after the loss of power"
    assert rows[ADVANCE_COLUMN][-1] == -1, "the pulse is still a pattern late"
