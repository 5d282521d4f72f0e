"""Frames, calibration and truth written for the producer, and reading them back."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sci_stream.errors import ConfigError, FileFormatError
from sci_stream.model import BayerPhase
from sci_stream.recording.calibration_file import load_calibration
from sci_stream_drivers.simulated import SimulatedCamera, SimulatedOptions
from sci_stream_gentl_sim.frames import Header, write_frames
from sci_stream_gentl_sim.render import read_options, render

ROOT = Path(__file__).parents[3]
SMALL = {
    "width_px": 32,
    "height_px": 24,
    "n_frames": 3,
    "bayer": "GRBG",
    "seed": 5,
    "snapshot_rate_hz": 20.0,
}


def header(**changed: object) -> Header:
    base = {
        "width_px": 16,
        "height_px": 4,
        "frames": 2,
        "bit_depth": 12,
        "bayer": None,
        "black_dn": 64.0,
    }
    return Header(**{**base, "exposure_us": 1000.0, "rate_hz": 25.0, **changed})  # type: ignore[arg-type]


def read_frames(path: Path) -> tuple[Header, np.ndarray]:
    """Read a frame file by the table in `sci_stream_gentl_sim.frames`."""
    raw = path.read_bytes()
    mark, version, first, width, height, frames, bits, mosaic, _, *rest = struct.unpack_from(
        "<8s8I3d", raw
    )
    assert (mark, version, first) == (b"SCIFRAME", 1, 64)
    phases = (None, BayerPhase.GRBG, BayerPhase.RGGB, BayerPhase.GBRG, BayerPhase.BGGR)
    counts = np.frombuffer(raw, "<u2", offset=first).reshape(frames, height, width)
    return Header(width, height, frames, bits, phases[mosaic], *rest), counts


@given(
    frames=hnp.arrays(
        np.uint16,
        st.tuples(st.integers(1, 3), st.just(4), st.just(16)),
        elements=st.integers(0, 1023),
    ),
    bayer=st.sampled_from([None, *BayerPhase]),
)
def test_frames_round_trip(
    tmp_path_factory: pytest.TempPathFactory, frames: np.ndarray, bayer: BayerPhase | None
) -> None:
    path = tmp_path_factory.mktemp("frames") / "scene.sciframes"
    written = header(frames=len(frames), bit_depth=10, bayer=bayer)
    write_frames(path, written, frames)
    read, back = read_frames(path)
    assert read == written
    np.testing.assert_array_equal(back, frames)


@pytest.mark.parametrize(
    "changed",
    [{"width_px": 20}, {"height_px": 3}, {"frames": 0}, {"bit_depth": 17}, {"exposure_us": 0.0}],
)
def test_write_frames_refuses_unsupported_frames(changed: dict[str, object]) -> None:
    with pytest.raises(FileFormatError, match="expected"):
        header(**changed)


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        (np.zeros((1, 4, 16), np.uint16), "number of frames"),
        (np.zeros((2, 4, 24), np.uint16), "Frame 0"),
        (np.full((2, 4, 16), 4096, np.uint16), "4096 to 4096"),
    ],
)
def test_write_frames_unlike_the_header_leaves_no_file(
    tmp_path: Path, frames: np.ndarray, why: str
) -> None:
    with pytest.raises(FileFormatError, match=why):
        write_frames(tmp_path / "scene.sciframes", header(), frames)
    assert list(tmp_path.iterdir()) == []


def test_render_equals_the_simulated_camera(tmp_path: Path) -> None:
    done = render({**SMALL, "truth": False, "trigger": "software"}, tmp_path, snapshots=4)
    read, frames = read_frames(done.frames)
    camera = SimulatedCamera(
        SimulatedOptions.model_validate({**SMALL, "truth": True, "snapshot_rate_hz": 0})
    )
    camera.open()
    camera.start()
    truth = np.load(done.truth)
    for n in range(4):
        frame = camera.read(10.0)
        assert frame is not None
        np.testing.assert_array_equal(frames[n], frame.counts)
        np.testing.assert_array_equal(truth[n], frame.truth)
    calibration = load_calibration(done.calibration)
    np.testing.assert_array_equal(calibration.phi, camera.calibration().phi)
    assert (calibration.camera_serial, calibration.bayer) == ("SIM0001", BayerPhase.GRBG)
    assert (read.rate_hz, read.exposure_us) == (20.0, 45_000.0)
    assert calibration.exposure_ns == 45_000_000


def test_options_come_from_a_rig_of_the_simulated_camera(tmp_path: Path) -> None:
    assert read_options(ROOT / "deploy" / "rigs" / "simulated-live.toml")["width_px"] == 256
    (tmp_path / "rig.toml").write_text("[camera]\n")
    with pytest.raises(ConfigError, match=r"\[camera.options\]"):
        read_options(tmp_path / "rig.toml")
    with pytest.raises(ConfigError, match="sceene"):
        render({"sceene": "fast"}, tmp_path)


def test_command_line_renders_and_reports_errors(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sci_stream_gentl_sim",
        "render",
        "--snapshots",
        "2",
        "-o",
        str(tmp_path),
        "--rig",
    ]
    rig = tmp_path / "rig.toml"
    rig.write_text("[camera.options]\nwidth_px = 32\nheight_px = 24\nn_frames = 2\n")
    done = subprocess.run(
        [*command, str(rig)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [Path(line).name for line in done.stdout.split()] == [
        "frames.sciframes",
        "calibration.h5",
        "truth.npy",
    ]
    assert all(Path(line).is_file() for line in done.stdout.split())
    rig.write_text("[camera.options]\nwidth_px = 36\n")
    failed = subprocess.run(
        [*command, str(rig)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert failed.returncode == 2
    assert failed.stderr.startswith("error: ")
    assert "multiple of 8" in failed.stderr
