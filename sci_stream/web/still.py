"""A snapshot on demand, as a zip archive: images and data."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator

import numpy as np

from sci_stream.imaging.rendering import encode_png, render
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import Reconstruction
from sci_stream.web.message import description


def zip_still(reconstruction: Reconstruction, tone: ToneSettings) -> bytes:
    """Return a zip archive of a reconstruction.

    It contains ``frame_00.png`` … as on the screen, ``data.npz`` with ``video`` (B, H, W) and ``counts`` (H, W, DN)
    without tone, ``coded.png`` with the counts if they are integers, and the description ``snapshot.json``.
    """
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in _files(reconstruction, tone):
            file.writestr(name, content)
    return archive.getvalue()


def _files(reconstruction: Reconstruction, tone: ToneSettings) -> Iterator[tuple[str, bytes | str]]:
    for number, frame in enumerate(render(reconstruction.video, reconstruction.bayer, tone)):
        yield f"frame_{number:02d}.png", encode_png(frame)
    arrays = {"video": reconstruction.video}
    if reconstruction.counts is not None:
        arrays["counts"] = reconstruction.counts
        if reconstruction.counts.dtype in (np.uint8, np.uint16):
            yield "coded.png", encode_png(reconstruction.counts)
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **arrays)
    yield "data.npz", data.getvalue()
    described = {
        **description(reconstruction),
        "camera_frame_id": reconstruction.camera_frame_id,
        "camera_time_ns": reconstruction.camera_time_ns,
        "calibration_hash": reconstruction.calibration_hash,
        "tone": tone.as_dict(),
    }
    yield "snapshot.json", json.dumps(described, indent=2) + "\n"
