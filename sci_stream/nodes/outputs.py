"""From the rig to the options of what the sink feeds."""

from __future__ import annotations

from pathlib import Path

from sci_stream.config import PreviewSection, Rig
from sci_stream.errors import StorageError
from sci_stream.files.recording import Compression
from sci_stream.sinks.display import Tone
from sci_stream.sinks.preview import PreviewOptions
from sci_stream.sinks.recorder import RecorderOptions


def recorder_options(rig: Rig) -> RecorderOptions:
    """Return how to record; the folder is made if it is not there.

    Raises
    ------
    StorageError
        If it cannot be made.
    """
    section = rig.record
    folder = Path(section.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"[record] folder {folder} cannot be made", got=error.strerror) from None
    return RecorderOptions(
        folder=folder,
        raw=section.raw,
        video=section.video,
        compression=Compression(section.compression),
        warn_free_bytes=section.warn_free_mib << 20,
        floor_free_bytes=section.min_free_mib << 20,
    )


def preview_options(section: PreviewSection) -> PreviewOptions:
    """Return how to serve the live page."""
    return PreviewOptions(
        host=section.host,
        port=section.port,
        token=section.token or None,
        tone=Tone(gamma=section.gamma),
        jpeg_quality=section.jpeg_quality,
        stale_s=section.stale_after_s,
    )
