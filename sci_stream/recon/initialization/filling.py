"""Pixels that no mask opens: the still image goes on there as the denoiser expects.

Two random binary masks leave each fourth pixel unmeasured, three each eighth. The mean of the
pixels around it is a poor guess of texture. The still image is one image with holes, so a few
steps of plug-and-play inpainting fill them: denoise the image, and keep the measured pixels. A
step costs one frame of an iteration, which has B of them. Figures: lab/research/linear-start.md.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sci_stream.recon.denoisers.temporal import FrameDenoiser

LEAST_SHARE = 0.01
"""Least share of pixels to be filled: four random binary masks leave 6 %, eight 0.4 %."""
# Tuned on three still and one slow scene behind two to four masks: 12 steps gain 0.1 dB more, 3
# lose 1.0 dB.
_STEPS = 6
_FIRST_SIGMA = 20 / 255
# 6 in place of 2 loses 0.4 dB.
_LAST_SIGMA = 2 / 255


def filled(still: Tensor, known: Tensor, denoise: FrameDenoiser, relaxation: float) -> Tensor:
    """Return a still image with its unknown pixels filled.

    Parameters
    ----------
    still
        (P, 1, H, W), with a first guess of the unknown pixels.
    known
        (P, H, W) bool: the pixels to keep.
    denoise
        Takes (P, 1, H, W) and σ.
    relaxation
        Steps go so many times the way to the denoised image, as those of a solve.

    Returns
    -------
    (P, 1, H, W), a new tensor. Pixels at which the denoiser diverges keep the first guess.
    """
    known = known.unsqueeze(1)
    image = still
    for sigma in np.geomspace(_FIRST_SIGMA, _LAST_SIGMA, _STEPS):
        step = torch.lerp(image, denoise(image, float(sigma)), relaxation)
        image = torch.where(known, still, step)
    image = denoise(image, _LAST_SIGMA)
    return torch.where(known | ~image.isfinite(), still, image)
