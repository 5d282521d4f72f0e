"""Import of masks in every published format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
import scipy.io

from sci_stream.errors import CalibrationError, FileFormatError, InputError
from sci_stream.files.calibration_import import ImportOptions, import_masks
from sci_stream.model import Array

MASKS = np.random.default_rng(6).integers(0, 114, (5, 12, 16)).astype(np.uint8)
MASKS[0, 0, 0] = 113


def as_mat5(folder: Path) -> Path:
    scipy.io.savemat(
        folder / "m.mat", {"mask": np.moveaxis(MASKS, 0, -1), "meas": np.zeros((12, 16))}
    )
    return folder / "m.mat"


def as_mat73(folder: Path) -> Path:
    with h5py.File(folder / "m73.mat", "w") as file:
        file["mask"] = np.moveaxis(MASKS, 0, -1).T
        file["mask"].attrs["MATLAB_class"] = np.bytes_("uint8")
    return folder / "m73.mat"


def as_npy(folder: Path) -> Path:
    np.save(folder / "m.npy", MASKS)
    return folder / "m.npy"


def as_pages(folder: Path) -> Path:
    assert cv2.imwritemulti(str(folder / "m.tiff"), list(MASKS))
    return folder / "m.tiff"


def as_images(folder: Path) -> Path:
    (folder / "masks").mkdir()
    for b, mask in enumerate(MASKS):
        assert cv2.imwrite(
            str(folder / "masks" / f"mask{b + 7}.png"), mask
        )  # 7 8 9 10 11: not in order of letters
    return folder / "masks"


@pytest.mark.parametrize("save", [as_mat5, as_mat73, as_npy, as_pages, as_images])
def test_every_format_gives_the_same_masks(save: Callable[[Path], Path], tmp_path: Path) -> None:
    calibration = import_masks(save(tmp_path), ImportOptions())
    np.testing.assert_allclose(calibration.phi, MASKS / 113, rtol=1e-6)


@pytest.mark.parametrize(("frames", "axis"), [(0, None), (2, None), (2, 2), (0, 0), (1, 1)])
def test_masks_of_matlab_files_may_lie_along_any_axis(
    frames: int, axis: int | None, tmp_path: Path
) -> None:
    square = MASKS[:, :, :12]
    scipy.io.savemat(tmp_path / "m.mat", {"mask": np.moveaxis(square, 0, frames)})
    calibration = import_masks(tmp_path / "m.mat", ImportOptions(axis=axis))
    np.testing.assert_allclose(calibration.phi, square / square.max(), rtol=1e-6)


def test_many_dark_frames_of_a_matlab_file_are_averaged(tmp_path: Path) -> None:
    scipy.io.savemat(
        tmp_path / "dark.mat", {"dark": np.full((12, 16, 40), 2.0)}
    )  # more frames than rows
    calibration = import_masks(as_npy(tmp_path), ImportOptions(dark=tmp_path / "dark.mat"))
    assert calibration.dark.shape == (12, 16)


def test_reverse_puts_the_last_mask_first(tmp_path: Path) -> None:
    calibration = import_masks(as_npy(tmp_path), ImportOptions(reverse=True))
    np.testing.assert_allclose(calibration.phi, MASKS[::-1] / 113, rtol=1e-6)


def test_dark_and_white_frames_are_applied(tmp_path: Path) -> None:
    true = MASKS / np.float32(113)
    dark = np.full((12, 16), 9, np.float32)
    white = 200 + np.arange(16, dtype=np.float32) + dark
    for name, array in (("m", true * (white - dark) + dark), ("dark", dark), ("white", white)):
        np.save(tmp_path / f"{name}.npy", array)
    options = ImportOptions(
        dark=tmp_path / "dark.npy", white=tmp_path / "white.npy", bit_depth=8, read_noise_dn=1.5
    )
    calibration = import_masks(tmp_path / "m.npy", options)
    np.testing.assert_allclose(calibration.phi, true, atol=1e-5)
    np.testing.assert_array_equal(calibration.dark, dark)
    assert calibration.saturation_dn == 255
    assert (calibration.read_noise_dn, calibration.gain_e_per_dn) == (1.5, None)
    # A white scene just fills the range above black.
    assert calibration.phi.sum(0).max() * calibration.full_scale_dn + 9 == pytest.approx(
        255, rel=1e-5
    )


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (np.zeros((4, 5)), CalibrationError, "three dimensions"),
        (np.zeros((2, 4, 5)), InputError, "Empty masks"),
        (-np.ones((2, 4, 5)), InputError, "negative values"),
        (np.full((2, 4, 5), np.nan), CalibrationError, "NaN"),
        (np.ones((2, 4, 5), complex), FileFormatError, "left out: complex numbers"),
    ],
)
def test_file_without_a_stack_of_masks_is_refused(
    content: Array, error: type, words: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "m.npy", content)
    with pytest.raises(error, match=words):
        import_masks(tmp_path / "m.npy", ImportOptions())


def test_invalid_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.npy").write_bytes(b"no array")
    (tmp_path / "bad.tif").write_bytes(b"no image")
    (tmp_path / "bad.mat").write_bytes(b"no matlab" * 50)
    (tmp_path / "empty").mkdir()
    for name in ("bad.npy", "bad.tif", "bad.mat", "empty", "absent.mat"):
        with pytest.raises(FileFormatError, match=name.split(".")[0]):
            import_masks(tmp_path / name, ImportOptions())
    with pytest.raises(FileFormatError, match="--variable NAME"):
        import_masks(as_mat5(tmp_path), ImportOptions(variable="Phi"))


def test_white_frame_of_another_size_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "white.npy", np.ones((3, 3)))
    with pytest.raises(CalibrationError, match=r"white\.npy does not fit.*\(12, 16\)"):
        import_masks(as_npy(tmp_path), ImportOptions(white=tmp_path / "white.npy"))


def test_published_masks_are_imported(data_dir: Path) -> None:
    calibration = import_masks(data_dir / "real" / "4fan14_cacti.mat", ImportOptions())
    assert calibration.phi.shape == (14, 256, 256)
    assert calibration.phi.max() == 1.0
