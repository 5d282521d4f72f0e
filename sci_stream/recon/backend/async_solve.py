"""A solve that may still be running on the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sci_stream.model import Array
from sci_stream.recon.backend.transfers import Arrival, Stopwatch
from sci_stream.recon.metrics import psnr
from sci_stream.reports import SolveReport, Start


@dataclass(eq=False)
class AsyncSolve:
    """A reconstruction that the device may still be working on.

    ``arrival`` brings the video, (B, H, W), and six numbers: its residual, 1 if the solve came out
    finite, else 0, the place of the reason for its start in ``reasons`` (``"warm"`` for a warm
    start), the estimated noise and mismatch, NaN if unknown, and ``own_residual``. ``report`` makes
    the report of the fields that only the device knows, ``finished`` is called once with it; the
    last two laps of ``watch`` are around the solve.
    """

    arrival: Arrival
    report: Callable[..., SolveReport]
    truth: Array | None
    watch: Stopwatch
    finished: Callable[[SolveReport], None]
    reasons: Sequence[str]
    before_image: tuple[Tensor, Tensor] | None = None
    """The video and its residual without the moving image; None if there is none."""
    own_residual: float = math.nan
    """Residual of the solver's own video, before a data step; known once it is finished."""

    @property
    def ready(self) -> bool:
        """Whether `finish` would return at once."""
        return self.arrival.ready

    def finish(self) -> tuple[npt.NDArray[np.floating[Any]], SolveReport]:
        """Wait for the video; call it once.

        Returns
        -------
        video, report
            As of `sci_stream.recon.engine.Engine.reconstruct`.
        """
        video, facts = self.arrival.arrays()
        residual, finite, which, noise, mismatch, self.own_residual = map(float, facts)
        reason = self.reasons[int(which)] if finite else "diverged"
        report = self.report(
            start=Start.WARM if reason == "warm" else Start.COLD,
            start_reason=reason,
            solve_ns=int(self.watch.seconds() * 1e9),
            residual=residual,
            noise=None if math.isnan(noise) else noise,
            mismatch=None if math.isnan(mismatch) else mismatch,
            psnr_db=None if self.truth is None else video_psnr(video, self.truth),
        )
        self.finished(report)
        return video, report

    def without_image(
        self, video: npt.NDArray[np.floating[Any]], report: SolveReport
    ) -> tuple[npt.NDArray[np.floating[Any]], SolveReport]:
        """Return the result of `finish` as it is without a moving image."""
        if self.before_image is None:
            return video, report
        before, residual = self.before_image
        return before.cpu().numpy(), replace(report, residual=float(residual))


def video_psnr(video: npt.NDArray[np.floating[Any]], truth: Array) -> float:
    """Return the mean PSNR in dB, the truth given as integers (full range = 1.0) or as floats."""
    peak = float(np.iinfo(truth.dtype).max) if np.issubdtype(truth.dtype, np.integer) else 1.0
    ours = torch.from_numpy(video.astype(np.float32, copy=False))
    return psnr(ours, torch.from_numpy(truth.astype(np.float32) / np.float32(peak)))
