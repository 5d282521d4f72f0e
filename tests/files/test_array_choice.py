"""Agreement with y decides which arrays of a file belong together; names help, and notes say it."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse

from sci_stream.errors import FileFormatError, InputError
from sci_stream.files.arrays import MASKS, read_one
from sci_stream.files.measurement_file import Measurements, load_measurement
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.calibration_file import save_calibration

B, H, W = 4, 32, 40
RANDOM = np.random.default_rng(5)
MASKS_ = (RANDOM.random((B, H, W)) > 0.5).astype(np.float64)
OTHER_MASKS = (RANDOM.random((B, H, W)) > 0.5).astype(np.float64)
ROW, COLUMN = np.mgrid[:H, :W]
TRUTH = np.stack([0.2 + 0.7 * (np.hypot(ROW - 16, COLUMN - 8 - 5 * b) < 8) for b in range(B)])
Y = (MASKS_ * TRUTH).sum(0)


def load_npz(tmp_path: Path, **arrays: object) -> Measurements:
    np.savez(tmp_path / "a.npz", **arrays)
    return load_measurement(tmp_path / "a.npz")


def save_h5(path: Path, **arrays: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def test_sum_of_masks_beside_them_is_not_taken(tmp_path: Path) -> None:
    found = load_npz(tmp_path, mask_s=MASKS_.sum(0), mask_all=MASKS_, meas=Y)
    np.testing.assert_array_equal(found.masks, MASKS_)
    assert found.assumed == ("masks = mask_all (of mask_all, mask_s)",)


def test_first_of_two_cameras_is_taken_and_said(tmp_path: Path) -> None:
    second = (OTHER_MASKS * TRUTH).sum(0)
    path = save_h5(
        tmp_path / "a.h5",
        **{"cam1/y": Y, "cam1/masks": MASKS_, "cam2/y": second, "cam2/masks": OTHER_MASKS},
    )
    found = load_measurement(path)
    np.testing.assert_array_equal(found.masks, MASKS_)
    assert found.assumed == (
        "y = cam1/y (of cam1/y, cam2/y)",
        "masks = cam1/masks (of cam1/masks, cam2/masks)",
    )
    found = load_measurement(path, variables={"y": "cam2/y"})
    np.testing.assert_array_equal(found.masks, OTHER_MASKS)


def test_masks_agree_with_the_y_of_their_group(tmp_path: Path) -> None:
    reversed_y = (MASKS_[::-1] * TRUTH).sum(0)
    path = save_h5(tmp_path / "a.h5", **{"a/y": reversed_y, "b/y": Y, "b/masks": MASKS_})
    np.testing.assert_array_equal(load_measurement(path).y, Y[np.newaxis])


def test_agreement_beats_the_closer_name(tmp_path: Path) -> None:
    found = load_npz(tmp_path, meas=Y, mask=OTHER_MASKS, mask_measured=MASKS_)
    np.testing.assert_array_equal(found.masks, MASKS_)


def test_masks_without_a_name_are_taken_for_a_region(tmp_path: Path) -> None:
    region = np.hypot(ROW - 16, COLUMN - 20) < 12
    found = load_npz(tmp_path, meas=Y, mask=region, C=MASKS_, film=TRUTH)
    np.testing.assert_array_equal(found.masks, MASKS_)
    assert found.assumed == ("masks = C (of mask, C)",)


def test_two_unnamed_stacks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"several arrays.*C \(4×32×40 float64\)"):
        load_npz(tmp_path, meas=Y, C=MASKS_, D=MASKS_[::-1])


@pytest.mark.parametrize(
    ("meas", "reason"),
    [
        (Y + 0j, "complex numbers"),
        (scipy.sparse.csc_matrix(Y), "a sparse matrix"),
        ({"frames": Y}, "a structure"),
        (np.array([[Y, "text"]], object), "a cell"),
    ],
)
def test_masks_do_not_become_y_where_meas_is_left_out(
    tmp_path: Path, meas: object, reason: str
) -> None:
    scipy.io.savemat(tmp_path / "a.mat", {"meas": meas, "mask": np.moveaxis(MASKS_, 0, -1)})
    np.save(tmp_path / "masks.npy", MASKS_)
    with pytest.raises(FileFormatError, match=rf"no snapshots.*meas, left out: {reason}"):
        load_measurement(tmp_path / "a.mat", tmp_path / "masks.npy")


def test_compound_and_sparse_of_hdf5_are_left_out(tmp_path: Path) -> None:
    path = save_h5(
        tmp_path / "a.h5", y=np.zeros((H, W), [("re", "f4"), ("im", "f4")]), masks=MASKS_
    )
    with h5py.File(path, "r+") as file:
        file.create_group("y_sparse").attrs["MATLAB_sparse"] = H
    with pytest.raises(
        FileFormatError, match=r"y, left out: complex.*y_sparse, left out: a sparse"
    ):
        load_measurement(path, path)


@pytest.mark.parametrize(
    ("x", "note"),
    [
        (np.arange(5.0), "x is left out: a vector of 5 numbers"),
        (np.zeros((0, 0)), "x is left out: empty"),
        (np.zeros((B + 1, H, W)), "x is left out: The true frames .* do not fit"),
        (np.zeros((B, H, W + 1)), "x is left out: The true frames .* do not fit"),
        (np.full((B, H, W), np.nan), "x is left out: .* NaN"),
        (np.full((B, H, W), 4095.0), "x is left out: .* another range"),
    ],
)
def test_truth_that_does_not_fit_is_dropped(tmp_path: Path, x: np.ndarray, note: str) -> None:
    scipy.io.savemat(tmp_path / "a.mat", {"meas": Y, "mask": np.moveaxis(MASKS_, 0, -1), "x": x})
    found = load_measurement(tmp_path / "a.mat")
    assert found.truth is None
    assert len(found.assumed) == 1
    np.testing.assert_array_equal(found.masks, MASKS_)
    assert re.search(note, found.assumed[0])


@pytest.mark.parametrize("x", [OTHER_MASKS, TRUTH[:, ::-1], np.full((B, H, W), 0.5)])
def test_array_called_x_that_does_not_explain_y_is_no_truth(tmp_path: Path, x: np.ndarray) -> None:
    found = load_npz(tmp_path, y=Y, masks=MASKS_, x=x)
    assert found.truth is None
    assert re.search(r"x is left out: It explains the snapshots only to", found.assumed[0])


def test_truth_called_x_in_reverse_is_kept_for_its_defect(tmp_path: Path) -> None:
    assert load_npz(tmp_path, y=Y, masks=MASKS_[::-1], x=TRUTH).truth is not None


def test_required_truth_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", y=Y, masks=MASKS_)
    np.save(tmp_path / "t.npy", TRUTH[1:])
    with pytest.raises(InputError, match=r"true frames .* do not fit.*got an array of 3×32×40"):
        load_measurement(tmp_path / "a.npz", truth=tmp_path / "t.npy")


def test_mosaic_truth_is_preferred_to_colours(tmp_path: Path) -> None:
    colours = np.stack([TRUTH] * 3, 1)
    found = load_npz(tmp_path, meas_bayer=Y, mask_bayer=MASKS_, orig=colours, orig_bayer=TRUTH)
    np.testing.assert_allclose(found.truth, TRUTH, rtol=1e-6)
    assert found.is_mosaic


def test_truth_that_explains_y_best_is_taken(tmp_path: Path) -> None:
    found = load_npz(tmp_path, y=Y, masks=MASKS_, x=TRUTH[::-1], x_true=TRUTH)
    np.testing.assert_array_equal(found.truth, TRUTH)
    assert found.assumed == ("truth = x_true (of x, x_true)",)


def test_parts_of_cells_and_texts_of_matlab_are_no_arrays(tmp_path: Path) -> None:
    path = save_h5(tmp_path / "a.mat", meas=Y, mask=MASKS_, **{"#refs#/x": np.zeros((2, 2))})
    with h5py.File(path, "r+") as file:
        file["gt"] = np.array([[104, 105], [106, 107]], np.uint16)
        file["gt"].attrs["MATLAB_class"] = np.bytes_("char")
    found = load_measurement(path)
    assert found.truth is None
    assert found.assumed == ("gt is left out: text",)


def test_many_small_arrays_hide_nothing(tmp_path: Path) -> None:
    small = {f"aux/t{index:03}": np.zeros((2, 2)) for index in range(80)}
    path = save_h5(tmp_path / "a.h5", **small, y=Y, masks=MASKS_)
    np.testing.assert_array_equal(load_measurement(path).masks, MASKS_)


def test_single_array_of_another_role_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", masks=MASKS_)
    with pytest.raises(FileFormatError, match="holds no snapshots"):
        load_measurement(tmp_path / "m.npz", tmp_path / "m.npz")
    found = load_measurement(tmp_path / "m.npz", tmp_path / "m.npz", variables={"y": "masks"})
    assert len(found.y) == B


def test_equally_named_masks_are_refused_without_y(tmp_path: Path) -> None:
    path = save_h5(tmp_path / "a.h5", **{"cam1/masks": MASKS_, "cam2/masks": OTHER_MASKS})
    with pytest.raises(FileFormatError, match=r"several arrays that may be the masks.*cam1/masks"):
        read_one(path, MASKS, "masks")
    np.testing.assert_array_equal(read_one(path, MASKS, "masks", "cam2/masks"), OTHER_MASKS)
    path = save_h5(tmp_path / "b.h5", mask_sum=MASKS_.sum(0), mask_all=MASKS_)
    np.testing.assert_array_equal(read_one(path, MASKS, "masks"), MASKS_)


def test_calibrated_masks_choose_the_y_that_agrees(tmp_path: Path) -> None:
    save_calibration(tmp_path / "c.h5", Calibration(MASKS_.astype(np.float32), full_scale_dn=1.0))
    np.savez(tmp_path / "a.npz", y1=(OTHER_MASKS * TRUTH).sum(0), y2=Y)
    found = load_measurement(tmp_path / "a.npz", tmp_path / "c.h5")
    np.testing.assert_array_equal(found.y[0], Y)
