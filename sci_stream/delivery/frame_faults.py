"""Faults of the frames of a camera, as the acquire node finds them and the sink reports them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sci_stream.model import Snapshot

FRAME_FAULT = "FrameFault"
"""Chunk data of a frame with faults: the sum of their bits."""


class FrameFault(NamedTuple):
    """A kind of fault: its bit in the row, its words, and what to do."""

    bit: int
    words: str
    remedy: str


FAULTS = {
    "identical": FrameFault(
        1,
        "repeat the frame before",
        "a buffer was delivered twice: update the driver, or give it more buffers",
    ),
    "torn": FrameFault(
        2,
        "contain rows of a frame before",
        "data was lost on the way: check cable, packet size and packet resend",
    ),
    "rows_missing": FrameFault(
        4,
        "lack rows",
        "data was lost on the way, or the camera reads a smaller image: check cable and ROI",
    ),
    "trigger_missed": FrameFault(
        8,
        "come after a missed trigger",
        "the camera was not ready or saw no pulse: shorten the exposure, lengthen the pulse",
    ),
    "trigger_early": FrameFault(
        16,
        "come early",
        "the trigger line bounces or picks up noise: shorten or shield its cable",
    ),
    "clock": FrameFault(
        32,
        "have a time that does not increase",
        "the clock of the camera stands or jumps: their times are wrong; restart the camera",
    ),
}
"""By the name of their count."""
UNIT = "bits: 1 identical 2 torn 4 rows 8 missed 16 early 32 clock"


_OF_CONTENT = FAULTS["torn"].bit | FAULTS["rows_missing"].bit


def is_whole(snapshot: Snapshot) -> bool:
    """Return whether no rows of the frame are missing or of another frame."""
    return not int(snapshot.chunks.get(FRAME_FAULT, 0)) & _OF_CONTENT


def fault_lines(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Return name and sentence of each fault that frames had."""
    for name, fault in FAULTS.items():
        if count := counts.get(name, 0):
            yield name, f"{count:,} frames {fault.words}: {fault.remedy}"
