"""The live page's binary message: one reconstruction as images.

Layout: a little-endian uint32 with the length of the header, the header as JSON, then parts, whose
sizes are in the header: the B video frames, as JPEG or as access units of H.264 (``codec``), and,
if ``coded`` is true, the coded snapshot as JPEG.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypedDict, cast

import numpy as np

from sci_stream.imaging.rendering import encode_jpeg, render, render_counts, shrink
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import U8, Array, Json, JsonObject, Reconstruction
from sci_stream.quantities import live_values

MESSAGE_VERSION = 2
JPEG = "jpeg"
H264 = "h264"
# The longer side of an image is at most this, px.
_MAX_PX = 1024
_LENGTH = struct.Struct("<I")


class PictureHeader(TypedDict):
    """The members of a message's header that the server uses; the page uses them all
    (`render_snapshot`).
    """

    number: int
    """Number of the image, acknowledged by viewers."""
    published_ns: int
    """Unix time at which the reconstruction arrived; the same for all its tones."""
    series: str
    seq: int
    acquired_ns: int
    n_frames: int
    shown_px: list[int]
    """Width and height of the images."""
    dropped_before: int


@dataclass(frozen=True)
class Picture:
    """A reconstruction as it is sent; ``coded`` and ``drawn``, the picture of an analysis, are
    JPEGs.
    """

    header: PictureHeader
    codec: str = ""
    frames: tuple[bytes, ...] = ()
    """Encoded; none as rendered."""
    coded: bytes | None = None
    drawn: bytes | None = None

    @property
    def number(self) -> int:
        """Number of the image."""
        return self.header["number"]

    @property
    def published_ns(self) -> int:
        """Time of its arrival, ns."""
        return self.header["published_ns"]

    @property
    def n_bytes(self) -> int:
        """Bytes of all images, plus about those of the header."""
        return sum(map(len, self.frames)) + len(self.coded or b"") + len(self.drawn or b"") + 2048

    @property
    def message(self) -> bytes:
        """The binary message, made for each use: kept, it would double the memory of the page's
        history.
        """
        parts = [*self.frames, *(part for part in (self.coded, self.drawn) if part is not None)]
        there = {"coded": self.coded is not None, "drawn": self.drawn is not None}
        header = {**self.header, "codec": self.codec, **there, "sizes": [*map(len, parts)]}
        text = json.dumps(header, separators=(",", ":")).encode()
        return b"".join((_LENGTH.pack(len(text)), text, *parts))

    @property
    def without_coded(self) -> Picture:
        """The same without the coded snapshot."""
        return replace(self, coded=None)


def render_snapshot(
    reconstruction: Reconstruction,
    number: int,
    published_ns: int,
    *,
    tone: ToneSettings,
    bit_depth: int | None = None,
    more: Mapping[str, Json] | None = None,
) -> tuple[Picture, U8]:
    """Render a reconstruction, with ``more`` entries in its header; return it without its frames,
    and those.

    The frames are (B, H, W[, 3]).

    ``number`` counts images and is acknowledged by viewers; ``published_ns`` is the time at which
    the reconstruction arrived: showing it again in another tone keeps it. ``bit_depth`` is the
    sensor's, if known.
    """
    video = render(reconstruction.video, reconstruction.bayer, tone)
    frames = np.stack([shrink(frame, _MAX_PX) for frame in video])
    counts = reconstruction.counts
    coded = None
    if counts is not None:
        coded = encode_jpeg(shrink(render_counts(counts, tone.gamma), _MAX_PX))
    header = {
        "v": MESSAGE_VERSION,
        "number": number,
        "published_ns": published_ns,
        **description(reconstruction),
        "shown_px": [int(frames.shape[2]), int(frames.shape[1])],
        "counts": None if counts is None else counts_histogram(counts, bit_depth),
        **(more or {}),
    }
    drawn = (
        None
        if reconstruction.picture is None
        else encode_jpeg(shrink(reconstruction.picture, _MAX_PX))
    )
    return Picture(cast(PictureHeader, header), coded=coded, drawn=drawn), frames


def jpeg_picture(picture: Picture, frames: U8) -> Picture:
    """Encode every frame as JPEG."""
    return replace(picture, codec=JPEG, frames=tuple(map(encode_jpeg, frames)))


def description(reconstruction: Reconstruction) -> JsonObject:
    """Return the properties of a reconstruction for its message and for a saved snapshot."""
    ident = reconstruction.id
    return {
        "series": ident.series,
        "epoch": ident.epoch,
        "seq": ident.seq,
        "acquired_ns": reconstruction.times.acquired_ns,
        "finished_ns": reconstruction.times.finished_ns,
        "n_frames": int(reconstruction.video.shape[0]),
        "height_px": int(reconstruction.video.shape[1]),
        "width_px": int(reconstruction.video.shape[2]),
        "bayer": reconstruction.bayer,
        **live_values(reconstruction.report),
        "dropped_before": reconstruction.dropped_before,
        "chunks": dict(reconstruction.chunks),
        "node": reconstruction.node,
        "device": reconstruction.device,
    }


def merge_patch(old: JsonObject, new: JsonObject) -> JsonObject:
    """Return the JSON merge patch from ``old`` to ``new`` (RFC 7396): changed members, null for
    removed ones.
    """
    patch: JsonObject = {key: None for key in old if key not in new and old[key] is not None}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = merge_patch(before, value)
            if inner:
                patch[key] = inner
        elif value != before:
            patch[key] = value
    return patch


BINS = 64
# Every third pixel in each direction suffices; an odd step samples every colour of a mosaic.
_STEP = 3


def counts_histogram(counts: Array, bit_depth: int | None) -> JsonObject:
    """Return the histogram of a coded snapshot: ``{"bins": […64], "top_dn", "mean_dn", "max_dn"}``.

    Parameters
    ----------
    counts
        (H, W), DN.
    bit_depth
        Bit depth of the sensor; None to estimate it from the brightest pixel. For floating-point
        counts the bins end at the brightest pixel.
    """
    sample = np.nan_to_num(counts[::_STEP, ::_STEP])
    brightest = float(counts.max()) if counts.dtype.kind in "iu" else float(sample.max(initial=0.0))
    if counts.dtype.kind in "iu":
        depth = max(bit_depth or 8, int(brightest).bit_length())
        top = float((1 << depth) - 1)
    else:
        top = brightest or 1.0
    bins, _ = np.histogram(sample, bins=BINS, range=(0.0, top + 1e-6))
    return {
        "bins": bins.tolist(),
        "top_dn": top,
        "mean_dn": float(sample.mean()),
        "max_dn": brightest,
    }
