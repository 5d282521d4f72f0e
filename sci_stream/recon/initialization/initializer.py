"""The start of a solve, warm or cold, and the video that the next one may start from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sci_stream.model import Snapshot, SnapshotId
from sci_stream.ports import Coded
from sci_stream.recon.algorithms.gap import cold_start
from sci_stream.recon.algorithms.noise_level import Sigma
from sci_stream.recon.algorithms.schedule import MIN_SIGMA, sigma_levels
from sci_stream.recon.initialization.error_map import InitialErrorMap
from sci_stream.recon.initialization.lmmse import LmmseEstimator
from sci_stream.recon.initialization.warm_start import VERDICTS, predict, verdict
from sci_stream.recon.measurement import Measurement
from sci_stream.recon.settings import SolverSettings

# First σ in units of the error that a start is estimated to have where it is wrong:
# lab/research/first-sigma.md, whose figures are √2 higher, as the error there is √2 lower.
_SIGMA_PER_ERROR = 1.4
# The errors of a warm start are few and large, at mispredicted motion, and need a lower σ: 1.1
# costs 0.4 dB on Traffic and 0.2 dB on Crash in 4 iterations.
_WARM_SIGMA_PER_ERROR = 0.8

# Shorter solves, of K iterations, end at √(16/K) times the last σ: correcting smooth motion needs
# the spatial reach of a high σ, and only longer solves have corrected it before σ is low.
_ENDS_LOW_AFTER = 16


REASONS = (*VERDICTS, "diverged")
"""Reasons for a warm start, or against it, that only the device knows."""


class InitialState(NamedTuple):
    """The start v⁰ of a solve, (P, B, h, w), its first σ, (), and its reason; ȳ, (P, 1, h, w).

    ``error`` is the estimated error of v⁰; None if it was not estimated. ``reason``, (): the place
    in `REASONS`, where a video precedes the snapshot. ``known``, (): the
    variance of the error of a warm v⁰, infinite of a cold one; None where no video precedes the
    snapshot or errors are not estimated.
    """

    v: Tensor
    error: InitialErrorMap | None
    first: Tensor
    reason: Tensor
    still: Tensor
    known: Tensor | None = None


class Past(NamedTuple):
    """The video that a snapshot directly continues, (P, B, h, w), and whether it is finite, ()
    bool.
    """

    video: Tensor
    finite: Tensor


class Initializer:
    """Starts solves: from the last video, if a snapshot directly continues it.

    It does if it is the next one of the same series and epoch, no camera frame was lost in between,
    and it is not redelivered. Otherwise, or if the video does not predict it, the start is cold:

    - ``no_warm_start``: switched off.
    - ``first``: no snapshot of this series was solved before.
    - ``gap``: snapshots or camera frames are missing in between, or the camera was restarted.
    - ``redelivered``: after another node was lost; the preceding snapshot was not solved here.
    - ``calibration``: the calibration changed.
    - ``order``: a warm start would hide with which mask the exposures begin.
    - ``cut``: the scene has changed.
    - ``memory``: the device ran out of memory, and the last video was released.
    - ``no_gain``: the prediction is no better than the cold start.
    - ``diverged``: the preceding solve diverged.
    - ``warm``: the start is warm.
    """

    def __init__(self, settings: SolverSettings) -> None:
        self._settings = settings
        self._id: SnapshotId | None = None
        self._past: Past | None = None
        self._reason = "first"

    def keep(self, snapshot: Snapshot, video: Tensor, finite: Tensor) -> None:
        """Keep the video of a solved snapshot, (P, B, h, w), unless a later one of its series is
        kept already.

        No one may write to it. ``finite``, () bool, is False if the solve diverged.
        """
        before = self._id
        now = snapshot.id
        late = before is not None and before.series == now.series and before.seq > now.seq
        if self._settings.warm_start and not late:
            self._id = now
            self._past = Past(video, finite)

    def forget(self, reason: str = "first") -> bool:
        """Start the next solve cold, for this reason; return whether a video was released."""
        released = self._past is not None
        self._id = None
        self._past = None
        self._reason = reason
        return released

    def past(self, snapshot: Snapshot) -> tuple[Past | None, str]:
        """Return the video that a snapshot directly continues; or None with the reason."""
        if not self._settings.warm_start:
            return None, "no_warm_start"
        if snapshot.redelivered:
            return None, "redelivered"
        before = self._id
        now = snapshot.id
        if before is None or before.series != now.series:
            return None, self._reason if before is None else "first"
        if (before.epoch, before.seq + 1) != (now.epoch, now.seq) or snapshot.dropped_before:
            return None, "gap"
        return self._past, ""

    def begin(
        self, measurement: Measurement, linear: LmmseEstimator, past: Past | None
    ) -> InitialState:
        """Return the start of a solve; no number leaves the device."""
        settings = self._settings
        y = measurement.y
        phi = measurement.phi
        r_inv = measurement.r_inv
        clipped = measurement.r_inv_clipped
        # Clipped pixels count: they are a better guess of a highlight than its neighbours.
        still = cold_start(y, phi, r_inv if clipped is None else clipped)
        # Not all frames of ȳ, which are alike: it is kept for the whole solve.
        image = still[:, :1].clone()
        first = y.new_full((), settings.sigma_first)
        reason = y.new_zeros(())
        if past is None and not settings.linear_start:
            return InitialState(still, None, first, reason, image)
        errors = linear.leave_one_out(y, r_inv, measurement.noise)
        cold = errors.cold(still, linear=settings.linear_start)
        moves = errors.moving(cold)
        error = errors.start_error(errors.without_texture(cold, moves), moves)
        if settings.linear_start:  # from ȳ the paper's σ: its error cannot be estimated
            first = _first_sigma(settings, error, _SIGMA_PER_ERROR)
        v = cold.video
        known = None
        if past is not None:
            # The video of a solve that diverged is not used, but it is computed with.
            prediction = predict(
                torch.where(past.finite, past.video, still), cold, measurement, errors
            )
            warm_error = errors.start_error(errors.without_texture(prediction.start, moves), moves)
            reason = torch.where(
                past.finite, verdict(prediction.figures), float(REASONS.index("diverged"))
            )
            warm = reason == REASONS.index("warm")
            v = torch.where(warm, prediction.start.video, v)
            # A cold start is made of y alone, and knows nothing beside it.
            known = torch.where(warm, warm_error.where_wrong, math.inf)
            first = torch.where(
                warm, _first_sigma(settings, warm_error, _WARM_SIGMA_PER_ERROR), first
            )
            error = InitialErrorMap(
                *(torch.where(warm, *pair) for pair in zip(warm_error, error, strict=True))
            )
        # From ȳ alone, motion and texture cannot be distinguished: its error means nothing.
        if not settings.linear_start:
            return InitialState(v, None, first, reason, image)
        return InitialState(v, error, first, reason, image, known)


def _first_sigma(settings: SolverSettings, error: InitialErrorMap, per_error: float) -> Tensor:
    """Return the first σ after a start of this error, ()."""
    first = per_error * error.where_wrong.sqrt()
    # An error that overflowed says no more than that it is large.
    return (
        first.nan_to_num(nan=settings.sigma_first).clamp(MIN_SIGMA).clamp_max(settings.sigma_first)
    )


def levels_from(settings: SolverSettings, first: Tensor, iterations: int) -> Sequence[Sigma]:
    """Return σ of each iteration of a solve from the first on: the last is lower, or all are the
    first.
    """
    last = settings.sigma_last
    if settings.linear_start:
        last *= max(1.0, _ENDS_LOW_AFTER / iterations) ** 0.5
    return sigma_levels(first, first.clamp_max(last), iterations)


def coded(measurement: Measurement, start: InitialState, v: Tensor) -> Coded:
    """Return a measurement and the estimate v, (P, B, h, w), that a solve has come to, as the
    stages take them.
    """
    y = measurement.y
    r_inv = measurement.r_inv
    noise = measurement.noise
    error = start.error
    if error is not None and noise is not None and measurement.mismatch is not None:
        noise, error = error.with_noise(noise, measurement.mismatch * y, r_inv)
    around = start.first.square().expand(y.shape)  # from ȳ, whose error is not known
    if error is not None:
        around = torch.where(error.around.isfinite(), error.around, error.where_wrong).clamp(
            0.0, 1.0
        )
    noise = torch.zeros_like(y) if noise is None else noise.clamp_min(0.0)
    return Coded(y, measurement.phi, r_inv, noise, around, start.still[:, 0], v)
