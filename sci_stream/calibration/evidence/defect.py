"""A defect of a snapshot, its masks or the camera, as reports and alarms name it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from sci_stream.model import Array


@dataclass(frozen=True)
class Defect:
    """A defect of the data: name, figure and remedy in one sentence.

    ``fatal`` if a video would be made up; ``corrected`` if the solve allows for it. ``repair``
    brings masks, (B, H, W), to where y has them; ``shift_px``, (x, y), if it moves them.
    """

    name: str
    text: str
    fatal: bool = False
    corrected: bool = False
    shift_px: tuple[int, int] | None = None
    repair: Callable[[Array], Array] | None = field(default=None, repr=False, compare=False)

    @property
    def text_for_rig(self) -> str:
        """The text for a rig, whose operator passes no arrays."""
        return re.sub(
            r": pass .*?(, or |$)",
            lambda match: ": " if match[1] else ": calibrate again",
            self.text,
        )
