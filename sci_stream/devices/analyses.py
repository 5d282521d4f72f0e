"""Analyses of other packages: figures, and at most one picture, from each video."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from sci_stream.devices.camera_drivers import load_entry
from sci_stream.model import Array
from sci_stream.reports import SolveReport

log = logging.getLogger(__name__)

GROUP = "sci_stream.analyses"


class Analysis(Protocol):
    """A function of a video and nothing else, so that each node, and a replay, finds the same."""

    units: Mapping[str, str]
    """Units of its figures by name."""

    def __call__(
        self, video: Array, report: SolveReport, /
    ) -> tuple[Mapping[str, float], Array | None]:
        """Return figures of a video (B, H, W), 0–1, and a picture, (H, W) or (H, W, 3) uint8, or
        None.
        """
        ...


class Analyses:
    """The analyses of a rig, by the names of their entry points in the group
    ``sci_stream.analyses``.

    Raises `ConfigError` if one is not installed, or cannot be imported.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._analyses = {name: _load(name) for name in names}
        self._failed = set[str]()
        self.units = {
            key: unit for one in self._analyses.values() for key, unit in one.units.items()
        }
        """Units of all figures by name."""

    def __call__(self, video: Array, report: SolveReport) -> tuple[dict[str, float], Array | None]:
        """Return the figures of all, and the first picture, (H, W, 3) RGB, None without one.

        An analysis that fails, or writes into the video, is logged once and left out.
        """
        figures: dict[str, float] = {}
        picture = None
        # No analysis can make it writable again: the next one, and the recording, get the same.
        read_only = memoryview(video).toreadonly()  # type: ignore[arg-type]  # a buffer from 3.12 on
        shown = np.asarray(read_only)
        for name, analysis in self._analyses.items():
            try:
                values, drawn = analysis(shown, report)
                figures |= {
                    key: float(value) for key, value in values.items() if key in analysis.units
                }
                if drawn is not None:
                    if drawn.dtype != np.uint8 or drawn.shape[:2] != video.shape[1:]:
                        raise ValueError(
                            f"a picture of {drawn.shape} {drawn.dtype}, expected the video's "
                            "size, uint8"
                        )
                    # A copy: the analysis may draw the next one into the same array.
                    drawn = np.broadcast_to(np.atleast_3d(drawn), (*video.shape[1:], 3)).copy()
            # A plug-in may raise anything; the video is good without it.
            except (Exception, SystemExit):
                if name not in self._failed:
                    log.exception("the analysis %s failed; further failures are not logged", name)
                self._failed.add(name)
            else:
                picture = drawn if picture is None else picture
        return figures, picture


def _load(name: str) -> Analysis:
    found = load_entry(GROUP, name, "analysis", "[reconstruct] analyses")
    analysis: Analysis = found() if isinstance(found, type) else found
    return analysis
