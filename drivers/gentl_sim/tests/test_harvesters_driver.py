"""The driver with the simulated GenTL camera, including faults."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from drivers.gentl_sim.tests.bench import FORMATS as SIMULATED_FORMATS
from drivers.gentl_sim.tests.bench import camera as bench_camera
from drivers.gentl_sim.tests.kit import ramp, sim_options
from sci_stream.calibration.measurement import MeasurementConditions
from sci_stream.errors import CameraError, CameraLost, ConfigError
from sci_stream.model import CameraFrame
from sci_stream.nodes.acquire.camera_reader import CameraReader, Captured
from sci_stream.nodes.acquire.in_flight import MemoryBudget, frame_bytes
from sci_stream.tools.calibrate import with_camera_settings
from sci_stream.tools.cameras import grab
from sci_stream_drivers.harvesters import HarvestersCamera, HarvestersOptions
from sci_stream_drivers.harvesters.producers import _NEEDED

MakeHarvestersCamera = Callable[..., HarvestersCamera]
SIZE = 512
KINDS = (
    "Mono8",
    "Mono10",
    "Mono12",
    "Mono16",
    "Mono10p",
    "Mono12p",
    "Mono10Packed",
    "Mono12Packed",
    "BayerRG12p",
)


KEPT_BY_THE_CAMERA = [["UserSetSelector", "UserSet1"], ["UserSetSave"]]


@pytest.fixture
def producer(gentl_producer: Path) -> Path:
    return gentl_producer


@pytest.fixture
def make(producer: Path) -> Iterator[MakeHarvestersCamera]:
    """Return a function that makes a simulated camera with more features and changed options."""
    made: list[HarvestersCamera] = []

    def camera(*more: list[Any], **changed: Any) -> HarvestersCamera:
        made.append(
            HarvestersCamera(
                HarvestersOptions.model_validate(sim_options(producer, *more, **changed))
            )
        )
        return made[-1]

    yield camera
    for each in made:
        each.close()


def started(camera: HarvestersCamera) -> HarvestersCamera:
    camera.open()
    camera.start()
    return camera


def take(camera: HarvestersCamera, count: int) -> list[CameraFrame]:
    received = [camera.read(5.0) for _ in range(count)]
    assert None not in received
    return [frame for frame in received if frame is not None]


def exact(camera: HarvestersCamera, form: str, count: int) -> None:
    """Read frames and compare each with the expected image of its number."""
    first = None
    for index in range(count):
        (frame,) = take(camera, 1)
        first = frame.frame_id if first is None else first
        assert first is not None
        assert frame.frame_id == first + index, f"a gap: {camera.counters()}"
        assert np.array_equal(frame.counts, ramp(index, form, SIZE)), f"exposure {index}"


@pytest.mark.parametrize("form", KINDS)
def test_every_pixel_is_exact_and_no_frame_is_missing(
    make: MakeHarvestersCamera, form: str
) -> None:
    exact(started(make(form=form, size=SIZE)), form, 60)


@pytest.mark.slow
@pytest.mark.parametrize("form", SIMULATED_FORMATS)
def test_two_thousand_frames_are_exact_in_every_format(
    make: MakeHarvestersCamera, form: str
) -> None:
    # The buffers bridge more than a second on a slow machine, which must be fast enough on average.
    exact(
        started(make(["AcquisitionFrameRate", 320.0], form=form, size=SIZE, buffers=512)),
        form,
        2000,
    )


# --- triggers


def test_software_trigger_gives_one_frame_each(make: MakeHarvestersCamera) -> None:
    camera = started(make(trigger={"source": "Software"}))
    assert camera.open().frame_period_ns is None
    assert camera.read(0.05) is None
    for index in range(5):
        camera.trigger()
        assert np.array_equal(take(camera, 1)[0].counts, ramp(index, "Mono12", 64))
        assert camera.read(0.02) is None
    assert camera.counters()["timeouts"] == 6


def test_line_triggers_one_frame_with_each_pulse(make: MakeHarvestersCamera) -> None:
    trigger = {"source": "Line1", "activation": "RisingEdge", "output_line": "Line2"}
    camera = started(make(["SimLinePeriod", 4000.0], trigger=trigger))
    stamps = [frame.camera_time_ns for frame in take(camera, 20)]
    assert {b - a for a, b in pairwise(stamps) if a and b} == {4_000_000}


def test_line_without_pulses_times_out(make: MakeHarvestersCamera) -> None:
    camera = started(make(trigger={"source": "Line1"}, silence_s=0.05))
    assert camera.read(0.3) is None


# --- faults


def test_incomplete_frames_are_counted_and_not_delivered(make: MakeHarvestersCamera) -> None:
    sent = 400
    ending = [["AcquisitionMode", "MultiFrame"], ["AcquisitionFrameCount", sent]]
    camera = started(make(["SimIncompletePercent", 5.0], *ending, buffers=512))
    frames: list[CameraFrame] = []
    deadline_s = time.monotonic() + 60
    while len(frames) + camera.counters().get("incomplete", 0) < sent:
        assert time.monotonic() < deadline_s, f"{len(frames)} frames, {camera.counters()}"
        frame = camera.read(0.2)
        frames += [frame] if frame is not None else []
    incomplete = camera.counters()["incomplete"]
    assert 5 < incomplete < 50
    assert len({frame.frame_id for frame in frames}) == len(frames) == sent - incomplete
    for frame in frames:
        assert frame.frame_id is not None
        assert np.array_equal(frame.counts, ramp(frame.frame_id, "Mono12", 64))


def run_reader(
    camera: HarvestersCamera, most: int
) -> tuple[CameraReader[Captured], list[Captured]]:
    """Run the acquire node's camera thread until it has captured a number of frames."""
    ring = MemoryBudget(64 << 20)
    reader = CameraReader(
        camera,
        ring,
        lambda: None,
        lambda captured: captured,
        most=most,
        read_timeout_s=0.1,
        backoff_s=(0.02, 0.1),
    )
    reader.open()
    reader.start()
    captured: list[Captured] = []
    deadline_s = time.monotonic() + 60
    while not reader.finished:
        assert time.monotonic() < deadline_s
        for each in reader.take():
            ring.free(frame_bytes(each.frame) if each.frame is not None else 0)
            captured.append(each)
        time.sleep(0.005)
    return reader, captured + list(reader.take())


def test_lost_frames_leave_gaps_in_the_ids(make: MakeHarvestersCamera) -> None:
    reader, captured = run_reader(make(["SimLostPercent", 10.0]), 300)
    assert reader.failure is None
    ids = [each.frame.frame_id for each in captured if each.frame is not None]
    assert ids[0] is not None
    assert ids[-1] is not None
    assert reader.counts["missed"] == ids[-1] - ids[0] + 1 - 300 > 5


@pytest.mark.parametrize("silent", [False, True], ids=["with an error", "silently"])
def test_unplugged_camera_resumes_in_a_new_epoch(
    make: MakeHarvestersCamera, producer: Path, silent: bool
) -> None:
    selector = {"serial": "SIM0002" if silent else "SIM0001"}
    with bench_camera(
        producer, selector["serial"]
    ) as bench:  # other tests of this process may have pulled the cable
        limit = bench.get("SimUnplugCount") + 1
    faults = [
        ["SimUnplugAfter", 100],
        ["SimUnplugTime", 300.0],
        ["SimUnplugSilent", silent],
        ["SimUnplugLimit", limit],
    ]
    reader, captured = run_reader(make(*faults, silence_s=0.1, selector=selector), 250)
    assert reader.failure is None
    assert [each.seq for each in captured] == list(range(250)), "the series continues"
    assert (reader.counts["lost"], reader.counts["reopened"], reader.epoch) == (1, 1, 1)
    assert sum(each.epoch == 0 for each in captured) == 100, "earlier frames are delivered"
    for epoch in (0, 1):
        frames = [each.frame for each in captured if each.epoch == epoch]
        for index, frame in enumerate(frames):
            assert frame is not None
            assert np.array_equal(frame.counts, ramp(index, "Mono12", 64)), (
                "configured again, and exact"
            )


def test_lost_camera_that_waits_for_triggers_is_noticed(
    make: MakeHarvestersCamera, own_gentl_producer: Path
) -> None:
    faults = [["SimUnplugAfter", 3], ["SimUnplugTime", 2000.0], ["SimUnplugSilent", True]]
    options = {
        "cti": [str(own_gentl_producer)],
        "trigger": {"source": "Software"},
        "silence_s": 0.1,
    }
    camera = started(make(*faults, **options))
    for _ in range(3):
        camera.trigger()
        take(camera, 1)
    with pytest.raises(CameraLost, match="it does not respond"):
        take(camera, 1)


def test_camera_without_an_answer_leaves_other_threads_running(
    make: MakeHarvestersCamera, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "silent"
    monkeypatch.setenv("SCI_GENTL_SIM_SILENT", str(silent))
    camera = started(make(trigger={"source": "Software"}, silence_s=0.1))
    silent.touch()
    pauses, done = [0.0], threading.Event()

    def tick() -> None:
        while not done.is_set():
            before_s = time.monotonic()
            time.sleep(0.01)
            pauses.append(time.monotonic() - before_s)

    other = threading.Thread(target=tick)
    other.start()
    with pytest.raises(CameraLost, match="it does not respond"):
        camera.read(5.0)
    done.set()
    other.join()
    assert max(pauses) < 0.7, "a try takes a second"
    silent.unlink()
    camera.close()
    started(camera).trigger()
    take(camera, 1)


def test_restarted_camera_that_waits_for_triggers_is_noticed(make: MakeHarvestersCamera) -> None:
    camera = started(make(trigger={"source": "Software"}, silence_s=0.1))
    assert camera.read(0.3) is None, "it is asked, and is as it was"
    assert camera._camera is not None
    camera._camera.connection.node_map.get_node("TriggerSource").value = "Line1"
    with pytest.raises(CameraLost, match=r"lost its settings.*TriggerSource Line1"):
        camera.read(5.0)


def test_ids_of_16_bits_wrap_without_a_gap(make: MakeHarvestersCamera) -> None:
    ids = [["SimFrameIdBits", "Bits16"], ["SimFrameIdFirst", 65500]]
    reader, captured = run_reader(make(*ids, frame_id_last=65535), 100)
    got = [each.frame.frame_id for each in captured if each.frame is not None]
    assert got[34:38] == [65534, 65535, 1, 2]
    assert reader.counts["missed"] == reader.counts["repeated"] == 0


def test_frame_id_restart_without_wrap_is_a_lost_camera(make: MakeHarvestersCamera) -> None:
    camera = started(make(["SimFrameIdBits", "Bits16"], ["SimFrameIdFirst", 65530]))
    assert take(camera, 6)[-1].frame_id == 65535
    with pytest.raises(CameraLost, match=r"restarted its frame counter.*frame_id_last"):
        camera.read(5.0)
    assert camera.counters()["restarts"] == 1
    assert camera.counters()["discarded"] >= 1


def test_camera_in_use_by_another_program_error_says_so(
    make: MakeHarvestersCamera, producer: Path
) -> None:
    program = (
        "import sys; from sci_stream_drivers.harvesters import *\n"
        "camera = HarvestersCamera(HarvestersOptions(cti=[sys.argv[1]], selector={'serial': "
        "'SIM0001'}))\n"
        "camera.open(); print('open', flush=True); sys.stdin.read(); camera.close()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, producer],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(
            CameraError, match=r"The camera sci_stream SciSim SIM0001 is in use.*Close the viewer"
        ):
            make().open()
        assert make(selector={"serial": "SIM0002"}).open().serial == "SIM0002"
    finally:
        other.communicate("")
    camera = make()
    with pytest.raises(CameraError, match="in use in this process"):
        camera.open()


# --- chunk data and clocks


def test_chunk_data_comes_with_each_frame(make: MakeHarvestersCamera) -> None:
    camera = started(make(["Gain", 6.0], chunks=["FrameID", "Timestamp", "ExposureTime", "Gain"]))
    assert camera.open().chunks == {
        "FrameID": "",
        "Timestamp": "ns",
        "ExposureTime": "us",
        "Gain": "dB",
    }
    for frame in take(camera, 10):
        assert frame.chunks["FrameID"] == frame.frame_id
        assert frame.chunks["Timestamp"] == frame.camera_time_ns
        assert frame.chunks["ExposureTime"] == 100.0
        assert frame.chunks["Gain"] == 6.0
        assert np.array_equal(frame.counts, ramp(frame.frame_id or 0, "Mono12", 64))
    assert "chunk_errors" not in camera.counters()


def test_chunk_data_without_a_feature_is_logged(
    make: MakeHarvestersCamera, caplog: pytest.LogCaptureFixture
) -> None:
    assert make(chunks=["Image", "Gain"]).open().chunks == {"Gain": "dB"}
    assert "No feature ChunkImage" in caplog.text


def test_grab_reports_chunk_data(make: MakeHarvestersCamera) -> None:
    report, _ = grab(make(["Gain", 6.0], chunks=["FrameID", "Gain"]), 5)
    assert report.chunks["Gain"] == 6.0
    assert isinstance(report.chunks["FrameID"], int)


def test_calibration_takes_exposure_and_gain_from_the_camera(make: MakeHarvestersCamera) -> None:
    camera = make(["Gain", 6.0])
    camera.open()
    plan = with_camera_settings(camera, MeasurementConditions())
    assert (plan.exposure_ns, plan.gain_db) == (100_000, 6.0)
    assert with_camera_settings(
        camera, MeasurementConditions(exposure_ns=7, gain_db=1.0)
    ) == MeasurementConditions(exposure_ns=7, gain_db=1.0)


def test_timestamps_use_the_named_clock(make: MakeHarvestersCamera) -> None:
    camera = started(make())
    assert camera.open().clock == "camera"
    stamps = [frame.camera_time_ns for frame in take(camera, 5)]
    assert {b - a for a, b in pairwise(stamps) if a and b} == {2_500_000}


def test_synchronised_clock_is_awaited_and_named(make: MakeHarvestersCamera) -> None:
    camera = started(make(ptp="on"))
    assert camera.open().clock == "PTP"
    (frame,) = take(camera, 1)
    assert frame.camera_time_ns is not None
    assert abs(frame.host_time_ns - frame.camera_time_ns) < 10_000_000_000, (
        "the simulated grandmaster keeps Unix time"
    )


def test_unsynchronised_clock_is_an_error_after_the_timeout(make: MakeHarvestersCamera) -> None:
    with pytest.raises(
        CameraError, match=r"is not synchronised; expected PtpStatus Slave or .*within 0\.01 s"
    ):
        make(ptp="on", ptp_timeout_s=0.01).open()


def test_user_set_resets_settings_of_a_viewer(make: MakeHarvestersCamera) -> None:
    camera = make(["Gain", 12.0])
    camera.open()
    camera.close()
    found = {feature.name: feature.value for feature in make().inspect().features}
    assert found["Gain"] == 0.0
    assert found["Width"] == 64


def test_single_frame_mode_is_reset_unless_requested(make: MakeHarvestersCamera) -> None:
    asked = started(make(["AcquisitionMode", "SingleFrame"], *KEPT_BY_THE_CAMERA))
    assert len(take(asked, 1)) == 1
    assert asked.read(0.1) is None
    asked.close()
    assert len(take(started(make(user_set="UserSet1")), 3)) == 3


def test_trigger_mode_left_on_is_logged(
    make: MakeHarvestersCamera, caplog: pytest.LogCaptureFixture
) -> None:
    left = make(["TriggerSource", "Line1"], ["TriggerMode", "On"], *KEPT_BY_THE_CAMERA)
    left.open()
    assert "waits for triggers" not in caplog.text
    left.close()
    make(user_set="UserSet1").open()
    assert "SIM0001 waits for triggers from Line1, as configured before" in caplog.text


def test_features_of_the_interface_are_set(
    make: MakeHarvestersCamera, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        make(interface_features=[["DeviceUpdateList"], ["DeviceSelector", 1]]).open()
    assert "The interface of sci_stream SciSim SIM0001: DeviceSelector = 1" in caplog.text


def test_data_stream_without_a_description_is_used(
    make: MakeHarvestersCamera, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCI_GENTL_SIM_BARE_STREAM", "1")
    camera = started(make(size=SIZE))
    exact(camera, "Mono12", 10)
    camera.close()
    with pytest.raises(ConfigError, match="has no features of its data stream"):
        make(stream_features=[["StreamBufferHandlingMode", "NewestOnly"]]).open()


def test_features_of_the_data_stream_are_set(
    make: MakeHarvestersCamera, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        camera = make(stream_features=[["StreamBufferHandlingMode", "NewestOnly"]], buffers=4)
        started(camera)
    assert (
        "The data stream of sci_stream SciSim SIM0001: StreamBufferHandlingMode = NewestOnly"
        in caplog.text
    )
    time.sleep(0.3)  # with four buffers and the oldest first, frames 0 to 3 would wait
    assert take(camera, 1)[0].frame_id > 3


@pytest.mark.parametrize(
    ("where", "named"),
    [("interface_features", "The interface of"), ("stream_features", "The data stream of")],
)
def test_unknown_feature_of_a_module_error_names_the_module(
    make: MakeHarvestersCamera, where: str, named: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{named} .* has no feature NoSuchFeature"):
        make(**{where: [["NoSuchFeature", 1]]}).open()


# --- long runs


def test_memory_is_constant_over_many_starts_and_stops(make: MakeHarvestersCamera) -> None:
    camera = make(form="Mono12p", size=256, buffers=32)
    camera.open()
    process = psutil.Process()

    def cycle() -> int:
        camera.start()
        take(camera, 10)
        camera.stop()
        return int(process.memory_info().rss)

    warm = max(cycle() for _ in range(5))
    after = [cycle() for _ in range(20)][-1]
    assert after - warm < 4 << 20, f"{(after - warm) / 2**20:.1f} MiB more after 20 cycles"


def test_open_and_close_leave_no_threads_and_files(make: MakeHarvestersCamera) -> None:
    camera = make()
    process = psutil.Process()

    def settled() -> tuple[int, int]:
        # A thread that was joined is listed until the kernel is done with it.
        seen = []
        for _ in range(20):
            seen.append((process.num_threads(), process.num_fds()))
            time.sleep(0.01)
        return min(seen)

    def cycle() -> tuple[int, int]:
        started(camera)
        take(camera, 2)
        camera.close()
        return settled()

    cycle()
    before = cycle()
    for _ in range(5):
        after = cycle()
    assert after == before


def test_camera_of_two_producers_is_chosen_by_producer(producer: Path, tmp_path: Path) -> None:
    # A copy finds the same cameras as the original.
    copy = Path(shutil.copy(producer, tmp_path / "copy.cti"))
    both = {"cti": [str(producer), str(copy)], "selector": {"serial": "SIM0001"}}
    ambiguous = HarvestersCamera(HarvestersOptions.model_validate(both))
    with pytest.raises(ConfigError, match=r"2 cameras match") as caught:
        ambiguous.open()
    ambiguous.close()
    assert "through copy.cti" in str(caught.value)
    chosen = {**both, "selector": {"serial": "SIM0001", "producer": "copy.cti"}}
    camera = HarvestersCamera(HarvestersOptions.model_validate(chosen))
    try:
        assert camera.open().serial == "SIM0001"
    finally:
        camera.close()


def test_producer_that_crashes_is_listed_beside_the_others(tmp_path: Path, producer: Path) -> None:
    functions = "".join(f'extern "C" void {name}() {{ abort(); }}\n' for name in _NEEDED)
    (tmp_path / "crash.cpp").write_text("#include <cstdlib>\n" + functions)
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-o", tmp_path / "crash.cti", tmp_path / "crash.cpp"],
        check=True,
    )
    broken, good = HarvestersCamera.find([tmp_path / "crash.cti", producer])
    assert "crashes (exit status -6)" in broken.problem
    assert not broken.interfaces
    assert [camera.serial for each in good.interfaces for camera in each.cameras]
