"""pynwb opens a recording that was written as NWB, with the times of its frames."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from sci_stream.errors import InputError, StorageError
from sci_stream.recording.writer import RecordingWriter
from sci_stream_bridges.nwb import write_nwb

pytestmark = pytest.mark.filterwarnings("ignore")  # of pynwb's own dependencies
pynwb = pytest.importorskip("pynwb")


@pytest.fixture
def recorded(tmp_path: Path, series) -> Path:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        for seq in (0, 2):
            writer.write_reconstruction(series.reconstruction(seq))
        writer.close({"acquired": 2, "closed": True})
    return tmp_path / "run.h5"


def test_recording_becomes_an_image_series_with_times(recorded: Path, series) -> None:
    out, film = write_nwb(recorded, recorded.with_name("run.nwb"))
    with pynwb.NWBHDF5IO(str(out), "r") as file:
        session = file.read()
        frames = session.acquisition["video"]
        times = np.asarray(frames.timestamps)
        assert session.identifier == series.info.series
        assert list(frames.external_file) == [film.name]
        assert len(times) == 2 * series.info.n_frames
        exposure_s = series.calibration.exposure_ns / 1e9
        np.testing.assert_allclose(np.diff(times[:3]), exposure_s / series.info.n_frames, rtol=1e-3)
    capture = cv2.VideoCapture(str(film))
    assert sum(iter(lambda: capture.read()[0], False)) == len(times)
    capture.release()
    assert not np.ravel(pynwb.validate(path=str(out))).any()


def test_existing_file_is_kept(recorded: Path) -> None:
    out = recorded.with_name("run.nwb")
    out.write_bytes(b"other")
    with pytest.raises(StorageError, match="exists"):
        write_nwb(recorded, out)
    assert out.read_bytes() == b"other"


def test_other_suffix_is_refused(recorded: Path) -> None:
    with pytest.raises(InputError, match=r"ends in \.nwb"):
        write_nwb(recorded, recorded.with_name("run.h5"))
