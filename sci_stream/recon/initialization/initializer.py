"""The start of a solve, warm or cold; keeps the last video of an engine for the next warm start."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from sci_stream.model import Snapshot, SnapshotId
from sci_stream.recon.algorithms.gap import cold_start
from sci_stream.recon.algorithms.schedule import LEAST_SIGMA
from sci_stream.recon.initialization.error_map import InitialErrorMap
from sci_stream.recon.initialization.lmmse import LmmseEstimator
from sci_stream.recon.initialization.warm_start import VERDICTS, predict, verdict
from sci_stream.recon.measurement import Measurement
from sci_stream.recon.settings import SolverSettings

# First σ in units of the error that a start is estimated to have where it is wrong: lab/research/first-sigma.md, whose
# figures are √2 higher, as the error there is √2 lower. The errors of a warm start are few and large, at mispredicted
# motion, and need a lower σ: 1.1 costs 0.4 dB on Traffic and 0.2 dB on Crash in 4 iterations.
_SIGMA_PER_ERROR, _WARM_SIGMA_PER_ERROR = 1.4, 0.8

# Shorter solves, of K iterations, end at √(16/K) times the last σ: correcting smooth motion needs the spatial reach of
# a high σ, and only longer solves have corrected it before σ is low.
_ENDS_LOW_AFTER = 16


Call = Callable[..., Any]
"""``call(key, function, *tensors)`` returns ``function(*tensors)``; ``key`` stands for all else that it depends on."""


def call_directly(_key: Hashable, function: Callable[..., Any], *tensors: torch.Tensor | None) -> Any:
    """Call a function of tensors; see `Call`."""
    return function(*tensors)


_Sigma = TypeVar("_Sigma", float, torch.Tensor)
_Reason = TypeVar("_Reason", str, torch.Tensor)


class InitialState(NamedTuple, Generic[_Sigma, _Reason]):
    """The start v⁰ of a solve, (P, B, h, w), its first and last σ and its reason; ȳ, (P, 1, h, w).

    ``error`` is the estimated error of v⁰; None if it was not estimated. If the device has chosen the start, σ and the
    reason stay there, (): the place in `REASONS`.
    """

    v: torch.Tensor
    error: InitialErrorMap | None
    sigma_first: _Sigma
    sigma_last: _Sigma
    reason: _Reason
    still: torch.Tensor


REASONS = (*VERDICTS, "diverged")
"""Reasons for a warm start, or against it, that only the device knows."""


class Initializer:
    """Keep the last video, and start the next solve from it if the snapshot directly continues it.

    A snapshot continues the video if it is the next one of the same series and epoch, no camera frame was lost in
    between, and it is not redelivered. Otherwise, or if the video does not predict it, the start is cold:

    ============== ====================================================================================
    reason         meaning
    ============== ====================================================================================
    no_warm_start  switched off
    first          no snapshot of this series was solved before
    gap            snapshots or camera frames are missing in between, or the camera was restarted
    redelivered    redelivered after another node was lost: the preceding snapshot was not solved here
    calibration    the calibration changed
    cut            the scene has changed
    memory         the device ran out of memory: the last video was released
    no_gain        the prediction is no better than the cold start: motion is not predictable
    diverged       the preceding solve diverged
    warm           the start is warm
    ============== ====================================================================================

    Parameters
    ----------
    call
        How to do what depends on tensors alone: `sci_stream.recon.backend.cuda_graph.Graphs.call` to record it.
    """

    def __init__(self, settings: SolverSettings, call: Call = call_directly) -> None:
        self._settings = settings
        self._call = call
        self._id: SnapshotId | None = None
        self._video: torch.Tensor | None = None
        self._finite: torch.Tensor | None = None
        self._reason = "first"

    def begin(
        self, snapshot: Snapshot, measurement: Measurement, linear: LmmseEstimator, iterations: int
    ) -> InitialState[float, str]:
        """Return the initial state of a solve.

        The host waits for the device once, for the figures that decide.

        Parameters
        ----------
        snapshot, measurement, linear
            The snapshot, its measurement, and the estimator of its masks.
        iterations
            Largest number of iterations.
        """
        past, finite, reason = self.past(snapshot)
        find = partial(_candidates, self._settings, measurement.phi, linear)
        tensors = (measurement.y, measurement.r_inv, measurement.r_inv_clipped, measurement.noise, past, finite)
        found = self._call(("start", linear), find, *tensors)
        v, error = found.cold, self._known(found.cold_error)
        if found.figures is None:
            return InitialState(v, error, self._settings.sigma_first, self._settings.sigma_last, reason, found.still)
        verdict_at, first, warm_first = found.figures.tolist()
        if found.warm is not None:
            reason = REASONS[int(verdict_at)]
            if reason == "warm":
                v, error, first = found.warm, self._known(found.warm_error), warm_first
        return InitialState(v, error, first, min(first, self._last_sigma(iterations)), reason, found.still)

    def begin_on_device(
        self,
        measurement: Measurement,
        linear: LmmseEstimator,
        iterations: int,
        past: torch.Tensor | None,
        finite: torch.Tensor | None,
    ) -> InitialState[torch.Tensor, torch.Tensor]:
        """Return the initial state, as `begin` does, without a figure leaving the device.

        Parameters
        ----------
        measurement, linear, iterations
            As for `begin`.
        past, finite
            The video that the snapshot continues, and whether it is finite; see `past`.
        """
        settings, y, r_inv = self._settings, measurement.y, measurement.r_inv
        others = (measurement.r_inv_clipped, measurement.noise, past, finite)
        found = _candidates(settings, measurement.phi, linear, y, r_inv, *others)
        if found.figures is None:
            first, last = (y.new_full((), sigma) for sigma in (settings.sigma_first, settings.sigma_last))
            return InitialState(found.cold, None, first, last, torch.zeros_like(first), found.still)
        verdict_at, first, warm_first = found.figures.unbind()
        v, error = found.cold, self._known(found.cold_error)
        if found.warm is not None:
            warm = verdict_at == 0
            v, first = torch.where(warm, found.warm, v), torch.where(warm, warm_first, first)
            if error is not None and found.warm_error is not None:
                pairs = zip(found.warm_error, error, strict=True)
                error = InitialErrorMap(*(torch.where(warm, one, other) for one, other in pairs))
        return InitialState(v, error, first, first.clamp_max(self._last_sigma(iterations)), verdict_at, found.still)

    def _known(self, error: InitialErrorMap | None) -> InitialErrorMap | None:
        """Return the error if it is meaningful: from ȳ alone, motion and texture cannot be distinguished."""
        return error if self._settings.linear_start else None

    def _last_sigma(self, iterations: int) -> float:
        """Return the last σ of this number of iterations, if the first is not lower."""
        last = self._settings.sigma_last
        return last * max(1.0, _ENDS_LOW_AFTER / iterations) ** 0.5 if self._settings.linear_start else last

    def keep(self, snapshot: Snapshot, video: torch.Tensor, finite: torch.Tensor) -> None:
        """Keep the video of a solved snapshot, (P, B, h, w), unless a later one of its series is kept already.

        Nothing but a recording may write to it. ``finite``, () bool, is False if the solve diverged. It is read only
        when needed, because the device may still be computing it.
        """
        if not self._settings.warm_start:
            return
        if self._id is not None and self._id.series == snapshot.id.series and self._id.seq > snapshot.id.seq:
            if self._video is not None and self._video.data_ptr() == video.data_ptr():
                self.forget("gap")  # a recording gives every video in the same memory: the later one is overwritten
            return
        self._id, self._video, self._finite = snapshot.id, video, finite

    def forget(self, reason: str = "first") -> bool:
        """Start the next solve cold, for this reason; return whether a video was released."""
        released = self._video is not None
        self._id, self._video, self._finite, self._reason = None, None, None, reason
        return released

    def past(self, snapshot: Snapshot) -> tuple[torch.Tensor | None, torch.Tensor | None, str]:
        """Return the video that a snapshot directly continues and whether it is finite, (); or None with the reason."""
        if not self._settings.warm_start:
            return None, None, "no_warm_start"
        if snapshot.redelivered:
            return None, None, "redelivered"
        before, now = self._id, snapshot.id
        if before is None or before.series != now.series:
            return None, None, self._reason if before is None else "first"
        if (before.epoch, before.seq + 1) != (now.epoch, now.seq) or snapshot.dropped_before:
            return None, None, "gap"
        return self._video, self._finite, "warm"


class _Candidates(NamedTuple):
    """The starts that a snapshot has, on the device; the warm ones None where no video precedes it.

    ``still``, (P, 1, h, w), is ȳ. ``figures``, (3,), decide between them: the place of the verdict on the warm start in
    `REASONS`, and the first σ after the cold and the warm one. None where the start is ȳ and the settings have σ.
    """

    still: torch.Tensor
    cold: torch.Tensor
    cold_error: InitialErrorMap | None
    warm: torch.Tensor | None
    warm_error: InitialErrorMap | None
    figures: torch.Tensor | None


def _candidates(  # noqa: PLR0917 - recorded calls take tensors by position
    settings: SolverSettings,
    phi: torch.Tensor,
    linear: LmmseEstimator,
    y: torch.Tensor,
    r_inv: torch.Tensor,
    r_inv_clipped: torch.Tensor | None,
    noise: torch.Tensor | None,
    past: torch.Tensor | None,
    finite: torch.Tensor | None,
) -> _Candidates:
    """Return the starts of a solve; no number leaves the device."""
    # Clipped pixels count: they are a better guess of a highlight than its neighbours.
    still = cold_start(y, phi, r_inv if r_inv_clipped is None else r_inv_clipped)
    # Not all frames of ȳ, which are alike: it is kept for the whole solve.
    image = still[:, :1].clone()
    if past is None and not settings.linear_start:
        return _Candidates(image, still, None, None, None, None)
    errors = linear.leave_one_out(y, r_inv, noise)
    cold = errors.cold(still, linear=settings.linear_start)
    moves = errors.moving(cold)
    cold_error = errors.start_error(errors.without_texture(cold, moves), moves)
    # From ȳ the paper's σ: its error cannot be estimated.
    as_set = torch.full_like(cold_error.where_wrong, settings.sigma_first)
    cold_first = _first_sigma(settings, cold_error, _SIGMA_PER_ERROR) if settings.linear_start else as_set
    if past is None or finite is None:
        figures = torch.stack((torch.zeros_like(cold_first), cold_first, cold_first))
        return _Candidates(image, cold.video, cold_error, None, None, figures)
    # The video of a solve that diverged is not used, but it is computed with.
    past = torch.where(finite, past, still)
    prediction = predict(past, cold, Measurement(y, phi, r_inv, noise), errors)
    error = errors.start_error(errors.without_texture(prediction.start, moves), moves)
    found = torch.where(finite, verdict(prediction.figures), float(REASONS.index("diverged")))
    warm_first = _first_sigma(settings, error, _WARM_SIGMA_PER_ERROR)
    figures = torch.stack((found, cold_first, warm_first))
    return _Candidates(image, cold.video, cold_error, prediction.start.video, error, figures)


def _first_sigma(settings: SolverSettings, error: InitialErrorMap, per_error: float) -> torch.Tensor:
    """Return the first σ after a start of this error, ()."""
    first = per_error * error.where_wrong.sqrt()
    # An error that overflowed says no more than that it is large.
    return first.nan_to_num(nan=settings.sigma_first).clamp(LEAST_SIGMA).clamp_max(settings.sigma_first)
