"""Each defect of a snapshot or its masks is named, with its remedy; right data has none."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.calibration.evidence.inspection import examine, inspect
from sci_stream.calibration.evidence.mask_match import CHANCE, distinction, mask_fit
from sci_stream.calibration.evidence.stuck_pixels import stuck_pixels
from sci_stream.calibration.evidence.true_frames import truth_defects
from sci_stream.model import Array, BayerPhase
from sci_stream.optics.calibration import Calibration
from tests.calibration.moved_masks import Rig

B, SIZE = 8, 128


def blurred(image: Array, px: float) -> Array:
    return np.asarray(cv2.GaussianBlur(image, (0, 0), px))


@pytest.fixture(scope="module", params=["random", "sparse", "blurred", "moving"])
def masks(request: pytest.FixtureRequest) -> Array:
    rng = np.random.default_rng(1)
    random = (rng.random((B, SIZE, SIZE)) < (0.3 if request.param == "sparse" else 0.5)).astype(
        np.float64
    )
    if request.param == "blurred":
        return np.stack([blurred(mask, 0.6) for mask in random])
    if request.param == "moving":
        pattern = np.clip(0.5 + 3 * (blurred(rng.random((SIZE + B, SIZE + B)), 1.0) - 0.5), 0.05, 1)
        return np.stack([pattern[b : b + SIZE, b : b + SIZE] for b in range(B)])
    return random


@pytest.fixture(scope="module")
def scene() -> Array:
    """Return a textured scene of 0.1 to 1 in which a bright square moves."""
    rng = np.random.default_rng(2)
    texture = sum(blurred(rng.random((SIZE, SIZE)), px) * px for px in (2, 6, 18))
    still = 0.15 + 0.6 * (texture - texture.min()) / np.ptp(texture)
    frames = np.repeat(still[None], B, 0)
    for b in range(B):
        frames[b, 40:60, 30 + 2 * b : 55 + 2 * b] += 0.25
    return frames


@pytest.fixture(scope="module")
def y(masks: Array, scene: Array) -> Array:
    light = (masks * scene).sum(0)
    return np.asarray(light + np.random.default_rng(3).normal(0, 0.003 * light.max(), light.shape))


def names(defects: list[Defect]) -> list[str]:
    return [defect.name for defect in defects]


def test_right_data_has_no_defect_on_any_scale(y: Array, masks: Array) -> None:
    for scale in (1e-9, 1.0, 4095.0):
        assert examine(y * scale, masks) == []
    assert examine(np.rint(y / y.max() * 250), masks) == []
    assert not stuck_pixels(y, masks).any()


@pytest.mark.parametrize(
    ("turn", "remedy"),
    [
        (lambda m: m.transpose(0, 2, 1), "pass masks.transpose(0, 2, 1)"),
        (lambda m: m[:, ::-1], "pass masks[:, ::-1]"),
        (lambda m: m[:, :, ::-1], "pass masks[:, :, ::-1]"),
        (lambda m: np.rot90(m, 1, (1, 2)), "pass np.rot90(masks, 3, (1, 2))"),
    ],
)
def test_other_orientation_is_named_with_the_turn_back(
    y: Array, masks: Array, turn: Callable[[Array], Array], remedy: str
) -> None:
    (defect,) = examine(y, turn(masks))
    assert (defect.name, defect.fatal) == ("mask_orientation", True)
    assert remedy in defect.text


def test_inverted_masks_are_named(y: Array, masks: Array) -> None:
    (defect,) = examine(y, masks.max() - masks)
    assert (defect.name, defect.fatal) == ("mask_sign", True)


def test_displaced_masks_are_found_to_the_pixel(y: Array, masks: Array) -> None:
    (defect,) = examine(y, np.roll(masks, (-2, 3), (1, 2)))
    assert (defect.name, defect.shift_px, defect.corrected) == ("mask_shift", (-3, 2), True)


def test_gamma_is_measured(y: Array, masks: Array) -> None:
    (defect,) = examine((y.clip(0) / y.max()) ** 0.8, masks)
    assert defect.name == "gamma"
    assert "gamma of about 0.8" in defect.text


def test_black_level_is_measured(y: Array, masks: Array) -> None:
    level = 0.2 * np.median(y)
    (defect,) = examine(y + level, masks)
    assert defect.name == "black_level"
    assert float(defect.text.split("pass y - ")[1]) == pytest.approx(level, rel=0.25)


def test_black_level_subtracted_twice_is_no_right_data(y: Array, masks: Array) -> None:
    (defect,) = examine((y - 0.2 * np.median(y)).clip(0), masks)
    assert defect.name in {"black_level", "mask_contrast", "gamma"}


def test_saturation_is_named(y: Array, masks: Array) -> None:
    assert names(examine(np.minimum(y, np.quantile(y, 0.9)), masks)) == ["saturation"]


def test_errors_that_are_alike_behind_blurred_masks_are_no_gamma() -> None:
    """With errors taken for independent, a gamma of 1.18 is sure."""
    rig = Rig(width_px=64, height_px=64, n_frames=8, mask="random", bayer="none", scene="drops")
    frames = rig.snapshot().truth.reshape(8, 64, 64) / 255
    half = np.random.default_rng(2).integers(0, 2, frames.shape).astype(np.float64)
    phi = np.stack([cv2.blur(mask, (3, 3)) for mask in half])
    noise = 0.01 * np.random.default_rng(3).standard_normal((64, 64))
    assert examine((phi * frames).sum(0) + noise, phi) == []


@pytest.mark.parametrize("saturation_dn", [None, 4095.0])
@pytest.mark.parametrize("factor", [1, 4, 16, 0.25, 0.0625])
def test_counts_of_another_scale_are_named_with_the_factor(
    y: Array, masks: Array, saturation_dn: float | None, factor: float
) -> None:
    white_dn = 3000 / y.max()
    calibration = Calibration(
        masks.astype(np.float32), full_scale_dn=white_dn, saturation_dn=saturation_dn
    )
    counts = np.round(y * white_dn) * factor
    if factor > 1:
        counts = counts.astype(np.uint16)
    found = [one for one in inspect(counts, calibration) if one.name == "scale"]
    assert len(found) == (factor != 1)
    assert all(f"pass y * {1 / factor:.6g}," in one.text for one in found)


def test_dim_scene_has_the_scale_of_its_calibration(y: Array, masks: Array) -> None:
    white_dn = 3000 / y.max()
    calibration = Calibration(masks.astype(np.float32), full_scale_dn=white_dn, bit_depth=12)
    dim = np.round(y.clip(0) * white_dn / 16)
    assert "scale" not in names(inspect(dim.astype(np.uint16), calibration))
    assert "scale" in names(inspect(dim.astype(np.uint8), calibration)), "8 bits of 12"


def test_jpeg_is_named(y: Array, masks: Array) -> None:
    _, code = cv2.imencode(
        ".jpg", (y / y.max() * 250).clip(0, 255).astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 60]
    )
    assert "jpeg" in names(examine(cv2.imdecode(code, cv2.IMREAD_GRAYSCALE), masks))


def test_stuck_pixels_are_found_and_no_other(y: Array, masks: Array) -> None:
    where = np.random.default_rng(4).choice(y.size, 20, replace=False)
    damaged = y.copy()
    damaged.ravel()[where] = 16 * y.max()
    assert set(np.flatnonzero(stuck_pixels(damaged, masks))) == set(where)
    dead = y.copy()
    dead[33] = 0
    assert np.argwhere(stuck_pixels(dead, masks)).tolist() == [
        [33, column] for column in range(SIZE)
    ]
    hot = y.copy()
    hot[:, 70] = 3 * y.max()
    assert np.argwhere(stuck_pixels(hot, masks).all(0)).ravel().tolist() == [70]


def test_one_invalid_pixel_hides_no_defect(y: Array, masks: Array) -> None:
    negative = y - y.mean()
    negative[3, 3] = np.nan
    assert names(examine(negative, masks)) == ["black_level"]


def test_snapshot_of_odd_size_is_examined(y: Array, masks: Array) -> None:
    mosaic = y * np.tile(np.array([[0.4, 1.0], [1.0, 2.5]]), (SIZE // 2, SIZE // 2))
    assert "mosaic" in names(examine(mosaic[:, :-1], masks[..., :-1]))


def test_mosaic_is_examined_by_colours(y: Array, masks: Array) -> None:
    tint = np.ones((2, 2)) + np.array([[0.0, 0.6], [0.6, 1.5]])
    mosaic = y * np.tile(tint, (SIZE // 2, SIZE // 2))
    assert examine(mosaic, masks, BayerPhase.RGGB) == []
    strong = y * np.tile(np.array([[0.1, 0.1], [0.1, 3.0]]), (SIZE // 2, SIZE // 2))
    assert not stuck_pixels(strong, masks, BayerPhase.RGGB).any()
    assert names(examine(mosaic, masks[:, ::-1], BayerPhase.RGGB)) == ["mask_orientation"]


def test_small_black_level_is_found(y: Array, masks: Array) -> None:
    assert names(examine(y + 0.05 * np.percentile(y, 99.9), masks)) == ["black_level"]


@pytest.mark.parametrize(("before", "after"), [(0, 2), (1, 0)])
def test_surplus_masks_are_named(y: Array, masks: Array, before: int, after: int) -> None:
    more = np.random.default_rng(5).permuted(masks, axis=1)
    (defect,) = examine(y, np.concatenate([more[:before], masks, more[B - after :]]))
    assert defect.name == "mask_number"
    assert f"pass masks[{before or ''}:{'' if not after else before + B}]" in defect.text


def test_missing_mask_is_no_right_data(y: Array, masks: Array) -> None:
    moving = (
        np.corrcoef(masks[0].ravel(), masks[1].ravel())[0, 1] > 0.5
    )  # the neighbours of a missing one stand in
    assert names(examine(y, masks[:-1])) or moving


def test_equal_masks_are_refused(y: Array, masks: Array) -> None:
    (defect,) = examine(y, np.repeat(masks[:1], 4, 0))
    assert defect.fatal
    assert defect.text.startswith("all 4 masks are equal")
    (defect,) = examine(y, np.concatenate([masks[:3], masks[1:2]]))
    assert not defect.fatal
    assert defect.text.startswith("masks 1 and 3 are equal")


def test_truth_shows_the_order_of_the_masks(y: Array, masks: Array, scene: Array) -> None:
    def found(order: slice | list[int]) -> list[Defect]:
        return truth_defects(
            y[np.newaxis], Calibration(masks[order].astype(np.float32)), scene[np.newaxis]
        )

    assert found(np.s_[:]) == []
    assert names(found(np.s_[::-1])) == ["mask_order"]
    (defect,) = found([3, 1, 7, 0, 2, 6, 5, 4])
    assert defect.name == "mask_order"
    calibration = Calibration(masks.astype(np.float32))
    assert names(truth_defects(y[np.newaxis], calibration, scene[np.newaxis, :, ::-1])) == ["truth"]


def test_fit_is_largest_for_the_masks_of_the_snapshot(y: Array, masks: Array) -> None:
    more = np.concatenate([masks, np.random.default_rng(5).permutation(masks)])
    fits = [mask_fit(y, more[:n]) for n in range(1, len(more) + 1)]
    # Twice each mask has the same light.
    assert max(fits[: B - 1] + fits[B:-1]) < fits[B - 1]


@pytest.mark.parametrize(
    "y", [np.zeros((16, 16)), np.full((16, 16), np.nan), np.full((16, 16), 7.0)]
)
def test_snapshot_without_content_has_no_defect(y: Array) -> None:
    assert examine(y, np.random.default_rng(0).random((4, 16, 16))) == []


def test_masks_that_add_up_to_a_constant_say_nothing() -> None:
    masks = np.random.default_rng(0).random((2, 32, 32))
    assert examine(masks[0], np.stack([masks[0], 1 - masks[0]])) == []


def test_masks_of_the_snapshot_stand_out_from_chance(y: Array, masks: Array) -> None:
    light = masks.sum(0)
    assert distinction(y, np.roll(light, (1, -2), (0, 1))) > CHANCE
    assert distinction(y, np.roll(light, (33, 47), (0, 1))) < CHANCE


def test_still_truth_in_float32_has_no_order(masks: Array, scene: Array) -> None:
    # The mean of two equal numbers is exact: nothing changes at all.
    still = np.repeat(scene[:1], 2, 0)
    y = (masks[:2] * still).sum(0)
    calibration = Calibration(masks[:2].astype(np.float32))
    assert truth_defects(y[np.newaxis], calibration, still[np.newaxis].astype(np.float32)) == []


def test_noise_is_no_other_truth(y: Array, masks: Array, scene: Array) -> None:
    noise = np.random.default_rng(7).standard_normal(y.shape)
    noisy = y + 0.2 * np.sqrt(np.mean(y**2)) * noise
    calibration = Calibration(masks.astype(np.float32))
    assert truth_defects(noisy[np.newaxis], calibration, scene[np.newaxis]) == []
    others = truth_defects(noisy[np.newaxis], calibration, scene[np.newaxis, :, ::-1])
    assert names(others) == ["truth"]


def test_lines_that_no_mask_opens_are_not_stuck(y: Array, masks: Array) -> None:
    closed = np.ones((SIZE, SIZE))
    closed[40] = closed[:, 77] = 0
    assert not stuck_pixels(y * closed, masks * closed).any()


def test_masks_of_square_elements_are_no_jpeg(scene: Array) -> None:
    elements = np.random.default_rng(8).random((B, SIZE // 4, SIZE // 4)) < 0.5
    masks = elements.repeat(4, 1).repeat(4, 2).astype(np.float64)
    assert names(examine((masks * scene).sum(0), masks)) == []


def test_points_of_light_are_not_stuck(masks: Array) -> None:
    sky = np.full((B, SIZE, SIZE), 0.02)
    for row, column in np.random.default_rng(9).integers(8, SIZE - 8, (40, 2)):
        sky[:, row - 1 : row + 2, column - 1 : column + 2] += np.outer([0.4, 1, 0.4], [0.4, 1, 0.4])
    y = (masks * sky).sum(0)
    assert not stuck_pixels(y, masks).any()
    y[50, 60] = 16 * y.max()
    assert np.argwhere(stuck_pixels(y, masks)).tolist() == [[50, 60]]


def test_drops_behind_a_mosaic_are_not_stuck() -> None:
    rig = Rig(width_px=96, height_px=96, mask="random", scene="splash", seed=8, bayer="RGGB")
    for _ in range(9):
        rig.snapshot()
    counts = rig.snapshot().counts.copy()
    y = rig.calibration.measurement(counts)
    assert not stuck_pixels(y, rig.calibration.phi, rig.calibration.bayer).any()
    counts[76, 80] = 4095
    y = rig.calibration.measurement(counts)
    stuck = stuck_pixels(y, rig.calibration.phi, rig.calibration.bayer)
    assert np.argwhere(stuck).tolist() == [[76, 80]]
