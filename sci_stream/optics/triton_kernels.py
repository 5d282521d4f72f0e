"""The projection as one GPU kernel: the video is read and written once, instead of in seven passes.

Written for Triton, which comes with torch's CUDA builds. Without it, `sci_stream.optics.forward` does the same with
separate operations.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Pixels per program: a video of 256×256 pixels still occupies each of a large GPU's 132 multiprocessors.
_BLOCK = 512


def _accumulate_and_project(  # noqa: PLR0917 - kernels are called by position
    v: tl.tensor,
    phi: tl.tensor,
    y: tl.tensor,
    y_acc: tl.tensor,
    r_inv: tl.tensor,
    weight: tl.tensor,
    x: tl.tensor,
    y_acc_next: tl.tensor,
    relaxation: tl.tensor,
    n_pixels: tl.tensor,
    n_frames: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Process `BLOCK` pixels of one plane: sum the predicted measurement, then spread the residual over the frames."""
    plane = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < n_pixels
    frame = plane * n_frames * n_pixels + pixel
    coded = tl.zeros((BLOCK,), dtype=tl.float32)
    for b in range(n_frames):
        at = frame + b * n_pixels
        coded += tl.load(v + at, mask=inside, other=0.0) * tl.load(phi + at, mask=inside, other=0.0)
    at = plane * n_pixels + pixel
    measured = tl.load(y + at, mask=inside, other=0.0)
    accumulated = tl.load(y_acc + at, mask=inside, other=0.0) + relaxation * (measured - coded)
    inverse = tl.load(r_inv + at, mask=inside, other=0.0)
    if WEIGHTED:
        data_weight = tl.load(weight + at, mask=inside, other=0.0)
        accumulated = measured + data_weight * (accumulated - measured)
        inverse *= data_weight
    tl.store(y_acc_next + at, accumulated, mask=inside)
    step = (accumulated - coded) * inverse
    for b in range(n_frames):
        # This second read of the video hits the cache.
        at = frame + b * n_pixels
        moved = tl.load(v + at, mask=inside, other=0.0) + step * tl.load(phi + at, mask=inside, other=0.0)
        tl.store(x + at, moved, mask=inside)


_kernel = triton.jit(_accumulate_and_project)


def accumulate_and_project(
    v: torch.Tensor,
    y_acc: torch.Tensor,
    y: torch.Tensor,
    phi: torch.Tensor,
    r_inv: torch.Tensor,
    *,
    relaxation: float,
    weight: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (x, y_acc) like `sci_stream.optics.forward.accumulate_and_project`.

    All float32, contiguous, on one device, ``phi`` of the shape of ``v`` and the others of the shape of ``y``.
    """
    n_frames, height, width = v.shape[-3:]
    n_pixels = height * width
    x, y_acc_next = torch.empty_like(v), torch.empty_like(y)
    grid = (triton.cdiv(n_pixels, _BLOCK), max(1, v.numel() // (n_frames * n_pixels)))
    weighted = weight is not None
    # Never read without a weight, but the kernel needs a valid pointer.
    pointers = (v, phi, y, y_acc, r_inv, weight if weight is not None else r_inv, x, y_acc_next)
    # Triton launches on the current device, wherever the tensors are.
    with torch.cuda.device_of(v):  # type: ignore[no-untyped-call]
        _kernel[grid](*pointers, float(relaxation), n_pixels, n_frames, weighted, _BLOCK)
    return x, y_acc_next
