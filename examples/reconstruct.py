"""Reconstruct a snapshot with your own denoiser, and a series with the shipped one::

python examples/reconstruct.py
"""

from __future__ import annotations

import numpy as np
import torch

import sci_stream


def smooth(images: torch.Tensor, sigma: float) -> torch.Tensor:
    """Denoise (N, H, W): blend each image with its 3×3 means, the more the higher sigma (0–1 scale)
    is.
    """
    means = torch.nn.functional.avg_pool2d(
        images.unsqueeze(1), 3, 1, 1, count_include_pad=False
    ).squeeze(1)
    return torch.lerp(images, means, min(1.0, 5 * sigma))


def main() -> None:
    """Simulate two coded snapshots of a moving disc and recover their frames."""
    row, column, time = np.mgrid[:64, :64, :16]
    disc = np.hypot(row - 32, column - 20 - 1.5 * time) < 12
    x = np.moveaxis(disc, -1, 0).reshape(2, 8, 64, 64)  # (N, B, H, W)
    masks = np.random.default_rng(0).integers(0, 2, (8, 64, 64))  # (B, H, W)
    y = np.einsum("bhw,nbhw->nhw", masks, 0.2 + 0.6 * x)  # (N, H, W)

    result = sci_stream.reconstruct(y[0], masks, solver=smooth, truth=0.2 + 0.6 * x[0])
    print(f"own denoiser: {result.video.shape}, {result.psnr_db:.1f} dB")

    result = sci_stream.reconstruct(y, masks, truth=0.2 + 0.6 * x)
    print(f"default prior: {result.video.shape}, {result.psnr_db:.1f} dB")
    print(
        f"second snapshot: {result.report.start.value} start, {result.report.iterations} iterations"
    )


if __name__ == "__main__":
    main()
