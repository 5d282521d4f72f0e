"""Where a solve begins, warm or cold, and the memory that takes: one engine's last video."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch

from sci_stream.model import Snapshot, SnapshotId, Start
from sci_stream.recon.initialization.error_map import InitialErrorMap
from sci_stream.recon.initialization.lmmse import LmmseEstimator
from sci_stream.recon.initialization.warm_start import predict
from sci_stream.recon.measurement import Measurement
from sci_stream.recon.settings import SolverSettings

# Largest α after a warm start: σ is low there, and stronger acceleration diverges. Of four scenes with α = 1.86 two end
# at 8 and 13 dB after 24 iterations; from a cold start they end at 22 and 25.
_WARM_RELAXATION = 1.5

# First σ in units of the error that a start is estimated to have where it is wrong: research/first-sigma.md.
_SIGMA_PER_ERROR = 2.0

# The same of a warm start whose error is at most this share of the cold one's; between that and 1, in between.
_WARM_SIGMA_PER_ERROR, _FAR_BETTER = 1.1, 0.87

# Of ρ, by which a warm start lowers the paper's first σ.
_WARM_POWER = 1.5

# What no solve begins below, however good its start is taken to be.
_LEAST_FIRST_SIGMA = 4 / 255

# Iterations from which on σ falls all the way: fewer, K, end at √(16/K) times its last value. Smooth motion takes the
# reach of a high σ to correct; by the time a longer solve is at a low one it is corrected.
_ENDS_LOW_AFTER = 16


@dataclass(frozen=True, slots=True, eq=False)
class InitialState:
    """The start v⁰ of a solve, (P, B, h, w), its first and last σ, what kind of start it is and why; ȳ, (P, 1, h, w).

    ``error`` is how far v⁰ is from the truth; None where that was not looked at.
    """

    v: torch.Tensor
    error: InitialErrorMap | None
    sigma_first: float
    sigma_last: float
    start: Start
    reason: str
    still: torch.Tensor


def gentle(settings: SolverSettings) -> SolverSettings:
    """Return settings with no more acceleration than a warm start stands."""
    return dataclasses.replace(settings, relaxation=min(settings.relaxation, _WARM_RELAXATION))


def sigma_per_error(ratio: float) -> float:
    """Return the first σ in units of the start's error, where a warm start's is this share ρ of the cold one's.

    A warm start's errors are a few that are large, where what moves was mispredicted, and its σ need not be as high to
    correct them. The less it gains, the more it is to be treated as the cold start that it nearly is.

    >>> sigma_per_error(1.0), sigma_per_error(0.5)
    (2.0, 1.1)
    """
    nearly_cold = min(1.0, max(0.0, (ratio - _FAR_BETTER) / (1.0 - _FAR_BETTER)))
    return _WARM_SIGMA_PER_ERROR + (_SIGMA_PER_ERROR - _WARM_SIGMA_PER_ERROR) * nearly_cold


class Initializer:
    """Remember the last video, and begin the next solve from it where it directly continues it.

    A snapshot follows on when it is the next one of the same series and epoch, the camera lost nothing in between, and
    it is not sent for a second time. Where it does not, and where the video turns out to predict nothing, the start is
    cold and says why:

    ============== ====================================================================================
    reason         what it means
    ============== ====================================================================================
    no_warm_start  switched off
    first          nothing was solved before, or nothing of this series
    gap            snapshots or camera frames are missing in between, or the camera was restarted
    redelivered    sent again after another node was lost: what came before it was not solved here
    calibration    the calibration changed
    cut            the scene before has nothing to do with this one
    memory         the device ran out of memory: the last video was given up for this one
    no_gain        the prediction is no better than the cold start: what moves does so in no predictable way
    diverged       the solve before came to nothing
    warm           the start is warm
    ============== ====================================================================================

    Parameters
    ----------
    settings
        Of the solves.
    """

    def __init__(self, settings: SolverSettings) -> None:
        self._settings = settings
        self._id: SnapshotId | None = None
        self._video: torch.Tensor | None = None
        self._sound: torch.Tensor | None = None
        self._reason = "first"

    def begin(
        self,
        snapshot: Snapshot,
        coded: Measurement,
        still: torch.Tensor,
        linear: LmmseEstimator,
        iterations: int,
    ) -> InitialState:
        """Return where to begin.

        Parameters
        ----------
        snapshot
            To be solved.
        coded
            Its measurement.
        still
            (P, B, h, w), its ȳ.
        linear
            Of the mask stack.
        iterations
            How many may follow.
        """
        settings = self._settings
        past, reason = self._before(snapshot)
        if past is None and not settings.linear_start:
            sigmas = settings.sigma_first, settings.sigma_last
            return InitialState(still, None, *sigmas, Start.COLD, reason, still[:, :1].clone())
        image = still[:, :1].clone()  # not all its frames, which are alike: it is kept for the whole solve
        evidence = linear.evidence(coded.y, coded.r_inv, coded.noise)
        cold = evidence.cold(still, linear=settings.linear_start)
        moves = evidence.moving(cold)
        cold_error = evidence.start_error(evidence.without_texture(cold, moves), moves)
        if past is not None:
            prediction = predict(past, cold, coded, evidence)
            reason = prediction.refusal or "warm"
            if reason == "warm":
                left = evidence.start_error(evidence.without_texture(prediction.start, moves), moves)
                known = self._known(left)
                sigmas = self._falling(self._first_sigma(left, prediction.error_ratio), iterations)
                return InitialState(prediction.start.video, known, *sigmas, Start.WARM, reason, image)
        sigmas = self._falling(self._first_sigma(cold_error), iterations)
        return InitialState(cold.video, self._known(cold_error), *sigmas, Start.COLD, reason, image)

    def _known(self, error: InitialErrorMap) -> InitialErrorMap | None:
        """Return the error if it is one: where ȳ alone was looked at, nothing shows what moves from texture."""
        return error if self._settings.linear_start else None

    def _first_sigma(self, error: InitialErrorMap, ratio: float = 1.0) -> float:
        """Return the first σ after a start of this error, for a warm one with ρ; from ȳ the settings' own."""
        if not self._settings.linear_start:
            return self._settings.sigma_first * math.pow(ratio, _WARM_POWER)
        return sigma_per_error(ratio) * math.sqrt(float(error.where_wrong))

    def _falling(self, first: float, iterations: int) -> tuple[float, float]:
        """Return the first and the last σ of so many iterations."""
        first, last = self._within(first), self._settings.sigma_last
        if self._settings.linear_start:
            last *= max(1.0, _ENDS_LOW_AFTER / iterations) ** 0.5
        return first, min(first, last)

    def _within(self, sigma: float) -> float:
        """Return the nearest σ that a solve may begin with."""
        return min(self._settings.sigma_first, max(sigma, _LEAST_FIRST_SIGMA))

    def keep(self, snapshot: Snapshot, video: torch.Tensor, sound: torch.Tensor) -> None:
        """Remember a solved snapshot's video, (P, B, h, w), unless a later one of its series is remembered already.

        ``sound``, () bool, shows whether the solve came to something; it is not looked at before it is needed, since
        the device may not be there yet.
        """
        if not self._settings.warm_start:
            return
        late = self._id is not None and self._id.series == snapshot.id.series and self._id.seq > snapshot.id.seq
        if not late:
            # A copy: on a CPU the caller's array may share the video's memory.
            shared = video.device.type == "cpu"
            self._id, self._video, self._sound = snapshot.id, video.clone() if shared else video, sound

    def forget(self, reason: str = "first") -> bool:
        """Begin the next solve cold, for this reason; return whether there was a video to forget."""
        remembered = self._video is not None
        self._id, self._video, self._sound, self._reason = None, None, None, reason
        return remembered

    def _before(self, snapshot: Snapshot) -> tuple[torch.Tensor | None, str]:
        """Return the video that a snapshot directly continues, or None and why there is none."""
        if not self._settings.warm_start:
            return None, "no_warm_start"
        if snapshot.redelivered:
            return None, "redelivered"
        before, now = self._id, snapshot.id
        if before is None or before.series != now.series:
            return None, self._reason if before is None else "first"
        if (before.epoch, before.seq + 1) != (now.epoch, now.seq) or snapshot.dropped_before:
            return None, "gap"
        if self._sound is not None and not bool(self._sound):
            return None, "diverged"
        return self._video, "warm"
