"""Save one reconstruction on demand: images and data."""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path

import numpy as np

from sci_stream.errors import InputError, StorageError
from sci_stream.imaging.rendering import encode_png, render
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import Json, Reconstruction
from sci_stream.web.message import description

# A person saves a snapshot a few times: so many come from a program that would fill the disk.
_MAX_OF_A_NAME = 1000


def save_still(folder: Path, reconstruction: Reconstruction, tone: ToneSettings) -> Path:
    """Save a reconstruction to a new folder in ``folder``, completely or not at all; return it.

    Its name is of series and seq. It contains ``frame_00.png`` … as on the screen, ``data.npz`` with ``video``
    (B, H, W) and ``counts`` (H, W, DN) without tone, ``coded.png`` with the counts if they are integers, and the
    description ``snapshot.json``.

    Raises
    ------
    StorageError
        If it cannot be written.
    InputError
        If the series' name, which may come from the network, is not a file name.
    """
    ident = reconstruction.id
    name = f"{ident.series}_{ident.seq:06d}"
    if not name.isprintable() or set(name) & set("/\\") or name.startswith("."):
        raise InputError("The name of the series cannot be a file name", got=repr(ident.series))
    scratch = folder / f".{secrets.token_hex(4)}.part"
    try:
        scratch.mkdir(parents=True)
        try:
            _write(scratch, reconstruction, tone)
            return _publish(scratch, folder, name)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise StorageError(
            f"The snapshot cannot be saved in {folder}",
            got=error.strerror or error,
            hint="The folder must be writable and have free space.",
        ) from error


def _publish(scratch: Path, folder: Path, name: str) -> Path:
    for attempt in range(_MAX_OF_A_NAME):
        target = folder / (name if attempt == 0 else f"{name}_{attempt}")
        if not target.exists():
            return scratch.rename(target)
    raise FileExistsError(f"{name} was saved {_MAX_OF_A_NAME} times")


def _write(folder: Path, reconstruction: Reconstruction, tone: ToneSettings) -> None:
    for number, frame in enumerate(render(reconstruction.video, reconstruction.bayer, tone)):
        (folder / f"frame_{number:02d}.png").write_bytes(encode_png(frame))
    arrays = {"video": reconstruction.video}
    if reconstruction.counts is not None:
        arrays["counts"] = reconstruction.counts
        if reconstruction.counts.dtype in (np.uint8, np.uint16):
            (folder / "coded.png").write_bytes(encode_png(reconstruction.counts))
    np.savez_compressed(folder / "data.npz", allow_pickle=False, **arrays)
    (folder / "snapshot.json").write_text(json.dumps(_describe(reconstruction, tone), indent=2) + "\n")


def _describe(reconstruction: Reconstruction, tone: ToneSettings) -> dict[str, Json]:
    return {
        **description(reconstruction),
        "camera_frame_id": reconstruction.camera_frame_id,
        "camera_time_ns": reconstruction.camera_time_ns,
        "calibration_hash": reconstruction.calibration_hash,
        "tone": tone.as_dict(),
    }
