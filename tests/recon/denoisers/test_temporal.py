"""Denoising along time: an orthonormal transform around any prior,
alternating with single frames.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.optics.forward import forward, gram_diag, inverse_gram
from sci_stream.recon.algorithms.gap import Problem, cold_start, gap
from sci_stream.recon.algorithms.schedule import sigma_levels
from sci_stream.recon.backend.cuda_graph import Graphs, Replay
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.registry import IdentityDenoiser
from sci_stream.recon.denoisers.temporal import (
    FrameDenoiser,
    TemporalDctDenoiser,
    cosines,
    cycled_denoisers,
    ending_on_frames,
)
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import load_ffdnet
from sci_stream.recon.metrics import psnr

CPU = torch.device("cpu")


class Listening:
    """Records its calls and returns copies of its input."""

    name = "listening"

    def __init__(self) -> None:
        self.asked: list[tuple[torch.Tensor, float]] = []

    def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        self.asked.append((x.clone(), sigma))
        return x.clone()


def lite() -> FfdnetDenoiser:
    return FfdnetDenoiser(load_ffdnet(shipped_weights("ffdnet-lite")), CPU, Precision.FLOAT32)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8])
def test_transform_is_orthonormal_with_mean_first(length: int) -> None:
    transform = cosines(length)
    torch.testing.assert_close(transform @ transform.mT, torch.eye(length, dtype=torch.float64))
    torch.testing.assert_close(
        transform[0], torch.full((length,), length**-0.5, dtype=torch.float64)
    )


@given(
    n_frames=st.integers(1, 25), group=st.integers(2, 9), planes=st.sampled_from([(), (1,), (4,)])
)
def test_identity_prior_changes_nothing(n_frames: int, group: int, planes: tuple[int, ...]) -> None:
    x = torch.rand(*planes, n_frames, 5, 6, generator=torch.Generator().manual_seed(n_frames))
    before = x.clone()
    out = TemporalDctDenoiser(IdentityDenoiser(), n_frames, group, CPU)(x, 0.1)
    torch.testing.assert_close(out, x)
    assert torch.equal(x, before)
    assert out.data_ptr() != x.data_ptr()


def test_means_are_scaled_to_frames_and_changes_centred() -> None:
    prior = Listening()
    still = torch.rand(1, 4, 4, generator=torch.Generator().manual_seed(1)).expand(5, 4, 4)
    TemporalDctDenoiser(prior, 5, 2, CPU)(still, 0.1)  # 5 frames in groups of 2, 2 and 1
    (pairs, of_pairs), (others, of_others) = prior.asked
    torch.testing.assert_close(pairs, still[:2])
    changes = torch.full((4, 4), 0.5)
    torch.testing.assert_close(others, torch.stack((changes, changes, still[0])))
    assert (of_pairs, of_others) == pytest.approx((0.1 * 2**-0.25, 0.1))


@pytest.mark.parametrize("local", [False, True])
def test_levels_of_a_batch_equal_those_of_calls_by_level(*, local: bool) -> None:
    class ByLevel:
        name = "by level"

        def __init__(self, prior: FfdnetDenoiser) -> None:
            self._prior = prior

        def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
            return self._prior(x, sigma, relative)

    x = torch.rand(2, 5, 12, 14, generator=torch.Generator().manual_seed(1))
    relative = (
        0.5 + torch.rand(2, 12, 14, generator=torch.Generator().manual_seed(2)) if local else None
    )
    one, by_level = (TemporalDctDenoiser(prior, 5, 2, CPU) for prior in (lite(), ByLevel(lite())))
    torch.testing.assert_close(
        one(x, 0.1, *([] if relative is None else [relative])), by_level(x, 0.1)
    )


def test_cycle_alternates_with_groups_of_increasing_length() -> None:
    along = [type(prior) for prior in cycled_denoisers(IdentityDenoiser(), 8, CPU, along_time=True)]
    assert along == [TemporalDctDenoiser, FrameDenoiser] * 3
    # Two frames make no group of four; one makes none at all.
    assert len(cycled_denoisers(IdentityDenoiser(), 2, CPU, along_time=True)) == 2
    assert len(cycled_denoisers(IdentityDenoiser(), 3, CPU, along_time=True)) == 4
    for n_frames, along_time in ((1, True), (8, False)):
        (alone,) = cycled_denoisers(IdentityDenoiser(), n_frames, CPU, along_time=along_time)
        assert isinstance(alone, FrameDenoiser)


def test_solver_cycles_through_the_denoisers() -> None:
    phi = torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(2))
    y, r_inv = phi.sum(0), inverse_gram(gram_diag(phi))
    first, then = Listening(), Listening()
    start = cold_start(y, phi, r_inv)
    iterates = list(gap(start, Problem(y, phi, r_inv, (first, then)), [0.5, 0.4, 0.3]))
    assert len(iterates) == 3
    assert [sigma for _, sigma in first.asked] == [0.5, 0.3]
    assert [sigma for _, sigma in then.asked] == [0.4]


def _scene(speed: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return masks and a grating with fine grain, (8, 48, 48) both, that moves by the given pixels
    per frame.
    """
    generator = torch.Generator().manual_seed(3)
    grain = torch.rand(48, 48, generator=generator) - 0.5
    frames = []
    for b in range(8):
        at = torch.arange(48.0) + speed * b
        bars = 0.5 + 0.3 * torch.sin(at / 3)
        frames.append(bars + 0.08 * torch.roll(grain, -round(speed * b), dims=1))
    phi = (torch.rand(8, 48, 48, generator=generator) > 0.5).float()
    return phi, torch.stack(frames)


def _solved(speed: float, *, along_time: bool) -> float:
    phi, truth = _scene(speed)
    y, r_inv = forward(phi, truth), inverse_gram(gram_diag(phi))
    sigmas = sigma_levels(50 / 255, 10 / 255, 12)
    priors = cycled_denoisers(lite(), 8, CPU, along_time=along_time)
    start = cold_start(y, phi, r_inv)
    iterates = gap(start, Problem(y, phi, r_inv, priors, relaxation=1.5), sigmas)
    return psnr(list(iterates)[-1], truth)


def test_static_texture_is_kept_and_motion_not_degraded() -> None:
    with torch.inference_mode():
        # Measured: 1.7 dB more where nothing moves, 2.9 where all moves by two pixels a frame.
        assert _solved(0.0, along_time=True) > _solved(0.0, along_time=False) + 1.0
        assert _solved(2.0, along_time=True) > _solved(2.0, along_time=False)


@pytest.mark.parametrize("make", [TvDenoiser, lite])
def test_recorded_cycle_equals_plain_iterations(make: type[TvDenoiser]) -> None:
    def by_hand(work: Replay) -> Replay:
        work()  # as a graph's warm-up does
        return work

    phi, truth = _scene(1.0)
    y, r_inv = forward(phi, truth), inverse_gram(gram_diag(phi))
    prior = make()
    priors, start = cycled_denoisers(prior, 8, CPU, along_time=True), cold_start(y, phi, r_inv)
    graphs = Graphs(by_hand)
    sigmas = [0.2 * 0.9**k for k in range(9)]

    def solve(y: torch.Tensor) -> torch.Tensor:
        *_, last = gap(start, Problem(y, phi, r_inv, priors), sigmas)
        return last

    for scale in (1.0, 0.9):
        torch.testing.assert_close(graphs.call("solve", solve, scale * y), solve(scale * y))
    assert not graphs.fault


@pytest.mark.parametrize("iterations", range(6, 20))
def test_cycle_ends_with_longest_groups_and_frames(
    iterations: int,
) -> None:
    priors = cycled_denoisers(TvDenoiser(), 8, CPU, along_time=True)
    turns = ending_on_frames(priors, iterations)
    assert sorted(map(id, turns)) == sorted(map(id, priors))
    taken = [turns[k % len(turns)] for k in range(iterations)]
    assert taken[-2:] == list(priors[-2:])


@pytest.mark.parametrize("iterations", range(1, 6))
def test_short_solve_begins_with_the_shortest_groups(iterations: int) -> None:
    priors = cycled_denoisers(TvDenoiser(), 8, CPU, along_time=True)
    assert ending_on_frames(priors, iterations) == priors
