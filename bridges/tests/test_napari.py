"""napari opens recordings, with the installed library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sci_stream.imaging.rendering import render
from sci_stream.recording.writer import RecordingWriter
from sci_stream_bridges import napari_plugin

MANIFEST = Path(napari_plugin.__file__).with_name("napari.yaml")

pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # of napari's own dependencies, when they are imported


@pytest.fixture
def recorded(tmp_path: Path, series) -> Path:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        for seq in (0, 2):
            writer.write_reconstruction(series.reconstruction(seq))
        writer.close({"acquired": 2, "closed": True})
    return tmp_path / "run.h5"


@pytest.fixture
def viewer():
    return pytest.importorskip("napari.components", exc_type=ModuleNotFoundError).ViewerModel()


def test_reader_takes_recordings_only(recorded: Path, tmp_path: Path) -> None:
    assert napari_plugin.get_reader(str(recorded)) is napari_plugin.read_layers
    assert napari_plugin.get_reader([str(recorded)]) is napari_plugin.read_layers
    (tmp_path / "other.h5").write_text("something else")
    assert napari_plugin.get_reader(str(tmp_path / "other.h5")) is None
    assert napari_plugin.get_reader(str(tmp_path / "absent.h5")) is None


def test_recording_becomes_layers(recorded: Path, series, viewer) -> None:
    for data, options, kind in napari_plugin.read_layers(str(recorded)):
        assert kind == "image"
        viewer.add_image(data, **options)
    video, raw = viewer.layers
    assert (video.name, video.rgb, video.data.shape) == ("run video", True, (2, 3, 16, 24, 3))
    assert (raw.name, raw.visible, raw.data.shape) == ("run snapshots", False, (2, 1, 16, 24))
    viewer.dims.set_current_step(0, 1)
    np.testing.assert_array_equal(raw.data[1, 0], series.counts(2))
    raw.visible = True
    for frame in range(3):
        viewer.dims.set_current_step(1, frame)
        assert raw.get_value((1, frame, 5, 6), world=True) == series.counts(2)[5, 6]
    np.testing.assert_array_equal(video.data[1], render(series.video(2), series.info.bayer))


def test_manifest_is_valid_and_its_commands_exist() -> None:
    npe2 = pytest.importorskip("npe2", exc_type=ModuleNotFoundError)
    manifest = npe2.PluginManifest.from_file(MANIFEST)
    manifest.validate_imports()
    assert manifest.contributions.readers[0].filename_patterns == ["*.h5"]
