"""What every denoiser must do, whichever it is; and the registry they are made from."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from sci_stream.errors import ConfigError
from sci_stream.ports import Denoiser, MemoryReducible
from sci_stream.recon.denoisers.registry import DENOISERS, make_denoiser
from sci_stream.recon.denoisers.weights import FfdnetWeights, save_ffdnet

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def small_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a tiny FFDNet of random weights: its form is right, its pictures are not."""
    generator = torch.Generator().manual_seed(0)
    channels = [5, 8, 8, 4]
    kernels = tuple(0.1 * torch.randn(o, i, 3, 3, generator=generator) for i, o in itertools.pairwise(channels))
    biases = tuple(0.1 * torch.randn(o, generator=generator) for o in channels[1:])
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_ffdnet(FfdnetWeights(kernels, biases, gives_noise=True, origin="own"), path)
    return path


@pytest.fixture(params=sorted(DENOISERS))
def denoiser(request: pytest.FixtureRequest, small_weights: Path) -> Denoiser:
    name: str = request.param
    return make_denoiser(name, CPU, small_weights if DENOISERS[name].takes_weights else None)


def _frames(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


def test_it_satisfies_the_port(denoiser: Denoiser) -> None:
    assert isinstance(denoiser, Denoiser)
    assert denoiser.name in DENOISERS


@pytest.mark.parametrize("shape", [(1, 16, 16), (5, 8, 24), (3, 15, 17), (2, 7, 4), (2, 1, 6), (1, 1, 1)])
def test_any_size_keeps_its_shape(denoiser: Denoiser, shape: tuple[int, int, int]) -> None:
    x = _frames(*shape)
    out = denoiser(x, 0.1)
    assert out.shape == x.shape
    assert out.dtype == x.dtype
    assert out.isfinite().all()


def test_one_that_spares_memory_gives_the_same_with_less_until_there_is_nothing_left_to_spare(
    denoiser: Denoiser,
) -> None:
    x = _frames(6, 8, 8)
    before = denoiser(x, 0.1)
    if not isinstance(denoiser, MemoryReducible):
        pytest.skip(f"{denoiser.name} takes no memory to speak of")
    spared = list(itertools.takewhile(lambda more: more, (denoiser.reduce_memory() for _ in range(64))))
    assert 1 <= len(spared) < 64
    torch.testing.assert_close(denoiser(x, 0.1), before)


def test_the_input_is_neither_changed_nor_aliased(denoiser: Denoiser) -> None:
    x = _frames(2, 9, 8)
    before = x.clone()
    out = denoiser(x, 0.1)
    assert torch.equal(x, before)
    assert out.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_a_frame_does_not_depend_on_its_neighbours_in_the_batch(denoiser: Denoiser) -> None:
    x = _frames(7, 12, 10)
    together = denoiser(x, 0.1)
    for n in range(7):
        torch.testing.assert_close(denoiser(x[n : n + 1], 0.1)[0], together[n], rtol=1e-5, atol=1e-5)


def test_calling_twice_gives_the_same(denoiser: Denoiser) -> None:
    x = _frames(2, 10, 10)
    assert torch.equal(denoiser(x, 0.2), denoiser(x, 0.2))


def test_non_contiguous_frames_are_taken(denoiser: Denoiser) -> None:
    x = _frames(2, 20, 10)
    torch.testing.assert_close(denoiser(x[:, ::2], 0.1), denoiser(x[:, ::2].contiguous(), 0.1))


def test_it_runs_without_gradients(denoiser: Denoiser) -> None:
    with torch.inference_mode():
        assert not denoiser(_frames(1, 8, 8), 0.1).requires_grad


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"ffdnet, ffdnet-lite, identity, tv.*'median'"):
        make_denoiser("median", CPU)


def test_superfluous_weights_are_refused(small_weights: Path) -> None:
    with pytest.raises(ConfigError, match="'tv' takes no weights"):
        make_denoiser("tv", CPU, small_weights)
