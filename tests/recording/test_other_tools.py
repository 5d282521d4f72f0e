"""Other programs open recordings: plain h5py, silx, h5ls and h5dump."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from sci_stream.recording.layout import Compression
from sci_stream.recording.writer import RecordingWriter


@pytest.fixture(params=["finished", "compressed", "live"])
def recording(request, tmp_path: Path, series):
    """A recording of two snapshots, in every state in which it may be opened."""
    path = tmp_path / "run.h5"
    compression = Compression.BITSHUFFLE_LZ4 if request.param == "compressed" else Compression.NONE
    writer = RecordingWriter(path, series.info, series.calibration, compression=compression)
    writer.write_reconstruction(series.reconstruction(0))
    writer.write_reconstruction(series.reconstruction(1))
    writer.flush()
    if request.param != "live":
        writer.close({"acquired": 2, "closed": True})
    yield path
    writer.close()


def test_silx_finds_the_default_plot(recording: Path, series) -> None:
    io = pytest.importorskip("silx.io")
    nxdata = pytest.importorskip("silx.io.nxdata")
    with io.open(str(recording)) as file:
        plot = nxdata.get_default(file, validate=True)
        assert plot is not None
        assert plot.is_valid
        assert plot.interpretation == "image"
        assert plot.signal_name == "coded snapshots (DN)"
        assert np.array_equal(plot.signal[1], series.counts(1))
        assert np.array_equal(file["entry/video/data"][0], series.video(0))


# Not one that is being written, or was left by a crash: these tools do not read as SWMR.
# `sci-stream repair` helps.
@pytest.mark.parametrize("recording", ["finished", "compressed", "segments"], indirect=True)
@pytest.mark.parametrize("tool", [("h5ls", "-r"), ("h5dump", "-H")], ids=lambda tool: tool[0])
def test_hdf5_tools_list_a_recording(recording: Path, tool: tuple[str, ...]) -> None:
    if shutil.which(tool[0]) is None:
        pytest.skip(f"{tool[0]} is not installed (Debian: hdf5-tools)")
    done = subprocess.run([*tool, str(recording)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "raw" in done.stdout
    assert "video" in done.stdout
