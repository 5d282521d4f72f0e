"""Everything between two runs of the network as one GPU kernel.

The network takes and gives half-resolution images with the channels last, in 16 bits: four sub-pixels, the level of
noise, zeros. Between two of its runs lie the unshuffling of sub-pixels, the subtraction of the noise, the temporal
transform back, the data step of GAP, the temporal transform of the next iteration, and the packing of its input. Done
one after the other these pass every pixel through memory 155 to 245 bytes at a time; here each program holds all frames
of a few pixels, and moves 28: 4 of the network's output, 4 each of the image it was output and of the mask, read twice
but the second time from the cache, and 4 and 4 of the next run's inputs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sci_stream.recon.denoisers.temporal import FramesToImages

# Sub-pixels of a program, for all frames: 64 frames of 32 are 16 registers of each of 128 threads for each video held.
_BLOCK = 32

CHANNELS = 8
"""Of the network's input and output: four sub-pixels, the level (in the input), zeros."""


def _between(  # noqa: PLR0917 - kernels are called by position
    output: tl.tensor,
    image: tl.tensor,
    phi: tl.tensor,
    y: tl.tensor,
    y_acc: tl.tensor,
    r_inv: tl.tensor,
    weight: tl.tensor,
    back: tl.tensor,
    back_scale: tl.tensor,
    back_offset: tl.tensor,
    forth: tl.tensor,
    scale: tl.tensor,
    offset: tl.tensor,
    level: tl.tensor,
    sigma: tl.tensor,
    relative: tl.tensor,
    packed: tl.tensor,
    relaxation: tl.tensor,
    limit: tl.tensor,
    max_level: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    N_FRAMES: tl.constexpr,
    PADDED: tl.constexpr,
    GIVES_NOISE: tl.constexpr,
    WEIGHTED: tl.constexpr,
    LOCAL: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Process all frames of `BLOCK` sub-pixels of one plane; ``height`` and ``width`` at half resolution."""
    plane = tl.program_id(1).to(tl.int64)
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    n_half = height.to(tl.int64) * width
    inside = element < 4 * n_half
    half, sub = element // 4, element % 4
    pixel = (2 * (half // width) + sub // 2) * (2 * width) + 2 * (half % width) + sub % 2
    frame = tl.arange(0, PADDED)
    known = (frame < N_FRAMES)[:, None] & inside[None, :]
    number = plane * N_FRAMES + frame
    in_video = number[:, None] * (4 * n_half) + pixel[None, :]
    in_network = (number[:, None] * n_half + half[None, :]) * CHANNELS + sub[None, :]

    clean = tl.load(output + in_network, mask=known, other=0.0).to(tl.float32)
    if GIVES_NOISE:
        clean = tl.load(image + in_video, mask=known, other=0.0) - clean
    scales = tl.load(back_scale + frame, mask=frame < N_FRAMES, other=1.0)
    clean = (clean - tl.load(back_offset + frame, mask=frame < N_FRAMES, other=0.0)[:, None]) / scales[:, None]
    clean = tl.where(known, clean, 0.0)
    square = frame[:, None] * PADDED + frame[None, :]
    v = tl.dot(tl.load(back + square), clean, input_precision="ieee")

    masks = tl.load(phi + in_video, mask=known, other=0.0)
    coded = tl.sum(v * masks, axis=0)
    at = plane * (4 * n_half) + pixel
    measured = tl.load(y + at, mask=inside, other=0.0)
    accumulated = tl.load(y_acc + at, mask=inside, other=0.0) + relaxation * (measured - coded)
    inverse = tl.load(r_inv + at, mask=inside, other=0.0)
    if WEIGHTED:
        data_weight = tl.load(weight + at, mask=inside, other=0.0)
        accumulated = measured + data_weight * (accumulated - measured)
        inverse *= data_weight
    tl.store(y_acc + at, accumulated, mask=inside)
    x = v + masks * ((accumulated - coded) * inverse)[None, :]

    mixed = tl.dot(tl.load(forth + square), x, input_precision="ieee")
    mixed = mixed * tl.load(scale + frame, mask=frame < N_FRAMES, other=1.0)[:, None]
    mixed += tl.load(offset + frame, mask=frame < N_FRAMES, other=0.0)[:, None]
    tl.store(image + in_video, mixed, mask=known)
    clipped = tl.minimum(tl.maximum(mixed, -limit), limit)
    tl.store(packed + in_network, clipped.to(packed.dtype.element_ty), mask=known)

    noise = tl.load(sigma) * tl.load(level + frame, mask=frame < N_FRAMES, other=0.0)
    around = tl.full((BLOCK,), 1.0, dtype=tl.float32)
    if LOCAL:
        around = tl.load(relative + plane * n_half + half, mask=inside, other=0.0)
    noises = noise[:, None] * around[None, :]
    if LOCAL:
        noises = tl.minimum(noises, max_level)
    rest = tl.where((sub == 0)[None, :], noises, 0.0)
    tl.store(packed + in_network + 4, rest.to(packed.dtype.element_ty), mask=known)


_kernel = triton.jit(_between)


def between(  # noqa: PLR0917 - in the order of the data
    output: torch.Tensor,
    image: torch.Tensor,
    y_acc: torch.Tensor,
    packed: torch.Tensor,
    before: FramesToImages,
    after: FramesToImages,
    *,
    phi: torch.Tensor,
    y: torch.Tensor,
    r_inv: torch.Tensor,
    sigma: torch.Tensor,
    relaxation: float,
    gives_noise: bool,
    weight: torch.Tensor | None = None,
    relative: torch.Tensor | None = None,
    limit: float = float("inf"),
    max_level: float = float("inf"),
) -> None:
    """Do what lies between two runs of the network: from its output to its next input.

    Parameters
    ----------
    output
        (P·B, 8, H/2, W/2), channels last: the output of the network.
    image, y_acc
        (P, B, H, W), the images that the network was output, and (P, H, W); overwritten by the next ones.
    packed
        Like ``output``: the next input, overwritten.
    before, after
        How frames became images for the run that ended, and do for the next.
    phi, y, r_inv, relaxation, weight
        As for `sci_stream.optics.forward.accumulate_and_project`.
    sigma
        (), σ of the next run.
    gives_noise
        As of `sci_stream.recon.denoisers.weights.FfdnetWeights`.
    relative
        (P, H/2, W/2): the level at every 2×2 pixels as a multiple of σ; None where it is the same everywhere.
    limit, max_level
        Beyond which images and local levels are clipped.

    All float32 but ``output`` and ``packed``, contiguous; H and W even.
    """
    planes, n_frames, height, width = image.shape
    grid = (triton.cdiv(height * width, _BLOCK), planes)
    # Never read without them, but the kernel needs valid pointers.
    any_weight, any_relative = (r_inv if weight is None else weight), (r_inv if relative is None else relative)
    # Triton launches on the current device, wherever the tensors are.
    with torch.cuda.device_of(image):  # type: ignore[no-untyped-call]
        _kernel[grid](
            *(output, image, phi, y, y_acc, r_inv, any_weight),
            *(before.back, before.scale, before.offset, after.forth, after.scale, after.offset, after.level),
            *(sigma, any_relative, packed, float(relaxation), float(limit), float(max_level)),
            *(height // 2, width // 2, n_frames, len(before.back)),
            *(gives_noise, weight is not None, relative is not None, CHANNELS, _BLOCK),
        )
