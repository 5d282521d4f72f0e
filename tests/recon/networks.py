"""Networks of random weights, valid in form."""

from __future__ import annotations

import torch

from sci_stream.recon.denoisers.variants import NetworkShape
from sci_stream.recon.denoisers.weights import FfdnetWeights


def random_weights(shape: NetworkShape, seed: int = 0) -> FfdnetWeights:
    """Return weights whose layers keep the scale of their input; the network predicts a small noise."""
    generator = torch.Generator().manual_seed(seed)
    kernels = [
        (2 / (9 * c_in)) ** 0.5 * torch.randn((c_out, c_in, 3, 3), generator=generator)
        for c_in, c_out in shape.convolutions
    ]
    kernels[-1] *= 0.1
    return FfdnetWeights(
        tuple(kernels), tuple(torch.zeros(len(kernel)) for kernel in kernels), gives_noise=True, origin="own"
    )
