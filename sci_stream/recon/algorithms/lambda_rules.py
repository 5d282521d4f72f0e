r"""The paper's adaptive λ rule, which depends on the iterates; λ = σ²."""

from __future__ import annotations

import math

import torch

from sci_stream.recon.algorithms.schedule import SigmaSchedule


class AdaptiveRule:
    r"""Lower λ only once the iterates stop converging.

    ::

        Δ_{k+1} = (‖x^(k+1) − x^(k)‖₂ + ‖v^(k+1) − v^(k)‖₂) / √(nB)
        λ_{k+1} = ξ λ_k  if Δ_{k+1} ≥ η Δ_k,  else λ_k

    While each step is shorter than η times the previous one, the iteration still converges at this λ and stays there,
    as long as the budget allows to reach the lowest λ in steps of ξ; for a smaller budget the steps are longer.
    It keeps two videos in memory; on a GPU the host waits for the device in every iteration.

    Parameters
    ----------
    schedule
        First and last σ.
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
    PnP-GAP, Algorithm 1 and update rule b); after Chan, Wang, Elgendy, "Plug-and-play ADMM for image restoration:
    fixed-point convergence and applications", IEEE Trans. Comput. Imaging 3 (2017).
    """

    def __init__(self, schedule: SigmaSchedule, xi: float, eta: float) -> None:
        if not (0 < xi < 1 and 0 <= eta < 1):
            raise ValueError(f"expected 0 < xi < 1 and 0 <= eta < 1, got {xi} and {eta}")
        fall = 2.0 * math.log(schedule.first / schedule.last)
        self._step = -math.log(xi) / fall if fall > 0 else 1.0
        self._eta = eta
        self._before: tuple[torch.Tensor, torch.Tensor] | None = None
        self._delta: torch.Tensor | None = None
        self._delta_before: torch.Tensor | None = None

    def observe(self, x: torch.Tensor, v: torch.Tensor) -> None:
        """Record x and v of an iteration; see `sci_stream.recon.algorithms.gap.Observe`."""
        if self._before is not None:
            x_before, v_before = self._before
            moved = torch.linalg.vector_norm(x - x_before) + torch.linalg.vector_norm(v - v_before)
            self._delta_before, self._delta = self._delta, moved / x.numel() ** 0.5
        self._before = x, v

    def stride(self, remaining: float, left: int) -> float:
        """Return 0 while the iterates converge and there is time, then one multiplication by ξ."""
        if self._converging() and remaining <= self._step * (left - 1):
            return 0.0
        return max(self._step, remaining / left)

    def _converging(self) -> bool:
        """Return whether Δ_{k+1} < η Δ_k; False before both are known."""
        if self._delta is None or self._delta_before is None:
            return False
        return bool(self._delta < self._eta * self._delta_before)
