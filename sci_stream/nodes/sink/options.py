"""Options of the sink's outputs, from the rig."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sci_stream.config import PreviewSection, RecordSection
from sci_stream.nodes.sink.series_recording import RecorderOptions
from sci_stream.recording import Compression

if TYPE_CHECKING:
    # A sink without page does without OpenCV.
    from sci_stream.imaging.tone import ToneSettings


def recorder_options(section: RecordSection) -> RecorderOptions:
    """Return the recorder options of the rig."""
    warn_mib = 8 * section.min_free_mib if section.warn_free_mib is None else section.warn_free_mib
    return RecorderOptions(
        folder=section.folder,
        raw=section.raw,
        video=section.video,
        compression=Compression(section.compression),
        video_dtype=section.video_dtype,
        segment_bytes=section.segment_mib << 20,
        segment_s=section.segment_minutes * 60,
        warn_free_bytes=warn_mib << 20,
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
