"""Modulator drivers against fakes at the lowest level there is: library, HID report, VISA message,
framebuffer.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from drivers.modulators.tests import fake_hid
from sci_stream.errors import CameraError, ConfigError
from sci_stream.model import Array
from sci_stream.modulation.plan import TimingRequest, plan_timing
from sci_stream.modulation.timing import CameraTiming, MaskTiming
from sci_stream_modulators.alp import AlpModulator, AlpOptions
from sci_stream_modulators.dlpc900 import Dlpc900Modulator, Dlpc900Options, encode_bmp, pack
from sci_stream_modulators.screen import ScreenModulator, ScreenOptions
from sci_stream_modulators.slmsuite import SlmsuiteModulator, SlmsuiteOptions
from sci_stream_modulators.stage import StageModulator, StageOptions
from sci_stream_testing.modulators import ModulatorContract

HERE = Path(__file__).parent


def some(n: int, height: int, width: int) -> Array:
    return ((np.random.default_rng(3).random((n, height, width)) < 0.5) * 255).astype(np.uint8)


CYCLE = MaskTiming(pattern_us=1000.0, pulse="per_cycle", pulse_width_us=50.0, n_patterns=4)


# --- ALP


@pytest.fixture(scope="session")
def alp_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, for the fake library")
    folder = tmp_path_factory.mktemp("alp")
    source = [str(HERE / "fake_alp.c"), "-o", str(folder / "libalp43.so")]
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", *source], check=True)
    return folder


class TestAlp(ModulatorContract):
    @pytest.fixture(autouse=True)
    def _library(self, alp_library: Path) -> None:
        self.folder = alp_library

    def make(self) -> AlpModulator:
        return AlpModulator(AlpOptions(library=str(self.folder)))

    def state(self, name: str) -> int:
        return int(ctypes.CDLL(str(self.folder / "libalp43.so")).fake_state(name.encode()))

    def test_first_pattern_alone_gives_the_pulse_of_a_cycle(self) -> None:
        with self._made() as modulator:
            modulator.open()
            patterns = some(4, 48, 64)
            modulator.load(patterns)
            modulator.arm(CYCLE)
            modulator.start()
            assert (self.state("period"), self.state("gates"), self.state("count")) == (4, 1, 4)
            assert (self.state("mode"), self.state("picture"), self.state("pulse")) == (
                2301,
                1000,
                50,
            )
            assert self.state("uninterrupted") == 1
            library = ctypes.CDLL(str(self.folder / "libalp43.so"))
            shown = [[library.fake_pixel(b, 5, x) for x in range(64)] for b in range(4)]
            np.testing.assert_array_equal(shown, patterns[:, 5])
            ended = self.state("cycles_ended")
            modulator.advance(1)
            assert self.state("cycles_ended") == ended + 1, "stopped at the end of a cycle"
            assert [library.fake_pixel(0, 5, x) for x in range(64)] == patterns[1, 5].tolist()
            modulator.stop()
            modulator.arm(replace(CYCLE, dark_us=100.0))
            modulator.start()
            assert (self.state("uninterrupted"), self.state("picture")) == (0, 1100)

    @pytest.mark.parametrize(
        "wish", [TimingRequest(master="camera"), TimingRequest(delay_us=300.0)]
    )
    def test_plan_beyond_the_device_is_refused(self, wish: TimingRequest) -> None:
        with self._made() as modulator, pytest.raises(ConfigError):
            plan_timing(wish, modulator.open(), CameraTiming(), 4)

    def test_seventeen_patterns_need_a_counter(self) -> None:
        with self._made() as modulator:
            modulator.open()
            modulator.load(some(17, 48, 64))
            with pytest.raises(ConfigError, match="per_pattern"):
                modulator.arm(replace(CYCLE, n_patterns=17))
            modulator.arm(replace(CYCLE, n_patterns=17, pulse="per_pattern"))

    def test_error_of_the_library_is_a_camera_error(self) -> None:
        with self._made() as modulator, self._made() as other:
            modulator.open()
            with pytest.raises(CameraError, match="connect"):
                other.open()


# --- DLPC900


class TestDlpc900(ModulatorContract):
    @pytest.fixture(autouse=True)
    def _library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "hid", fake_hid)

    def make(self) -> Dlpc900Modulator:
        return Dlpc900Modulator(Dlpc900Options(width_px=40, height_px=30))

    @property
    def controller(self) -> fake_hid.device:
        assert fake_hid.device.latest is not None
        return fake_hid.device.latest

    def test_patterns_and_table_arrive(self) -> None:
        with self._made() as modulator:
            modulator.open()
            patterns = some(30, 30, 40)
            modulator.load(patterns)
            modulator.arm(
                replace(CYCLE, n_patterns=30, dark_us=120.0, gap_us=500.0, pulse_delay_us=-15.0)
            )
            modulator.start()
            fake = self.controller
            np.testing.assert_array_equal(fake.shown(), patterns)
            assert [entry[3] for entry in fake.table.values()] == [0, *[1] * 29], (
                "the first alone gives a pulse"
            )
            assert {entry[0] for entry in fake.table.values()} == {1000}
            assert [entry[1] for entry in fake.table.values()] == [*[120] * 29, 620]
            assert fake.trigger_out[1:] == (-15, 35)
            assert fake.running
            modulator.advance(2)
            np.testing.assert_array_equal(fake.shown(), np.roll(patterns, -2, 0))

    def test_cycle_of_a_camera_master_waits_with_its_first_pattern(self) -> None:
        with self._made() as modulator:
            modulator.open()
            modulator.load(some(4, 30, 40))
            modulator.arm(replace(CYCLE, master="camera", pulse="none"))
            assert [entry[2] for entry in self.controller.table.values()] == [1, 0, 0, 0]
            assert self.controller.trigger_in == (0, 0), "no delay, rising edge"

    def test_controller_that_lost_power_counts_a_restart(self) -> None:
        with self._made() as modulator:
            modulator.open()
            modulator.load(some(4, 30, 40))
            modulator.arm(CYCLE)
            modulator.start()
            assert modulator.counters().get("restarts", 0) == 0
            self.controller.lose_power()
            assert modulator.counters()["restarts"] == 1
            modulator.load(some(4, 30, 40))
            modulator.arm(CYCLE)
            modulator.start()
            assert self.controller.running

    def test_missing_and_vanished_controllers_are_camera_errors(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with self._made() as modulator:
            modulator.open()
            self.controller.is_open = False
            with pytest.raises(CameraError, match="report"):
                modulator.load(some(4, 30, 40))
        monkeypatch.setattr(fake_hid.device, "present", False)
        with pytest.raises(CameraError, match="open failed"):
            self.make().open()


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_compressed_image_decodes_to_itself(share: float) -> None:
    patterns = (np.random.default_rng(0).random((24, 17, 300)) < share).astype(np.uint8)
    patterns[:, 5] = patterns[:, 4]
    patterns[:, 9, 20:200] = 0
    image = pack(patterns)
    data = encode_bmp(image)
    np.testing.assert_array_equal(fake_hid.decode_bmp(data), image)
    assert len(data) < 1.1 * image.size + 200


# --- slmsuite


class TestSlmsuite(ModulatorContract):
    def make(self) -> SlmsuiteModulator:
        arguments = {"resolution": [32, 24]}
        return SlmsuiteModulator(
            SlmsuiteOptions(slm="simulated.SimulatedSLM", arguments=arguments, settle_us=500.0)
        )

    def test_held_pattern_is_on_the_display(self) -> None:
        with self._made() as modulator:
            modulator.open()
            patterns = some(2, 24, 32)
            modulator.load(patterns)
            modulator.hold(1)
            np.testing.assert_array_equal(modulator._slm.display, patterns[1])

    def test_display_that_fails_is_reported_until_it_stops(self) -> None:
        with self._made() as modulator:
            modulator.open()
            modulator.load(some(2, 24, 32))
            modulator.arm(replace(CYCLE, n_patterns=2))
            modulator._slm.set_phase = None  # unplugged
            modulator.start()
            modulator._thread.join(10)
            with pytest.raises(CameraError, match="poll"):
                modulator.counters()
            modulator.close()
            modulator.open()
            modulator.counters()


# --- stage


class TestStage(ModulatorContract):
    def make(self) -> StageModulator:
        backend = f"{HERE / 'generator.yaml'}@sim"
        resource = "USB0::0x0957::0x2807::MY0001::INSTR"
        return StageModulator(
            StageOptions(resource=resource, backend=backend, amplitude_v=4.0, return_us=2000.0)
        )

    def test_waveform_goes_there_in_b_masks_and_back_in_the_gap(self) -> None:
        with self._made() as modulator:
            can = modulator.open()
            assert (can.serial, can.min_gap_us) == ("MY0001", 2000.0)
            modulator.load(np.empty((0, 1, 1), np.uint8))
            armed = modulator.arm(replace(CYCLE, n_patterns=8, gap_us=2000.0))
            modulator.start()
            ask = modulator._device.query
            assert float(ask("FREQ?")) == pytest.approx(100.0)
            assert float(ask("FUNC:RAMP:SYMM?")) == pytest.approx(80.0)
            assert ask("OUTP?").strip() == "ON"
            assert (armed.pattern_us, armed.gap_us) == (
                pytest.approx(1000.0),
                pytest.approx(2000.0),
            )
            modulator.advance(1)
            assert float(ask("PHAS?")) == pytest.approx(36.0)
            modulator._device.write("OUTP OFF")
            assert modulator.counters()["restarts"] == 1


# --- screen


@pytest.fixture(scope="module")
def display(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start an X server whose framebuffer is a file."""
    pytest.importorskip("tkinter")
    if shutil.which("Xvfb") is None:
        pytest.skip("needs Xvfb")
    folder = tmp_path_factory.mktemp("display")
    read, write = os.pipe()
    command = [
        "Xvfb",
        "-displayfd",
        str(write),
        "-screen",
        "0",
        "160x120x24",
        "-fbdir",
        str(folder),
        "-nolisten",
        "tcp",
    ]
    server = subprocess.Popen(command, pass_fds=[write], stderr=subprocess.DEVNULL)
    os.close(write)
    with os.fdopen(read) as pipe:
        number = pipe.readline().strip()
    before, os.environ["DISPLAY"] = os.environ.get("DISPLAY"), f":{number}"
    yield folder / "Xvfb_screen0"
    server.terminate()
    server.wait()
    os.environ.pop("DISPLAY")
    if before is not None:
        os.environ["DISPLAY"] = before


@pytest.mark.rig
class TestScreen(ModulatorContract):
    @pytest.fixture(autouse=True)
    def _display(self, display: Path) -> None:
        self.framebuffer = display

    def make(self) -> ScreenModulator:
        options = {
            "width_px": 64,
            "height_px": 48,
            "left_px": 80,
            "top_px": 10,
            "refresh_hz": 500.0,
        }
        return ScreenModulator(ScreenOptions.model_validate(options))

    def test_held_pattern_is_in_the_framebuffer(self) -> None:
        with self._made() as modulator:
            modulator.open()
            patterns = some(2, 48, 64)
            modulator.load(patterns)
            modulator.hold(1)
            data = self.framebuffer.read_bytes()
            pixels = np.frombuffer(data[len(data) - 160 * 120 * 4 :], np.uint8).reshape(
                120, 160, 4
            )[..., 1]
            np.testing.assert_array_equal(pixels[10:58, 80:144], patterns[1])
