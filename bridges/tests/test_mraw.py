"""A recording becomes MRAW frames with a CIH header."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sci_stream.errors import InputError, StorageError
from sci_stream.recording.writer import RecordingWriter
from sci_stream_bridges.mraw import write_mraw


@pytest.fixture
def recorded(tmp_path: Path, series) -> Path:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        for seq in (0, 2):
            writer.write_reconstruction(series.reconstruction(seq))
        writer.close({"acquired": 2, "closed": True})
    return tmp_path / "run.h5"


def test_header_describes_the_frames(recorded: Path, series) -> None:
    header, frames = write_mraw(recorded, recorded.with_name("run.cih"))
    lines = header.read_text().splitlines()
    assert lines[0] == "#Camera Information Header"
    entries = dict(line.split(" : ", 1) for line in lines[1:-1])
    shape = tuple(int(entries[f"{key}"]) for key in ("Total Frame", "Image Height", "Image Width"))
    assert shape == (2 * series.info.n_frames, series.info.height_px, series.info.width_px)
    values = np.fromfile(frames, "<u2").reshape(shape)
    expected = np.concatenate([series.video(seq) for seq in (0, 2)]).astype(np.float32)
    np.testing.assert_allclose(values / 65535, expected.clip(0, 1), atol=1e-5)


def test_existing_frames_are_kept(recorded: Path) -> None:
    frames = recorded.with_name("run.mraw")
    frames.write_bytes(b"other")
    with pytest.raises(StorageError, match="exists"):
        write_mraw(recorded, recorded.with_name("run.cih"))
    assert frames.read_bytes() == b"other"


def test_other_suffix_is_refused(recorded: Path) -> None:
    with pytest.raises(InputError, match=r"ends in \.cih"):
        write_mraw(recorded, recorded.with_name("run.mraw"))
