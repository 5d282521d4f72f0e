"""``sci-stream bench page``: what a viewer of the live page is sent, as JPEG and as H.264, and at
which quality.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import cv2
import numpy as np
import numpy.typing as npt

from sci_stream import reconstruct_stream
from sci_stream.clock import unix_ns
from sci_stream.config import PreviewSection
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import Reconstruction, Snapshot, StageTimes
from sci_stream.reports import SolveReport, Start
from sci_stream.web.archive import CODED_EVERY_NS
from sci_stream.web.h264 import SnapshotEncoder, decode
from sci_stream.web.message import Picture, jpeg_picture, render_snapshot
from sci_stream_lab.bench.datasets import filmed_scene
from sci_stream_lab.bench.environment import environment
from sci_stream_lab.bench.result import BenchResult, Progress, ResultColumn, ResultTable

Rendered = tuple[Picture, npt.NDArray[np.uint8]]
"""A snapshot without its frames, and those."""


@dataclass(frozen=True, slots=True)
class ViewerRow:
    """Bandwidth of one viewer, quality of its frames against those encoded, CPU time to encode a
    snapshot.
    """

    codec: str
    video_mbit_s: float
    coded_mbit_s: float
    total_mbit_s: float
    psnr_db: float
    encode_ms: float


@dataclass(frozen=True)
class PageResult(BenchResult):
    """Figures of ``bench page`` by codec."""

    viewers: tuple[ViewerRow, ...] = ()


_COLUMNS = (
    ResultColumn("codec", "codec", left=True),
    ResultColumn("video_mbit_s", "video Mbit/s", ".1f", "Mbit/s"),
    ResultColumn("coded_mbit_s", "coded Mbit/s", ".1f", "Mbit/s"),
    ResultColumn("total_mbit_s", "total Mbit/s", ".1f", "Mbit/s"),
    ResultColumn("psnr_db", "PSNR dB", ".1f", "dB"),
    ResultColumn("encode_ms", "CPU ms", ".1f", "ms"),
)


def bench(
    *, size_px: int, rate_hz: float, snapshots: int, denoiser: str, device: str, progress: Progress
) -> PageResult:
    """Measure the messages of reconstructed snapshots of the simulated camera, B = 8, Bayer.

    ``size_px`` is the height and width of the sensor, ``rate_hz`` the pace at which snapshots are
    shown. All are encoded in turn, as in a running series.
    """
    footage = filmed_scene(
        "fast", snapshots=snapshots, height_px=size_px, width_px=size_px, n_frames=8
    )
    rendered = []
    counts = (snapshot.counts for snapshot in footage.snapshots)
    solved = reconstruct_stream(counts, footage.calibration, solver=denoiser, device=device)
    for number, (snapshot, result) in enumerate(
        zip(footage.snapshots, solved, strict=True), start=1
    ):
        progress(f"reconstructed {number} of {snapshots}")
        rendered.append(_rendered(snapshot, np.asarray(result.video)))
    rows = (_jpeg(rendered, rate_hz), _h264(rendered, rate_hz))
    title = f"One viewer, {size_px}×{size_px}, B = 8, {rate_hz:g} snapshots/s"
    return PageResult(
        name="page",
        environment=environment(),
        tables=(
            ResultTable(
                title, _COLUMNS, rows, "PSNR of the frames sent against the frames encoded."
            ),
        ),
        settings={
            "snapshots": snapshots,
            "denoiser": denoiser,
            "rate_hz": rate_hz,
            "size_px": size_px,
        },
        viewers=rows,
    )


def _rendered(snapshot: Snapshot, video: npt.NDArray[np.float32]) -> Rendered:
    reconstruction = Reconstruction(
        id=snapshot.id,
        video=video.reshape(-1, *video.shape[-2:]),
        calibration_hash=snapshot.calibration_hash,
        report=SolveReport(
            iterations=1,
            start=Start.COLD,
            start_reason="",
            budget_limited=False,
            solve_ns=0,
            residual=0.0,
        ),
        times=StageTimes(acquired_ns=unix_ns()),
        node="bench",
        device="",
        bayer=snapshot.bayer,
        counts=snapshot.counts,
    )
    return render_snapshot(reconstruction, snapshot.id.seq, 0, tone=ToneSettings())


def _jpeg(rendered: list[Rendered], rate_hz: float) -> ViewerRow:
    start_s = time.thread_time()
    pictures = [jpeg_picture(*snapshot) for snapshot in rendered]
    encode_ms = 1e3 * (time.thread_time() - start_s) / len(pictures)
    sent = [np.stack([_decoded(jpeg) for jpeg in picture.frames]) for picture in pictures]
    return _row(
        "JPEG", pictures, sent, rendered, rate_hz=rate_hz, coded_hz=rate_hz, encode_ms=encode_ms
    )


def _decoded(jpeg: bytes) -> npt.NDArray[np.uint8]:
    image = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return np.ascontiguousarray(image[..., ::-1], np.uint8)


def _h264(rendered: list[Rendered], rate_hz: float) -> ViewerRow:
    encoder = SnapshotEncoder(PreviewSection().h264_mbit_per_s)
    encoder.encode(rendered[0][1], 1 / rate_hz)  # opening the encoder is no part of the time
    start_s = time.thread_time()
    encoded = [encoder.encode(frames, 1 / rate_hz) for _, frames in rendered]
    encode_ms = 1e3 * (time.thread_time() - start_s) / len(encoded)
    pictures = [
        replace(picture, codec=codec, frames=tuple(units))
        for (picture, _), (codec, units) in zip(rendered, encoded, strict=True)
    ]
    sent = [decode(picture.frames, *rendered[0][1].shape[1:3]) for picture in pictures]
    coded_hz = min(rate_hz, 1e9 / CODED_EVERY_NS)
    return _row(
        "H.264", pictures, sent, rendered, rate_hz=rate_hz, coded_hz=coded_hz, encode_ms=encode_ms
    )


def _row(
    codec: str,
    pictures: list[Picture],
    sent: list[npt.NDArray[np.uint8]],
    rendered: list[Rendered],
    *,
    rate_hz: float,
    coded_hz: float,
    encode_ms: float,
) -> ViewerRow:
    bare = float(np.mean([len(picture.without_coded.message) for picture in pictures]))
    coded = float(np.mean([len(picture.message) for picture in pictures])) - bare
    video_mbit, coded_mbit = 8e-6 * bare * rate_hz, 8e-6 * coded * coded_hz
    errors = [
        np.mean((shown.astype(np.float64) - _rgb(frames)) ** 2)
        for shown, (_, frames) in zip(sent, rendered, strict=True)
    ]
    psnr_db = float(10 * np.log10(255**2 / np.mean(errors)))
    return ViewerRow(codec, video_mbit, coded_mbit, video_mbit + coded_mbit, psnr_db, encode_ms)


def _rgb(frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return frames if frames.ndim == 4 else np.repeat(frames[..., None], 3, axis=-1)
