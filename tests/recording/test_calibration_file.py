"""Calibration files: round trip, and refusal of damaged files."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.errors import CalibrationError, FileFormatError, StorageError
from sci_stream.model import BayerPhase
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.calibration_file import (
    load_calibration,
    read_calibration,
    save_calibration,
    write_calibration,
)


def same(one: Calibration, other: Calibration) -> bool:
    scalars = (
        "full_scale_dn", "saturation_dn", "read_noise_dn", "gain_e_per_dn", "bit_depth", "bayer",
        "camera_serial",
        "exposure_ns", "gain_db", "created", "source",
    )  # fmt: skip
    arrays = (
        np.array_equal(one.phi, other.phi)
        and np.array_equal(one.dark, other.dark)
        and (
            one.bad_pixels is None
            if other.bad_pixels is None
            else np.array_equal(one.bad_pixels, other.bad_pixels)  # type: ignore[arg-type]  # None is unequal too
        )
    )
    return arrays and all(getattr(one, name) == getattr(other, name) for name in scalars)


def test_every_field_round_trips(tmp_path: Path, series) -> None:
    save_calibration(tmp_path / "c.h5", series.calibration)
    loaded = load_calibration(tmp_path / "c.h5")
    assert same(loaded, series.calibration)
    assert loaded.hash == series.calibration.hash


@given(
    full_scale=st.floats(1e-3, 1e6),
    saturation=st.none() | st.floats(1, 1e6),
    noise=st.tuples(st.none() | st.floats(0, 1e4), st.none() | st.floats(1e-6, 1e6)),
    bayer=st.none() | st.sampled_from(BayerPhase),
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
    bad=st.booleans(),
)
def test_any_valid_calibration_round_trips(  # noqa: PLR0917  # pytest and hypothesis pass by name
    tmp_path_factory, full_scale, saturation, noise, bayer, text, bad
) -> None:
    calibration = Calibration(
        phi=np.full((2, 4, 6), 0.5, np.float32),
        full_scale_dn=full_scale,
        saturation_dn=saturation,
        read_noise_dn=noise[0],
        gain_e_per_dn=noise[1],
        bayer=bayer,
        source=text,
        bad_pixels=np.eye(4, 6, dtype=bool) if bad else None,
    )
    with h5py.File(tmp_path_factory.mktemp("c") / "c.h5", "w") as file:
        write_calibration(file, calibration)
        assert same(read_calibration(file), calibration)


def test_existing_file_is_replaced_only_on_request(tmp_path: Path, series) -> None:
    path = tmp_path / "c.h5"
    save_calibration(path, series.calibration)
    with pytest.raises(StorageError, match="exists"):
        save_calibration(path, series.calibration)
    save_calibration(path, series.calibration, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["c.h5"]


def test_missing_folder_is_named(tmp_path: Path, series) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        save_calibration(tmp_path / "nowhere" / "c.h5", series.calibration)


def test_changed_content_is_refused(tmp_path: Path, series) -> None:
    path = tmp_path / "c.h5"
    save_calibration(path, series.calibration)
    with h5py.File(path, "r+") as file:
        file["phi"][0, 0, 0] = 0.123
    with pytest.raises(FileFormatError, match=r"c\.h5.*content_hash"):
        load_calibration(path)


def break_nothing_there(path: Path) -> None:
    path.unlink()


def break_text(path: Path) -> None:
    path.write_text("phi = 1")


def break_empty(path: Path) -> None:
    path.write_bytes(b"")


def break_truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:300])


def break_other_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["phi"] = np.zeros((2, 4, 4))


def break_version(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["schema_version"] = 99


def break_missing_phi(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["phi"]


def break_text_phi(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["phi"]
        file["phi"] = "masks"


def break_bayer(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["bayer"] = "XYZW"


def break_scale(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["full_scale_dn"] = "much"


@pytest.mark.parametrize(
    ("break_it", "named"),
    [
        (break_nothing_there, "no calibration file"),
        (break_text, "HDF5"),
        (break_empty, "HDF5"),
        (break_truncated, "HDF5"),
        (break_other_hdf5, "format"),
        (break_version, "schema_version"),
        (break_missing_phi, "phi"),
        (break_text_phi, "phi"),
        (break_bayer, "XYZW"),
        (break_scale, "full_scale_dn"),
    ],
)
def test_invalid_file_is_refused_with_its_name(
    tmp_path: Path, series, break_it, named: str
) -> None:
    path = tmp_path / "c.h5"
    save_calibration(path, series.calibration)
    break_it(path)
    with pytest.raises(FileFormatError) as refused:
        load_calibration(path)
    assert str(path) in str(refused.value)
    assert named in str(refused.value)


def test_invalid_masks_are_refused_with_the_file(tmp_path: Path, series) -> None:
    path = tmp_path / "c.h5"
    save_calibration(path, series.calibration)
    with h5py.File(path, "r+") as file:
        file["phi"][0, 0, 0] = 7.0
    with pytest.raises(CalibrationError, match=r"c\.h5.*transmission"):
        load_calibration(path)
