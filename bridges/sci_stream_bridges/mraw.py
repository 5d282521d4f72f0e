"""Write recordings as Photron MRAW with CIH: 16-bit frames, and a header of text.

Programs for high-speed film read them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sci_stream.errors import InputError
from sci_stream.file_guard import check_output, complete_output
from sci_stream.recording.series import RecordedSeries

_WHITE = 65535


def write_mraw(recording: Path, out: Path, *, replace: bool = False) -> tuple[Path, Path]:
    """Write a recording's video as ``out``, a CIH header, and its frames as an MRAW file beside it.

    Values of 0–1 become 0–65535; others are clipped. Mosaics of a colour sensor stay mosaics.

    Parameters
    ----------
    recording
        First file of a recording that holds video.
    out
        The header, ``.cih``; the frames have the same name with ``.mraw``.
    replace
        Existing files.

    Returns
    -------
    The paths of both files.

    Raises
    ------
    InputError
        If the recording has no video, or ``out`` is no ``.cih``.
    StorageError
        If a file exists and is not to be replaced, or cannot be written.
    """
    if out.suffix.lower() != ".cih":
        raise InputError("The name of the header of an MRAW file ends in .cih", got=out.name)
    frames = out.with_suffix(".mraw")
    for path in (out, frames):
        check_output(path, replace=replace, sources=[recording])
    with RecordedSeries(recording) as series:
        if not len(series.video):
            raise InputError(f"{recording} has no video")
        count = 0
        with (
            complete_output(frames, replace=replace, sources=[recording]) as partial,
            partial.open("wb") as file,
        ):
            for video in series.video:
                levels = np.nan_to_num(video.astype(np.float32)).clip(0, 1) * _WHITE
                file.write(np.rint(levels).astype("<u2").tobytes())
                count += len(video)
        header = _header(series, count)
    with complete_output(out, replace=replace, sources=[recording]) as partial:
        partial.write_text(header, encoding="utf-8", newline="\r\n")
    return out, frames


def _header(series: RecordedSeries, count: int) -> str:
    info = series.info
    period_ns = series.period_ns
    rate_hz = 0.0 if period_ns is None else info.n_frames * 1e9 / period_ns
    exposure_ns = series.calibration.exposure_ns
    shutter_s = 0.0 if exposure_ns is None else exposure_ns / 1e9 / info.n_frames
    entries = {
        "Camera Type": f"{info.camera_model} {info.camera_serial}",
        "Record Rate(fps)": f"{rate_hz:.6f}",
        "Shutter Speed(s)": f"{shutter_s:.9f}",
        "Total Frame": count,
        "Original Total Frame": count,
        "Start Frame": 0,
        "Image Width": info.width_px,
        "Image Height": info.height_px,
        "Color Type": "Mono" if info.bayer is None else "Bayer",
        "Color Bit": 16,
        "File Format": "MRaw",
        "EffectiveBit Depth": 16,
        "EffectiveBit Side": "Lower",
        "Comment Text": f"{info.series}, {info.n_frames} frames of each snapshot, reconstructed",
    }
    lines = [f"{name} : {value}" for name, value in entries.items()]
    return "\n".join(["#Camera Information Header", *lines, "END", ""])
