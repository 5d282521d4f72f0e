"""Calibrations in HDF5: in a separate file, or in a group of a recording.

Layout of the group (schema version 1)::

    @format = "sci_stream.calibration"   @schema_version = 1   @content_hash
    phi (B, H, W) float32      dark (H, W) float32      [bad_pixels (H, W) bool]
    @full_scale_dn  [@saturation_dn]  [@read_noise_dn]  [@gain_e_per_dn]  [@bit_depth]  [@bayer]
    @camera_serial  [@exposure_ns]  [@gain_db]  @created  @source  [@patterns]
    [measured/]  raw measurements behind the calibration, if it was measured here:
        white (H, W) float32 DN      flags (H, W) uint8 (1 hot, 2 dead, 4 noisy)
        mask_order (B,) int64        @frames  @field  @clipped_fraction

Unknown values are absent. Recordings do not contain ``measured/``.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TypeVar

import h5py
import numpy as np

from sci_stream.calibration.measurement import Field, Measured
from sci_stream.errors import CalibrationError, FileFormatError
from sci_stream.file_guard import complete_output
from sci_stream.model import BayerPhase
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.hdf5 import (
    build_image,
    check_mark,
    open_for_reading,
    place,
    read_array,
    read_attribute,
    write_mark,
)

C = TypeVar("C", bound=enum.StrEnum)

CALIBRATION_FORMAT = "sci_stream.calibration"
# Optional attributes do not increase it: unknown values are absent.
_SCHEMA_VERSION = 1
# Attributes with their types, and those that every calibration has; `bayer` is a choice.
_ATTRIBUTES: dict[str, type[float | int | str]] = {
    "full_scale_dn": float,
    "saturation_dn": float,
    "read_noise_dn": float,
    "gain_e_per_dn": float,
    "bit_depth": int,
    "bayer": str,
    "camera_serial": str,
    "exposure_ns": int,
    "gain_db": float,
    "created": str,
    "source": str,
    "patterns": str,
}
_REQUIRED = ("full_scale_dn", "camera_serial", "created", "source")


def save_calibration(
    path: Path,
    calibration: Calibration,
    measured: Measured | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write a calibration file into an existing folder, complete or not at all.

    ``measured`` are the measurements it was computed from.

    Raises `StorageError` if the file exists (without ``overwrite``) or cannot be written.
    """

    def fill(file: h5py.File) -> None:
        write_calibration(file, calibration)
        if measured is not None:
            _write_measured(file.create_group("measured"), measured)

    with complete_output(path, replace=overwrite) as partial:
        partial.write_bytes(build_image(fill))


def load_calibration(path: Path) -> Calibration:
    """Read a calibration from a calibration file or a recording, and verify its content.

    Raises `FileFormatError` if the file is missing, of another format, of a newer schema or
    damaged; `CalibrationError` if the content is not a usable calibration.
    """
    with open_for_reading(path, "calibration") as file:
        inside = file.get("calibration")
        group = (
            inside
            if file.attrs.get("format") != CALIBRATION_FORMAT and isinstance(inside, h5py.Group)
            else file
        )
        return read_calibration(group)


def load_measured(path: Path) -> Measured | None:
    """Read the measurements stored in a calibration file; None if it has none.

    Raises `FileFormatError` if the file is missing, of another format or damaged.
    """
    with open_for_reading(path, "calibration") as file:
        group = file.get("measured")
        return _read_measured(group) if isinstance(group, h5py.Group) else None


def _write_measured(group: h5py.Group, measured: Measured) -> None:
    group.create_dataset("white", data=measured.white)
    group.create_dataset("flags", data=measured.flags)
    group.create_dataset("mask_order", data=np.asarray(measured.mask_order, np.int64))
    group.attrs["frames"] = measured.frames
    group.attrs["field"] = measured.field.value
    group.attrs["clipped_fraction"] = measured.clipped_fraction


def _read_measured(group: h5py.Group) -> Measured:
    return Measured(
        white=read_array(group, "white", 2).astype(np.float32),
        flags=read_array(group, "flags", 2).astype(np.uint8),
        frames=read_attribute(group, "frames", int),
        mask_order=tuple(int(b) for b in read_array(group, "mask_order", 1)),
        field=_choice(group, "field", Field),
        clipped_fraction=read_attribute(group, "clipped_fraction", _accepted(float)),
    )


def _accepted(kind: type) -> tuple[type, ...]:
    """Return the types that are read as ``kind``: whole numbers may be stored as integers."""
    return (int, float) if kind is float else (kind,)


def _choice(group: h5py.Group, name: str, choices: type[C]) -> C:
    text = read_attribute(group, name, str)
    if text not in set(choices):
        raise FileFormatError(
            f"The attribute {name!r} of {place(group)} is unknown",
            expected=", ".join(choices),
            got=repr(text),
        )
    return choices(text)


def write_calibration(group: h5py.Group, calibration: Calibration) -> None:
    """Write a calibration into an empty group."""
    write_mark(group, CALIBRATION_FORMAT, _SCHEMA_VERSION)
    group.attrs["content_hash"] = calibration.hash
    group.create_dataset("phi", data=calibration.phi)
    group.create_dataset("dark", data=calibration.dark)
    if calibration.bad_pixels is not None:
        group.create_dataset("bad_pixels", data=calibration.bad_pixels)
    for name, kind in _ATTRIBUTES.items():
        value = getattr(calibration, name)
        if value is not None:
            group.attrs[name] = kind(value)


def read_calibration(group: h5py.Group) -> Calibration:
    """Read a calibration from a group and verify its content hash.

    Raises `FileFormatError` if the group is not a calibration, has a newer schema, is incomplete,
    or its content was changed or damaged; `CalibrationError` if the content is not a usable
    calibration.
    """
    check_mark(group, CALIBRATION_FORMAT, _SCHEMA_VERSION)
    scalars = {
        name: read_attribute(group, name, _accepted(kind), required=name in _REQUIRED)
        for name, kind in _ATTRIBUTES.items()
    }
    scalars["patterns"] = scalars["patterns"] or ""
    if scalars["bayer"] is not None:
        scalars["bayer"] = _choice(group, "bayer", BayerPhase)
    bad_pixels = (
        read_array(group, "bad_pixels", 2).astype(np.bool_) if "bad_pixels" in group else None
    )
    try:
        calibration = Calibration(
            phi=read_array(group, "phi", 3),
            dark=read_array(group, "dark", 2),
            bad_pixels=bad_pixels,
            **scalars,
        )
    except CalibrationError as error:
        raise CalibrationError(
            f"{place(group)}: {error.what}", expected=error.expected, got=error.got, hint=error.hint
        ) from error
    stored = read_attribute(group, "content_hash", str)
    if calibration.hash != stored:
        raise FileFormatError(
            f"The content of {place(group)} does not match its hash",
            expected=f"content_hash {stored}",
            got=calibration.hash,
            hint="The file was edited or damaged; calibrate again or use another copy.",
        )
    return calibration
