"""The driver `aravis` on Aravis' fake GigE Vision camera: real UDP on loopback, bit-exact, with
outages.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drivers.cameras.tests.fake_camera import FakeCamera, fake_camera, library_file
from sci_stream.cli.rigs import config_init
from sci_stream.config import load_rig
from sci_stream.devices.camera_drivers import make_camera
from sci_stream.errors import CameraError, CameraLost, ConfigError
from sci_stream.model import CameraFrame
from sci_stream.nodes.acquire.camera_reader import CameraReader
from sci_stream.nodes.acquire.in_flight import MemoryBudget
from sci_stream.nodes.acquire.managed_camera import ManagedCamera
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.calibration_file import save_calibration
from sci_stream.tools.preflight import check_rig
from sci_stream_cameras.aravis import AravisCamera, AravisOptions
from sci_stream_testing.cameras import CameraContract
from tests.e2e.kit import COMMAND, RunningRig, assert_accounted_for, camera_of, wait_for

pytestmark = pytest.mark.rig(seconds=50)
pytest.importorskip("genicam", reason="genicam is not installed: pip install '.[genicam]'")
if library_file() is None:
    pytest.skip(
        "no Aravis on this machine (Debian: apt-get install libaravis-0.8-0)",
        allow_module_level=True,
    )

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
        assert time.monotonic() < deadline_s, (
            f"{len(frames)} of {count} frames, {camera.counters()}"
        )
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


def test_frames_are_exact_and_ids_wrap_without_a_gap(
    source: FakeCamera, make: Callable[..., AravisCamera]
) -> None:
    camera = make(buffers=256)
    capabilities = camera.open()
    camera.start()
    received = read(camera, 200)  # the fake camera begins shortly before 65535
    ids = [frame.frame_id for frame in received]
    missed = [
        capabilities.frame_ids.missed(a, b)
        for a, b in pairwise(ids)
        if a is not None and b is not None
    ]
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
        assert 0 < gone <= camera.counters().get("incomplete", 0) + 1, (
            "an incomplete frame is missing, and counted"
        )


def test_software_triggers_give_one_frame_each(
    source: FakeCamera, make: Callable[..., AravisCamera]
) -> None:
    camera = make(trigger={"source": "Software"})
    assert camera.open().frame_period_ns is None
    camera.start()
    for _ in range(10):
        camera.trigger()
        read(camera, 1)
    assert camera.read(0.3) is None


def test_settings_have_standard_names(
    source: FakeCamera, make: Callable[..., AravisCamera]
) -> None:
    camera = make()
    camera.open()
    assert [parameter.name for parameter in camera.settings()] == [
        "ExposureTime",
        "GainRaw",
        "AcquisitionFrameRate",
    ]
    assert camera.set("AcquisitionFrameRate", 50.0).frame_period_ns == 20_000_000


def test_camera_is_listed_inspected_and_selected(
    source: FakeCamera, make: Callable[..., AravisCamera]
) -> None:
    (producer,) = AravisCamera.find([])
    (interface,) = producer.interfaces
    (found,) = interface.cameras
    assert found.serial == "SCIGV1"
    inspection = make(**found.options).inspect()
    assert {"Width", "ExposureTimeAbs", "TriggerMode"} <= {
        feature.name for feature in inspection.features
    }
    with pytest.raises(CameraError, match=r"(?s)No camera matches the selector.*SCIGV1"):
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


def test_camera_that_is_switched_off_is_lost(
    source: FakeCamera, make: Callable[..., AravisCamera]
) -> None:
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


def test_camera_that_waits_for_triggers_is_lost(
    source: FakeCamera, make: Callable[..., AravisCamera]
) -> None:
    camera = make(silence_s=0.2, trigger={"source": "Software"})
    camera.open()
    camera.start()
    assert camera.read(0.5) is None
    source.off()
    with pytest.raises(CameraLost, match="does not respond"):
        read(camera, 1)


def rig_of_camera(tmp_path: Path, *features: list[Any]) -> Mapping[str, Any]:
    """Return the changes for a rig with the fake camera; its calibration is in ``tmp_path``."""
    phi = (np.random.default_rng(1).random((4, H, W)) < 0.5).astype(np.float32)
    save_calibration(
        tmp_path / "calibration.h5", Calibration(phi=phi, full_scale_dn=16000.0, bit_depth=16)
    )
    return {
        "camera": camera_of("aravis", features=[["AcquisitionFrameRate", 20.0], *features]),
        "calibration": {"file": "calibration.h5"},
        "policy": {"mode": "record"},
    }


def assert_recorded_exactly(run: RunningRig, count: int) -> None:
    """Assert that every snapshot of a run is in its recording, bit by bit one of the frames."""
    known = {FRAMES[k].tobytes() for k in range(N)}
    with run.recordings() as recordings:
        assert [seq for recording in recordings for seq in recording.raw_seqs] == list(range(count))
        assert all(
            recording.raw(seq).tobytes() in known
            for recording in recordings
            for seq in recording.raw_seqs
        )


@pytest.mark.parametrize("outage_s", [3.0, 10.0])
def test_rig_resumes_after_an_outage(tmp_path: Path, frames: Path, outage_s: float) -> None:
    with (
        fake_camera(frames) as source,
        RunningRig(tmp_path, rig_of_camera(tmp_path), "--snapshots", "60") as run,
    ):
        run.wait_for_count("acquired", 20)
        source.off()
        time.sleep(outage_s)
        source.on()
        ledger = assert_accounted_for(run.finish())
        assert ledger["acquired"] == 60
        assert "camera reconnected: epoch 1" in run.output
        assert_recorded_exactly(run, 60)


def test_lost_packets_and_automatic_gain_are_recorded(tmp_path: Path, frames: Path) -> None:
    automatic = ["GainAuto", "Continuous"]
    with (
        fake_camera(frames, lost_per_thousand=100.0),
        RunningRig(tmp_path, rig_of_camera(tmp_path, automatic), "--snapshots", "100") as run,
    ):
        summary = run.finish()
        ledger = assert_accounted_for(summary)
        assert ledger["acquired"] == 100
        assert ledger["camera_missed"] > 0, "an incomplete frame is a gap of the ids"
        assert_recorded_exactly(run, 100)
        assert "the reconstruction will be wrong: GainAuto is Continuous" in run.output
        with run.recordings() as (recording,):
            assert recording.info.distortions.startswith(
                "GainAuto is Continuous: frames are not exposed alike"
            )
        (finding,) = [finding for finding in check_rig(run.path) if finding.what == "settings"]
        assert finding.warning
        assert 'add ["GainAuto", "Off"] to [camera.options] features' in finding.text


WORDS_OF_MISBEHAVIOUR = {
    "height": "sends images of another format than its features declare",
    "width": "sends images of another format than its features declare",
    "format": "sends images of another format than its features declare",
    "trigger": "waits for triggers from Line0, as configured before",
    "repeats": "frames repeat the frame before",
    "tears": "frames contain rows of a frame before",
    "halves": "frames lack rows",
    "stamp_stands": "frames have a time that does not increase",
    "stamp_back": "frames have a time that does not increase",
}


@pytest.mark.parametrize("what", WORDS_OF_MISBEHAVIOUR)
def test_misbehaving_firmware_is_named_within_ten_frames(
    frames: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    since = 15
    with fake_camera(frames, what=what, since=since):
        options = {"features": [["AcquisitionFrameRate", 50.0]], "silence_s": 1.0}
        camera = ManagedCamera(AravisCamera(AravisOptions.model_validate(options)), "aravis")
        reader = CameraReader(
            *(camera, MemoryBudget(1 << 30), lambda: None),
            lambda captured: captured,
            most=since + 10,
        )
        reader.open()
        reader.start()
        wait_for(
            lambda: WORDS_OF_MISBEHAVIOUR[what] in f"{caplog.text}{reader.failure}",
            "the fault is named",
        )
        reader.stop()
        reader.join(60.0)
        camera.release()
    assert reader.acquired <= since + 10


MOMENTS = ("before it opens", "before it starts", "in a series", "at the end")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", range(20))
def test_rig_ends_in_order_after_an_outage_at_any_moment(
    tmp_path: Path, frames: Path, number: int
) -> None:
    """It goes on when the camera is back, or ends and names the reason; in every third run Ctrl-C
    ends it meanwhile.
    """
    rng = np.random.default_rng(number)
    moment, outage_s, interrupted = MOMENTS[number % 4], float(rng.uniform(1, 60)), number % 3 == 2
    with (
        fake_camera(frames) as source,
        RunningRig(
            tmp_path, rig_of_camera(tmp_path), "--snapshots", "60", program=(*COMMAND, "--verbose")
        ) as run,
    ):
        match moment:
            case "before it opens":
                wait_for(lambda: "acquire started" in run.output, "the node starts")
            case "before it starts":
                wait_for(lambda: "acquire: waiting" in run.output, "the camera is open")
            case "in a series":
                run.wait_for_count("acquired", int(rng.integers(1, 40)))
            case "at the end":
                run.wait_for_count("acquired", 57)
        source.off()
        if interrupted:
            time.sleep(min(outage_s, 5))
            run.process.send_signal(signal.SIGINT)
            run.wait(
                8.0
            )  # 5 s where a core is idle: a register of a camera that is gone is tried for 3 s
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(outage_s)
            source.on()
            run.wait(120.0)
        assert "Traceback" not in run.output, run.output
        assert interrupted or "acquire lost" not in run.output, run.output
        if "acquire: waiting" not in run.output:
            assert moment == "before it opens"
            assert interrupted or "No camera is found" in run.output, run.output
            return
        ledger = assert_accounted_for(run.summary())
        if not interrupted:
            assert run.process.returncode == 0, run.output
            assert ledger["acquired"] == 60
        assert_recorded_exactly(run, ledger["acquired"])
