"""From masks to video with a GigE Vision camera behind a modulator that a program commands: as on an optical table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from drivers.cameras.tests.fake_camera import fake_camera, library_file
from sci_stream.config import load_rig
from sci_stream.modulation.patterns import make_masks
from sci_stream.nodes.runtime.modulated_camera import ModulatedCamera
from sci_stream.nodes.runtime.modulators import make_coded_camera
from sci_stream.recording.calibration_file import load_calibration
from sci_stream.recording.reader import Recording
from tests.e2e.kit import camera_of, sci_stream, write_rig

pytestmark = pytest.mark.rig(seconds=40)
pytest.importorskip("genicam", reason="genicam is not installed: pip install '.[genicam]'")
if library_file() is None:
    pytest.skip("no Aravis on this machine (Debian: apt-get install libaravis-0.8-0)", allow_module_level=True)

B, H, W = 4, 96, 128
DARK_DN, WHITE_DN = 1000, 41_000
# The program of the modulator: writes the number of the frame that the camera shows, or nothing for the sequence.
PROGRAM = """
import sys
numbers = {"dark": "0", "white": "1", "run": "", **{str(b): str(b + 2) for b in range(64)}}
open(sys.argv[1], "w").write(numbers[sys.argv[2]])
"""


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Path]:
    """An optical table: a modulator with its program, and a fake camera that sees its masks."""
    masks = make_masks("random", B, (H, W), block=2, seed=1)
    np.save(tmp_path / "masks.npy", masks)
    phi = 0.05 + 0.9 * (masks / 255)
    light = WHITE_DN - DARK_DN
    rng = np.random.default_rng(0)
    wave = np.sin(np.arange(W)[None, None] / 9 + np.arange(6 * B)[:, None, None] / 3)
    scene = np.clip(0.5 + 0.3 * wave * np.ones((1, H, 1)), 0, 1).reshape(6, B, H, W)
    coded = DARK_DN + light / B * np.einsum("bhw,nbhw->nhw", phi, scene)
    shown = [np.full((H, W), DARK_DN), np.full((H, W), WHITE_DN), *(DARK_DN + light * phi), *coded]
    frames = np.stack(shown) + rng.normal(0, 20, (len(shown), H, W))
    np.save(tmp_path / "frames.npy", np.clip(frames, 0, 65535).astype(np.uint16))
    choice = tmp_path / "choice"
    choice.write_text("")
    (tmp_path / "dmd.py").write_text(PROGRAM)
    with fake_camera(tmp_path / "frames.npy", "SCIGV1", 0.0, "--choice", str(choice), "--held", str(B + 2)):
        yield tmp_path


def rig_on(table: Path, master: str = "modulator") -> Path:
    program = f"'{sys.executable}' '{table / 'dmd.py'}' '{table / 'choice'}'"
    modulator = {
        "driver": "command",
        "options": {
            "show": f"{program} {{index}}", "start": f"{program} run", "height_px": H, "width_px": W,
            "min_pattern_us": 100.0, "masters": ["modulator", "camera"],
        },
        "patterns": "masks.npy",
        "pattern_us": 2500.0,
        "master": master,
        "correct": False,
    }  # fmt: skip
    features = [["PixelFormat", "Mono16"], ["AcquisitionFrameRate", 20.0]]
    camera = camera_of("aravis", features=features, selector={"serial": "SCIGV1"}, trigger={"source": "Line0"})
    more = {"calibration": {"file": "calibration.h5"}, "reconstruct": {"iterations": 8}}
    return write_rig(table, {"camera": camera, "modulator": modulator}, more)


def test_trigger_is_armed_with_the_plan_and_read_back(table: Path) -> None:
    coded = make_coded_camera(load_rig(rig_on(table)))
    assert isinstance(coded, ModulatedCamera)
    try:
        assert coded.open().n_frames == B
        assert coded.plan is not None
        assert coded.plan.camera.source == "line"
        assert coded.plan.camera.exposure_us == pytest.approx(4 * 2500.0)
        assert coded.camera.trigger_now() == coded.plan.camera
    finally:
        coded.close()


def test_masks_are_calibrated_checked_and_filmed_through(table: Path) -> None:
    rig = rig_on(table, "camera")  # the fake camera has an input line, but nothing is connected to it
    made = sci_stream("calibrate", rig, "-o", "calibration.h5", "--yes", "--frames", "4", cwd=table)
    assert made.status == 0, made.output
    measured = load_calibration(table / "calibration.h5").phi
    np.testing.assert_allclose(measured, 0.05 + 0.9 * (np.load(table / "masks.npy") / 255), atol=0.01)
    checked = sci_stream("check", rig, cwd=table)
    assert checked.status == 0, checked.output
    assert "4 masks of 2500 µs" in checked.output
    run = sci_stream("run", rig, "--snapshots", "8", cwd=table)
    assert run.status == 0, run.output
    (path,) = (table / "recordings").glob("*.h5")
    with Recording(path) as recording:
        assert set(np.asarray(recording.rows["chunk_MaskState"])) == {0.0}
        assert recording.ledger is not None
        assert recording.ledger["reconstructed"] == 8
