"""PSNR of recorded video against the frames of the simulated GenTL camera."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sci_stream.errors import FileFormatError
from sci_stream.recording.reader import Recording


def score(recording: Path, truth: Path) -> dict[int, float]:
    """Return the PSNR of every reconstructed snapshot: −10 log₁₀ MSE, peak 1, mean over its B
    frames, dB.

    The recording was made with the GenTL camera; ``truth`` was written by `render`, for the frames
    that it showed.

    Returns
    -------
    PSNR in dB by seq.

    Raises
    ------
    FileFormatError
        If a file is invalid, or the two do not belong together.
    """
    try:
        video_of = np.load(truth, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise FileFormatError(f"The truth {truth} cannot be read", got=error) from error
    with Recording(recording) as opened:
        found = {}
        for seq in opened.video_seqs:
            video = opened.video(seq)
            expected = video_of[(opened.camera_frame_id(seq) or 0) % len(video_of)]
            if video.shape != expected.shape:
                raise FileFormatError(
                    f"The truth {truth} belongs to other frames",
                    expected=f"(B, H, W) = {video.shape}",
                    got=expected.shape,
                )
            difference = video.astype(np.float64) - expected / 255.0
            found[seq] = float(np.mean(-10 * np.log10(np.mean(difference**2, axis=(1, 2)))))
    if not found:
        raise FileFormatError(
            f"The recording {recording} contains no video", hint="Record it: [record] video = true."
        )
    return found
