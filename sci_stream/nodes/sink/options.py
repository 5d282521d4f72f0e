"""Options of the sink's outputs, from the rig."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sci_stream.config import PreviewSection, Rig
from sci_stream.errors import StorageError, require_optional
from sci_stream.nodes.sink.recorder import RecorderOptions
from sci_stream.recording import Compression

if TYPE_CHECKING:
    # A sink without page and movie does without OpenCV.
    from sci_stream.imaging.tone import ToneSettings
    from sci_stream.nodes.sink.live_movie import MovieOptions


def recorder_options(rig: Rig) -> RecorderOptions:
    """Return the recorder options; create the folder if absent.

    Raises
    ------
    StorageError
        If the folder cannot be created.
    """
    section = rig.record
    folder = section.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"Cannot create the [record] folder {folder}", got=error.strerror) from None
    warn_mib = 8 * section.min_free_mib if section.warn_free_mib is None else section.warn_free_mib
    return RecorderOptions(
        folder=folder,
        raw=section.raw,
        video=section.video,
        compression=Compression(section.compression),
        video_dtype=section.video_dtype,
        segment_bytes=section.segment_mib << 20,
        segment_s=section.segment_minutes * 60,
        warn_free_bytes=warn_mib << 20,
        floor_free_bytes=section.min_free_mib << 20,
    )


def movie_options(rig: Rig) -> MovieOptions | None:
    """Return the movie options; None if disabled.

    Raises
    ------
    ConfigError
        If PyAV is not installed.
    """
    section = rig.record
    if not section.enabled or section.movie == "none":
        return None
    require_optional("av", "video", f'[record] movie = "{section.movie}"')
    from sci_stream.nodes.sink.live_movie import MovieOptions  # noqa: PLC0415 - loads OpenCV

    return MovieOptions(
        suffix=f".{section.movie}",
        tone=tone_settings(rig.preview),
        floor_free_bytes=section.min_free_mib << 20,
    )


def tone_settings(section: PreviewSection) -> ToneSettings:
    """Return the tone settings of the rig."""
    from sci_stream.imaging.demosaic import Demosaic  # noqa: PLC0415 - loads OpenCV
    from sci_stream.imaging.tone import FalseColour, ToneSettings, WhiteBalance  # noqa: PLC0415 - loads OpenCV

    return ToneSettings(
        exposure_ev=section.exposure_ev,
        black=section.black,
        gamma=section.gamma,
        white_balance=WhiteBalance(section.white_balance),
        gains=section.white_gains,
        false_colour=FalseColour(section.false_colour),
        demosaic=Demosaic(section.demosaic),
    )
