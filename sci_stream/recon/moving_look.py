"""The engine's look for images that move, at the end of a solve."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sci_stream.model import F32, BayerPhase
from sci_stream.ports import Denoiser
from sci_stream.recon.mask_stack import MaskStack
from sci_stream.recon.measurement import Measurement
from sci_stream.recon.moving_canvas import CodedImage
from sci_stream.recon.moving_image import with_moving_image

MovingFields = dict[str, Any]
"""Fields of a `SolveReport` about images that move; empty where none was looked for."""

_NOTHING_MOVES: MovingFields = {"moving_share": 0.0, "moving_x_px": None, "moving_y_px": None}


class MovingLook(NamedTuple):
    """The result of a look.

    ``found`` is the video, (B, H, W), with the images, and its residual, (); None where no part of
    the scene moves as one. ``seconds`` is the time that the look took.
    """

    fields: MovingFields
    found: tuple[Tensor, Tensor] | None = None
    seconds: float = 0.0


NO_LOOK = MovingLook({})


def look_for_moving_image(
    measurement: Measurement,
    planes: Tensor,
    masks: MaskStack,
    denoiser: Denoiser,
    bayer: BayerPhase | None,
    *,
    turns: tuple[int, ...] | None = None,
) -> MovingLook:
    """Look for images that move in the frames of a solve. The host waits.

    Parameters
    ----------
    measurement
        The snapshot that was solved.
    planes
        (P, B, h, w), as solved.
    masks, turns
        Those of the solve, see `MaskStack`; None for the present turns.
    denoiser
        The denoiser of the image.
    bayer
        Of mosaics, else None.
    """
    began_s = time.perf_counter()

    def denoised(image: F32, sigma: float) -> F32:
        noisy = torch.from_numpy(image).to(planes.device)
        result: F32 = denoiser(noisy.unsqueeze(0), sigma).squeeze(0).cpu().numpy()
        return result

    weights = (measurement.r_inv > 0).to(planes.dtype)
    parts = (measurement.y, measurement.phi, weights, planes)
    *coded, frames = (masks.images(part).cpu().numpy() for part in parts)
    moving = with_moving_image(CodedImage(*coded), frames, denoised, bayer)
    if moving is None:
        return MovingLook(_NOTHING_MOVES, seconds=time.perf_counter() - began_s)
    down, right = moving.velocity
    fields = {"moving_share": moving.share, "moving_x_px": right, "moving_y_px": down}
    planes = masks.planes(torch.from_numpy(moving.video).to(planes))
    *_, residual = measurement.figures(planes)
    found = (masks.merged(planes, turns), residual)
    return MovingLook(fields, found, time.perf_counter() - began_s)
