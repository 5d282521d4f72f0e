"""The fit of a scene in small blocks, and the variance that it leaves unexplained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sci_stream.model import F64

# Masks that open alike make the normal matrix singular.
_RIDGE = 1e-5
# A block counts from this brightness on, relative to the brightest one.
_LIT = 0.05
# A scene is taken for one that does not change if its variance is at most this times as large.
_STILL = 2.0
# Variance that no block is trusted below, relative to that of most. Blocks count by the inverse of
# theirs, as the misfit asks for; with 1, moving edges of a wheel outweighed its still background,
# and a cut was corrected.
_LEAST_VARIANCE = 0.1
# Relative variance that no camera is below: masks are not known better than to a thousandth.
_FINEST = 1e-6
# Fits of so many courses are found at once: more need more memory.
_COURSES = 16
TINY = 1e-12
"""Keeps quotients finite without light."""


class Pixels(NamedTuple):
    """Pixels of all blocks, (N, p) float32 each, N = planes × places: y, and 1 where it is valid;
    both 0 elsewhere.
    """

    y: Tensor
    valid: Tensor


@dataclass(frozen=True, eq=False)
class SceneFit:
    """Linear fit of the scene in N blocks: design (N, p, K) and coefficients, (N, K), with the
    residual of y.
    """

    design: Tensor
    scene: Tensor
    factor: Tensor
    residual: Tensor
    variance: Tensor
    floor: float

    @classmethod
    def of(cls, design: Tensor, pixels: Pixels) -> SceneFit:
        """Fit the scene to the pixels by least squares."""
        normal = design.mT @ design
        level = normal.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
        eye = torch.eye(normal.shape[-1], device=normal.device)
        ridge = (_RIDGE * level + TINY).unsqueeze(-1) * eye
        # `cholesky` alone waits for the device to check positivity, which the ridge ensures.
        factor = torch.linalg.cholesky_ex(normal + ridge).L
        scene = torch.cholesky_solve(design.mT @ pixels.y.unsqueeze(-1), factor)
        residual = pixels.y - (design @ scene).squeeze(-1)
        floor = _FINEST * float(pixels.y.square().mean()) + TINY
        return cls(design, scene.squeeze(-1), factor, residual, _variance(residual, pixels), floor)

    @property
    def weight(self) -> Tensor:
        """Weight of each block by the quality of the fit, (N,): edges count little."""
        return (self.variance + 0.5 * self.variance.median() + TINY).reciprocal()

    @property
    def misfit(self) -> float:
        """Mean logarithm of the residual's variance: a few blocks with strong texture must not
        outweigh all others.
        """
        return float((self.variance + self.floor).log().mean())

    def robust_weight(self, pixels: Pixels) -> Tensor:
        """Return the weight of each block, (N,), as little as none where the fit is far worse than
        in most.
        """
        level = pixels.y.square().sum(-1) / pixels.valid.sum(-1).clamp_min(1.0) + TINY
        lit = level > _LIT**2 * level.max()
        relative = self.variance / level
        usual = relative[lit].median() + _FINEST
        return lit / (
            level * (relative + _LEAST_VARIANCE * usual) * (1 + (relative / usual).square())
        )

    def with_still_blocks(self, pixels: Pixels) -> SceneFit:
        """Return the fit of a scene that does not change in blocks where that is nearly as good."""
        still = self.design.clone()
        still[..., still.shape[-1] // 2 :] = 0.0
        fixed = SceneFit.of(still, pixels)
        alike = (fixed.variance < _STILL * self.variance).view(-1, 1, 1)
        return SceneFit.of(torch.where(alike, still, self.design), pixels)

    def without_scene(self, columns: Tensor) -> Tensor:
        """Return changes of y, (N, p, K'), without what another scene explains of them (variable
        projection).
        """
        return columns - self.design @ torch.cholesky_solve(self.design.mT @ columns, self.factor)


def variances(masks: Tensor, space: Tensor, pixels: Pixels, courses: F64) -> Tensor:
    """Return the variance that the fit of a scene leaves in each block, (n, N), behind masks,
    (N, B, p), that are shown with each of these courses, (n, 2, B).

    ``space``, (3, p): functions of place. All fits follow from the products of masks and places:
    that takes a fifth of the time of `SceneFit.of` for each.
    """
    blocks, frames, _ = masks.shape
    known = (masks * pixels.valid.unsqueeze(1)).double()
    parts = (known.unsqueeze(2) * space.double()).flatten(1, 2)
    y = pixels.y.double()
    products = (parts @ parts.mT).view(blocks, frames, 3, frames, 3)
    products = products.permute(1, 3, 0, 2, 4).reshape(frames * frames, -1)
    rights = (parts @ y.unsqueeze(-1)).view(blocks, frames, 3).transpose(0, 1).reshape(frames, -1)
    power = y.square().sum(-1)
    count = pixels.valid.double().sum(-1).clamp_min(1.0)
    eye = torch.eye(6, dtype=torch.double, device=y.device)
    results = []
    for course in torch.split(torch.from_numpy(courses).to(y.device), _COURSES):
        first, second = course.unbind(1)
        pairs = torch.stack([first, first, second], 1).unsqueeze(-1)
        pairs = (pairs * torch.stack([first, second, second], 1).unsqueeze(-2)).flatten(2)
        sums = (pairs.flatten(0, 1) @ products).view(-1, 3, blocks, 3, 3)
        normal = torch.empty(len(course), blocks, 6, 6, dtype=torch.double, device=y.device)
        normal[..., :3, :3] = sums[:, 0]
        normal[..., :3, 3:] = sums[:, 1]
        normal[..., 3:, :3] = sums[:, 1].mT
        normal[..., 3:, 3:] = sums[:, 2]
        right = (course @ rights).view(-1, 2, blocks, 3).transpose(1, 2).reshape(-1, blocks, 6, 1)
        level = normal.diagonal(dim1=-2, dim2=-1).mean(-1)
        ridge = (_RIDGE * level + TINY)[..., None, None] * eye
        scene = torch.linalg.solve(normal + ridge, right)
        explained = (scene * (2 * right - normal @ scene)).sum((-2, -1))
        results.append((power - explained).clamp_min(0.0) / count)
    return torch.cat(results) + _FINEST * power.sum() / y.numel() + TINY


def _variance(residual: Tensor, pixels: Pixels) -> Tensor:
    """Return the mean square of the residual of each block, (N,)."""
    return residual.square().sum(-1) / pixels.valid.sum(-1).clamp_min(1.0)


def certainty(gains: F64) -> float:
    """Return the mean of the gains of blocks in units of its standard error."""
    return float(gains.mean() / (gains.std() / math.sqrt(len(gains)) + TINY))
