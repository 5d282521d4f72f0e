"""``[record]`` of a rig for tests of the recorder, in bytes, which are too few for a rig."""

from __future__ import annotations

from pathlib import Path

from sci_stream.config import RecordSection


def record_section(
    folder: Path,
    *,
    video: bool = True,
    floor_free_bytes: float = 1,
    segment_bytes: float = 0,
    segment_s: float = 0,
) -> RecordSection:
    """Return the section, without its checks."""
    mib = {"min_free_mib": floor_free_bytes, "segment_mib": segment_bytes}
    update = {name: n_bytes / 2**20 for name, n_bytes in mib.items()} | {
        "segment_minutes": segment_s / 60
    }
    return RecordSection(folder=folder, video=video).model_copy(update=update)
