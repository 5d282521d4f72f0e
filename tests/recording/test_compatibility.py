"""Files of the version before the rearrangement of the packages: one calibration, one
recording.

The files in `data` were written by commit 1f49c1d with the simulated camera: 64×64 pixels, B = 4,
TV prior. No one can record a measurement again, so they must stay readable, with the same pixels.
"""

from __future__ import annotations

import hashlib
import lzma
from pathlib import Path

import numpy as np
import pytest

import sci_stream
from sci_stream.model import Array
from sci_stream.recording.calibration_file import load_calibration, load_measured

DATA = Path(__file__).parent / "data"


def unpacked(name: str, folder: Path) -> Path:
    path = folder / name
    path.write_bytes(lzma.decompress((DATA / f"{name}.xz").read_bytes()))
    return path


def digest(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def test_old_calibration_is_read_with_equal_masks(tmp_path: Path) -> None:
    path = unpacked("calibration.h5", tmp_path)
    calibration, measured = load_calibration(path), load_measured(path)
    assert calibration.hash == "f6b721878015d325a9845371466bb9df"
    assert digest(calibration.phi) == "a1a94d9419b361da"
    assert digest(calibration.dark) == "3a04b9af075ed5c2"
    assert calibration.full_scale_dn == pytest.approx(906.875)
    assert measured is not None
    assert digest(measured.white) == "a0f32fa633d3e45c"


def test_old_recording_is_read_with_equal_pixels(tmp_path: Path) -> None:
    with sci_stream.open(unpacked("recording.h5", tmp_path)) as recording:
        assert recording.finished
        assert recording.ledger is not None
        assert (recording.ledger["acquired"], recording.ledger["reconstructed"]) == (2, 2)
        assert (
            recording.calibration.hash
            == recording.info.calibration_hash
            == "211298af874224ea6ae78fd876443fc3"
        )
        assert digest(np.asarray(recording.raw)) == "f9b63571478c019d"
        assert digest(np.asarray(recording.video)) == "cbdc75f2620b6203"
        assert recording.table["start_reason"].tolist() == [b"first", b"warm"]
        assert recording.table["camera_time_ns"].tolist() == [500_000_000, 1_000_000_000]
