"""The driver `aravis` on Aravis' fake GigE Vision camera: real UDP on loopback, bit-exact, with outages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sci_stream.cli.rigs import config_init
from sci_stream.config import load_rig
from sci_stream.errors import CameraError, CameraLost, ConfigError
from sci_stream.model import CameraFrame
from sci_stream.nodes.runtime.camera_drivers import make_camera
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.calibration_file import save_calibration
from sci_stream.testing.cameras import CameraContract
from sci_stream_drivers.aravis import AravisCamera, AravisOptions
from tests.drivers.aravis.fake_camera import FakeCamera, fake_camera, library_file
from tests.e2e.kit import RunningRig, assert_accounted_for, camera_of

pytestmark = pytest.mark.rig(seconds=50)
pytest.importorskip("genicam", reason="genicam is not installed: pip install '.[genicam]'")
if library_file() is None:
    pytest.skip("no Aravis on this machine (Debian: apt-get install libaravis-0.8-0)", allow_module_level=True)

N, H, W = 13, 48, 64
FRAMES = np.random.default_rng(7).integers(0, 65536, (N, H, W)).astype(np.uint16)
RATE = ["AcquisitionFrameRate", 100.0]


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("aravis") / "frames.npy"
    np.save(path, FRAMES)
    return path


@pytest.fixture
def source(frames: Path) -> Iterator[FakeCamera]:
    """The fake camera, switched on."""
    with fake_camera(frames) as camera:
        yield camera


@pytest.fixture
def make() -> Iterator[Callable[..., AravisCamera]]:
    """Return a function that makes a driver, closed after the test."""
    made: list[AravisCamera] = []

    def camera(**options: Any) -> AravisCamera:
        made.append(AravisCamera(AravisOptions.model_validate({"features": [RATE], **options})))
        return made[-1]

    yield camera
    for each in made:
        each.close()


def read(camera: AravisCamera, count: int) -> list[CameraFrame]:
    frames: list[CameraFrame] = []
    deadline_s = time.monotonic() + 60
    while len(frames) < count:
        assert time.monotonic() < deadline_s, f"{len(frames)} of {count} frames, {camera.counters()}"
        frame = camera.read(0.5)
        frames += [frame] if frame is not None else []
    return frames


def shown(frame: CameraFrame) -> int:
    """Return which of the frames it is."""
    (match,) = [k for k in range(N) if np.array_equal(frame.counts, FRAMES[k])]
    return match


class TestContract(CameraContract):
    """The suite of every camera."""

    @pytest.fixture(autouse=True)
    def _switched_on(self, source: FakeCamera) -> None:
        """Run each test with the fake camera."""

    def make(self) -> AravisCamera:
        return AravisCamera(AravisOptions.model_validate({"features": [RATE]}))


def test_frames_are_exact_and_ids_wrap_without_a_gap(source: FakeCamera, make: Callable[..., AravisCamera]) -> None:
    camera = make(buffers=256)
    capabilities = camera.open()
    camera.start()
    received = read(camera, 200)  # the fake camera begins shortly before 65535
    ids = [frame.frame_id for frame in received]
    missed = [capabilities.frame_ids.missed(a, b) for a, b in pairwise(ids) if a is not None and b is not None]
    assert min(missed) >= 0
    steps = [(shown(b) - shown(a)) % N for a, b in pairwise(received)]
    assert steps == [(1 + gap) % N for gap in missed], "each missing frame is missing from the ids"


def test_lost_packets_are_counted_frames(frames: Path, make: Callable[..., AravisCamera]) -> None:
    with fake_camera(frames, lost_per_thousand=50.0):
        camera = make(buffers=256)
        camera.open()
        camera.start()
        received = read(camera, 60)
        for frame in received:
            shown(frame)
        ids = [frame.frame_id for frame in received]
        gone = (ids[-1] - ids[0] + 1 - len(ids)) % 65535
        assert gone <= camera.counters().get("incomplete", 0) + 1, "an incomplete frame is missing, and counted"


def test_software_triggers_give_one_frame_each(source: FakeCamera, make: Callable[..., AravisCamera]) -> None:
    camera = make(trigger={"source": "Software"})
    assert camera.open().frame_period_ns is None
    camera.start()
    for _ in range(10):
        camera.trigger()
        read(camera, 1)
    assert camera.read(0.3) is None


def test_settings_have_standard_names(source: FakeCamera, make: Callable[..., AravisCamera]) -> None:
    camera = make()
    camera.open()
    assert [parameter.name for parameter in camera.settings()] == ["ExposureTime", "GainRaw", "AcquisitionFrameRate"]
    assert camera.set("AcquisitionFrameRate", 50.0).frame_period_ns == 20_000_000


def test_camera_is_listed_inspected_and_selected(source: FakeCamera, make: Callable[..., AravisCamera]) -> None:
    (producer,) = AravisCamera.find([])
    (interface,) = producer.interfaces
    (found,) = interface.cameras
    assert found.serial == "SCIGV1"
    inspection = make(**found.options).inspect()
    assert {"Width", "ExposureTimeAbs", "TriggerMode"} <= {feature.name for feature in inspection.features}
    with pytest.raises(CameraError, match=r"No camera matches the selector.*SCIGV1"):
        make(selector={"serial": "another"}).open()
    with pytest.raises(ConfigError, match="names that users gave"):
        make(selector={"user_defined_name": "left"}).open()


def test_config_init_writes_a_rig_for_the_camera(source: FakeCamera, tmp_path: Path) -> None:
    path = tmp_path / "rig.toml"
    config_init(path, driver="aravis", camera="SCIGV1")
    rig = load_rig(path)
    assert rig.camera.driver == "aravis"
    assert rig.camera.options["selector"] == {"serial": "SCIGV1"}
    features = dict(rig.camera.options["features"])
    assert features["PixelFormat"] == "Mono16"
    assert '# trigger = {source = "Line' in path.read_text()
    made = make_camera(rig)
    try:
        assert made.open().pixel_format == "Mono16"
    finally:
        made.close()


def test_camera_that_is_switched_off_is_lost(source: FakeCamera, make: Callable[..., AravisCamera]) -> None:
    camera = make(silence_s=0.5)
    camera.open()
    camera.start()
    read(camera, 5)
    source.off()
    with pytest.raises(CameraLost, match="sends no frames"):
        read(camera, 1000)
    camera.close()
    source.on()
    camera.open()
    camera.start()
    shown(read(camera, 1)[0])


def test_camera_that_waits_for_triggers_is_lost(source: FakeCamera, make: Callable[..., AravisCamera]) -> None:
    camera = make(silence_s=0.2, trigger={"source": "Software"})
    camera.open()
    camera.start()
    assert camera.read(0.5) is None
    source.off()
    with pytest.raises(CameraLost, match="does not respond"):
        read(camera, 1)


@pytest.mark.parametrize("outage_s", [3.0, pytest.param(10.0, marks=pytest.mark.slow)])
def test_rig_resumes_after_an_outage(tmp_path: Path, frames: Path, outage_s: float) -> None:
    phi = (np.random.default_rng(1).random((4, H, W)) < 0.5).astype(np.float32)
    save_calibration(tmp_path / "calibration.h5", Calibration(phi=phi, full_scale_dn=16000.0, bit_depth=16))
    changes = {
        "camera": camera_of("aravis", features=[["AcquisitionFrameRate", 20.0]]),
        "calibration": {"file": "calibration.h5"},
        "policy": {"mode": "record"},
    }
    with fake_camera(frames) as source, RunningRig(tmp_path, changes, "--snapshots", "60") as run:
        run.wait_for_count("acquired", 20)
        source.off()
        time.sleep(outage_s)
        source.on()
        ledger = assert_accounted_for(run.finish())
        assert ledger["acquired"] == 60
        assert "camera reconnected: epoch 1" in run.output
        with run.recordings() as recordings:
            (recording,) = recordings
            assert recording.raw_seqs == list(range(60))
            known = {FRAMES[k].tobytes() for k in range(N)}
            assert all(recording.raw(seq).tobytes() in known for seq in recording.raw_seqs), "bit-exact"
