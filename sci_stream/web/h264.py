"""H.264 for the live page: every snapshot begins with a key frame, so that each can be sent,
skipped and kept alone.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

import cv2
import numpy as np

from sci_stream.errors import require_optional
from sci_stream.model import U8

# Visually close to JPEG at quality 85 (`sci-stream bench page`); the bit rate is bounded below.
_CRF = 20
# A scene cut may take the bits of this long; the next snapshots then take fewer.
_BUFFER_S = 1.0
# The bound holds for the frame rate that the encoder was opened with; it is reopened if that
# changes by this factor.
_PACE_CHANGE = 1.3
_SPS = 7


def available() -> bool:
    """Return whether PyAV is installed (extra ``video``)."""
    return find_spec("av") is not None


class SnapshotEncoder:
    """Encode the frames of one snapshot after the other. Used from one thread.

    Parameters
    ----------
    mbit_per_s
        Upper bound of the bit rate, averaged over a second.
    """

    def __init__(self, mbit_per_s: float) -> None:
        self._av = require_optional("av", "video", "H.264 on the live page")
        self._bits_per_s = mbit_per_s * 1e6
        self._context: Any = None
        self._made_for: tuple[int, ...] = ()
        self._fps = 0.0
        self._pts = 0

    def encode(self, frames: U8, interval_s: float) -> tuple[str, list[bytes]]:
        """Encode a snapshot: (B, H, W) grey or (B, H, W, 3) RGB; odd sides are padded to even ones.

        Returns
        -------
        The codec as browsers name it, such as ``"avc1.42c01f"``, and one Annex B access unit per
        frame.
        """
        frames = _even(frames)
        fps = float(np.clip(len(frames) / interval_s, 1.0, 1000.0))
        pace = max(fps, self._fps) / max(min(fps, self._fps), 1e-9)
        if self._context is None or self._made_for != frames.shape or pace > _PACE_CHANGE:
            self._context = self._make(frames.shape, fps)
            self._made_for = frames.shape
            self._fps = fps
        units: list[bytes] = []
        for index, image in enumerate(frames):
            # OpenCV converts in half of FFmpeg's time; it uses the matrix of BT.601, which the
            # stream declares.
            rgb = cv2.cvtColor(image, cv2.COLOR_GRAY2RGB) if image.ndim == 2 else image
            frame = self._av.VideoFrame.from_ndarray(
                cv2.cvtColor(rgb, cv2.COLOR_RGB2YUV_I420), format="yuv420p"
            )
            frame.pts = self._pts
            self._pts = self._pts + 1
            if index == 0:
                frame.pict_type = self._av.video.frame.PictureType.I
            units.extend(bytes(packet) for packet in self._context.encode(frame))
        if len(units) != len(frames):
            raise ValueError(
                f"the encoder returned {len(units)} access units for {len(frames)} frames"
            )
        return codec_name(units[0]), units

    def _make(self, shape: tuple[int, ...], fps: float) -> Any:
        rate = Fraction(fps).limit_denominator(1000)
        context = self._av.CodecContext.create("libx264", "w")
        context.height, context.width = shape[1:3]
        context.pix_fmt = "yuv420p"
        context.framerate = rate
        context.time_base = 1 / rate
        context.thread_count = 1
        kbit = max(1, round(self._bits_per_s / 1000))
        context.options = {
            "preset": "ultrafast",  # half the time of superfast, for a third more bits
            "tune": "zerolatency",  # no look-ahead: every frame leaves the encoder at once
            "crf": str(_CRF),
            "forced-idr": "1",
            "x264-params": f"keyint=infinite:scenecut=0:repeat-headers=1:vbv-maxrate={kbit}"
            f":vbv-bufsize={round(kbit * _BUFFER_S)}"
            ":colorprim=bt709:transfer=bt709:colormatrix=smpte170m:range=tv",
        }
        context.open()
        return context


def _even(frames: U8) -> U8:
    edges = [(0, 0), (0, frames.shape[1] % 2), (0, frames.shape[2] % 2), (0, 0)][: frames.ndim]
    return np.ascontiguousarray(np.pad(frames, edges, mode="edge"))


def codec_name(unit: bytes) -> str:
    """Return the codec of an access unit with parameter sets, ``avc1.PPCCLL``."""
    start = 0
    while (start := unit.find(b"\0\0\1", start)) >= 0:
        start += 3
        if unit[start] & 31 == _SPS:
            return "avc1." + unit[start + 1 : start + 4].hex()
    raise ValueError("the access unit has no sequence parameter set")


def decode(units: Sequence[bytes], height: int, width: int) -> U8:
    """Decode the access units of one snapshot to (B, height, width, 3) RGB, without the padding."""
    av = require_optional("av", "video", "Reading kept video")
    context = av.CodecContext.create("h264", "r")
    context.thread_count = 1
    context.flags |= av.codec.context.Flags.low_delay
    frames = []
    for unit in [*units, None]:
        packet = av.Packet(unit) if unit is not None else None
        frames += [frame.to_ndarray(format="rgb24") for frame in context.decode(packet)]
    return np.stack(frames)[:, :height, :width]


def mp4(
    snapshots: Sequence[tuple[int, Sequence[bytes]]], height: int, width: int, period_ms: float
) -> bytes:
    """Return one or more snapshots, ``(time_ms, access units)``, as MP4 at their true times,
    without encoding again.
    """
    av = require_optional("av", "video", "MP4")
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=1000)
        stream.height = height + height % 2
        stream.width = width + width % 2
        stream.pix_fmt = "yuv420p"
        stream.time_base = Fraction(1, 90_000)
        begin_ms = snapshots[0][0]
        last = -1
        for time_ms, units in snapshots:
            for index, unit in enumerate(units):
                packet = av.Packet(unit)
                at = max(
                    last + 1, round(((time_ms - begin_ms) + index * period_ms / len(units)) * 90)
                )
                packet.pts = packet.dts = last = at
                packet.time_base = Fraction(1, 90_000)
                packet.stream = stream
                packet.is_keyframe = index == 0
                container.mux(packet)
    return file.getvalue()
