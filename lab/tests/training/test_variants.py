"""The sizes of FFDNet, by name."""

from __future__ import annotations

import pytest
import torch

from sci_stream.errors import ConfigError
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import FfdnetWeights, load_ffdnet
from sci_stream_lab.training.variants import VARIANTS, NetworkShape, variant_of, variant_shape


def _weights(shape: NetworkShape) -> FfdnetWeights:
    kernels = tuple(torch.zeros(c_out, c_in, 3, 3) for c_in, c_out in shape.convolutions)
    biases = tuple(torch.full((c_out,), 0.1) for _, c_out in shape.convolutions)
    return FfdnetWeights(kernels, biases, gives_noise=True, origin="own")


def test_full_network_is_the_published_one() -> None:
    shape = variant_shape("ffdnet")
    assert shape.n_parameters == pytest.approx(0.485e6, rel=0.002)
    assert shape.flop_per_pixel == pytest.approx(242e3, rel=0.002)


def test_lite_network_takes_a_tenth_of_the_work() -> None:
    assert VARIANTS["ffdnet-lite"].flop_per_pixel == pytest.approx(
        VARIANTS["ffdnet"].flop_per_pixel / 10, rel=0.02
    )


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_variant_is_recognised_by_shape(name: str) -> None:
    weights = _weights(VARIANTS[name])
    assert (
        sum(t.numel() for t in (*weights.kernels, *weights.biases)) == VARIANTS[name].n_parameters
    )
    assert variant_of(weights) == name


def test_other_shape_is_of_no_variant() -> None:
    assert variant_of(_weights(NetworkShape(3, 6))) is None


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_shipped_weights_are_of_their_variant(name: str) -> None:
    assert variant_of(load_ffdnet(shipped_weights(name))) == name


def test_unknown_variant_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"ffdnet, ffdnet-lite.*'ffdnet-huge'"):
        variant_shape("ffdnet-huge")
