"""napari: open recordings as layers, and show the live video of a rig in a layer (extra ``napari``).

napari finds the reader by the manifest ``napari.yaml``: ``napari recordings/run.h5`` opens a recording. In a console or
script::

    from sci_stream.bridges.napari_plugin import show_live

    show_live(viewer, "tcp://127.0.0.1:5703")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from sci_stream.errors import FileFormatError
from sci_stream.imaging.rendering import render
from sci_stream.model import Array, Reconstruction
from sci_stream.optional import require_optional
from sci_stream.storage.recording.series import RecordedSeries
from sci_stream.transport.pubsub import DEFAULT_ENDPOINT, subscribe


class LayerOptions(TypedDict, total=False):
    """Options of an image layer, under napari's names."""

    name: str
    metadata: dict[str, str]
    rgb: bool
    contrast_limits: tuple[float, float]
    visible: bool


LayerData = tuple[Any, LayerOptions, str]
_LIVE_NAME = "sci_stream live"


def get_reader(path: str | list[str]) -> Callable[[str | list[str]], list[LayerData]] | None:
    """Return the reader of a recording; None if napari should try another, as its plug-ins do."""
    first = path[0] if isinstance(path, list) else path
    try:
        RecordedSeries(first).close()
    except FileFormatError:
        return None
    return read_layers


def read_layers(path: str | list[str]) -> list[LayerData]:
    """Return the layers of recordings, read when napari shows them: the video, and the coded snapshots.

    Video is (snapshot, frame, y, x) on the scale 0–1, in colour if the sensor is; snapshots are in DN.
    """
    layers: list[LayerData] = []
    for name in path if isinstance(path, list) else [path]:
        series = RecordedSeries(name)  # open as long as napari has the layers
        stem = Path(name).stem
        metadata = {"series": series.info.series, "path": str(name)}
        if len(series.video):
            colour = series.info.bayer is not None
            video: LayerOptions = {"name": f"{stem} video", "metadata": metadata, **_appearance(colour)}
            layers.append((series.rgb() if colour else series.video, video, "image"))
        if len(series.raw):
            top = (1 << min(series.info.bit_depth, 16)) - 1
            raw: LayerOptions = {"name": f"{stem} snapshots", "metadata": metadata, "contrast_limits": (0, top)}
            raw["visible"] = not layers
            layers.append((series.raw, raw, "image"))
    return layers


def _appearance(colour: bool) -> LayerOptions:
    return {"rgb": True} if colour else {"contrast_limits": (0.0, 1.0)}


class LiveLayer:
    """A layer of a viewer that shows the newest reconstruction.

    Parameters
    ----------
    viewer
        A napari viewer, or its model.
    """

    def __init__(self, viewer: Any) -> None:
        self._viewer = viewer
        self.layer: Any = None

    def show(self, reconstruction: Reconstruction) -> None:
        """Show a reconstruction, (frame, y, x); call it in the thread of the viewer."""
        pictures = _pictures(reconstruction)
        if self.layer is None or self.layer.data.shape != pictures.shape:
            if self.layer is not None:
                self._viewer.layers.remove(self.layer)
            colour = pictures.ndim == 4
            self.layer = self._viewer.add_image(pictures, name=_LIVE_NAME, **_appearance(colour))
        else:
            self.layer.data = pictures
        self.layer.metadata = {"seq": reconstruction.id.seq, "series": reconstruction.id.series}


def _pictures(reconstruction: Reconstruction) -> Array:
    """Return the video as shown: (B, H, W) float32, or (B, H, W, 3) uint8 in colour."""
    if reconstruction.bayer is None:
        return np.asarray(reconstruction.video, np.float32)
    return render(reconstruction.video, reconstruction.bayer)


def show_live(viewer: Any = None, taps: str = DEFAULT_ENDPOINT) -> Any:
    """Show the newest video of a running rig in a layer, from a thread of napari; return its worker (``quit()``).

    Parameters
    ----------
    viewer
        The viewer; the current one by default.
    taps
        The ``[network] taps`` address of the rig.

    Raises
    ------
    ConfigError
        If napari is not installed.
    """
    napari = require_optional("napari", "napari", "Showing live video in napari")
    threading = require_optional("napari.qt.threading", "napari", "Showing live video in napari")
    live = LiveLayer(viewer if viewer is not None else napari.current_viewer())

    def receive() -> Iterator[Reconstruction]:
        yield from subscribe(taps)

    return threading.create_worker(receive, _connect={"yielded": live.show})
