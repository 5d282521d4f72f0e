r"""How much a solve may change, judged without the ground truth: no more than its start is estimated to be wrong.

A denoiser takes away what is wrong and what it does not know: fine texture goes with the errors, more of it with every
iteration and every step that σ is too high. How far the start v⁰ is from the truth is estimated from how each measured
pixel is mispredicted by the others (`sci_stream.recon.initialization.lmmse`): e_p² around a pixel p, e² in all. What
moves much further than that from its start moves away from the truth. So a solve is restrained three times:

- σ. The first denoising moves the frames by m e. Where it corrects errors, m is about a half; from m₀ = 0.6 on it
takes away
  more than is wrong, and σ is lowered by (m/m₀)^−2 for the rest of the solve.
- The number of iterations. If m > m₀, and less than half of e² is where anything moves, little is left to correct and
  much to lose: the solve ends after one round of the priors that take turns.
- The end. Where frames have moved around p by d_p > c e_p they are taken back: v ← v⁰ + (c e_p/d_p)(v − v⁰). Nothing
  that stands still needs to move far: there c is lower. And a warm start that is better than the cold one is so by what
  the video before it knew and no denoiser does; of each change it stands with the share 1 − a(1 − ρ_p²), ρ_p its error
  beside the cold start's.

Settings and what they give: research/restraint.md, correlated-errors.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch

from sci_stream.recon.initialization.optical_flow import box_mean

_MENDING = 0.6
"""m₀."""

_LESS_SIGMA = 2.0
"""Power of m₀/m by which σ is lowered."""

_LEAST_SIGMA = 4 / 255
"""What σ is not lowered below."""

_LITTLE_MOTION = 0.5
"""Share of e² where something moves, up to which a solve is ended early."""

_FEWEST = 6
"""Iterations that no solve is ended before."""

_REACH, _REACH_STILL = 1.35, 0.5
"""c where something moves, and where nothing does: where frames move much, their error is up to 1.3 times the estimate;
still ones are exact but for noise, and half of that is as much as a denoiser takes away that sees no texture in it."""

_MOVES = 0.35
"""How much of what is around a pixel has to move for that to count as motion; fast motion is not seen everywhere."""

_LASTING = 0.6
"""a: with 0.4 to 1 the outcome is within 0.1 dB of the best."""

_AROUND_PX = 6
"""Radius of the windows, averaged twice, in which d and e are compared."""

_TINY = 1e-12


_UNEVEN = 0.5
"""g: how much σ follows the error from place to place, of not at all, 0, and all the way, 1. What is wrong in one place
is repaired with what its surroundings tell."""

_LEAST_LEVEL, _MOST_LEVEL = 0.5, 2.0
"""Between what σ at a place may lie, in units of σ."""


class InitialErrorMap(NamedTuple):
    """How far a start is from the truth: e_p² (P, H, W), infinite where nothing is measured, and e² over all, ().

    ``where_wrong``, (): the root of the mean of e_p⁴, which shows how large errors are where there are any. ``moves``,
    (P, H, W), 0–1: where something moves; ``of_motion``, (): the share of e² that is there. ``beside_cold``, of a warm
    start: e_p² as a fraction of the cold start's, ρ_p², (P, H, W), 0–1.
    """

    around: torch.Tensor
    everywhere: torch.Tensor
    where_wrong: torch.Tensor
    moves: torch.Tensor
    of_motion: torch.Tensor
    beside_cold: torch.Tensor | None = None

    def levels(self) -> torch.Tensor:
        """Return at which multiple of σ each pixel is to be denoised, (P, H, W), a new tensor: (e_p/ê)^g.

        ê is `where_wrong`, which σ is chosen by. Where nothing is measured, 1.
        """
        ratio = torch.where(self.around.isfinite(), self.around, self.where_wrong) / self.where_wrong.clamp_min(_TINY)
        return ratio.pow_(_UNEVEN / 2).clamp_(_LEAST_LEVEL, _MOST_LEVEL)

    def of_warm(self, cold: InitialErrorMap) -> InitialErrorMap:
        """Return the error of a warm start beside the cold one's; where nothing is measured they are the same."""
        known = cold.around.isfinite() & (cold.around > _TINY)
        ratio = torch.where(known, self.around / torch.where(known, cold.around, 1.0), 1.0)
        return self._replace(beside_cold=ratio.clamp_(0.0, 1.0))


def start_error(mispredicted: torch.Tensor, exposure: torch.Tensor, moves: torch.Tensor) -> InitialErrorMap:
    """Return what prediction errors tell of the frames.

    A white error of the frames with variance e² mispredicts y_p with the variance e² R_p, R = Σφ².

    Parameters
    ----------
    mispredicted
        Local mean of the squares by which the start mispredicts y, (P, H, W), 0 where nothing is measured.
    exposure
        R of the same pixels, 0 likewise.
    moves
        (P, H, W), 0–1: where something moves.
    """
    near = box_mean(exposure, _AROUND_PX)
    known = near > _TINY
    around = box_mean(mispredicted, _AROUND_PX) / torch.where(known, near, 1.0)
    where_wrong = ((around * known).square().sum() / known.sum().clamp_min(1)).sqrt()
    total = mispredicted.sum()
    of_motion = (mispredicted * moves).sum() / total.clamp_min(_TINY)
    return InitialErrorMap(
        torch.where(known, around, math.inf), total / exposure.sum().clamp_min(_TINY), where_wrong, moves, of_motion
    )


def round_to_end_after(n_priors: int, iterations: int) -> int:
    """Return after how many iterations to end a solve early, so that its last one denoises as it would have.

    >>> round_to_end_after(6, 20), round_to_end_after(6, 12), round_to_end_after(1, 40)
    (8, 6, 6)
    """
    return min(iterations, _FEWEST + (iterations - _FEWEST) % n_priors)


class TrustRegion:
    """Holds one solve to its start.

    Parameters
    ----------
    start
        (P, B, H, W), v⁰; kept, and not to be changed while this is in use.
    error
        How far it is from the truth.
    end_early
        Called after the first iteration if the solve is to end early.
    """

    def __init__(self, start: torch.Tensor, error: InitialErrorMap, end_early: Callable[[], None]) -> None:
        self._start = start
        self._error = error
        self._end_early = end_early
        self._scale = 1.0
        self.ended_early = False

    def watched(self, iterates: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Pass the iterates through, and look at the first; the one time that the device is waited for."""
        for n, estimate in enumerate(iterates):
            if n == 0:
                self._look(estimate)
            yield estimate

    def _look(self, estimate: torch.Tensor) -> None:
        far = self._distance(estimate).mean().div(self._error.everywhere.clamp_min(_TINY)).sqrt()
        moved, of_motion = torch.stack((far, self._error.of_motion)).tolist()
        # A diverged estimate has no finite distance; the engine finds out.
        if _MENDING < moved < math.inf:
            self._scale = (_MENDING / moved) ** _LESS_SIGMA
            self.ended_early = of_motion < _LITTLE_MOTION
        if self.ended_early:
            self._end_early()

    def sigma(self, planned: float) -> float:
        """Return the σ to denoise with where a schedule says ``planned``."""
        return min(planned, max(planned * self._scale, _LEAST_SIGMA))

    def held(self, video: torch.Tensor) -> torch.Tensor:
        """Return frames no further from their start than that may be wrong, (P, B, H, W), a new tensor."""
        error = self._error
        distance = box_mean(self._distance(video), _AROUND_PX).clamp_min(_TINY)
        moves = (box_mean(error.moves, _AROUND_PX) / _MOVES).clamp_max_(1.0)
        reach = _REACH_STILL + (_REACH - _REACH_STILL) * moves
        share = (reach.square_() * error.around / distance).clamp_max_(1.0).sqrt_()
        if error.beside_cold is not None:
            share.mul_(1 - _LASTING * (1 - error.beside_cold))
        return self._start.lerp(video, share.unsqueeze(1))

    def _distance(self, video: torch.Tensor) -> torch.Tensor:
        """Return the mean square over the frames of how far they have moved, (P, H, W)."""
        total = torch.zeros_like(self._error.around)
        for frame, start in zip(video.unbind(1), self._start.unbind(1), strict=True):
            total += (frame - start).square_()
        return total.div_(video.shape[1])
