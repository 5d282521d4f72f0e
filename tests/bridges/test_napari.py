"""napari opens recordings and shows live video, with the installed library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sci_stream
from sci_stream.bridges import napari_plugin
from sci_stream.errors import ConfigError
from sci_stream.imaging.rendering import render
from sci_stream.storage.recording import RecordingWriter
from tests.bridges.tap import publishing

MANIFEST = Path(napari_plugin.__file__).with_name("napari.yaml")

pytestmark = pytest.mark.filterwarnings("ignore")  # of napari's own dependencies, when they are imported


@pytest.fixture
def recorded(tmp_path: Path, series) -> Path:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        for seq in (0, 2):
            writer.write_reconstruction(series.reconstruction(seq))
        writer.close({"acquired": 2, "closed": True})
    return tmp_path / "run.h5"


@pytest.fixture
def viewer():
    return pytest.importorskip("napari.components").ViewerModel()


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
    assert (raw.name, raw.visible, raw.data.shape) == ("run snapshots", False, (2, 16, 24))
    viewer.dims.set_current_step(0, 1)
    np.testing.assert_array_equal(raw.data[1], series.counts(2))
    np.testing.assert_array_equal(video.data[1], render(series.video(2), series.info.bayer))


def test_manifest_is_valid_and_its_commands_exist() -> None:
    npe2 = pytest.importorskip("npe2")
    manifest = npe2.PluginManifest.from_file(MANIFEST)
    manifest.validate_imports()
    assert manifest.contributions.readers[0].filename_patterns == ["*.h5", "*.nxs"]


def test_live_layer_follows_the_rig(series, viewer, taps: str) -> None:
    live = napari_plugin.LiveLayer(viewer)
    seqs = []
    with publishing(series, taps, bayer=series.info.bayer):
        for reconstruction in sci_stream.subscribe(taps, timeout_s=30.0):
            live.show(reconstruction)
            seqs.append(live.layer.metadata["seq"])
            if len(seqs) == 3:
                break
    assert seqs == sorted(set(seqs))
    assert len(viewer.layers) == 1
    np.testing.assert_array_equal(live.layer.data, render(series.video(seqs[-1]), series.info.bayer))
    mono = series.reconstruction(9, bayer=None)
    live.show(mono)  # another shape: another layer in its place
    assert (len(viewer.layers), live.layer.rgb) == (1, False)
    np.testing.assert_array_equal(live.layer.data, mono.video.astype(np.float32))


def test_live_layer_without_napari_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("sci_stream.optional.importlib.import_module", absent)
    with pytest.raises(ConfigError, match=r"sci-stream\[napari\]"):
        napari_plugin.show_live()
