r"""Muon optimizer: every step changes all directions of a layer's kernel equally.

The gradient of a convolution's kernel, as a matrix of C_out rows, has few large singular values;
optimisers that keep their ratios, such as Adam, learn the directions of the small ones late. Muon
uses the matrix nearest to the averaged gradient whose singular values are all about one. For
``ffdnet`` 1000 steps give what takes Adam 7000 (lab/research/training.md).

K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024),
kellerjordan.github.io/posts/muon.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Not torch.optim.Muon: it exists since torch 2.9 only (this package supports 2.4) and refuses
# parameters that are not matrices, as kernels are; and one batched product for all kernels of a
# shape is faster than one for each.

# Momentum and coefficients are those of the reference implementation.
_MOMENTUM = 0.95
# Coefficients of an odd polynomial that maps singular values from 0.01–1 to 0.7–1.2 in five rounds.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5
# A gradient of zeros must not divide by zero.
_LEAST_NORM = 1e-7


def orthogonalised(matrices: torch.Tensor) -> torch.Tensor:
    """Bring all singular values of (N, rows, columns) matrices close to one, keeping the singular
    vectors.

    Newton–Schulz iterations need matrix products only. Values below a hundredth of a matrix's norm
    stay smaller.
    """
    a, b, c = _QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    x: torch.Tensor = matrices.mT if tall else matrices
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + _LEAST_NORM)
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon:
    """Optimizer of kernels that share one shape, (C_out, C_in, 3, 3); changes them in place."""

    def __init__(self, kernels: Sequence[torch.Tensor]) -> None:
        self._kernels = list(kernels)
        self._momentum = [torch.zeros_like(kernel) for kernel in self._kernels]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Change each kernel by a matrix of singular values of about ``rate``, against its
        gradient.
        """
        if not self._kernels:
            return
        gradients = []
        for kernel, momentum in zip(self._kernels, self._momentum, strict=True):
            assert kernel.grad is not None
            momentum.lerp_(kernel.grad, 1 - _MOMENTUM)
            # Nesterov's form: the momentum after one more such gradient.
            gradients.append(torch.lerp(kernel.grad, momentum, _MOMENTUM).flatten(1))
        for kernel, direction in zip(
            self._kernels, orthogonalised(torch.stack(gradients)), strict=True
        ):
            kernel.sub_(direction.view(kernel.shape), alpha=rate)

    def state(self) -> list[torch.Tensor]:
        """Return the momentum of each kernel; not copied."""
        return self._momentum

    def restore(self, state: Sequence[torch.Tensor]) -> None:
        """Load a `state`. Raises `ValueError` if it belongs to other kernels."""
        for mine, saved in zip(self._momentum, state, strict=True):
            if mine.shape != saved.shape:
                raise ValueError(
                    f"expected momentum of shape {tuple(mine.shape)}, got {tuple(saved.shape)}"
                )
            mine.copy_(saved)
