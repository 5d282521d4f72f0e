"""The driver with the producer of the genicam wheel."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from sci_stream.errors import CameraError, ConfigError, SciStreamError
from sci_stream.model import CameraFrame
from sci_stream_drivers.harvesters import HarvestersCamera
from tests.drivers.harvesters.conftest import MakeHarvestersCamera

pytestmark = pytest.mark.rig

FEATURES = [
    ["PixelFormat", "Mono8"],
    ["AcquisitionFrameRate", 100.0],
    ["Width", 320],
    ["Height", 240],
]


def take(camera: HarvestersCamera, count: int) -> list[CameraFrame]:
    received = [camera.read(5.0) for _ in range(count)]
    assert None not in received
    return [frame for frame in received if frame is not None]


def message(camera: HarvestersCamera, error: type[SciStreamError]) -> str:
    with pytest.raises(error) as caught:
        camera.open()
    return str(caught.value)


def test_camera_configures_delivers_stops_and_restarts(make: MakeHarvestersCamera) -> None:
    camera = make(features=FEATURES, buffers=64)
    capabilities = camera.open()
    assert (capabilities.height_px, capabilities.width_px, capabilities.pixel_format) == (
        240,
        320,
        "Mono8",
    )
    assert capabilities.frame_period_ns == 10_000_000
    camera.start()
    frames = take(camera, 200)
    assert [b.frame_id - a.frame_id for a, b in pairwise(frames) if a.frame_id and b.frame_id] == [
        1
    ] * 199
    assert all(frame.counts.shape == (240, 320) for frame in frames)
    assert frames[0].counts.any()
    camera.stop()
    camera.start()
    assert take(camera, 1)[0].frame_id == frames[0].frame_id, (
        "this producer counts again with each start"
    )
    assert camera.counters() == {"delivered": 201}


def test_other_process_can_open_the_same_producer(
    make: MakeHarvestersCamera, producer: Path
) -> None:
    # Slow: the other process takes a core for seconds, and the buffers must last.
    camera = make(features=[*FEATURES, ["AcquisitionFrameRate", 50.0]], buffers=128)
    camera.open()
    camera.start()
    program = (
        "import sys; from sci_stream_drivers.harvesters import *; from sci_stream.errors import "
        "CameraError\n"
        "camera = HarvestersCamera(HarvestersOptions(cti=[sys.argv[1]], selector={'serial': '1'},"
        " features=[['PixelFormat', 'Mono8']]))\n"
        "try:\n    camera.open(); camera.start(); print('delivers', camera.read(5.0) is not None)\n"
        "except CameraError as error:\n    print('refused:', error)\n"
        "camera.close()\n"
    )
    frames = take(camera, 1)
    with subprocess.Popen(
        [sys.executable, "-c", program, producer], stdout=subprocess.PIPE, text=True
    ) as other:
        while other.poll() is None:
            frames += take(camera, 1)
        said, _ = other.communicate()
    # Whether a producer shares its cameras is up to it; what may not happen is a hang, a crash or a
    # loss here.
    assert said.startswith(("delivers True", "refused: The camera")), said
    ids = [frame.frame_id for frame in frames]
    assert ids == list(range(1, len(ids) + 1))


def test_settings_are_read_back_and_logged(
    make: MakeHarvestersCamera, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    make(features=FEATURES).open()
    assert "Machine Vision Games Ltd. Viky 1: Width = 320" in caplog.text


def test_features_are_described_with_kind_access_range_and_unit(make: MakeHarvestersCamera) -> None:
    found = {feature.name: feature for feature in make(features=FEATURES).inspect().features}
    width, rate, form = found["Width"], found["AcquisitionFrameRate"], found["PixelFormat"]
    assert (width.kind, width.access, width.value, width.minimum, width.maximum) == (
        "integer",
        "RW",
        320,
        100,
        800,
    )
    assert (rate.kind, rate.value, rate.unit) == ("float", 100.0, "Hz")
    assert form.choices == ("RGBa8", "Mono8")
    assert found["AcquisitionStart"].kind == "command"
    assert found["PayloadSize"].access == "RO"
    assert width.category == "ImageFormatControl"


def test_inspect_works_for_unsupported_formats(make: MakeHarvestersCamera) -> None:
    found = {
        feature.name: feature.value
        for feature in make(features=[["PixelFormat", "RGBa8"]]).inspect().features
    }
    assert found["PixelFormat"] == "RGBa8"


def test_sigint_handler_is_kept(make: MakeHarvestersCamera) -> None:
    before = signal.getsignal(signal.SIGINT)
    make().open()
    assert signal.getsignal(signal.SIGINT) is before


def test_garbage_collected_camera_releases_its_producer(make: MakeHarvestersCamera) -> None:
    camera = HarvestersCamera(make()._options)
    camera.open()
    camera.start()
    del camera
    assert make().open().serial == "1"


def test_find_returns_options_that_select_each_camera(
    producer: Path, make: MakeHarvestersCamera
) -> None:
    (found,) = HarvestersCamera.find([producer])
    assert found.problem == ""
    cameras = [camera for interface in found.interfaces for camera in interface.cameras]
    assert [camera.serial for camera in cameras] == ["0", "1", "2"]
    chosen = HarvestersCamera(
        HarvestersCamera.Options.model_validate(
            {**make()._options.model_dump(), **cameras[2].options}
        )
    )
    assert chosen.open().serial == "2"
    chosen.close()


def test_defective_producer_is_listed_with_its_problem(producer: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.cti").write_text("no library")
    broken, good = HarvestersCamera.find([tmp_path, producer])
    assert "cannot be loaded" in broken.problem
    assert not good.problem


# --- bad input


def test_several_matching_cameras_are_listed(make: MakeHarvestersCamera) -> None:
    said = message(make(selector={"model": "Viky"}), ConfigError)
    assert said.startswith("3 cameras match the selector model 'Viky'. Found:")
    for serial in "012":
        assert f"serial '{serial}'" in said
    assert 'selector = { serial = "…" }' in said


def test_selector_without_match_lists_cameras(make: MakeHarvestersCamera) -> None:
    said = message(make(selector={"serial": "7"}), CameraError)
    assert said.startswith("No camera matches the selector serial '7'. Found:")
    assert "serial '2'" in said


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        (["Widht", 320], ["has no feature Widht", "Did you mean Width?"]),
        (["Xyzzy", 320], ["has no feature Xyzzy", "sci-stream cameras features"]),
        (["Width", 10_000], ["Width refuses its value", "expected 100 to 800", "got 10000"]),
        (["AcquisitionFrameRate", 1e6], ["expected 1 to 200 Hz", "got 1000000.0"]),
        (["Width", "wide"], ["Width refuses its value", "expected 100 to 800", "got 'wide'"]),
        (["Width", True], ["Width refuses its value", "got True"]),
        (["PixelFormat", "Mono99"], ["expected one of RGBa8, Mono8", "got 'Mono99'"]),
        (["PayloadSize", 7], ["PayloadSize cannot be set", "got a read-only one"]),
        (["AcquisitionStop", 7], ["AcquisitionStop is a command and takes no value", "got 7"]),
    ],
)
def test_feature_that_cannot_be_set_error_names_valid_values(
    make: MakeHarvestersCamera, feature: list[object], words: list[str]
) -> None:
    said = message(make(features=[["PixelFormat", "Mono8"], feature]), ConfigError)
    assert said.startswith("Machine Vision Games Ltd. Viky 1")
    for word in words:
        assert word in said
    optional = {"feature": feature[0], "value": feature[1], "optional": True}
    assert make(features=[["PixelFormat", "Mono8"], optional]).open().pixel_format == "Mono8"


def test_unsupported_pixel_format_error_names_a_supported_one(make: MakeHarvestersCamera) -> None:
    said = message(make(features=[["PixelFormat", "RGBa8"]]), CameraError)
    assert "RGBa8, which is not supported; expected one of Mono8;" in said


def test_ptp_without_support_fails(make: MakeHarvestersCamera) -> None:
    assert "does not support IEEE 1588" in message(make(ptp="on"), CameraError)


def test_camera_is_free_after_every_failure(make: MakeHarvestersCamera) -> None:
    message(make(features=[["Widht", 320]]), ConfigError)
    assert make().open().serial == "1"


def test_second_camera_of_a_producer_in_one_process_is_refused(make: MakeHarvestersCamera) -> None:
    make().open()
    said = message(make(selector={"serial": "2"}), CameraError)
    assert "viky.cti is in use in this process" in said
    assert "each acquire node is a separate one" in said


def test_missing_packages_error_names_the_extra(make: MakeHarvestersCamera) -> None:
    program = (
        "import sys; sys.modules['harvesters'] = None\n"
        "from sci_stream_drivers.harvesters import *; from sci_stream.errors import ConfigError\n"
        "try: HarvestersCamera(HarvestersOptions(cti=['/none.cti'])).open()\n"
        "except ConfigError as error: print(error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert "A camera with a GenTL producer needs the library harvesters" in said
    assert 'pip install "sci-stream[genicam]"' in said
