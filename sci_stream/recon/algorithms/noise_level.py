"""A noise level that the host and the device both know, and that may differ from place to place."""

from __future__ import annotations

import torch


class NoiseLevel(float):
    """σ as a number, with what else is known of it.

    A recorded iteration is replayed with another σ by writing to a scalar on the device. So a denoiser that can be
    recorded computes with `on_device`, and decides with the number.

    Parameters
    ----------
    sigma
        σ on the 0–1 scale.
    tensor
        The device's own copy of it, (); None if there is none.
    relative
        The level at each pixel as a multiple of σ, (P, H, W): the same for all images of a plane, of which a batch
        holds as many as of the next one. A denoiser that can tell places apart computes with `sigma_map`; others take
        σ for all of them. None where it is the same everywhere.
    """

    __slots__ = ("relative", "tensor")
    relative: torch.Tensor | None
    tensor: torch.Tensor | None

    def __new__(
        cls, sigma: float, tensor: torch.Tensor | None = None, relative: torch.Tensor | None = None
    ) -> NoiseLevel:
        """Join a number and what is known of it."""
        level = super().__new__(cls, sigma)
        level.tensor, level.relative = tensor, relative
        return level


def scaled(sigma: float, factor: float) -> float:
    """Return σ times a fixed factor; with a copy on the device, computed there, if σ has one."""
    if not isinstance(sigma, NoiseLevel):
        return sigma * factor
    return NoiseLevel(sigma * factor, None if sigma.tensor is None else sigma.tensor * factor, sigma.relative)


def local_sigma(sigma: float, relative: torch.Tensor | None) -> float:
    """Return σ as a level that is this multiple of σ at each pixel, (P, H, W); as it is for None."""
    if relative is None:
        return sigma
    return NoiseLevel(sigma, sigma.tensor if isinstance(sigma, NoiseLevel) else None, relative)


def on_device(sigma: float, like: torch.Tensor) -> torch.Tensor:
    """Return σ as a scalar tensor on the device and in the dtype of ``like``: its own copy if it has one."""
    known = sigma.tensor if isinstance(sigma, NoiseLevel) else None
    return like.new_full((), sigma) if known is None else known


def sigma_map(sigma: float, like: torch.Tensor) -> torch.Tensor:
    """Return the level at each pixel, (P, H, W), on the device of ``like``; () where it is the same everywhere."""
    level = on_device(sigma, like)
    relative = sigma.relative if isinstance(sigma, NoiseLevel) else None
    return level if relative is None else level * relative
