"""napari: open recordings as layers (extra ``napari``).

napari finds the reader by the manifest ``napari.yaml``: ``napari recordings/run.h5`` opens a
recording.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from sci_stream.errors import FileFormatError
from sci_stream.recording.series import FrameStack, RecordedSeries


class LayerOptions(TypedDict, total=False):
    """Options of an image layer, under napari's names."""

    name: str
    metadata: dict[str, str]
    rgb: bool
    contrast_limits: tuple[float, float]
    visible: bool
    scale: tuple[float, ...]
    translate: tuple[float, ...]


LayerData = tuple[Any, LayerOptions, str]


def get_reader(path: str | list[str]) -> Callable[[str | list[str]], list[LayerData]] | None:
    """Return the reader of a recording; None if napari should try another, as its plug-ins do."""
    first = path[0] if isinstance(path, list) else path
    try:
        RecordedSeries(first).close()
    except FileFormatError:
        return None
    return read_layers


def read_layers(path: str | list[str]) -> list[LayerData]:
    """Return the layers of recordings, read when napari shows them: the video, and the coded
    snapshots.

    Video is (snapshot, frame, y, x) on the scale 0–1, in colour if the sensor is; snapshots are in
    DN, and each spans the frames of its video.
    """
    layers: list[LayerData] = []
    for name in path if isinstance(path, list) else [path]:
        series = RecordedSeries(name)  # open as long as napari has the layers
        stem = Path(name).stem
        metadata = {"series": series.info.series, "path": str(name)}
        if len(series.video):
            colour = series.info.bayer is not None
            video: LayerOptions = {"name": f"{stem} video", "metadata": metadata}
            if colour:
                video["rgb"] = True
            else:
                video["contrast_limits"] = (0.0, 1.0)
            layers.append((series.rgb() if colour else series.video, video, "image"))
        if len(series.raw):
            top = (1 << min(series.info.bit_depth, 16)) - 1
            raw: LayerOptions = {
                "name": f"{stem} snapshots",
                "metadata": metadata,
                "contrast_limits": (0, top),
            }
            raw["visible"] = not layers
            n_frames = series.info.n_frames
            raw["scale"], raw["translate"] = (1, n_frames, 1, 1), (0, (n_frames - 1) / 2, 0, 0)
            layers.append((_along_frames(series), raw, "image"))
    return layers


def _along_frames(series: RecordedSeries) -> FrameStack:
    """Return the snapshots as (N, 1, H, W)."""
    raw = series.raw
    shape = (1, *raw.shape[1:])
    return FrameStack(
        raw.seqs, shape, raw.dtype, lambda seq, part: series.frame_of("raw", seq)[np.newaxis][part]
    )
