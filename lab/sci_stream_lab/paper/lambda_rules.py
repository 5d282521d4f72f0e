r"""The two rules by which λ falls from one iteration to the next; σ = √λ is the level of the
denoiser.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch


class LambdaRule(Protocol):
    """The λ rule of one solve."""

    def __iter__(self) -> Iterator[float]:
        """Yield σ_k = √λ_k of each iteration, 0–1 scale."""
        ...

    def observe(self, x: torch.Tensor, v: torch.Tensor) -> None:
        """Learn x^(k+1) and v^(k+1), before the next σ is asked for."""
        ...


class MonotoneRule:
    """Rule a), λ_{k+1} = ξ_k λ_k with ξ_k ≤ 1: levels that are known beforehand.

    Parameters
    ----------
    sigmas
        σ of each iteration, 0–1 scale.
    """

    def __init__(self, sigmas: Sequence[float]) -> None:
        self._sigmas = sigmas

    def __iter__(self) -> Iterator[float]:
        """Yield the levels."""
        return iter(self._sigmas)

    def observe(self, x: torch.Tensor, v: torch.Tensor) -> None:
        """Ignore the iterates."""


def equal_ratios(first: float, last: float, count: int) -> tuple[float, ...]:
    """Return levels from the first to the last in equal ratios: rule a) with one ξ.

    >>> equal_ratios(40, 10, 3)
    (40.0, 20.0, 10.0)
    """
    return tuple(first * (last / first) ** (k / (count - 1)) for k in range(count))


class AdaptiveRule:
    r"""Rule b): lower λ only once the iterates stop converging.

    ::

        Δ_{k+1} = (‖x^(k+1) − x^(k)‖₂ + ‖v^(k+1) − v^(k)‖₂) / √(nB)
        λ_{k+1} = ξ λ_k  if Δ_{k+1} ≥ η Δ_k,  else λ_k

    While each step is shorter than η times the previous one, the iteration still converges at this
    λ and stays there, as long as the remaining iterations suffice to reach the lowest λ in steps of
    ξ; else the steps are longer.

    Parameters
    ----------
    first, last
        σ of the first and the last iteration, 0–1 scale.
    iterations
        Their number.
    xi
        ξ, 0 < ξ < 1: σ falls by √ξ.
    eta
        η, 0 ≤ η < 1; 0 lowers λ in every iteration.

    Raises
    ------
    ValueError
        If ξ or η is out of its range.

    References
    ----------
    Algorithm 1, lines 5 to 9; after Chan, Wang, Elgendy, "Plug-and-play ADMM for image restoration:
    fixed-point convergence and applications", IEEE Trans. Comput. Imaging 3 (2017).
    """

    def __init__(
        self, first: float, last: float, iterations: int, *, xi: float = 0.7, eta: float = 0.9
    ) -> None:
        if not (0 < xi < 1 and 0 <= eta < 1):
            raise ValueError(f"expected 0 < xi < 1 and 0 <= eta < 1, got {xi} and {eta}")
        self._first, self._last, self._iterations = first, last, iterations
        fall = 2.0 * math.log(first / last)
        # By how much a multiplication by ξ brings log λ from its first to its last value, as a
        # share of the way.
        self._step = -math.log(xi) / fall if fall > 0 else 1.0
        self._eta = eta
        self._before: tuple[torch.Tensor, torch.Tensor] | None = None
        self._deltas: list[torch.Tensor] = []

    def __iter__(self) -> Iterator[float]:
        """Yield the level of each iteration."""
        progress = 0.0
        for remaining in range(self._iterations, 0, -1):
            if remaining < self._iterations:
                progress = min(progress + self._stride(1.0 - progress, remaining), 1.0)
            if remaining == 1 or progress == 1.0:
                progress = 1.0
                yield self._last
            else:
                yield self._first * (self._last / self._first) ** progress

    def observe(self, x: torch.Tensor, v: torch.Tensor) -> None:
        """Compute Δ_{k+1}."""
        if self._before is not None:
            x_before, v_before = self._before
            moved = torch.linalg.vector_norm(x - x_before) + torch.linalg.vector_norm(v - v_before)
            self._deltas = [*self._deltas[-1:], moved / x.numel() ** 0.5]
        self._before = x, v

    def _stride(self, way: float, remaining: int) -> float:
        """Return 0 while the iterates converge and there is time, then one multiplication by ξ."""
        converging = len(self._deltas) == 2 and bool(self._deltas[1] < self._eta * self._deltas[0])
        if converging and way <= self._step * (remaining - 1):
            return 0.0
        return max(self._step, way / remaining)
