"""A noise level σ with a copy on the device and, optionally, a map over the pixels."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from sci_stream.recon.algorithms.schedule import SigmaSchedule, advance_at


class NoiseLevel(float):
    """σ as a number, with a scalar on the device and a map of relative levels.

    A recorded iteration is replayed with another σ by writing to a scalar on the device. So a recordable denoiser
    computes with `on_device`, and branches on the number only. It is a number so that
    other denoisers need not know this class.

    Parameters
    ----------
    sigma
        σ on the 0–1 scale.
    tensor
        Its copy on the device, (); None if there is none.
    relative
        The level at each pixel as a multiple of σ, (P, H, W), for all images of a plane; a batch holds equally many
        images of each plane. A denoiser with a noise map uses `sigma_map`; others use σ everywhere. None if it is
        the same everywhere.
    """

    __slots__ = ("relative", "tensor")
    relative: torch.Tensor | None
    tensor: torch.Tensor | None

    def __new__(
        cls, sigma: float, tensor: torch.Tensor | None = None, relative: torch.Tensor | None = None
    ) -> NoiseLevel:
        """Create the number and set its attributes."""
        level = super().__new__(cls, sigma)
        level.tensor, level.relative = tensor, relative
        return level


def scaled(sigma: float, factor: float) -> float:
    """Return σ times a fixed factor, with its copy on the device and its map."""
    if not isinstance(sigma, NoiseLevel):
        return sigma * factor
    return NoiseLevel(sigma * factor, None if sigma.tensor is None else sigma.tensor * factor, sigma.relative)


def local_sigma(sigma: float, relative: torch.Tensor | None) -> float:
    """Return σ with a map of relative levels, (P, H, W); unchanged for None."""
    if relative is None:
        return sigma
    return NoiseLevel(sigma, sigma.tensor if isinstance(sigma, NoiseLevel) else None, relative)


def on_device(sigma: float, like: torch.Tensor) -> torch.Tensor:
    """Return σ as a scalar tensor on the device and in the dtype of ``like``: its copy if it has one."""
    known = sigma.tensor if isinstance(sigma, NoiseLevel) else None
    return like.new_full((), sigma) if known is None else known


def sigma_map(sigma: float, like: torch.Tensor) -> torch.Tensor:
    """Return σ at each pixel, (P, H, W), on the device of ``like``; () if it is the same everywhere."""
    level = on_device(sigma, like)
    relative = sigma.relative if isinstance(sigma, NoiseLevel) else None
    return level if relative is None else level * relative


def ladder_on_device(
    schedule: SigmaSchedule, first: torch.Tensor, last: torch.Tensor, iterations: int
) -> Iterator[NoiseLevel]:
    """Yield σ of every iteration of a solve whose first and last level, (), only the device knows.

    As numbers they are those of the schedule: they decide nothing but the form of a denoiser.
    """
    ratio = last / first
    for k in range(iterations):
        progress = advance_at(k, iterations)
        yield NoiseLevel(schedule.sigma(progress), first * ratio ** schedule.exponent(progress))
