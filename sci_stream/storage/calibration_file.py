"""Calibrations in HDF5: in a separate file, or in a group of a recording.

Layout of the group (schema version 1)::

    @format = "sci_stream.calibration"   @schema_version = 1   @content_hash
    phi (B, H, W) float32      dark (H, W) float32      [bad_pixels (H, W) bool]
    @full_scale_dn  [@saturation_dn]  [@read_noise_dn]  [@gain_e_per_dn]  [@bit_depth]  [@bayer]
    @camera_serial  [@exposure_ns]  [@gain_db]  @created  @source
    [measured/]  raw measurements behind the calibration, if it was measured here:
        white (H, W) float32 DN      flags (H, W) uint8 (1 hot, 2 dead, 4 noisy)      mask_order (B,) int64
        @frames  @field  @clipped_fraction

Unknown values are absent. Recordings do not contain ``measured/``.
"""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np

from sci_stream.calibration.measurement import Field, Measured
from sci_stream.errors import CalibrationError, FileFormatError, StorageError
from sci_stream.model import BayerPhase
from sci_stream.optics.calibration import Calibration
from sci_stream.storage.hdf5 import (
    build_image,
    check_mark,
    open_for_reading,
    place,
    read_array,
    read_attribute,
    write_mark,
)

FORMAT = "sci_stream.calibration"
# Optional attributes do not increase it: what is unknown is absent.
_SCHEMA_VERSION = 1


def save_calibration(
    path: Path, calibration: Calibration, measured: Measured | None = None, *, overwrite: bool = False
) -> None:
    """Write a calibration file, complete or not at all.

    Parameters
    ----------
    path
        Output file; its folder must exist.
    calibration, measured
        The calibration, and the measurements it was computed from.
    overwrite
        Replace an existing file instead of raising an error.

    Raises
    ------
    StorageError
        If the file exists (without ``overwrite``) or cannot be written.
    """
    if path.exists() and not overwrite:
        raise StorageError(f"The calibration file {path} exists", hint="Choose another name, or allow overwriting.")
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")

    def fill(file: h5py.File) -> None:
        write_calibration(file, calibration)
        if measured is not None:
            _write_measured(file.create_group("measured"), measured)

    image = build_image(fill)
    try:
        partial.write_bytes(image)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"The calibration file {path} cannot be written", got=error) from error


def load_calibration(path: Path) -> Calibration:
    """Read a calibration from a calibration file or a recording, and verify its content.

    Raises
    ------
    FileFormatError
        If the file is missing, of another format, of a newer schema or damaged.
    CalibrationError
        If the content is not a usable calibration.
    """
    with open_for_reading(path, "calibration") as file:
        inside = file.get("calibration")
        group = inside if file.attrs.get("format") != FORMAT and isinstance(inside, h5py.Group) else file
        return read_calibration(group)


def load_measured(path: Path) -> Measured | None:
    """Read the measurements stored in a calibration file; None if it has none.

    Raises
    ------
    FileFormatError
        If the file is missing, of another format or damaged.
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
    number = (int, float)
    white_field = read_attribute(group, "field", str)
    if white_field not in set(Field):
        raise FileFormatError(
            f"The attribute 'field' of {place(group)} is unknown", expected=", ".join(Field), got=repr(white_field)
        )
    return Measured(
        white=read_array(group, "white", 2).astype(np.float32),
        flags=read_array(group, "flags", 2).astype(np.uint8),
        frames=read_attribute(group, "frames", int),
        mask_order=tuple(int(b) for b in read_array(group, "mask_order", 1)),
        field=Field(white_field),
        clipped_fraction=read_attribute(group, "clipped_fraction", number),
    )


def write_calibration(group: h5py.Group, calibration: Calibration) -> None:
    """Write a calibration into an empty group."""
    write_mark(group, FORMAT, _SCHEMA_VERSION)
    group.attrs["content_hash"] = calibration.hash
    group.create_dataset("phi", data=calibration.phi)
    group.create_dataset("dark", data=calibration.dark)
    if calibration.bad_pixels is not None:
        group.create_dataset("bad_pixels", data=calibration.bad_pixels)
    scalars: dict[str, object] = {
        "full_scale_dn": float(calibration.full_scale_dn),
        "saturation_dn": None if calibration.saturation_dn is None else float(calibration.saturation_dn),
        "read_noise_dn": calibration.read_noise_dn,
        "gain_e_per_dn": calibration.gain_e_per_dn,
        "bit_depth": calibration.bit_depth,
        "bayer": None if calibration.bayer is None else str(calibration.bayer),
        "camera_serial": calibration.camera_serial,
        "exposure_ns": calibration.exposure_ns,
        "gain_db": calibration.gain_db,
        "created": calibration.created,
        "source": calibration.source,
    }
    for name, value in scalars.items():
        if value is not None:
            group.attrs[name] = value


def read_calibration(group: h5py.Group) -> Calibration:
    """Read a calibration from a group and verify its content hash.

    Raises
    ------
    FileFormatError
        If the group is not a calibration, has a newer schema, is incomplete, or its content was changed or damaged.
    CalibrationError
        If the content is not a usable calibration.
    """
    check_mark(group, FORMAT, _SCHEMA_VERSION)
    bayer = read_attribute(group, "bayer", str, required=False)
    if bayer is not None and bayer not in set(BayerPhase):
        raise FileFormatError(
            f"The attribute 'bayer' of {place(group)} is unknown", expected=", ".join(BayerPhase), got=repr(bayer)
        )
    number = (int, float)
    bad_pixels = read_array(group, "bad_pixels", 2).astype(np.bool_) if "bad_pixels" in group else None
    try:
        calibration = Calibration(
            phi=read_array(group, "phi", 3),
            dark=read_array(group, "dark", 2),
            bad_pixels=bad_pixels,
            bayer=None if bayer is None else BayerPhase(bayer),
            full_scale_dn=read_attribute(group, "full_scale_dn", number),
            saturation_dn=read_attribute(group, "saturation_dn", number, required=False),
            read_noise_dn=read_attribute(group, "read_noise_dn", number, required=False),
            gain_e_per_dn=read_attribute(group, "gain_e_per_dn", number, required=False),
            bit_depth=read_attribute(group, "bit_depth", int, required=False),
            camera_serial=read_attribute(group, "camera_serial", str),
            exposure_ns=read_attribute(group, "exposure_ns", int, required=False),
            gain_db=read_attribute(group, "gain_db", number, required=False),
            created=read_attribute(group, "created", str),
            source=read_attribute(group, "source", str),
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
