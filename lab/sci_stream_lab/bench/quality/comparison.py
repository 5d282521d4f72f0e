"""Compare the video of two recordings: PSNR and SSIM for each snapshot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from pydantic import JsonValue

from sci_stream.errors import InputError
from sci_stream.recon.metrics import psnr
from sci_stream.recording.series import RecordedSeries
from sci_stream_lab.bench.quality.similarity import ssim

# Side of the SSIM window: smaller frames have no SSIM.
_SSIM_PX = 11


@dataclass(frozen=True, slots=True)
class Similarity:
    """Video of one snapshot in both recordings.

    ``psnr_db`` is infinite for equal video; ``ssim`` None if too small.
    """

    seq: int
    psnr_db: float
    ssim: float | None
    max_difference: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """All snapshots with video in both recordings, and the numbers of those with video in
    only one.
    """

    snapshots: list[Similarity]
    only_first: int
    only_second: int

    @property
    def psnr_db(self) -> dict[str, JsonValue] | None:
        """Mean and minimum over the snapshots that differ; None if all are equal."""
        return _extent([one.psnr_db for one in self.snapshots if math.isfinite(one.psnr_db)])

    @property
    def ssim(self) -> dict[str, JsonValue] | None:
        """Mean and minimum; None if the frames are too small."""
        return _extent([one.ssim for one in self.snapshots if one.ssim is not None])

    def to_json(self) -> dict[str, JsonValue]:
        """Return the comparison as plain values; infinite PSNR is that of equal video."""
        return {
            "snapshots": len(self.snapshots),
            "equal": sum(math.isinf(one.psnr_db) for one in self.snapshots),
            "psnr_db": self.psnr_db,
            "ssim": self.ssim,
            "max_difference": max(one.max_difference for one in self.snapshots),
            "only_first": self.only_first,
            "only_second": self.only_second,
            "per_snapshot": [asdict(one) for one in self.snapshots],
        }


def _extent(values: Sequence[float]) -> dict[str, JsonValue] | None:
    return {"mean": sum(values) / len(values), "min": min(values)} if values else None


def compare_recordings(
    first: Path, second: Path, progress: Callable[[int, int], None] = lambda _done, _total: None
) -> Comparison:
    """Compare the video of two recordings; peak 1.0.

    Bayer mosaics are compared as mosaics, without demosaicing.

    ``progress`` is called with the number of snapshots done and the total.

    Raises
    ------
    FileFormatError
        If a file is not a recording.
    InputError
        If their videos differ in size, or they have no snapshot in common.
    """
    with RecordedSeries(first) as a, RecordedSeries(second) as b:
        if a.video.shape[1:] != b.video.shape[1:]:
            raise InputError(
                "The recordings cannot be compared",
                expected=f"videos of {a.video.shape[1:]} (B, H, W), as in {first}",
                got=f"{b.video.shape[1:]} in {second}",
            )
        common = np.intersect1d(a.video.seqs, b.video.seqs)
        if not len(common):
            raise InputError(
                "The recordings have no reconstructed snapshot in common",
                got=f"{len(a.video)} videos in {first}, {len(b.video)} in {second}",
                hint="A recording without video: sci-stream replay makes it from the raw "
                "snapshots.",
            )
        similarities = []
        for done, seq in enumerate(common.tolist(), 1):
            similarities.append(_similarity(a, b, seq))
            progress(done, len(common))
        return Comparison(similarities, len(a.video) - len(common), len(b.video) - len(common))


def _similarity(a: RecordedSeries, b: RecordedSeries, seq: int) -> Similarity:
    one, other = (
        torch.from_numpy(series.frame_of("video", seq).astype(np.float32)) for series in (a, b)
    )
    large_enough = min(one.shape[-2:]) >= _SSIM_PX
    return Similarity(
        seq,
        psnr(other, one),
        ssim(other, one) if large_enough else None,
        float((other - one).abs().max()),
    )
