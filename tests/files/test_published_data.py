from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io

from sci_stream.errors import FileFormatError, InputError
from sci_stream.files.measurement_file import load_measurement
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
            file[key].attrs["MATLAB_class"] = np.bytes_(array.dtype.name)
    return path


@pytest.fixture(params=[save_v5, save_v73], ids=["v5", "v7.3"])
def save(request: pytest.FixtureRequest, tmp_path: Path) -> Save:
    return lambda **changed: request.param(tmp_path / "scene.mat", **changed)


def test_both_versions_give_the_same_arrays(save: Save) -> None:
    measurement = load_measurement(save())
    expected = content()
    np.testing.assert_array_equal(measurement.y, np.moveaxis(expected["meas"], -1, 0))
    np.testing.assert_array_equal(measurement.masks, np.moveaxis(expected["mask"], -1, 0))
    np.testing.assert_array_equal(measurement.truth, np.moveaxis(expected["orig"], -1, 0))
    assert (len(measurement.y), len(measurement.masks)) == (SHOTS, B)
    assert measurement.y.dtype == np.float64
    assert measurement.masks.dtype == np.uint8


def test_single_shot_may_lack_the_last_axis(save: Save) -> None:
    single = content()["meas"][:, :, 0]
    measurement = load_measurement(save(meas=single, orig=None))
    np.testing.assert_array_equal(measurement.y, single[np.newaxis])
    assert measurement.truth is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"meas": None}, "no snapshots"),
        ({"mask": None}, "no masks"),
        ({"meas": np.zeros((H, W + 1, SHOTS))}, "differ in size"),
        ({"meas": np.ones((H, W, SHOTS), complex)}, "no snapshots.*meas, left out: complex"),
    ],
)
def test_inconsistent_arrays_are_named_with_the_file(
    save: Save, changed: dict[str, Array | None], message: str
) -> None:
    path = save(**changed)
    with pytest.raises(InputError, match=message) as caught:
        load_measurement(path)
    assert str(path) in str(caught.value)


def test_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"absent\.mat was not found"):
        load_measurement(tmp_path / "absent.mat")


@pytest.mark.parametrize("keep", [0, 3, 100, 300, 0.9])
def test_truncated_file_is_one_clear_error(save: Save, keep: float) -> None:
    path = save()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep if keep > 1 else keep * len(whole))])
    with pytest.raises(FileFormatError, match=r"scene\.mat"):
        load_measurement(path)


def test_other_file_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "notes.mat"
    path.write_text("not a measurement at all\n" * 50)
    with pytest.raises(FileFormatError, match=r"cannot be read as a \.mat file"):
        load_measurement(path)


def test_random_bytes_raise_only_file_format_error(save: Save) -> None:
    path = save()
    whole = bytearray(path.read_bytes())
    rng = np.random.default_rng(3)
    for _ in range(60):
        damaged = whole.copy()
        for at in rng.integers(0, len(whole), 20):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        with suppress(InputError):
            load_measurement(path)


def test_published_traffic_is_the_sum_of_its_masked_frames(data_dir: Path) -> None:
    traffic = load_measurement(data_dir / "benchmark" / "traffic48_cacti.mat")
    assert (len(traffic.y), len(traffic.masks)) == (6, 8)
    assert traffic.truth is not None
    for meas, orig in zip(traffic.y, traffic.truth.reshape(6, 8, 256, 256), strict=True):
        np.testing.assert_allclose(
            meas, (traffic.masks * orig.astype(float)).sum(axis=0), atol=1e-9
        )


def test_published_measurement_has_no_truth(data_dir: Path) -> None:
    wheel = load_measurement(data_dir / "real" / "4fan14_cacti.mat")
    assert (len(wheel.y), len(wheel.masks), wheel.truth) == (1, 14, None)
    assert wheel.masks.max() == 113
