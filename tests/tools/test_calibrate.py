"""Calibration of a camera, and reconstruction with the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from sci_stream.calibration.measurement import Measured
from sci_stream.calibration.quality import Verdict, assess, worst
from sci_stream.devices.modulated_camera import ModulatedCamera
from sci_stream.errors import CalibrationError, CameraError, ConfigError, StorageError
from sci_stream.model import CameraCapabilities, CameraFrame, Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import Parameter, Value
from sci_stream.ports import Pattern
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings
from sci_stream.recording.calibration_file import load_calibration, load_measured, save_calibration
from sci_stream.tools.calibrate import CalibrationPlan, calibrate, hold
from sci_stream.tools.calibration_report import write_report
from sci_stream.web.calibration_page import LiveFrame
from sci_stream_drivers.simulated import SimulatedCamera, SimulatedOptions
from tests.tools.modulated import masks, modulated

CPU = torch.device("cpu")
PLAN = CalibrationPlan(frames=16, settle=1, timeout_s=5.0)


def no_operator(words: str, _meanwhile: object) -> None:
    raise AssertionError(f"asked for {words!r} though the camera can")


def silent(words: str, done: int, total: int) -> None: ...


def take(n_frames: int = 8, **options: object) -> tuple[Calibration, Measured]:
    return calibrate(modulated(masks(n_frames), options), PLAN, no_operator, silent)


@pytest.mark.parametrize(("pattern", "source"), [("white", "free"), (None, "line")])
def test_masks_are_held_or_run_until_interrupted(pattern: Pattern | None, source: str) -> None:
    both, shown_dn = modulated(masks(4)), []

    def show(shown: LiveFrame) -> None:
        assert both.camera.trigger_now().source == source
        shown_dn.append(float(shown.counts.mean()))
        if len(shown_dn) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hold(both, pattern, show)
    assert min(shown_dn) > 500
    with pytest.raises(RuntimeError, match="needs open"):
        both.start()


class Operated:
    """A camera whose patterns are set up by an operator: its frames follow the last request."""

    def __init__(self, size: int = 64, exposure: float = 1.0) -> None:
        self._masks = masks(4, size)
        both = modulated(self._masks, {"exposure": exposure})
        self._camera, self._modulator = both.camera, both.modulator
        self.asked: list[str] = []
        self.closed = False

    def set_up(self, words: str, _meanwhile: object) -> None:
        self.asked.append(words)
        if words.startswith("Pattern"):
            self._modulator.hold(int(words.split()[1]))
        else:
            self._modulator.hold("white" if words.startswith("White") else "dark")

    def open(self) -> CameraCapabilities:
        self._modulator.open()
        self._modulator.load(self._masks)
        return dataclasses.replace(self._camera.open(), n_frames=None)

    def calibration(self) -> None: ...

    def start(self) -> None:
        self._camera.start()

    def read(self, timeout_s: float) -> CameraFrame | None:
        return self._camera.read(timeout_s)

    @property
    def exhausted(self) -> bool:
        return False

    def counters(self) -> Mapping[str, int]:
        return {}

    def settings(self) -> Sequence[Parameter]:
        return self._camera.settings()

    def set(self, name: str, value: Value) -> CameraCapabilities:
        return self._camera.set(name, value)

    def stop(self) -> None:
        self._camera.stop()

    def close(self) -> None:
        self.closed = True
        self._camera.close()


@pytest.mark.parametrize("bayer", ["none", "RGGB"])
def test_calibrate_reconstructs_as_well_as_the_truth(bayer: str, tmp_path: Path) -> None:
    measured_calibration, measured = take(bayer=bayer)
    save_calibration(tmp_path / "c.h5", measured_calibration, measured)
    loaded = load_calibration(tmp_path / "c.h5")
    rig = modulated(camera={"bayer": bayer})
    rig.open()
    true = rig.calibration()
    rig.start()
    frame = rig.read(10.0)
    assert frame is not None
    psnr_db = []
    for calibration in (true, loaded):
        engine = Engine(calibration, make_denoiser("tv", CPU), CPU, default_settings(CPU, "tv"))
        snapshot = Snapshot(
            SnapshotId("s", 0, 0),
            frame.counts,
            calibration.hash,
            8,
            0,
            bayer=calibration.bayer,
            truth=frame.truth,
        )
        psnr_db.append(engine.reconstruct(snapshot)[1].psnr_db or 0.0)
    assert psnr_db[0] - psnr_db[1] < 0.3
    assert (loaded.camera_serial, loaded.bit_depth, loaded.bayer) == ("SIM-0", 12, true.bayer)
    assert loaded.saturation_dn == 4095
    assert worst(assess(loaded, measured)) is Verdict.OK


@pytest.mark.parametrize(
    "section",
    [{}, {"dark_us": 1000.0}, {"master": "camera", "delay_us": 4000.0}],
    ids=["no gaps", "dark", "delay"],
)
def test_white_level_is_that_of_masks_in_operation(section: dict[str, object]) -> None:
    both = modulated(camera={"calibration_light": 0.3}, **section)
    calibration, _ = calibrate(both, PLAN, no_operator, silent)
    both.open()
    own = both.calibration()
    assert own is not None
    assert calibration.full_scale_dn == pytest.approx(own.full_scale_dn, rel=0.02)


def test_calibrate_measures_gain_and_noise() -> None:
    calibration, _ = take(read_noise_e=8.0)
    options = SimulatedOptions()
    gain = options.full_well_e / (options.max_dn - options.black_dn)
    assert calibration.gain_e_per_dn == pytest.approx(gain, rel=0.05)
    assert calibration.read_noise_dn == pytest.approx(8.0 / gain, rel=0.1)


def test_measurements_round_trip(tmp_path: Path) -> None:
    calibration, measured = take(n_frames=3)
    save_calibration(tmp_path / "c.h5", calibration, measured)
    loaded = load_measured(tmp_path / "c.h5")
    assert loaded is not None
    for field in dataclasses.fields(Measured):
        assert np.array_equal(getattr(loaded, field.name), getattr(measured, field.name)), (
            field.name
        )
    save_calibration(tmp_path / "bare.h5", calibration)
    assert load_measured(tmp_path / "bare.h5") is None


def test_settings_that_break_the_measurement_are_named_and_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    both = modulated()
    open_camera = both.camera.open
    distorted = ("Gamma is 0.8: counts are not right; add …",)
    both.camera.open = lambda: dataclasses.replace(open_camera(), distortions=distorted)
    calibration, _ = calibrate(both, PLAN, no_operator, silent)
    assert calibration.source.endswith("16 frames per pattern; Gamma is 0.8: counts are not right")
    assert "the masks will be wrong: Gamma is 0.8" in caplog.text


def test_operator_is_asked_without_a_modulator() -> None:
    operated = Operated()
    calibration, measured = calibrate(
        operated,
        dataclasses.replace(PLAN, n_frames=4, brightness=0.4, reverse=True),
        operated.set_up,
        silent,
    )
    assert [words.split()[0] for words in operated.asked] == ["No", "White:", *["Pattern"] * 4]
    assert measured.mask_order == (3, 2, 1, 0)
    true = modulated(masks(4))
    true.open()
    np.testing.assert_allclose(calibration.phi, true.calibration().phi[::-1], atol=0.03)
    assert operated.closed


def test_manual_calibration_asks_for_each_pattern() -> None:
    asked: list[str] = []
    plan = dataclasses.replace(PLAN, automatic=False, frames=4, timeout_s=1.0)
    calibration, _ = calibrate(
        modulated(masks(4), dark_us=1000.0), plan, lambda words, _: asked.append(words), silent
    )
    assert [words.split()[0] for words in asked] == ["No", "White:", *["Pattern"] * 4]
    automatic, _ = take(4)
    np.testing.assert_allclose(calibration.phi, automatic.phi, atol=0.05)
    assert calibration.full_scale_dn == pytest.approx(automatic.full_scale_dn, rel=0.02)


def test_camera_is_closed_when_the_operator_aborts() -> None:
    operated = Operated()

    def give_up(words: str, _meanwhile: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(operated, dataclasses.replace(PLAN, n_frames=4), give_up, silent)
    assert operated.closed


def test_saturated_white_field_is_reported_first() -> None:
    steps: list[str] = []
    with pytest.raises(CalibrationError, match="saturates"):
        calibrate(
            modulated(camera={"calibration_light": 2.0}),
            PLAN,
            no_operator,
            lambda words, *_: steps.append(words),
        )
    assert not any(words.startswith("Pattern") for words in steps)


def test_unknown_number_of_patterns_is_an_error() -> None:
    with pytest.raises(ConfigError, match="--masks B"):
        calibrate(Operated(), PLAN, no_operator, silent)


def test_camera_without_frames_is_an_error() -> None:
    waiting = modulated(camera={"trigger": "software"})
    with pytest.raises(CameraError, match="delivers no frames"):
        calibrate(waiting, dataclasses.replace(PLAN, timeout_s=0.1), no_operator, silent)


def test_trigger_of_the_plan_is_restored_after_held_patterns() -> None:
    both = modulated()
    triggers = []
    arm = both.camera.arm
    both.camera.arm = lambda trigger: triggers.append(trigger) or arm(trigger)
    calibrate(both, PLAN, no_operator, silent)
    assert [trigger.source for trigger in triggers] == ["free", "line", "free", "line"]
    assert len({trigger.exposure_us for trigger in triggers}) == 1


@pytest.mark.parametrize("motion", ["sawtooth", "sine"])
def test_moving_mask_is_measured_by_phase_without_help(motion: str) -> None:
    both = modulated(
        modulator={"motion": motion}, camera={"white_field": True, "calibration_light": 1.0}
    )
    calibration, _ = calibrate(
        both, dataclasses.replace(PLAN, unattended=True, settle=0), no_operator, silent
    )
    true = modulated(modulator={"motion": motion}, camera={"noise": False})
    true.open()
    own = true.calibration()
    assert own is not None
    assert calibration.dark.mean() == pytest.approx(64, abs=1.5)  # black level of 12 bit
    if motion == "sawtooth":  # the mask moves within an exposure: masks in between are means of two
        likeness = np.corrcoef(calibration.phi[3].ravel(), own.phi[3].ravel())[0, 1]
        assert likeness > 0.8


def test_interrupted_calibration_resumes_with_the_next_pattern(tmp_path: Path) -> None:
    plan = dataclasses.replace(PLAN, frames=4, progress_file=tmp_path / "c.h5.part")
    steps: list[str] = []

    def interrupt(words: str, done: int, total: int) -> None:
        steps.append(words)
        if words.startswith("Pattern 3") and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(modulated(), plan, no_operator, interrupt)
    assert plan.progress_file is not None
    assert plan.progress_file.exists()
    steps.clear()
    whole, _ = calibrate(modulated(), plan, no_operator, lambda words, *_: steps.append(words))
    assert {words.split(":")[0].split(" (")[0] for words in steps} == {
        "White", *(f"Pattern {b}" for b in range(3, 8))
    }  # fmt: skip
    assert not plan.progress_file.exists()
    at_once, _ = calibrate(
        modulated(), dataclasses.replace(plan, progress_file=None), no_operator, silent
    )
    np.testing.assert_allclose(whole.phi, at_once.phi, atol=0.05)


@pytest.mark.parametrize("changed", [{"size": 32}, {"exposure": 0.5}], ids=str)
def test_dark_frame_of_other_settings_is_not_reused(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    plan = dataclasses.replace(PLAN, n_frames=4, frames=2, progress_file=tmp_path / "c.h5.part")

    def interrupt(words: str, done: int, total: int) -> None:
        if words.startswith("White"):
            raise KeyboardInterrupt

    asked = []
    for operated in (Operated(), Operated(**changed), Operated(**changed)):
        with pytest.raises(KeyboardInterrupt):
            calibrate(operated, plan, operated.set_up, interrupt)
        asked.append([words.split()[0] for words in operated.asked])
    assert asked == [["No", "White:"], ["No", "White:"], ["White:"]]


@pytest.mark.parametrize(
    ("light", "taken"), [(1.0, [0, *range(3, 8)]), (0.9, range(8))], ids=["same", "dimmed"]
)
def test_moving_mask_resumes_in_the_same_light_only(
    light: float, taken: Sequence[int], tmp_path: Path
) -> None:
    plan = dataclasses.replace(
        PLAN, unattended=True, frames=4, progress_file=tmp_path / "c.h5.part"
    )
    began: list[str] = []

    def interrupt(words: str, done: int, total: int) -> None:
        began.extend([words] * (done == 0))
        if words.startswith("Phase 3"):
            raise KeyboardInterrupt

    def stage(light: float) -> ModulatedCamera:
        return modulated(
            modulator={"motion": "sine"}, camera={"white_field": True, "calibration_light": light}
        )

    with pytest.raises(KeyboardInterrupt):
        calibrate(stage(1.0), plan, no_operator, interrupt)
    began.clear()
    calibrate(
        stage(light), plan, no_operator, lambda words, done, _: began.extend([words] * (done == 0))
    )
    assert [int(words.split()[1]) for words in began if "of 0 to 7" in words] == list(taken)


@pytest.mark.parametrize(("motion", "n_frames"), [("sine", 8), ("sawtooth", 20)])
def test_moving_mask_shows_the_noise_and_no_false_defect(motion: str, n_frames: int) -> None:
    stage = modulated(
        modulator={"motion": motion, "n_frames": n_frames},
        camera={"white_field": True, "calibration_light": 0.8, "n_frames": n_frames},
        n_frames=n_frames,
    )
    plan = dataclasses.replace(PLAN, unattended=True, frames=32)
    calibration, measured = calibrate(stage, plan, no_operator, silent)
    full_well_e, range_dn, read_noise_e = 10_500.0, 4095 - 64, 2.5
    gain = full_well_e / range_dn
    assert calibration.gain_e_per_dn == pytest.approx(gain, rel=0.02)
    assert calibration.read_noise_dn == pytest.approx(read_noise_e / gain, rel=0.15)
    assert calibration.bad_pixels is None
    figures = {figure.name: figure for figure in assess(calibration, measured)}
    assert figures["white_evenness"].value > 0.85, "the field is even"
    assert figures["clipped"].verdict is Verdict.OK


def test_dark_frame_of_a_moving_mask_is_asked_for_once(tmp_path: Path) -> None:
    plan = dataclasses.replace(PLAN, frames=4, progress_file=tmp_path / "c.h5.part")
    asked: list[str] = []

    def ask(words: str, meanwhile: Callable[[], object]) -> None:
        meanwhile()
        asked.append(words.partition(":")[0])
        if asked[-1] == "White":
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            calibrate(modulated(modulator={"motion": "sine"}), plan, ask, silent)
    assert asked == ["No light", "White", "White"]


def test_camera_is_live_while_the_operator_is_asked() -> None:
    seen: list[tuple[str, bool]] = []

    def ask(words: str, meanwhile: Callable[[], object]) -> None:
        meanwhile()
        if words.startswith("White"):
            raise KeyboardInterrupt

    def show(shown: LiveFrame) -> None:
        seen.append((shown.steps[shown.at], shown.asks))

    plan = dataclasses.replace(PLAN, automatic=False)
    with pytest.raises(KeyboardInterrupt):
        calibrate(modulated(masks(4)), plan, ask, silent, show)
    assert seen[0] == ("dark", True)
    assert ("dark", False) in seen
    assert seen[-1] == ("white", True)


def test_write_report_shows_masks_of_any_number_and_shape(tmp_path: Path) -> None:
    for shape in ((1, 16, 20), (9, 40, 24), (20, 300, 400)):
        calibration = Calibration(np.random.default_rng(1).random(shape, dtype=np.float32))
        write_report(tmp_path / "c.png", calibration)
        picture = cv2.imread(str(tmp_path / "c.png"))
        assert picture is not None
        assert picture.std() > 10


def test_write_report_refuses_unknown_format_and_missing_folder(tmp_path: Path) -> None:
    calibration = Calibration(np.ones((1, 8, 8), np.float32))
    with pytest.raises(StorageError, match=r"Unknown format of the report .*c\.xyz"):
        write_report(tmp_path / "c.xyz", calibration)
    with pytest.raises(StorageError, match="cannot be written"):
        write_report(tmp_path / "missing" / "c.png", calibration)


def test_simulated_camera_without_a_modulator_is_refused() -> None:
    camera = SimulatedCamera(SimulatedOptions())
    with pytest.raises(ConfigError, match="no lens to close"):
        calibrate(camera, CalibrationPlan(), lambda *_: None, lambda *_: None)
