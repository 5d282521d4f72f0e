"""The live page's binary message: one reconstruction as images.

Layout: a little-endian uint32 with the length of the header, the header as JSON, then JPEG images, whose sizes are in
the header: the B video frames and, if ``coded`` is true, the coded snapshot.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sci_stream.imaging.rendering import encode_jpeg, render, render_counts, shrink
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import Array, JsonObject, Reconstruction

MESSAGE_VERSION = 1
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Picture:
    """An encoded reconstruction: ``frames`` are JPEG, ``message`` is the whole binary message."""

    number: int
    published_ns: int
    frames: tuple[bytes, ...]
    message: bytes


def encode_picture(
    reconstruction: Reconstruction,
    number: int,
    published_ns: int,
    *,
    tone: ToneSettings,
    quality: int,
    most_px: int,
    bit_depth: int | None = None,
) -> Picture:
    """Render and encode a reconstruction.

    ``number`` counts images and is acknowledged by viewers; ``published_ns`` is the time at which the reconstruction
    arrived: showing it again in another tone keeps it. ``bit_depth`` is the sensor's, if known.
    """
    video = render(reconstruction.video, reconstruction.bayer, tone)
    frames = tuple(encode_jpeg(shrink(frame, most_px), quality) for frame in video)
    images = list(frames)
    if reconstruction.counts is not None:
        images.append(encode_jpeg(shrink(render_counts(reconstruction.counts, tone.gamma), most_px), quality))
    result = {"number": number, "published_ns": published_ns, **_header(reconstruction, images)}
    result["levels"] = levels_histogram(video)
    result["counts"] = None if reconstruction.counts is None else counts_histogram(reconstruction.counts, bit_depth)
    header = json.dumps(result, separators=(",", ":")).encode()
    return Picture(number, published_ns, frames, b"".join((_LENGTH.pack(len(header)), header, *images)))


def _header(reconstruction: Reconstruction, images: list[bytes]) -> JsonObject:
    report, ident = reconstruction.report, reconstruction.id
    return {
        "v": MESSAGE_VERSION,
        "series": ident.series,
        "epoch": ident.epoch,
        "seq": ident.seq,
        "acquired_ns": reconstruction.times.acquired_ns,
        "finished_ns": reconstruction.times.finished_ns,
        "n_frames": int(reconstruction.video.shape[0]),
        "height_px": int(reconstruction.video.shape[1]),
        "width_px": int(reconstruction.video.shape[2]),
        "bayer": reconstruction.bayer,
        "sizes": [len(image) for image in images],
        "coded": reconstruction.counts is not None,
        "iterations": report.iterations,
        "start": str(report.start),
        "start_reason": report.start_reason,
        "budget_limited": report.budget_limited,
        "solve_ms": report.solve_ns / 1e6,
        "residual": report.residual if report.residual == report.residual else None,
        "psnr_db": report.psnr_db,
        "saturated_fraction": report.saturated_fraction,
        "dropped_before": reconstruction.dropped_before,
        "node": reconstruction.node,
        "device": reconstruction.device,
    }


def split_message(message: bytes) -> tuple[JsonObject, list[bytes]]:
    """Split a message into its header and images; the inverse of the encoding."""
    (length,) = _LENGTH.unpack_from(message)
    offset = _LENGTH.size + length
    header: JsonObject = json.loads(message[_LENGTH.size : offset])
    images = []
    for size in header["sizes"]:
        images.append(message[offset : offset + size])
        offset += size
    return header, images


BINS = 64
# Every third pixel in each direction suffices; an odd step samples every colour of a mosaic.
_STEP = 3


def levels_histogram(rendered: npt.NDArray[np.uint8]) -> list[list[int]]:
    """Return the histogram of levels, 64 bins over 0–255: a list for grey, or one each for R, G, B.

    Parameters
    ----------
    rendered
        (B, H, W) or (B, H, W, 3), from `sci_stream.imaging.rendering.render`.
    """
    sample = rendered[:, ::_STEP, ::_STEP]
    channels = [sample] if sample.ndim == 3 else [sample[..., channel] for channel in range(3)]
    return [np.bincount((channel >> 2).ravel(), minlength=BINS).tolist() for channel in channels]


def counts_histogram(counts: Array, bit_depth: int | None) -> JsonObject:
    """Return the histogram of a coded snapshot: ``{"bins": […64], "top_dn", "mean_dn", "max_dn"}``.

    Parameters
    ----------
    counts
        (H, W), DN.
    bit_depth
        Bit depth of the sensor; None to estimate it from the brightest pixel. For floating-point counts the bins end at
        the brightest pixel.
    """
    sample = np.nan_to_num(counts[::_STEP, ::_STEP])
    brightest = float(counts.max()) if counts.dtype.kind in "iu" else float(sample.max(initial=0.0))
    if counts.dtype.kind in "iu":
        depth = max(bit_depth or 8, int(brightest).bit_length())
        top = float((1 << depth) - 1)
    else:
        top = brightest or 1.0
    bins, _ = np.histogram(sample, bins=BINS, range=(0.0, top + 1e-6))
    return {"bins": bins.tolist(), "top_dn": top, "mean_dn": float(sample.mean()), "max_dn": brightest}
