"""A noise level that the host and the device both know."""

from __future__ import annotations

import torch


class Level(float):
    """σ as a number, with the device's own copy of it in `tensor`, a scalar.

    A recorded iteration is replayed with another σ by writing to that scalar. So a denoiser that can be recorded
    computes with `on_device`, and decides with the number.
    """

    __slots__ = ("tensor",)
    tensor: torch.Tensor

    def __new__(cls, sigma: float, tensor: torch.Tensor) -> Level:
        """Join a number and the scalar tensor that holds it."""
        level = super().__new__(cls, sigma)
        level.tensor = tensor
        return level


def scaled(sigma: float, factor: float) -> float:
    """Return σ times a fixed factor; with a copy on the device, computed there, if σ has one."""
    return Level(sigma * factor, sigma.tensor * factor) if isinstance(sigma, Level) else sigma * factor


def on_device(sigma: float, like: torch.Tensor) -> torch.Tensor:
    """Return σ as a scalar tensor on the device and in the dtype of ``like``: its own copy if it has one."""
    return sigma.tensor if isinstance(sigma, Level) else like.new_full((), sigma)
