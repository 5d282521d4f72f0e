"""An analysis: count the objects that move within an exposure.

Register it in the pyproject.toml of its package, then name it with ``[reconstruct] analyses =
["count"]``::

    [project.entry-points."sci_stream.analyses"]
    count = "my_analysis:CountMovingObjects"
"""

from __future__ import annotations

from collections.abc import Mapping

import cv2
import numpy as np

from sci_stream.plugins import Array, SolveReport


class CountMovingObjects:
    """Count regions of at least 20 pixels whose brightness changes by 5 % of full scale, and draw
    them white.
    """

    units: Mapping[str, str] = {"moving_objects": "", "moving_share": "1"}

    def __call__(self, video: Array, _report: SolveReport, /) -> tuple[dict[str, float], Array]:
        """Return the figures and the picture of a video, (B, H, W): each pixel is compared with
        itself alone.
        """
        change = np.ptp(video.astype(np.float32), axis=0)
        moving = (cv2.GaussianBlur(change, (0, 0), 1.5) > 0.05).astype(np.uint8)
        _, _, regions, _ = cv2.connectedComponentsWithStats(moving)
        count = int((regions[1:, cv2.CC_STAT_AREA] >= 20).sum())
        return {"moving_objects": count, "moving_share": float(moving.mean())}, 255 * moving
