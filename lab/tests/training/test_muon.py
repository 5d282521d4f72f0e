"""The optimiser of the inner kernels."""

from __future__ import annotations

import pytest
import torch

from sci_stream_lab.training.muon import Muon, orthogonalised


def _matrices(rows: int, columns: int, condition: float) -> torch.Tensor:
    """Return three random matrices whose singular values fall geometrically,
    from 5 by this factor.
    """
    generator = torch.Generator().manual_seed(0)
    u, _, v = torch.linalg.svd(
        torch.randn(3, rows, columns, generator=generator), full_matrices=False
    )
    values = 5 * condition ** -torch.linspace(0, 1, min(rows, columns))
    return u @ torch.diag(values) @ v


@pytest.mark.parametrize(("rows", "columns"), [(8, 72), (64, 576), (16, 16), (72, 8)])
def test_singular_values_become_equal(rows: int, columns: int) -> None:
    given = _matrices(rows, columns, condition=10)
    made = orthogonalised(given)
    values = torch.linalg.svdvals(made)
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3
    u, _, v = torch.linalg.svd(given, full_matrices=False)
    in_its_own_axes = u.mT @ made @ v.mT
    off = in_its_own_axes - torch.diag_embed(torch.diagonal(in_its_own_axes, dim1=-2, dim2=-1))
    assert float(off.abs().max()) < 1e-3, "singular vectors stay"


def test_zero_gradient_gives_no_step() -> None:
    kernel = torch.ones(4, 4, 3, 3)
    kernel.grad = torch.zeros_like(kernel)
    Muon([kernel]).step(0.1)
    assert torch.equal(kernel, torch.ones_like(kernel))


def test_step_descends_at_any_slope() -> None:
    for steepness in (1e-4, 1.0, 1e4):
        generator = torch.Generator().manual_seed(1)
        kernels = [
            torch.randn(6, 6, 3, 3, generator=generator, requires_grad=True) for _ in range(2)
        ]
        optimiser = Muon(kernels)
        losses = []
        for _ in range(20):
            loss = sum(((kernel - 1) ** 2).sum() for kernel in kernels)
            assert isinstance(loss, torch.Tensor)
            losses.append(float(loss.detach()))
            for kernel in kernels:
                kernel.grad = None
            (steepness * loss).backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
            optimiser.step(0.2)
        assert losses[-1] < 0.5 * losses[0]


def test_momentum_of_other_kernels_is_refused() -> None:
    kernel = torch.ones(4, 4, 3, 3)
    optimiser = Muon([kernel])
    with pytest.raises(ValueError, match="shape"):
        optimiser.restore([torch.ones(4, 5, 3, 3)])
    with pytest.raises(ValueError, match="shorter"):
        optimiser.restore([])
