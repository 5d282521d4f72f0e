"""FFDNet: the learnt prior of the paper, a small convolutional network told the noise level."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

from sci_stream.recon.weights import FfdnetWeights

_PIXELS_PER_CHUNK = {"cpu": 2**17, "cuda": 2**24}
"""Pixels that go through the network at once.

Two activations of 64 channels at half resolution are alive: 128 bytes a pixel in float32. So a GPU spends 2 GB at most
whatever the size of the video, and a CPU keeps more of a layer in its cache.
"""


class FfdnetDenoiser:
    """Grey FFDNet, of any number of layers and channels, on a batch of frames.

    Each frame is split into four sub-pixel images of half the size, stacked with a constant map of σ, passed through
    the convolutions and put together again. 242 kFLOP a pixel for the published network of 15 layers and 64 channels,
    24 for ``ffdnet-lite``.

    Parameters
    ----------
    weights
        The network, from `sci_stream.recon.weights.load_ffdnet`. Copied to the device.
    device
        Where to run; frames must be there.
    dtype
        To compute in. Frames come and go in their own dtype.
    name
        Under which it is known.

    References
    ----------
    Zhang, Zuo, Zhang, "FFDNet: Toward a fast and flexible solution for CNN based image denoising", IEEE TIP 27 (2018).
    """

    def __init__(
        self,
        weights: FfdnetWeights,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        *,
        name: str = "ffdnet",
    ) -> None:
        self.name = name
        self._gives_noise = weights.gives_noise
        self._dtype = dtype
        # Channels last is the layout in which convolution libraries run without reordering.
        self._kernels = [kernel.to(device, dtype, memory_format=torch.channels_last) for kernel in weights.kernels]
        self._biases = [bias.to(device, dtype) for bias in weights.biases]

    def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        """Denoise (N, H, W); see `sci_stream.ports.Denoiser`."""
        *_, height, width = x.shape
        frames = max(1, _PIXELS_PER_CHUNK.get(x.device.type, 2**20) // (height * width))
        out = torch.empty_like(x)
        for chunk, result in zip(torch.split(x, frames), torch.split(out, frames), strict=True):
            result.copy_(self._denoise(chunk.to(self._dtype), sigma))
        return out

    def _denoise(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        height, width = x.shape[-2:]
        frames = _padded_to_even(x.unsqueeze(1))
        clean = run_network(
            frames, frames.new_full((), sigma), self._kernels, self._biases, gives_noise=self._gives_noise
        )
        return clean[:, 0, :height, :width]


def run_network(
    x: torch.Tensor,
    sigma: torch.Tensor,
    kernels: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    *,
    gives_noise: bool,
) -> torch.Tensor:
    """Denoise by FFDNet of any number of layers and channels; the one definition of the network, for use and training.

    Parameters
    ----------
    x
        (N, 1, H, W) with even H and W, 0–1.
    sigma
        Noise level on the 0–1 scale, of all frames, (), or of each, (N, 1, 1, 1).
    kernels, biases, gives_noise
        As in `FfdnetWeights`, on the device of ``x``.

    Returns
    -------
    (N, 1, H, W), the denoised frames.
    """
    image = F.pixel_unshuffle(x, 2)
    sigma_map = sigma.expand(image.shape[0], 1, *image.shape[2:])
    h = torch.cat((image, sigma_map), dim=1).contiguous(memory_format=torch.channels_last)
    last = len(kernels) - 1
    for n, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        h = F.conv2d(h, kernel, bias, padding=1)
        if n < last:
            h.relu_()
    return F.pixel_shuffle(image - h if gives_noise else h, 2)


def _padded_to_even(x: torch.Tensor) -> torch.Tensor:
    """Extend (N, 1, H, W) by a mirrored row or column where H or W is odd."""
    height, width = x.shape[-2:]
    if height % 2 == 0 and width % 2 == 0:
        return x
    # A single row or column has nothing to mirror: repeat it.
    mode = "reflect" if min(height, width) > 1 else "replicate"
    return F.pad(x, (0, width % 2, 0, height % 2), mode=mode)
