"""Single frames in common file formats, and a table of their times."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import cv2
import numpy as np

from sci_stream.errors import InputError, StorageError
from sci_stream.file_guard import writing
from sci_stream.model import Array, CameraFrame

FrameFormat = Literal["npy", "tiff", "png"]


def write_frame(path: Path, counts: Array) -> None:
    """Write the counts of a frame unchanged.

    The suffix selects the format: ``.npy``, ``.tiff`` or ``.png``. Counts are (H, W) uint8, uint16 or float32, DN; PNG
    accepts integers only.

    Raises
    ------
    InputError
        If the format is unknown or does not support these counts.
    StorageError
        If the file cannot be written.
    """
    suffix = path.suffix.removeprefix(".")
    if suffix not in get_args(FrameFormat) or (suffix == "png" and counts.dtype.kind != "u"):
        raise InputError(
            f"A frame of {counts.dtype} cannot be written to {path.name}", expected=", ".join(get_args(FrameFormat))
        )
    with writing(path):
        if suffix == "npy":
            np.save(path, counts)
        else:
            done, encoded = cv2.imencode(path.suffix, counts)
            if not done:
                raise StorageError(f"{path} cannot be encoded")
            path.write_bytes(encoded.tobytes())


def write_frames(folder: Path, frames: Sequence[CameraFrame], suffix: FrameFormat) -> None:
    """Write frames as ``000000.npy`` and so on, and ``frames.csv`` with ids, times and chunk data.

    Raises
    ------
    InputError, StorageError
        As `write_frame`.
    """
    chunks = sorted({name for frame in frames for name in frame.chunks})
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for number, frame in enumerate(frames):
            write_frame(folder / f"{number:06d}.{suffix}", frame.counts)
        with (folder / "frames.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["number", "frame_id", "camera_time_ns", "host_time_ns", *chunks])
            for number, frame in enumerate(frames):
                values = [frame.chunks.get(name, "") for name in chunks]
                table.writerow([number, frame.frame_id, frame.camera_time_ns, frame.host_time_ns, *values])
