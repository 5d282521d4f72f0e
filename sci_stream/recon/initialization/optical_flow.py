r"""Motion in a video, in torch, on whatever device it is: what the warm start needs of optical flow and no more.

A velocity field is (2, H, W), pixels per frame along rows and columns, at the time of the video's last frame. Nothing
here branches on values, so that a whole estimate is one fixed sequence of operations on the device.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

# A level of the pyramid is at least this long on its shorter side: below, a window is the whole image.
_COARSEST_PX = 12

# λ: square of the brightness step per pixel below which a gradient is taken for noise, and no motion is seen in it.
_GRADIENT_NOISE = 1e-3

# A linearised step holds while images overlap to about half a pixel of their own resolution.
_LARGEST_STEP_PX = 0.5

# Radius of the window in which the motion is one.
_WINDOW_PX = 4


# Lines averaged in one product: of more of them, more of the band is zeros; of fewer, the products are small.
_BLOCK = {"cpu": 64, "cuda": 512}


def box_mean(images: torch.Tensor, radius: int) -> torch.Tensor:
    """Average twice over the (2·radius + 1)² pixels around each one, those inside the image, (N, H, W) → (N, H, W).

    Products with band matrices, block by block along the band: whatever the radius, that is less than pooling takes.
    """
    return _averaged(_averaged(images, radius, -2), radius, -1)


def _averaged(images: torch.Tensor, radius: int, along: int) -> torch.Tensor:
    """Average along rows (−2) or along columns (−1) alone, (N, H, W) → (N, H, W)."""
    size, block = images.shape[along], _BLOCK.get(images.device.type, 64)
    band = _band(size, radius, images.dtype, images.device)
    if size < 2 * block:
        return band @ images if along == -2 else images @ band.mT
    averaged = torch.empty_like(images)
    for first in range(0, size, block):
        end, near = min(first + block, size), max(0, first - 2 * radius)
        part = band[first:end, near : end + 2 * radius]
        lines = images.narrow(along, near, part.shape[1])
        averaged.narrow(along, first, end - first).copy_(part @ lines if along == -2 else lines @ part.mT)
    return averaged


@functools.lru_cache(maxsize=64)
def _band(size: int, radius: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the (size, size) matrix that averages a line twice over 2·radius + 1 pixels."""
    at = torch.arange(size, device=device)
    near = ((at.unsqueeze(1) - at).abs() <= radius).to(dtype)
    once = near / near.sum(1, keepdim=True)
    return once @ once


def gradient(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the central differences along rows and along columns, each of the shape of (…, H, W), borders repeated."""
    flat = images.reshape(-1, 1, *images.shape[-2:])
    padded = F.pad(flat, (1, 1, 1, 1), mode="replicate")
    down = (padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]) / 2
    right = (padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]) / 2
    return down.reshape(images.shape), right.reshape(images.shape)


def warp(
    images: torch.Tensor, flow: torch.Tensor, times: torch.Tensor, *, stride: int = 1, cubic: bool = False
) -> torch.Tensor:
    """Carry images along a velocity, image(p − t·flow(p)), to the pixels p that are asked for.

    Beyond the border an image is its nearest pixel; between pixels it is interpolated.

    Parameters
    ----------
    images
        (N, C, H, W): one image for all times, or one for each.
    flow
        (2, h, w), at the pixels that are asked for, every ``stride``-th one.
    times
        (T,), t.
    cubic
        Interpolate by cubic polynomials of four pixels each way, which keeps more of fine texture for three times the
        work; else linearly.

    Returns
    -------
    (T, C, h, w), a new tensor.
    """
    return Trajectory.of(flow, images.shape[-2:], stride).carry(images, times, cubic=cubic)


class Trajectory(NamedTuple):
    """A velocity as images are carried along it, in the units in which the library reads them, (h, w, 2) both.

    Where the pixels are that are asked for, and how far their images move in one frame.
    """

    pixels: torch.Tensor
    per_frame: torch.Tensor

    @classmethod
    def of(cls, flow: torch.Tensor, image: torch.Size, stride: int = 1) -> Trajectory:
        """Return the course along a velocity, (2, h, w), at every ``stride``-th pixel of images of this size."""
        pixels, per_pixel = _pixels(image, flow.shape[-2:], stride, flow.device)
        return cls(pixels, (flow.flip(0) * per_pixel.view(2, 1, 1)).permute(1, 2, 0).contiguous())

    def carry(self, images: torch.Tensor, times: torch.Tensor, *, cubic: bool = False) -> torch.Tensor:
        """Return images carried along it, (N, C, H, W) → (T, C, h, w), a new tensor, as `warp` does."""
        places = torch.addcmul(self.pixels, times.view(-1, 1, 1, 1), self.per_frame, value=-1)
        # One image is not copied for each time; and with times for a batch, a CPU reads them in parallel.
        return F.grid_sample(
            images.expand(len(times), -1, -1, -1),
            places,
            mode="bicubic" if cubic else "bilinear",
            padding_mode="border",
            align_corners=True,
        )


@functools.lru_cache(maxsize=16)
def _pixels(
    image: torch.Size, asked: torch.Size, stride: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return column and row of every ``stride``-th pixel, (h, w, 2), and the distance of two neighbours, (2,).

    As the library counts them: the centres of an image's outermost pixels are at −1 and 1.
    """
    per_pixel = 2 / torch.tensor([max(size - 1, 1) for size in reversed(image)], device=device)
    rows, columns = (torch.arange(0, size * stride, stride, device=device) for size in asked)
    return torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=-1) * per_pixel - 1, per_pixel


def enlarged(field: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Interpolate a field to another size without changing its values, (C, h, w) → (C, H, W)."""
    return F.interpolate(field.unsqueeze(0), size=(height, width), mode="bilinear", align_corners=False).squeeze(0)


def solve_2x2(terms: torch.Tensor, damping: float, radius: int) -> torch.Tensor:
    """Solve the damped normal equations of a window around each pixel for its step of motion.

    Parameters
    ----------
    terms
        (5, H, W): the products a·a, a·b, b·b, a·e, b·e of the derivatives a (rows), b (columns) and the error e that
        the step is to explain, e ≈ a·step_rows + b·step_columns.
    damping
        λ added to the diagonal: what is not seen does not move.
    radius
        Of the window, in pixels of the field.

    Returns
    -------
    (2, H, W), the step.
    """
    aa, ab, bb, ae, be = box_mean(terms, radius)
    aa, bb = aa + damping, bb + damping
    determinant = aa * bb - ab * ab
    return torch.stack(((bb * ae - ab * be) / determinant, (aa * be - ab * ae) / determinant))


def limited(step: torch.Tensor, longest: float) -> torch.Tensor:
    """Shorten steps (2, H, W) longer than ``longest`` to it, then smooth them a little."""
    return box_mean(step * (longest / torch.hypot(*step).clamp_min(1e-9)).clamp_max(1.0), 1)


def velocity(video: torch.Tensor, *, finest: int = 1, rounds: int = 3) -> torch.Tensor:
    r"""Estimate the velocity that best explains all frames of a video as one image moving steadily.

    From coarse to fine: frames are shifted by the velocity so far to the time of the last one. Where it is right they
    agree; where it is not their brightness has a slope over time, found by linear regression over all of them, which a
    further step of motion removes: slope + ∇m·step = 0, m their mean. The first step looks at the last two frames and
    every further one at twice as many, as far as they go: what is small and fast is somewhere else altogether a few
    frames earlier, and is found there once its velocity is known roughly. Using many frames averages the errors that a
    reconstruction's frames have each for themselves.

    Parameters
    ----------
    video
        (B, H, W), linear in brightness, 0–1.
    finest
        Level of the pyramid to end at: 0 for full resolution, 1 for half of it.
    rounds
        Steps at each level.

    Returns
    -------
    (2, H, W), pixels per frame at full resolution; zeros for a video of one frame.

    References
    ----------
    Lucas, Kanade, "An iterative image registration technique", IJCAI 1981; its pyramid after Bouguet (2000).
    """
    n_frames, height, width = video.shape
    if n_frames == 1:
        return video.new_zeros(2, height, width)
    levels = [video]
    while min(levels[-1].shape[-2:]) >= 2 * _COARSEST_PX:
        halved = F.avg_pool2d(levels[-1].unsqueeze(1), 2, ceil_mode=True, count_include_pad=False)
        levels.append(halved.squeeze(1))
    frames = 2
    flow = video.new_zeros(2, *levels[-1].shape[-2:])
    for level in reversed(levels[min(finest, len(levels) - 1) :]):
        flow = _rescaled(flow, level.shape[-2], level.shape[-1])
        for _ in range(rounds):
            latest = level[-frames:]
            time = torch.arange(1 - len(latest), 1, dtype=video.dtype, device=video.device)
            aligned = warp(latest.unsqueeze(1), flow, -time).squeeze(1)
            mean = aligned.mean(0)
            centred = time - time.mean()
            slope = torch.tensordot(centred / centred.square().sum(), aligned, dims=1)
            a, b = gradient(mean)
            step = solve_2x2(torch.stack((a * a, a * b, b * b, -a * slope, -b * slope)), _GRADIENT_NOISE, _WINDOW_PX)
            flow = box_mean(flow + limited(step, _LARGEST_STEP_PX), 1)
            frames *= 2
    return _rescaled(flow, height, width)


def _rescaled(flow: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Bring a flow to another resolution: its size, and its pixels per frame."""
    if flow.shape[-2:] == (height, width):
        return flow
    down, right = enlarged(flow, height, width)
    return torch.stack((down * (height / flow.shape[-2]), right * (width / flow.shape[-1])))
