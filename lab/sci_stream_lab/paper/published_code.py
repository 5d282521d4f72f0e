r"""PnP-GAP-FFDNet as in the authors' code: the baseline for the instrument's speed.

PnP-GAP with FFDNet, frame by frame, in float32 and torch's default memory layout, not tuned::

    v ← Φᵀy,  y_acc ← 0
    for σ in 50, 25, 12, 6 (of 255), ten times each:
        y_acc ← y_acc + (y − Φv)
        x ← v + Φᵀ((y_acc − Φv) / Σ_b φ_b)
        for each frame b:  v_b ← FFDNet(x_b, σ)

This is the paper's Algorithm 1 with accelerated projection and the published code's start,
normalisation (Σφ, which equals Σφ² only for binary masks; 1 where it is 0) and schedule. It shares
the instrument's weights but none of its code. As in the published code, nothing is clipped. From
that start it converges with the IPOL network, which the published code runs, and diverges with the
original one (KAIR, MatConvNet), because the first iterations give the network images far below
black. It can therefore also start from v = y/Σφ in every frame and y_acc = y.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

from sci_stream.recon.denoisers.weights import FfdnetWeights

Denoise = Callable[[torch.Tensor, float], torch.Tensor]

PUBLISHED_SIGMAS = tuple(level / 255 for level in (50.0, 25.0, 12.0, 6.0) for _ in range(10))
"""σ of the 40 iterations, 0–1 scale."""


def published_gap(
    y: torch.Tensor, phi: torch.Tensor, weights: FfdnetWeights, *, published_start: bool = True
) -> Iterator[torch.Tensor]:
    """Yield v after each of the 40 published iterations.

    Parameters
    ----------
    y
        (H, W) float32, the measurement. H and W are even.
    phi
        (B, H, W) float32, the masks.
    weights
        The network.
    published_start
        False to start from y/Σφ in every frame and y_acc = y.

    Yields
    ------
    (B, H, W) float32, a new tensor each time.
    """

    def denoise(x: torch.Tensor, sigma: float) -> torch.Tensor:
        return torch.stack([denoise_frame(frame, sigma, weights) for frame in x])

    return plain_gap(y, phi, denoise, published_start=published_start)


def plain_gap(
    y: torch.Tensor, phi: torch.Tensor, denoise: Denoise, *, published_start: bool = False
) -> Iterator[torch.Tensor]:
    """Yield v after each of the 40 published iterations with any denoiser.

    Behind grey masks Σφ is not the paper's ΦΦᵀ = Σφ²; it damps each step. With `ffdnet-lite` on
    Crash and Traffic behind masks blurred by 0.5 and 0.8 px that gives 0.1 to 0.5 dB more than Σφ²
    in the same loop, so that the published normalisation is also the stronger baseline.

    Parameters
    ----------
    y, phi, published_start
        As for `published_gap`.
    denoise
        Denoises (B, H, W) at a noise level on the 0–1 scale.
    """
    phi_sum = phi.sum(0)
    phi_sum[phi_sum == 0] = 1
    v, y_acc = (
        (phi * y, torch.zeros_like(y)) if published_start else ((y / phi_sum).expand_as(phi), y)
    )
    for sigma in PUBLISHED_SIGMAS:
        coded = (phi * v).sum(0)
        y_acc = y_acc + (y - coded)
        x = v + phi * ((y_acc - coded) / phi_sum)
        v = denoise(x, sigma)
        yield v


def denoise_frame(frame: torch.Tensor, sigma: float, weights: FfdnetWeights) -> torch.Tensor:
    """Denoise one frame, (H, W), with FFDNet."""
    image = F.pixel_unshuffle(frame[None, None], 2)
    h = torch.cat((image, torch.full_like(image[:, :1], sigma)), dim=1)
    for n, (kernel, bias) in enumerate(zip(weights.kernels, weights.biases, strict=True)):
        h = F.conv2d(h, kernel, bias, padding=1)
        if n < len(weights.kernels) - 1:
            h = F.relu(h)
    clean = image - h if weights.gives_noise else h
    return F.pixel_shuffle(clean, 2)[0, 0]
