"""The contract of every denoiser, and the registry that makes them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from sci_stream.cli.common import SOLVERS
from sci_stream.config import ReconstructSection
from sci_stream.errors import ConfigError
from sci_stream.ports import Denoiser
from sci_stream.recon.denoisers.registry import DENOISERS, make_denoiser
from sci_stream.recon.denoisers.weights import FfdnetWeights, save_ffdnet
from sci_stream_testing.denoisers import DenoiserContract

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def small_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a tiny FFDNet of random weights, valid in form only."""
    return _small(5, tmp_path_factory.mktemp("weights") / "small.safetensors")


def _small(inputs: int, path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    channels = [inputs, 8, 8, 4]
    kernels = tuple(
        0.1 * torch.randn(o, i, 3, 3, generator=generator) for i, o in itertools.pairwise(channels)
    )
    biases = tuple(0.1 * torch.randn(o, generator=generator) for o in channels[1:])
    save_ffdnet(FfdnetWeights(kernels, biases, gives_noise=True, origin="own"), path)
    return path


class TestDenoisers(DenoiserContract):
    """The contract, for every denoiser of this package; `unrolled` has trained stages."""

    @pytest.fixture(autouse=True, params=sorted(DENOISERS.keys() - {"unrolled"}))
    def _chosen(self, request: pytest.FixtureRequest, small_weights: Path) -> None:
        self.name: str = request.param
        self.weights = small_weights if DENOISERS[self.name].takes_weights else None
        self.reduces_noise = self.name == "tv"  # others leave it, or have random weights here

    def make(self, device: torch.device) -> Denoiser:
        denoiser = make_denoiser(self.name, device, self.weights)
        assert denoiser.name in DENOISERS
        return denoiser


@pytest.mark.parametrize("name", ["ffdnet", "ffdnet-lite"])
class TestShippedNetworks:
    def test_noise_is_reduced(self, name: str) -> None:
        contract = DenoiserContract()
        contract.make = lambda device: make_denoiser(name, device)  # type: ignore[method-assign]
        contract.test_noise_is_reduced()


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=rf"{', '.join(sorted(DENOISERS))}.*'median'"):
        make_denoiser("median", CPU)


# The texts recommend these. An error lists all of the registry.
@pytest.mark.parametrize("name", ["ffdnet", "ffdnet-lite", "tv", "unrolled"])
def test_texts_for_users_name_the_usual_denoisers(name: str) -> None:
    glossary = (Path(__file__).parents[3] / "docs" / "glossary.md").read_text()
    described = ReconstructSection.model_fields["solver"].description or ""
    assert name in SOLVERS, "sci_stream.cli.common.SOLVERS"
    assert name in described, "[reconstruct] solver"
    assert f"`{name}`" in glossary


def test_superfluous_weights_are_refused(small_weights: Path) -> None:
    with pytest.raises(ConfigError, match="'tv' takes no weights"):
        make_denoiser("tv", CPU, small_weights)
