"""How far the start of a solve is from the truth, at each pixel, estimated without the truth.

Each measured pixel is predicted from the others (`sci_stream.recon.initialization.lmmse`); the squares of the
prediction errors, averaged around a pixel, estimate the variance e_p² of the start there. The noise level that a pixel
is denoised with follows it: where nothing moves and the start is exact, hardly anything is taken away; where the start
is wrong, the prior does its work. Figures: research/real-light.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from sci_stream.recon.initialization.optical_flow import box_mean

# Radius of the windows, averaged twice, that prediction errors are averaged in.
_AROUND_PX = 6

# Range of σ at a pixel in units of σ. Tuned on five scenes behind binary and grey masks (research/real-light.md): a
# lower bound of 0.5 costs 0.4 dB behind binary masks and 0.2 dB behind grey ones, since still texture is denoised away.
_LEAST_LEVEL, _MOST_LEVEL = 0.1, 2.0

_TINY = 1e-12


class InitialErrorMap(NamedTuple):
    """How far a start is from the truth: e_p², (P, H, W), infinite where nothing is measured.

    ``where_wrong``, (): the root of the mean of e_p⁴, which shows how large errors are where there are any. ``moves``,
    (P, H, W), 0–1: where something moves.
    """

    around: torch.Tensor
    where_wrong: torch.Tensor
    moves: torch.Tensor

    def levels(self) -> torch.Tensor:
        """Return the noise level at each pixel as a multiple of σ, (P, H, W), a new tensor: e_p/ê.

        ê is `where_wrong`, which σ is chosen by. Where nothing is measured, 1.
        """
        ratio = torch.where(self.around.isfinite(), self.around, self.where_wrong) / self.where_wrong.clamp_min(_TINY)
        return ratio.sqrt_().clamp_(_LEAST_LEVEL, _MOST_LEVEL)


def start_error(mispredicted: torch.Tensor, exposure: torch.Tensor, moves: torch.Tensor) -> InitialErrorMap:
    """Estimate the error of the frames from how they mispredict the measurement.

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
    return InitialErrorMap(torch.where(known, around, math.inf), where_wrong, moves)
