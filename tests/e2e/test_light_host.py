"""Hosts without torch and hdf5plugin: acquire, sink, check, inspect and export work; errors name
the library.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sci_stream.config import load_rig
from sci_stream.recording.layout import Compression
from sci_stream.recording.reader import Recording
from sci_stream.recording.writer import RecordingWriter
from tests.e2e.kit import COMMAND, PATIENCE_S, ROOT, environment, sci_stream, write_rig
from tests.ports import free_ports
from tests.rig_in_process import start_reconstruct
from tests.series_fixtures import Series

pytestmark = pytest.mark.rig

_BLOCKER = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton", "hdf5plugin"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.fixture
def light(tmp_path: Path) -> str:
    """Return the PYTHONPATH of a host without torch and hdf5plugin."""
    folder = tmp_path / "light"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_BLOCKER)
    return f"{folder}:{ROOT}:{ROOT / 'drivers'}"


def test_light_acquire_and_sink_write_readable_recording(tmp_path: Path, light: str) -> None:
    rig = write_rig(tmp_path)
    sink, acquire = (
        subprocess.Popen(
            [*COMMAND, *words], cwd=tmp_path, env={**environment(), "PYTHONPATH": light}
        )
        for words in (["sink", rig], ["acquire", rig, "--snapshots", "4"])
    )
    reconstruct = start_reconstruct(load_rig(rig, overrides={}))
    try:
        assert acquire.wait(2 * PATIENCE_S) == 0
    finally:
        reconstruct.stop()
        for process in (sink, acquire):
            process.terminate()
            process.wait(PATIENCE_S)
    (path,) = (tmp_path / "recordings").glob("*.h5")
    with Recording(path) as recording:
        assert recording.raw_seqs == [0, 1, 2, 3]
        assert recording.ledger is not None
        assert recording.ledger["reconstructed"] == 4
    shown = sci_stream("inspect", path, cwd=tmp_path, PYTHONPATH=light)
    assert shown.status == 0, shown.output
    exported = sci_stream("export", path, "video.tiff", cwd=tmp_path, PYTHONPATH=light)
    assert exported.status == 0, exported.output
    replayed = sci_stream("replay", path, cwd=tmp_path, PYTHONPATH=light)
    assert replayed.status == 2
    assert 'pip install "sci-stream[reconstruct]"' in replayed.output
    assert "Traceback" not in replayed.output


def test_check_without_torch_fails_only_for_local_reconstruction(
    tmp_path: Path, light: str
) -> None:
    alone = sci_stream("check", write_rig(tmp_path), cwd=tmp_path, PYTHONPATH=light)
    assert alone.status == 2, alone.output
    assert (
        alone.output.count('pip install "sci-stream[reconstruct]"') == 3
    )  # masks, device and denoiser
    (port,) = free_ports(1)
    several = write_rig(
        tmp_path,
        {
            "network": {"dispatch": f"tcp://0.0.0.0:{port}"},
            "security": {"unprotected_network": True},
        },
    )
    checked = sci_stream("check", several, cwd=tmp_path, PYTHONPATH=light)
    assert checked.status == 0, checked.output
    assert "it can acquire, record and export, but not reconstruct" in checked.output


def test_compression_without_hdf5plugin_is_found_by_check(tmp_path: Path, light: str) -> None:
    rig = write_rig(tmp_path, {"record": {"compression": "bitshuffle_lz4"}})
    checked = sci_stream("check", rig, cwd=tmp_path, PYTHONPATH=light)
    assert 'pip install "sci-stream[compression]"' in checked.output


def test_compressed_recording_without_hdf5plugin_names_the_extra(
    tmp_path: Path, light: str, series: Series
) -> None:
    path = tmp_path / "run.h5"
    with RecordingWriter(
        path, series.info, series.calibration, compression=Compression.BITSHUFFLE_LZ4
    ) as writer:
        writer.write_reconstruction(series.reconstruction(0))
    exported = sci_stream("export", path, "video.tiff", cwd=tmp_path, PYTHONPATH=light)
    assert 'pip install "sci-stream[compression]"' in exported.output
    assert "damaged" not in exported.output


def test_drivers_import_without_torch(light: str) -> None:
    names = ("simulated", "harvesters", "replay")
    program = (
        f"from sci_stream.devices.camera_drivers import load_driver; [*map(load_driver, {names})]"
    )
    subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**environment(), "PYTHONPATH": light},
        check=True,
    )
