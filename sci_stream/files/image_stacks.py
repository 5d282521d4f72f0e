"""Write frames as OME-TIFF, OME-Zarr or PNG images, one frame at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sci_stream.errors import StorageError, require_optional
from sci_stream.file_guard import writing
from sci_stream.imaging.rendering import encode_png
from sci_stream.model import Array, Json


@dataclass(frozen=True, slots=True)
class Stack:
    """The frames to write: ``frames`` of one shape and dtype, (H, W) or, in colour, (H, W, 3).

    ``count`` is their number, ``interval_s`` the frame interval if known, ``labels`` the file names, and ``notes``
    are stored as metadata. ``times_s`` are the times of the frames after ``started``, an ISO 8601 time; both may be
    empty. ``pixel_um`` is the size of a pixel, µm, None if unknown.
    """

    frames: Iterable[Array]
    count: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    name: str
    labels: list[str]
    interval_s: float | None
    notes: dict[str, str]
    times_s: Sequence[float] = ()
    started: str = ""
    pixel_um: float | None = None

    @property
    def colour(self) -> bool:
        """Whether the frames are RGB."""
        return len(self.shape) == 3


def write_tiff(path: Path, stack: Stack) -> None:
    """Write a BigTIFF with OME metadata, axes TYX (or TYXS in colour).

    Raises
    ------
    ConfigError
        If tifffile is not installed.
    StorageError
        If the file cannot be written.
    """
    tifffile = require_optional("tifffile", "export", "Writing TIFF")
    metadata: dict[str, Json] = {
        "axes": "TYXS" if stack.colour else "TYX",
        "Name": stack.name,
        "Description": "; ".join(f"{key} = {value}" for key, value in stack.notes.items()),
    }
    if stack.interval_s is not None:
        metadata |= {"TimeIncrement": stack.interval_s, "TimeIncrementUnit": "s"}
    if stack.pixel_um is not None:
        for axis in "XY":
            metadata |= {f"PhysicalSize{axis}": stack.pixel_um, f"PhysicalSize{axis}Unit": "µm"}
    if stack.started:
        metadata["AcquisitionDate"] = stack.started
    if stack.times_s:
        units = ["s"] * stack.count
        metadata["Plane"] = {"DeltaT": list(stack.times_s), "DeltaTUnit": units}
    with writing(path), tifffile.TiffWriter(path, bigtiff=True, ome=True) as writer:
        writer.write(
            iter(stack.frames),
            shape=(stack.count, *stack.shape),
            dtype=stack.dtype,
            photometric="rgb" if stack.colour else "minisblack",
            metadata=metadata,
        )


def write_zarr(path: Path, stack: Stack) -> None:
    """Write a Zarr v3 group with OME metadata (version 0.5), one level, axes t, y, x (or t, c, y, x in colour).

    Raises
    ------
    ConfigError
        If zarr is not installed.
    StorageError
        If the file cannot be written.
    """
    zarr = require_optional("zarr", "export", "Writing Zarr")
    height, width = stack.shape[:2]
    shape = (stack.count, 3, height, width) if stack.colour else (stack.count, height, width)
    unit = {} if stack.pixel_um is None else {"unit": "micrometer"}
    space = [{"name": name, "type": "space"} | unit for name in "yx"]
    channel = [{"name": "c", "type": "channel"}] if stack.colour else []
    time_axis = {"name": "t", "type": "time"} | ({} if stack.interval_s is None else {"unit": "second"})
    scale = [stack.interval_s or 1.0, *[1.0] * len(channel), *[stack.pixel_um or 1.0] * len(space)]
    multiscale = {
        "name": stack.name,
        "axes": [time_axis, *channel, *space],
        "datasets": [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": scale}]}],
    }
    with writing(path):
        group = zarr.open_group(path, mode="w", zarr_format=3)
        group.attrs.update({"ome": {"version": "0.5", "multiscales": [multiscale]}, "sci_stream": _zarr_notes(stack)})
        array = group.create_array(
            "0",
            shape=shape,
            dtype=stack.dtype,
            chunks=(1, *shape[1:]),
            dimension_names=[a["name"] for a in multiscale["axes"]],  # type: ignore[index]
        )
        for index, frame in enumerate(stack.frames):
            array[index] = np.moveaxis(frame, -1, 0) if stack.colour else frame


def _zarr_notes(stack: Stack) -> dict[str, Json]:
    """Return the metadata that OME-Zarr has no place for."""
    notes: dict[str, Json] = dict(stack.notes)
    if stack.started:
        notes["acquisition_date"] = stack.started
    if stack.times_s:
        notes["times_s"] = list(stack.times_s)
    return notes


def write_png(path: Path, stack: Stack) -> None:
    """Write a folder of PNG images, 8 or 16 bit, ``<label>.png`` each.

    Raises
    ------
    StorageError
        If a file cannot be written.
    """
    try:
        path.mkdir()
        for label, frame in zip(stack.labels, stack.frames, strict=True):
            (path / f"{label}.png").write_bytes(encode_png(frame))
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be written", got=error) from error
