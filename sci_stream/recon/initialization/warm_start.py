r"""The warm start: a prediction of a snapshot's frames from the preceding video, with its estimated
error.

The last frame of the preceding video is extrapolated along its optical flow
(`sci_stream.recon.initialization.optical_flow`) to the times of the new frames; then the new
measurement corrects the flow, since y = Σ_b φ_b ⊙ x_b contains every frame of the motion
(`refine`). The result is blended with the cold start at each pixel, each weighted by how well it
predicts the measurement (`sci_stream.recon.initialization.lmmse`). Over the whole image this gives
ρ, the error of the blended start relative to the cold one's: 1 for a useless prediction.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from sci_stream.optics.forward import forward
from sci_stream.recon.initialization.lmmse import InitialGuess, LeaveOneOutError
from sci_stream.recon.initialization.optical_flow import (
    GRADIENT_NOISE,
    WINDOW_PX,
    Trajectory,
    box_mean,
    enlarged,
    gradient,
    limited,
    solve_2x2,
    velocity,
)
from sci_stream.recon.measurement import Measurement

# ρ above which a prediction is not used: it gains less than 0.3 dB, and its acceleration is
# limited.
_USELESS = 0.97

# Of 168 cuts the smallest ‖y − Φx̂‖/‖y‖ was 0.30 and the smallest own ratio 1.37; of 42
# continuations the largest were
# 0.22 and 0.95.
_CUT_RESIDUAL = 0.25

# Motion over a whole snapshot above which a pixel has moved for certain.
_SURELY_MOVED_PX = 1.0

_TINY = 1e-20

# Pixels of all planes and frames at once: bounds memory, and on a CPU keeps them near its cache.
_PIXELS_AT_ONCE = {"cpu": 2**20, "cuda": 2**25}

# Stride of the pixels used and radius of the window, for each refinement of the velocity, from
# coarse to fine.
_STEPS = ((2, 6), (2, 4), (2, 3), (2, 2), (1, 2))


VERDICTS = ("warm", "cut", "no_gain")
"""Results of `verdict`: the prediction is used, the scene has changed, or it is no better than the
cold start."""


class Prediction(NamedTuple):
    """Frames to start from, with the errors by which they mispredict the measurement.

    ``figures``, (3,), decide whether it is used (`verdict`): ρ, the root mean square error with
    which the start predicts the measurement, as a fraction of the cold start's; the same of the
    prediction before it was blended; and ‖y − Φx̂‖₂/‖y‖₂ of the prediction before it was blended.
    """

    start: InitialGuess
    figures: Tensor


def verdict(figures: Tensor) -> Tensor:
    """Return whether a prediction with these figures is used, (): the place in `VERDICTS`; no
    number is read back.

    The scene has changed if the last video predicts y badly, and worse than a cold start, which
    knows nothing of it.
    """
    error_ratio, own_ratio, residual = figures.unbind()
    cut = (residual > _CUT_RESIDUAL) & (own_ratio > 1)
    return cut.to(figures.dtype) + 2.0 * (~cut & (error_ratio > _USELESS))


def predict(
    past: Tensor, cold: InitialGuess, measurement: Measurement, errors: LeaveOneOutError
) -> Prediction:
    """Predict the frames behind a measurement from the video that directly precedes it.

    Velocities are estimated at half the resolution, which is faster and more robust where there is
    little texture (lab/research/warm-start.md).

    Parameters
    ----------
    past
        (P, B, h, w), reconstruction of the preceding snapshot; its P planes (1, or a mosaic's 4)
        move together.
    cold
        The cold start.
    measurement, errors
        The new measurement.

    Returns
    -------
    The prediction. All on the device of the arguments, none of which is modified; no number leaves
    the device.
    """
    last = past[:, -1]
    with_slopes = torch.cat((gradient(last).flatten(0, 1), last))
    thinned = {stride: measurement.thinned(stride) for stride in {stride for stride, _ in _STEPS}}
    flow = velocity(past.mean(0), finest=2, rounds=2)
    for stride, radius in _STEPS:
        flow = refine(
            flow, with_slopes if stride > 1 else last, thinned[stride], stride=stride, radius=radius
        )
    moved = box_mean(
        (torch.hypot(*flow).unsqueeze(0) * (past.shape[1] / _SURELY_MOVED_PX)).clamp_max(1.0),
        WINDOW_PX,
    )
    return _blend(extrapolate(last, flow, past.shape[1]), cold, errors, moved)


def extrapolate(last: Tensor, flow: Tensor, n_frames: int) -> Tensor:
    """Extrapolate a frame, x_b(p) = last(p − (b + 1)·flow(p)), (P, h, w) → (P, B, h, w), b = 0 … B
    − 1.
    """
    return torch.cat(
        [image for _, image in _warped(last, flow, n_frames, stride=1, cubic=True)], dim=1
    )


def refine(
    flow: Tensor,
    image: Tensor,
    measurement: Measurement,
    *,
    stride: int,
    radius: int,
) -> Tensor:
    r"""Correct a velocity by the coded measurement.

    A step of the velocity changes frame b by −(b + 1)∇x_b·step, and the measurement by J·step with
    J = −Σ_b (b + 1) φ_b ∇x_b. This is one damped Gauss–Newton step on ‖y − Φx̂ − J·step‖² over a
    window, all planes together: the method of Lucas and Kanade on a measurement that sums B frames.

    Parameters
    ----------
    flow
        (2, h, w), the velocity so far, pixels per frame.
    image
        (P, h, w), the frame to extrapolate; with a stride, (3P, h, w): after its gradients along
        rows and columns, which cannot be computed from subsampled frames.
    measurement
        The new measurement, thinned by the stride.
    stride
        Rows and columns are subsampled by this stride.
    radius
        Of the window, in such pixels.

    Returns
    -------
    (2, h, w), a new tensor.
    """
    n_planes, n_frames = measurement.phi.shape[:2]
    # By the velocity along rows and along columns, and Φx̂ − y.
    derivatives = torch.zeros(3, *measurement.y.shape, dtype=flow.dtype, device=flow.device)
    for frames, moved in _warped(image, flow, n_frames, stride=stride):
        parts = (
            moved.view(3, n_planes, *moved.shape[1:])
            if stride > 1
            else torch.cat((gradient(moved), moved[None]))
        )
        derivatives += forward(
            measurement.phi[:, frames] * _ages(n_frames, flow.device)[:, :, frames], parts
        )
    derivatives[2] -= measurement.y
    products = ((derivatives[:2] * measurement.r_inv).unsqueeze(1) * derivatives).sum(2)
    step = limited(solve_2x2(products, GRADIENT_NOISE, radius), 1.0)
    return flow - (enlarged(step, *flow.shape[-2:]) if stride > 1 else step)


def _warped(
    images: Tensor, flow: Tensor, n_frames: int, *, stride: int, cubic: bool = False
) -> Iterator[tuple[slice, Tensor]]:
    """Yield images (C, h, w) extrapolated to the next frames, as (slice of frames, (C, frames, h',
    w')).
    """
    at = flow[:, ::stride, ::stride]
    trajectory = Trajectory.of(at, images.shape[-2:], stride)
    most = _PIXELS_AT_ONCE.get(images.device.type, 2**20)
    chunk = max(1, most // (images.shape[0] * at[0].numel()))
    for first in range(0, n_frames, chunk):
        end = min(first + chunk, n_frames)
        ages = _ages(n_frames, images.device)[0, 0, first:end].flatten()
        moved = trajectory.carry(images.unsqueeze(0), ages, cubic=cubic)
        yield slice(first, end), moved.transpose(0, 1)


@functools.cache
def _ages(n_frames: int, device: torch.device) -> Tensor:
    """Return b + 1 for the derivatives by both velocities, and 1 for the frames themselves, (3, 1,
    B, 1, 1).
    """
    age = torch.arange(1.0, n_frames + 1, device=device)
    return torch.stack((age, age, torch.ones_like(age))).view(3, 1, -1, 1, 1)


def _blend(
    predicted: Tensor, cold: InitialGuess, errors: LeaveOneOutError, moved: Tensor
) -> Prediction:
    """Blend the prediction with the cold start at each pixel, and assess the result.

    A prediction contains the texture of the last video, a cold start does not: where nothing moved,
    the prediction errors of the cold start must not favour a denoised video over a still image that
    is exact.
    """
    guess = errors.refined(predicted)
    moves = errors.moving(cold)
    exact = errors.without_texture(cold, moves + (1 - moves) * moved)
    start = errors.blended(guess, exact)
    figures = torch.stack(
        (
            (start.error.sum() / exact.error.sum().clamp_min(_TINY)).sqrt().clamp_max(1.0),
            (guess.error.sum() / cold.error.sum().clamp_min(_TINY)).sqrt(),
            errors.misfit(predicted),
        )
    )
    return Prediction(start, figures)
