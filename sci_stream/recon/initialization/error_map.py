"""Error of the start of a solve at each pixel, estimated without the truth.

Each measured pixel is predicted from the others (`sci_stream.recon.initialization.lmmse`); the
squares of the prediction errors, averaged around a pixel, estimate the variance e_p² of the start
there. The noise level at a pixel is proportional to e_p: where nothing moves and the start is
exact, almost nothing is denoised away. Figures: lab/research/real-light.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sci_stream.recon.algorithms.gap import ERROR_PER_SIGMA
from sci_stream.recon.initialization.optical_flow import WINDOW_PX, box_mean
from sci_stream.recon.noise_estimation import MOVING_MISMATCH

# Lowest σ at a pixel in units of σ, since noise is divided by its square. 0.02 gives the same; 0.5
# would denoise still texture away: 0.4 dB behind binary masks (lab/research/real-light.md).
_MIN_LEVEL = 0.1

_TINY = 1e-12


class InitialErrorMap(NamedTuple):
    """Estimated squared error of a start: e_p², (P, H, W), infinite where nothing is measured.

    ``where_wrong``, (): the root of the mean of e_p⁴, dominated by the pixels with large errors.
    ``moves``, (P, H, W), 0–1: where something moves. Each plane of a mosaic has its error, since
    a saturated colour is bright in one of them alone.
    """

    around: Tensor
    where_wrong: Tensor
    moves: Tensor

    def levels(self) -> Tensor:
        """Return the noise level at each pixel as a multiple of σ, (P, H, W), a new tensor: e_p/ê.

        ê is the root of `where_wrong`, from which σ is chosen. Where nothing is measured, 1.
        """
        ratio = torch.where(
            self.around.isfinite(), self.around, self.where_wrong
        ) / self.where_wrong.clamp_min(_TINY)
        return ratio.sqrt().clamp_min(_MIN_LEVEL)

    def with_noise(
        self, noise: Tensor, mismatch: Tensor, r_inv: Tensor
    ) -> tuple[Tensor, InitialErrorMap]:
        """Return the noise of y with the errors of the masks that motion reveals, and the map with
        its part in e_p².

        A projection puts noise of variance n² into the frames with the variance n²/R, which is
        compared with an error of variance 2σ² (`sci_stream.recon.algorithms.gap.data_weight`): half
        of it is part of σ². Where nothing moves, the start averages noise out over all frames, and
        the map has it already.

        Parameters
        ----------
        noise, mismatch
            n² and the part of it that errors of the masks cause, (P, H, W).
        r_inv
            1/R, 0 at pixels without a valid measurement; (P, H, W).
        """
        moves = box_mean(self.moves, WINDOW_PX)
        noise = torch.addcmul(noise, mismatch.clamp_min(0.0), moves, value=MOVING_MISMATCH - 1.0)
        added = box_mean(noise * r_inv, WINDOW_PX).mul_(moves)
        return noise, self._replace(around=self.around.add(added, alpha=1 / ERROR_PER_SIGMA))


def start_error(
    mispredicted: Tensor, contrast: Tensor, moves: Tensor, filled: Tensor
) -> InitialErrorMap:
    """Estimate the error of the frames from their prediction errors.

    The mean of the frames is measured directly; their differences are in error. Such an error of
    variance e² mispredicts y_p with the variance e² (Σφ² − (Σφ)²/B): grey masks that hardly differ
    hardly show it. A pixel that is open in no mask has the error of being filled, also in a still
    scene: behind two random binary masks that is each fourth one.

    Parameters
    ----------
    mispredicted
        Local mean of the squares by which the start mispredicts y, (P, H, W), 0 where nothing is
        measured.
    contrast
        Σφ² − (Σφ)²/B of the same pixels, 0 likewise.
    moves
        (P, H, W), 0–1: where something moves.
    filled
        Squared error of filling pixels that are not measured, (P, H, W), 0 where they are.
    """
    near = box_mean(contrast, WINDOW_PX)
    known = near > _TINY
    around = box_mean(mispredicted, WINDOW_PX) / torch.where(known, near, 1.0)
    around = torch.where(filled > 0, filled, around)
    where_wrong = ((around * known).square().sum() / known.sum().clamp_min(1)).sqrt()
    return InitialErrorMap(torch.where(known, around, math.inf), where_wrong, moves)
