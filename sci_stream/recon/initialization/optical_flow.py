r"""Optical flow of a video in torch, on any device, for the warm start.

A velocity field is (2, H, W), pixels per frame along rows and columns, at the time of the video's
last frame. Nothing here branches on values: an estimate is a fixed sequence of operations, and the
host never waits for the device.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch import Tensor

# Shorter side of the coarsest level of the pyramid: below, a window would be the whole image.
_COARSEST_PX = 12

GRADIENT_NOISE = 1e-3
"""λ: square of the brightness gradient per pixel below which it counts as noise and shows no
motion."""

# The linearisation is valid for about half a pixel at the resolution of the level.
_LARGEST_STEP_PX = 0.5

WINDOW_PX = 4
"""Radius of the windows, averaged over twice, in which motion, brightness and prediction errors
count as uniform.

Windows of 2, 3, 6 and 6 pixels for brightness, choice, error and its expectation are as good within
0.05 dB.
"""

# Lines averaged in one matrix product: larger blocks multiply more zeros of the band, smaller ones
# are inefficient.
_BLOCK = {"cpu": 64, "cuda": 512}


def box_mean(images: Tensor, radius: int) -> Tensor:
    """Average twice over the (2·radius + 1)² pixels around each one, those inside the image, (N, H,
    W) → (N, H, W).

    Computed as products with band matrices, block by block along the band, which is faster than
    pooling at any radius.
    """
    return _averaged(_averaged(images, radius, -2), radius, -1)


def _averaged(images: Tensor, radius: int, along: int) -> Tensor:
    """Average along rows (−2) or along columns (−1) alone, (N, H, W) → (N, H, W)."""
    size = images.shape[along]
    block = _BLOCK.get(images.device.type, 64)
    band = _band(size, radius, images.dtype, images.device)
    if size < 2 * block:
        return band @ images if along == -2 else images @ band.mT
    averaged = torch.empty_like(images)
    for first in range(0, size, block):
        end = min(first + block, size)
        near = max(0, first - 2 * radius)
        part = band[first:end, near : end + 2 * radius]
        lines = images.narrow(along, near, part.shape[1])
        averaged.narrow(along, first, end - first).copy_(
            part @ lines if along == -2 else lines @ part.mT
        )
    return averaged


# By size, radius, dtype and device. torch's compiler reads tensors of a dictionary as inputs; the
# results of a cached function it either computes again or, as constants, refuses to compile.
_BANDS: dict[tuple[int, int, torch.dtype, torch.device], Tensor] = {}


def _band(size: int, radius: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the (size, size) matrix that averages a line twice over 2·radius + 1 pixels."""
    key = (size, radius, dtype, device)
    if key not in _BANDS:
        at = torch.arange(size, device=device)
        near = ((at.unsqueeze(1) - at).abs() <= radius).to(dtype)
        once = near / near.sum(1, keepdim=True)
        _BANDS[key] = once @ once
    return _BANDS[key]


def gradient(images: Tensor) -> Tensor:
    """Return the central differences along rows and along columns of (…, H, W), borders repeated,
    (2, …, H, W).
    """
    flat = images.reshape(-1, 1, *images.shape[-2:])
    padded = F.pad(flat, (1, 1, 1, 1), mode="replicate")
    down = padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]
    right = padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]
    return torch.stack((down, right)).div_(2).view(2, *images.shape)


class Trajectory(NamedTuple):
    """A velocity in the units of `torch.nn.functional.grid_sample`: pixels and their motion per
    frame, (h, w, 2).
    """

    pixels: Tensor
    per_frame: Tensor

    @classmethod
    def of(cls, flow: Tensor, image: torch.Size, stride: int = 1) -> Trajectory:
        """Return the trajectory along a velocity, (2, h, w), at every ``stride``-th pixel of images
        of this size.
        """
        pixels, per_pixel = _pixels(image, flow.shape[-2:], stride, flow.device)
        return cls(pixels, torch.stack((flow[1], flow[0]), -1) * per_pixel)

    def carry(self, images: Tensor, times: Tensor, *, cubic: bool = False) -> Tensor:
        """Return images warped along it, image(p − t·flow(p)), at the pixels p: (T, C, h, w), a new
        tensor.

        Outside the border the nearest pixel is used; between pixels values are interpolated.

        Parameters
        ----------
        images
            (N, C, H, W): one image for all times, or one for each.
        times
            (T,), t.
        cubic
            Interpolate by cubic polynomials of four pixels in each direction, which keeps more fine
            texture at three times the cost; else linearly.
        """
        places = torch.addcmul(self.pixels, times.view(-1, 1, 1, 1), self.per_frame, value=-1)
        # expand() does not copy the image for each time, and a CPU samples a batch in parallel.
        return F.grid_sample(
            images.expand(len(times), -1, -1, -1),
            places,
            mode="bicubic" if cubic else "bilinear",
            padding_mode="border",
            align_corners=True,
        )


@functools.cache
def _pixels(
    image: torch.Size, field: torch.Size, stride: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return column and row of every ``stride``-th pixel, (h, w, 2), and the distance of two
    neighbours, (2,).

    As the library counts them: the centres of an image's outermost pixels are at −1 and 1.
    """
    per_pixel = 2 / torch.tensor([max(size - 1, 1) for size in reversed(image)], device=device)
    rows, columns = (torch.arange(0, size * stride, stride, device=device) for size in field)
    return torch.stack(
        torch.meshgrid(columns, rows, indexing="xy"), dim=-1
    ) * per_pixel - 1, per_pixel


def enlarged(field: Tensor, height: int, width: int) -> Tensor:
    """Interpolate a field to another size without changing its values, (C, h, w) → (C, H, W)."""
    return F.interpolate(
        field.unsqueeze(0), size=(height, width), mode="bilinear", align_corners=False
    ).squeeze(0)


def solve_2x2(products: Tensor, damping: float, radius: int) -> Tensor:
    """Solve the damped normal equations of a window around each pixel for its step of motion.

    Parameters
    ----------
    products
        (2, 3, …, H, W): of the derivatives a (rows) and b (columns) with a, b and the error e that
        the step is to remove, a·step_rows + b·step_columns + e ≈ 0. Overwritten.
    damping
        λ added to the diagonal: unseen parts do not move.
    radius
        Of the window, in pixels of the field.

    Returns
    -------
    (2, …, H, W), the step.
    """
    means = box_mean(products.flatten(0, -3), radius).view(products.shape)
    means.flatten(0, 1)[::4].add_(damping)  # a·a and b·b
    # (step, 1) is orthogonal to both rows of the equations.
    across: Tensor = torch.linalg.cross(means[0], means[1], dim=0)
    return across[:2].div_(across[2])


def limited(step: Tensor, longest: float) -> Tensor:
    """Shorten steps (2, H, W) longer than ``longest`` to it, then smooth them a little."""
    return box_mean(step / (torch.hypot(step[0], step[1]) / longest).clamp_min_(1.0), 1)


def _step_against(slope: Tensor, mean: Tensor) -> Tensor:
    """Return the step of motion that removes a slope of the brightness over time: slope + ∇m·step =
    0, (2, H, W).
    """
    derivatives = torch.cat((gradient(mean), slope.unsqueeze(0)))
    return solve_2x2(derivatives[:2].unsqueeze(1) * derivatives, GRADIENT_NOISE, WINDOW_PX)


def velocity(video: Tensor, *, finest: int, rounds: int) -> Tensor:
    r"""Estimate the velocity with which all frames of a video are one image in uniform motion.

    From coarse to fine: frames are warped by the current velocity to the time of the last one.
    Where it is right they agree; elsewhere their brightness has a slope over time, found by linear
    regression over all of them, which a further step of motion removes: slope + ∇m·step = 0, with m
    their mean. The first step uses the last two frames and every further one twice as many: small
    fast objects are far away a few frames earlier, and are found there once their velocity is
    roughly known. Using many frames averages the independent errors of a reconstruction's frames.

    Parameters
    ----------
    video
        (B, H, W), linear in brightness, 0–1.
    finest
        Last level of the pyramid: 0 for full resolution, 1 for half of it.
    rounds
        Steps at each level.

    Returns
    -------
    (2, H, W), pixels per frame at full resolution; zeros for a video of one frame.

    References
    ----------
    Lucas, Kanade, "An iterative image registration technique", IJCAI 1981; its pyramid after
    Bouguet (2000).
    """
    n_frames, height, width = video.shape
    if n_frames == 1:
        return video.new_zeros(2, height, width)
    levels = _pyramid(video)
    frames = 2
    flow = video.new_zeros(2, *levels[-1].shape[-2:])
    for level in reversed(levels[min(finest, len(levels) - 1) :]):
        flow = _rescaled(flow, level.shape[-2], level.shape[-1])
        for _ in range(rounds):
            # The last two frames first, where a small fast object has moved least; then twice as
            # many with each step.
            latest = level[-frames:]
            ages, slope_and_mean = _over_time(len(latest), video.device)
            aligned = (
                Trajectory.of(flow, level.shape[-2:]).carry(latest.unsqueeze(1), ages).squeeze(1)
            )
            slope, mean = torch.tensordot(slope_and_mean, aligned, dims=1)
            flow = box_mean(flow + limited(_step_against(slope, mean), _LARGEST_STEP_PX), 1)
            frames *= 2
    return _rescaled(flow, height, width)


@functools.cache
def _over_time(n_frames: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the ages of frames, (n,), the last one's 0, and the weights of the slope over time and
    the mean, (2, n).

    The slope is that of linear regression.
    """
    time = torch.arange(1.0 - n_frames, 1.0, device=device)
    centred = time - time.mean()
    return -time, torch.stack(
        (centred / centred.square().sum(), torch.full_like(time, 1 / n_frames))
    )


def _pyramid(video: Tensor) -> list[Tensor]:
    """Return the frames, (B, H, W), and halves of them down to about `_COARSEST_PX`."""
    levels = [video]
    while min(levels[-1].shape[-2:]) >= 2 * _COARSEST_PX:
        levels.append(F.avg_pool2d(levels[-1], 2, ceil_mode=True, count_include_pad=False))
    return levels


def _rescaled(flow: Tensor, height: int, width: int) -> Tensor:
    """Rescale a flow to another resolution: its size, and its pixels per frame."""
    if flow.shape[-2:] == (height, width):
        return flow
    rescaled = enlarged(flow, height, width)
    rescaled[0] *= height / flow.shape[-2]
    rescaled[1] *= width / flow.shape[-1]
    return rescaled
