"""Texture that a reconstruction made up, measured without the truth: for real captures."""

from __future__ import annotations

import torch

from sci_stream.recon.initialization.optical_flow import box_mean

# Standard deviation over time, relative to the mean brightness, from which a pixel counts as
# moving.
_MOVING = 0.05


def unsupported_texture(video: torch.Tensor) -> float:
    """Return the texture of a video where something moves that its measurement cannot carry.

    B frames are recovered from one number per pixel, so that in a frame about B pixels share one.
    Texture that is finer than √B pixels and differs from frame to frame is then made up by the
    reconstruction, or the rare edge. The measure needs no truth: the root mean square of that
    texture around each moving pixel, its median over these pixels, relative to the mean brightness.
    Edges are narrow and do not enter a median.

    Parameters
    ----------
    video
        (B, H, W), 0–1; B ≥ 2, brighter than 0 in the mean.

    Returns
    -------
    0 if nothing moves. The real capture 4fan14 has 0.004 in smooth blades, and 0.014 covered with
    worms.
    """
    radius = max(1, round(video.shape[0] ** 0.5 / 2))
    coarse = box_mean(video, radius)
    level = video.mean()
    moving = coarse.std(0) > _MOVING * level
    if not bool(moving.any()):
        return 0.0
    changing = (video - coarse).diff(dim=0)
    texture = box_mean(changing.square(), radius).div_(2.0).sqrt_()
    return float((texture[:, moving] / level).median())
