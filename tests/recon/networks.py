"""Networks of random weights, valid in form."""

from __future__ import annotations

import itertools

import torch

from sci_stream.recon.denoisers.weights import FRAME_INPUTS, SUBPIXELS, FfdnetWeights


def random_weights(layers: int, channels: int) -> FfdnetWeights:
    """Return weights whose layers keep the scale of their input; the network predicts a small
    noise.
    """
    generator = torch.Generator().manual_seed(0)
    kernels = [
        (2 / (9 * c_in)) ** 0.5 * torch.randn((c_out, c_in, 3, 3), generator=generator)
        for c_in, c_out in itertools.pairwise((FRAME_INPUTS, *[channels] * (layers - 1), SUBPIXELS))
    ]
    kernels[-1] *= 0.1
    return FfdnetWeights(
        tuple(kernels),
        tuple(torch.zeros(len(kernel)) for kernel in kernels),
        gives_noise=True,
        origin="own",
    )
