"""The published loop, which is the baseline of the benchmarks."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import FfdnetWeights, load_ffdnet
from sci_stream_lab.paper.published_code import PUBLISHED_SIGMAS, denoise_frame, published_gap

CPU = torch.device("cpu")


def test_published_loop_has_forty_iterations_in_four_steps() -> None:
    levels = [
        (round(255 * sigma), len(list(group)))
        for sigma, group in itertools.groupby(PUBLISHED_SIGMAS)
    ]
    assert levels == [(50, 10), (25, 10), (12, 10), (6, 10)]


def test_published_denoise_frame_equals_instrument() -> None:
    weights = load_ffdnet(shipped_weights("ffdnet-lite"))
    frame = torch.rand(20, 26, generator=torch.Generator().manual_seed(0))
    expected = FfdnetDenoiser(weights, CPU)(frame[None], 0.1)[0]
    torch.testing.assert_close(denoise_frame(frame, 0.1, weights), expected, rtol=1e-4, atol=1e-5)


def test_published_loop_from_published_start_matches_formula() -> None:
    # A network that gives no noise leaves the loop's arithmetic alone.
    silent = FfdnetWeights(
        (torch.zeros(4, 5, 3, 3).double(),),
        (torch.zeros(4).double(),),
        gives_noise=True,
        origin="own",
    )
    random = np.random.default_rng(0)
    phi = random.random((3, 4, 6))
    phi[:, 1, 2] = 0.0
    y = (phi * random.random((3, 4, 6))).sum(0)
    phi_sum = phi.sum(0)
    phi_sum[1, 2] = 1.0
    v, y_acc = phi * y, np.zeros_like(y)
    ours = published_gap(torch.from_numpy(y), torch.from_numpy(phi), silent)
    count = 0
    for got in ours:
        count += 1
        y_acc = y_acc + (y - (phi * v).sum(0))
        v = v + phi * ((y_acc - (phi * v).sum(0)) / phi_sum)
        np.testing.assert_allclose(got.numpy(), v, rtol=1e-9, atol=1e-12)
    assert count == 40


def test_published_loop_can_start_from_still_image() -> None:
    silent = FfdnetWeights(
        (torch.zeros(4, 5, 3, 3),), (torch.zeros(4),), gives_noise=True, origin="own"
    )
    phi = (torch.rand(3, 4, 6, generator=torch.Generator().manual_seed(0)) < 0.7).float()
    still = torch.rand(4, 6, generator=torch.Generator().manual_seed(1)).expand(3, 4, 6) * phi.amax(
        0
    )
    first = next(published_gap((phi * still).sum(0), phi, silent, published_start=False))
    torch.testing.assert_close(first, still)
