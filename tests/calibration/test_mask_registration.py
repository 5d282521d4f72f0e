from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sci_stream.calibration.registration.mask_fitter import MaskFit, MaskFitter
from sci_stream.modulation.patterns import Kind, make_masks
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_shift import shift_masks
from tests.calibration.moved_masks import Rig

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")
SHIFTS = [(0.0, 0.0), (0.05, -0.1), (0.3, 0.2), (-0.5, 0.5), (0.7, -0.4), (-1.0, 1.0)]


def fit(rig: Rig, calibration: Calibration | None = None) -> MaskFit:
    calibration = calibration or rig.calibration
    y = calibration.measurement(rig.snapshot().counts)
    valid = np.ones(y.shape, np.bool_)
    fitter = MaskFitter(calibration, CPU)
    return fitter.fit(y, valid, fitter.search(y, valid))


def error_px(found: MaskFit, shift_px: tuple[float, float]) -> float:
    return max(abs(a - b) for a, b in zip(found.displacement.shift_px, shift_px, strict=True))


@pytest.mark.parametrize(
    ("shift_px", "scene", "mask"),
    list(zip(SHIFTS, ["fast", "slow"] * 3, ["random", "shifting"] * 3, strict=True)),
)
def test_fit_finds_shift_within_0_05_px_from_one_noisy_snapshot(
    shift_px: tuple[float, float], scene: str, mask: str
) -> None:
    found = fit(Rig(scene=scene, mask=mask, mask_shift_px=shift_px))
    assert error_px(found, shift_px) < 0.05
    assert found.shift_sd_px < 0.02
    assert found.match > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("shift_px", SHIFTS)
@pytest.mark.parametrize(
    "options",
    [
        {"scene": scene, "mask": mask, "bayer": bayer, "n_frames": n_frames}
        for scene in ("fast", "slow", "static")
        for mask in ("random", "shifting")
        for bayer in ("none", "RGGB")
        for n_frames in (8, 22)
    ],
    ids=str,
)
def test_fit_finds_a_shift_on_every_scene_mask_and_sensor(
    options: dict[str, Any], shift_px: tuple[float, float]
) -> None:
    limit = 0.05 if options["n_frames"] == 8 or options["bayer"] == "none" else 0.1
    assert error_px(fit(Rig(**options, mask_shift_px=shift_px)), shift_px) < limit


def test_fitted_masks_equal_the_displaced_masks() -> None:
    """A kernel that interpolates would leave a third of the contrast wrong here; leaving them, all
    of it.
    """
    shift_px = (0.5, 0.3)
    rig = Rig(mask="random", mask_shift_px=shift_px)
    found = shift_masks(torch.from_numpy(rig.calibration.phi.copy()), fit(rig).displacement).numpy()
    true = Rig(mask="random", mask_shift_px=shift_px)._camera._opened()._masks.stack(shift_px)
    inside = (slice(None), slice(4, -4), slice(4, -4))
    wrong = np.sqrt(np.mean((found[inside] - true[inside]) ** 2)) / true[inside].std()
    assert wrong < 0.04


def test_masks_of_another_rig_have_no_match() -> None:
    rig, other = Rig(seed=1), Rig(seed=2)
    assert (
        fit(rig, replace(other.calibration, full_scale_dn=rig.calibration.full_scale_dn)).match
        < 0.2
    )


def test_fit_without_light_has_no_match() -> None:
    calibration = Rig().calibration
    fitter = MaskFitter(calibration, CPU)
    y = np.zeros(calibration.shape, np.float32)
    found = fitter.fit(y, np.ones(y.shape, np.bool_))
    assert found.match < 0.1
    assert found.shift_sd_px > 0.1


def test_stray_light_lowers_the_contrast() -> None:
    rig = Rig(mask="random")
    y = rig.calibration.measurement(rig.snapshot().counts)
    valid = np.ones(y.shape, np.bool_)
    fitter = MaskFitter(rig.calibration, CPU)
    clean, hazy = fitter.fit(y, valid), fitter.fit(y + 0.25 * y.mean(), valid)
    assert clean.contrast == pytest.approx(1.0, abs=0.03)
    assert hazy.contrast == pytest.approx(1 / 1.25, abs=0.05)


def test_saturated_and_bad_pixels_do_not_affect_the_fit() -> None:
    rig = Rig(mask="random", mask_shift_px=(0.3, 0.0))
    counts = rig.snapshot().counts
    random = np.random.default_rng(2)
    lost = random.random(counts.shape) < 0.05
    y = rig.calibration.measurement(counts)
    y[lost] = 100.0
    for bad, valid in ((lost, np.ones_like(lost)), (None, ~lost)):
        fitter = MaskFitter(replace(rig.calibration, bad_pixels=bad), CPU)
        assert error_px(fitter.fit(y, valid), (0.3, 0.0)) < 0.05


def test_masks_that_add_up_evenly_show_no_displacement() -> None:
    def fits(kind: Kind, n: int) -> bool:
        return MaskFitter.fits(
            Calibration((0.02 + 0.9 / 255 * make_masks(kind, n, (96, 96))).astype(np.float32))
        )

    assert [fits("random", 8), fits("random", 256), fits("shifting", 8)] == [True] * 3
    assert not fits("balanced", 8)


def test_small_sensors_are_not_supported() -> None:
    calibration = Calibration(np.full((4, 20, 20), 0.5, np.float32))
    assert not MaskFitter.fits(calibration)
    with pytest.raises(ValueError, match="too small"):
        MaskFitter(calibration, CPU)
