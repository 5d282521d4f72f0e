"""Calibration monitoring in a reconstruct node: warnings, figures and correction."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sci_stream.calibration.diagnosis import findings
from sci_stream.config import CalibrationSection
from sci_stream.model import Snapshot
from sci_stream.nodes.reconstruct.calibration_watch import CalibrationWatch
from sci_stream.nodes.sink.statistics import CalibrationStatistics
from sci_stream.optics.mask_errors import MaskCorrection, MaskError
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import Delivered
from sci_stream.recon.settings import default_settings
from sci_stream.reports import CalibrationHealth
from tests.calibration.moved_masks import Rig

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")

WELL = CalibrationHealth(
    shift_x_px=0.01,
    shift_y_px=-0.02,
    shift_sd_px=0.003,
    match=0.95,
    contrast=1.0,
    order="forward",
    brightness=0.4,
)


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ({"shift_x_px": 0.3}, "mask_shift", r"0\.30 px \(\+0\.30, -0\.02\).*correct_shift"),
        ({"shift_x_px": 0.3, "corrected": True}, "mask_shift", "shifted in reconstruction"),
        ({"match": 0.0}, "mask_match", "not of these masks"),
        ({"match": 0.0, "brightness": 0.001}, "mask_match", "hardly any light"),
        ({"match": 0.0, "brightness": None}, "mask_match", "all are saturated"),
        (
            {"order": "reversed", "first_mask": 7},
            "mask_order",
            "reversed order, beginning with mask 7",
        ),
        ({"contrast": 0.7}, "mask_contrast", "stray light"),
        ({"gain": 2.0}, "camera_gain", r"2\.00 times the calibrated value"),
        ({"below_black_fraction": 0.2}, "below_black", r"20\.0% of the pixels"),
        ({"below_black_fraction": 0.6, "contrast": 0.7}, "below_black", "another pixel format"),
    ],
)
def test_each_fault_is_reported_alone(change: dict[str, object], name: str, words: str) -> None:
    (found,) = findings(replace(WELL, **change), 0.1).items()  # type: ignore[arg-type]  # as the case says
    assert found[0] == name
    assert re.search(words, found[1])


def test_healthy_or_unknown_calibration_is_not_reported() -> None:
    assert findings(WELL, 0.1) == {}
    assert (
        findings(
            CalibrationHealth(
                shift_x_px=None, shift_y_px=None, shift_sd_px=None, match=None, contrast=None
            ),
            0.1,
        )
        == {}
    )


def watch(rig: Rig, section: CalibrationSection) -> tuple[CalibrationWatch, Engine]:
    engine = Engine(rig.calibration, make_denoiser("tv", CPU), CPU, default_settings(CPU, "tv"))
    return CalibrationWatch(section, engine), engine


def solved(watching: CalibrationWatch, snapshot: Snapshot) -> Delivered:
    return watching.finish(snapshot, watching.begin(snapshot, 1))


def test_shift_warns_once_and_corrects_only_if_permitted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(width_px=128, height_px=128, mask="random", mask_shift_px=(0.5, 0.0))
    snapshots = [rig.snapshot() for _ in range(3)]
    for correct in (False, True):
        caplog.clear()
        watching, engine = watch(rig, CalibrationSection(health_every=1, correct_shift=correct))
        before = engine.masks.phi.clone()
        with caplog.at_level(logging.WARNING):
            for snapshot in snapshots:
                assert solved(watching, snapshot).report.health is not None
        assert len(caplog.records) == 1
        engine.warm_up()  # the masks move with the next snapshot
        assert bool(torch.equal(engine.masks.phi, before)) is not correct
        status = watching.status()
        assert status["mask_shift_x_px"] == pytest.approx(0.5, abs=0.06)
        assert status["masks_corrected"] == int(correct)
        assert 0 < float(status["mask_shift_sd_px"]) < 0.05
        assert ("mask_error_log_odds" in status) is correct


def test_defects_are_reported_and_stuck_pixels_left_out(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(width_px=128, height_px=128, mask="random")
    snapshot, black = rig.snapshot(), np.float32(rig.calibration.dark.mean())
    counts = (
        black
        + snapshot.counts.max() * ((snapshot.counts - black).clip(0) / snapshot.counts.max()) ** 0.6
    )
    for place in ((20, 30), (90, 100)):
        counts[place] = 60_000.0
    watching, engine = watch(rig, CalibrationSection(health_every=1))
    with caplog.at_level(logging.WARNING):
        bad = replace(snapshot, counts=counts.astype(np.float32))
        first = solved(watching, bad)
        second = replace(bad, id=replace(bad.id, seq=bad.id.seq + 1))
        health = solved(watching, second).report.health
    assert first.defects == ()
    assert health is not None
    assert health.stuck_pixels == 2
    assert engine.left_out is not None
    assert np.argwhere(engine.left_out).tolist() == [[20, 30], [90, 100]]
    assert "gamma of about 0." in findings(health, 0.1)["gamma"]
    assert "switch the camera's gamma off" in caplog.text
    figures = CalibrationStatistics()
    figures.add(health)
    assert (figures.to_json() or {})["stuck_pixels"] == 2
    clean, _ = watch(rig, CalibrationSection(health_every=1))
    well = solved(clean, snapshot).report.health
    assert well is not None
    assert (well.stuck_pixels, well.defects, clean.engine.left_out) == (0, "", None)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("other masks", "not of these masks"),
        ("black", "hardly any light"),
        ("saturated", "all are saturated"),
    ],
)
def test_capture_that_fits_no_mask_warns_with_its_cause(
    fault: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(width_px=128, height_px=128, mask="random")
    snapshot, top_dn = rig.snapshot(), 4000
    calibration = replace(rig.calibration, saturation_dn=float(top_dn))
    good = np.minimum(snapshot.counts, top_dn - 1)
    black = np.full_like(good, np.mean(calibration.dark))
    counts = {
        "other masks": np.roll(good, (5, 9), (0, 1)),
        "black": black,
        "saturated": np.full_like(good, top_dn),
    }
    bad = replace(snapshot, counts=counts[fault], calibration_hash=calibration.hash, truth=None)
    engine = Engine(calibration, make_denoiser("tv", CPU), CPU, default_settings(CPU, "tv"))
    with caplog.at_level(logging.WARNING):
        video, report, defects, _ = solved(CalibrationWatch(CalibrationSection(), engine), bad)
    assert [defect.fatal for defect in defects if defect.name == "mask_match"] == [True]
    assert words in caplog.text
    assert np.isfinite(video).all()
    assert 0.0 <= report.residual <= 1.0
    if fault != "other masks":
        assert float(np.ptp(video, axis=0).max()) < 0.01, "nothing moves"


def test_one_dark_snapshot_withholds_no_later_video(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modulator stood still in the first exposure; each look takes seconds on a busy machine."""
    clock = SimpleNamespace(monotonic=itertools.count(0.0, 1.0).__next__)
    for module in ("sci_stream.recon.guarded", "sci_stream.calibration.monitor"):
        monkeypatch.setattr(f"{module}.time", clock)
    rig = Rig(width_px=128, height_px=128, mask="random")
    rng = np.random.default_rng(0)
    dark = rig.calibration.dark + rng.normal(0, 3, (128, 128))
    watching, _ = watch(rig, CalibrationSection())
    snapshots = [rig.snapshot() for _ in range(5)]
    snapshots[0] = replace(snapshots[0], counts=np.rint(dark).clip(0).astype(np.uint16))
    reasons = [solved(watching, snapshot).report.start_reason for snapshot in snapshots]
    assert reasons[0] == "mismatch"
    assert "mismatch" not in reasons[2:]


def filmed(
    rig: Rig, fault: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
) -> list[Delivered]:
    """Return the results of 22 snapshots; the fault changes the light of those from the 11th on."""
    settings = replace(default_settings(CPU, "tv"), iterations=8, warm_start=True)
    engine = Engine(rig.calibration, make_denoiser("tv", CPU), CPU, settings)
    watching = CalibrationWatch(CalibrationSection(), engine)
    black = np.float64(rig.calibration.dark.mean())
    results = []
    for seq in range(22):
        snapshot = rig.snapshot()
        if seq > 10:
            counts = fault(snapshot.counts - black) + black
            snapshot = replace(snapshot, counts=np.rint(counts).clip(0, 4095).astype(np.uint16))
        results.append(solved(watching, snapshot))
    return results


def psnr_db(results: list[Delivered]) -> float:
    return float(np.mean([result.report.psnr_db or 0.0 for result in results]))


def test_stray_light_in_a_run_costs_a_decibel_at_most() -> None:
    rig = Rig(width_px=128, height_px=128, mask="random")
    results = filmed(rig, lambda light: light + 0.2 * light.mean())
    assert psnr_db(results[-2:]) > psnr_db(results[7:11]) - 1.0
    assert [defect.name for defect in results[-1].defects] == ["stray_light"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("mask_shift", lambda light: np.roll(light, -4, 1)),
        ("mask_orientation", lambda light: light[::-1]),
    ],
)
def test_fault_of_the_camera_is_named_alone(
    name: str, fault: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
) -> None:
    rig = Rig(width_px=128, height_px=128, mask="random")
    (defect,) = filmed(rig, fault)[-1].defects
    assert defect.name == name


def test_monitoring_can_be_disabled() -> None:
    rig = Rig(width_px=64, height_px=64)
    watching, _ = watch(rig, CalibrationSection(health_every=0))
    assert solved(watching, rig.snapshot()).report.health is None
    assert watching.status() == {}


def test_series_keeps_last_and_worst_evaluation() -> None:
    book = CalibrationStatistics()
    assert book.to_json() is None
    assert book.alerts(0.1) == []
    for x, match in ((0.0, 0.9), (0.5, 0.6), (0.2, 0.8)):
        book.add(replace(WELL, shift_x_px=x, shift_y_px=0.0, match=match))
    book.add(replace(WELL, shift_x_px=None, shift_y_px=None, match=None))
    figures = book.to_json()
    assert figures is not None
    assert (figures["looks"], figures["largest_shift_px"], figures["least_match"]) == (4, 0.5, 0.6)
    assert figures["shift_x_px"] is None
    book.add(replace(WELL, order="reversed"))
    assert book.alerts(0.1) == []
    book.add(replace(WELL, order="reversed"))
    assert len(book.alerts(0.1)) == 1
    book.add(replace(WELL, match=0.0))
    assert len(book.alerts(0.1)) == 1


def test_series_reports_corrected_errors_and_their_evidence() -> None:
    book = CalibrationStatistics()
    correction = MaskCorrection(masks=(MaskError(x_px=0.3, y_px=0.4), MaskError(gain=0.05)))
    book.add(replace(WELL, corrected=True, error_log_odds=84.0), correction.to_text)
    figures = book.to_json()
    assert figures is not None
    assert (figures["shift_sd_px"], figures["error_log_odds"]) == (0.003, 84.0)
    assert figures["jitter_px"] == pytest.approx(0.25, abs=1e-4)
    assert figures["gain_error"] == pytest.approx(0.05 / 2**0.5, abs=1e-4)


def test_brightness_ratio_follows_first_evaluation() -> None:
    book = CalibrationStatistics()
    for brightness in (None, 0.5, 0.4):
        book.add(replace(WELL, brightness=brightness, gain=1.5))
    figures = book.to_json()
    assert figures is not None
    assert (figures["brightness"], figures["brightness_drift"], figures["camera_gain"]) == (
        0.4,
        0.8,
        1.5,
    )


def test_unmeasured_pixels_are_counted_and_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(width_px=128, height_px=128)
    section = CalibrationSection()
    assert watch(rig, section)[0].status()["unmeasured_fraction"] == 0
    assert "no mask opens" not in caplog.text
    phi = rig.calibration.phi.copy()
    phi[:, :64] = 0
    rig.calibration = replace(rig.calibration, phi=phi)
    assert watch(rig, section)[0].status()["unmeasured_fraction"] == 0.5
    assert "50.0% of the pixels are not measured" in caplog.text
