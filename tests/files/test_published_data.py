from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io

from sci_stream.errors import FileFormatError
from sci_stream.files.measurement_file import read_published
from sci_stream.model import Array

H, W, B, SHOTS = 6, 8, 3, 2
Save = Callable[..., Path]


def content(**changed: Array | None) -> dict[str, Array]:
    """Variables of a file in MATLAB's order, each value encoding its position."""
    arrays = {
        "meas": np.arange(H * W * SHOTS, dtype=float).reshape(H, W, SHOTS),
        "mask": np.arange(H * W * B, dtype=np.uint8).reshape(H, W, B) % 2,
        "orig": np.arange(H * W * SHOTS * B, dtype=np.float32).reshape(H, W, SHOTS * B),
    }
    return {key: array for key, array in {**arrays, **changed}.items() if array is not None}


def save_v5(path: Path, **changed: Array | None) -> Path:
    scipy.io.savemat(path, content(**changed))
    return path


def save_v73(path: Path, **changed: Array | None) -> Path:
    with h5py.File(path, "w", userblock_size=512) as file:
        for key, array in content(**changed).items():
            file[key] = array.T
    return path


@pytest.fixture(params=[save_v5, save_v73], ids=["v5", "v7.3"])
def save(request: pytest.FixtureRequest, tmp_path: Path) -> Save:
    return lambda **changed: request.param(tmp_path / "scene.mat", **changed)


def test_both_versions_give_the_same_arrays(save: Save) -> None:
    measurement = read_published(save())
    expected = content()
    np.testing.assert_array_equal(measurement.meas, np.moveaxis(expected["meas"], -1, 0))
    np.testing.assert_array_equal(measurement.mask, np.moveaxis(expected["mask"], -1, 0))
    np.testing.assert_array_equal(measurement.orig, np.moveaxis(expected["orig"], -1, 0))
    assert (measurement.shots, measurement.n_frames) == (SHOTS, B)
    assert measurement.meas.dtype == np.float64
    assert measurement.mask.dtype == np.uint8


def test_single_shot_may_lack_the_last_axis(save: Save) -> None:
    single = content()["meas"][:, :, 0]
    measurement = read_published(save(meas=single, orig=None))
    np.testing.assert_array_equal(measurement.meas, single[np.newaxis])
    assert measurement.orig is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"meas": None}, "no meas"),
        ({"meas": None, "mask": None}, "no meas and no mask"),
        ({"meas": np.zeros((H, W + 1, SHOTS))}, "differ in size"),
        ({"orig": np.zeros((H, W, 5))}, "2 shots × 3 masks = 6 frames"),
        ({"orig": np.zeros((H, W, 3, 6))}, "invalid shape"),
        ({"meas": np.full((H, W, SHOTS), np.nan)}, "NaN"),
        ({"mask": np.zeros((H, W, B))}, "not a transmission"),
        ({"mask": np.full((H, W, B), -1.0)}, "not a transmission"),
        ({"meas": np.ones((H, W, SHOTS), complex)}, "real numbers"),
    ],
)
def test_inconsistent_arrays_are_named_with_the_file(
    save: Save, changed: dict[str, Array | None], message: str
) -> None:
    path = save(**changed)
    with pytest.raises(FileFormatError, match=message) as caught:
        read_published(path)
    assert str(path) in str(caught.value)


def test_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"There is no \.mat file"):
        read_published(tmp_path / "absent.mat")


@pytest.mark.parametrize("keep", [0, 3, 100, 300, 0.9])
def test_truncated_file_is_one_clear_error(save: Save, keep: float) -> None:
    path = save()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep if keep > 1 else keep * len(whole))])
    with pytest.raises(FileFormatError, match=r"scene\.mat"):
        read_published(path)


def test_other_file_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "notes.mat"
    path.write_text("not a measurement at all\n" * 50)
    with pytest.raises(FileFormatError, match=r"cannot be read as a \.mat file"):
        read_published(path)


def test_random_bytes_raise_only_file_format_error(save: Save) -> None:
    path = save()
    whole = bytearray(path.read_bytes())
    rng = np.random.default_rng(3)
    for _ in range(60):
        damaged = whole.copy()
        for at in rng.integers(0, len(whole), 20):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        with suppress(FileFormatError):
            read_published(path)


def test_published_traffic_is_the_sum_of_its_masked_frames(data_dir: Path) -> None:
    traffic = read_published(data_dir / "benchmark" / "traffic48_cacti.mat")
    assert (traffic.shots, traffic.n_frames) == (6, 8)
    assert traffic.orig is not None
    for meas, orig in zip(traffic.meas, traffic.orig.reshape(6, 8, 256, 256), strict=True):
        np.testing.assert_allclose(meas, (traffic.mask * orig.astype(float)).sum(axis=0), atol=1e-9)


def test_published_measurement_has_no_truth(data_dir: Path) -> None:
    wheel = read_published(data_dir / "real" / "4fan14_cacti.mat")
    assert (wheel.shots, wheel.n_frames, wheel.orig) == (1, 14, None)
    assert wheel.mask.max() == 113
