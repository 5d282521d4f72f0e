"""Splitting a Bayer mosaic into planes, and merging them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.model import BayerPhase
from sci_stream.optics.bayer import colour_sites, merge, sample_colours, split
from sci_stream.optics.forward import forward

halves = st.tuples(st.integers(1, 6), st.integers(1, 6))
batches = st.sampled_from([(), (1,), (5,), (2, 3)])


@given(half=halves, batch=batches, dtype=st.sampled_from([np.uint8, np.uint16, np.float32]))
def test_merge_inverts_split(half: tuple[int, int], batch: tuple[int, ...], dtype: type) -> None:
    shape = (*batch, 2 * half[0], 2 * half[1])
    image = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    assert split(image).shape == (4, *batch, *half)
    assert merge(split(image)).dtype == dtype
    np.testing.assert_array_equal(merge(split(image)), image)


@given(half=halves, batch=batches)
def test_torch_and_numpy_agree(half: tuple[int, int], batch: tuple[int, ...]) -> None:
    shape = (*batch, 2 * half[0], 2 * half[1])
    image = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    planes = split(torch.from_numpy(image))
    np.testing.assert_array_equal(planes.numpy(), split(image))
    np.testing.assert_array_equal(merge(planes).numpy(), image)


@pytest.mark.parametrize("phase", list(BayerPhase))
def test_each_pixel_sees_the_colour_of_its_filter(phase: BayerPhase) -> None:
    rgb = np.random.default_rng(0).random((2, 6, 8, 3)).astype(np.float32)
    mosaic = sample_colours(rgb, phase)
    for row, column in np.ndindex(6, 8):
        colour = phase.value[2 * (row % 2) + column % 2]
        np.testing.assert_array_equal(
            mosaic[:, row, column], rgb[:, row, column, "RGB".index(colour)]
        )


@pytest.mark.parametrize("phase", list(BayerPhase))
def test_planes_have_the_colours_of_their_sites(phase: BayerPhase) -> None:
    image = np.arange(24.0).reshape(4, 6)
    for plane, (colour, site), letter in zip(
        split(image), colour_sites(phase), phase.value, strict=True
    ):
        assert colour == letter
        np.testing.assert_array_equal(plane, image[site])


def test_plane_holds_every_second_pixel_of_every_second_row() -> None:
    image = np.array([[0, 1, 0, 1], [2, 3, 2, 3]])
    assert split(image).tolist() == [[[0, 0]], [[1, 1]], [[2, 2]], [[3, 3]]]


def test_splitting_commutes_with_the_optics() -> None:
    generator = torch.Generator().manual_seed(0)
    phi, x = torch.rand(2, 3, 6, 8, generator=generator)
    torch.testing.assert_close(split(forward(phi, x)), forward(split(phi), split(x)))


@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (2, 5, 2), (4,)])
def test_odd_mosaic_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="even H and W"):
        split(np.zeros(shape))


def test_other_numbers_of_planes_are_refused() -> None:
    with pytest.raises(ValueError, match="four planes"):
        merge(np.zeros((3, 2, 2)))
