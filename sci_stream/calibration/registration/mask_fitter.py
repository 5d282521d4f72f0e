r"""Measure the position of the masks on the sensor from a single snapshot, without reconstructing
it.

In a block of a few pixels a scene is nearly a plane that changes nearly linearly while the B masks
pass: x_b(r) ≈ Σ_k c_k p_k(r, b) with six functions p: 1 and the two coordinates, each constant and
linear in b. With 64 pixels per block the measurement y = Σ_b φ_b x_b over-determines the c_k if φ
is right. If the masks are displaced by weights a, b along the axes
(`sci_stream.optics.mask_shift`), the residual r = y − Φ_ab x(c) depends on them linearly to first
order, and least squares gives them: the c_k of every block are eliminated (variable projection), so
that a scene fitted with the wrong masks does not bias the weights, unlike the residual of a
reconstruction.

The content of a scene beyond the six functions is noise to the fit. It does not correlate with the
masks, and thousands of pixels average it out.

References
----------
Golub and Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares problems
whose variables separate", SIAM J. Numer. Anal. 10 (1973); each step below is Kaufman's form of it.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sci_stream.calibration.mask_errors import (
    Brightness,
    MaskInformation,
    trend_of,
)
from sci_stream.calibration.registration.mask_blocks import (
    BLOCK_PX,
    SEARCH_PX,
    TAPS,
    MaskBlocks,
    show_displacements,
)
from sci_stream.calibration.registration.scene_fit import TINY, Pixels, SceneFit, variances
from sci_stream.model import F32, F64, Flags
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.displacement import NO_DISPLACEMENT, TAPS_RADIUS, Displacement
from sci_stream.optics.mask_errors import MaskCorrection

# The search tries every whole pixel in reach: fewer blocks than for the fit are enough to find the
# best one.
_SEARCH_BLOCKS = 192
# Gauss–Newton converges in a few steps from within a pixel.
_MAX_STEPS = 8
_SETTLED = 1e-3
# Longer steps leave the range of the linearisation and are shortened.
_LONGEST_STEP = 0.4
# Standard deviation of stray light, relative to the light itself. A black level looks nearly the
# same: without a limit to stray light nothing would be known of it.
_STRAY = 0.03
# Share of the blocks that fit masks better than masks of another place: 0.80 to 1 with the right
# ones, 0.45 to 0.64 with masks of another camera (six rigs, seven scenes of the tuning half of
# `bench reality`, all perturbations).
_FITTING_BLOCKS = 0.72
# On fewer blocks nothing is concluded.
_LEAST_BLOCKS = 16
# On fewer blocks nothing is corrected: sensors of about 96 × 96 pixels have more.
_ENOUGH_BLOCKS = 64
# Match of masks that explain little of a fine texture, but more than those of another place.
_LEAST_MATCH = 0.01
# Masks that repeat across the sensor, as a grid does, cannot be compared with themselves at another
# place.
_REPETITIVE = 0.5


@dataclass(frozen=True)
class MaskFit:
    """Result of fitting the masks to one snapshot.

    Parameters
    ----------
    displacement
        Position of the masks.
    shift_sd_px
        Standard deviation of (x, y), the larger one, from the scatter of the fit; systematic errors
        of up to a few hundredths of a pixel come on top.
    match
        Mask correlation, 0–1: the fraction of the blocks' variance that the masks explain and those
        of another place do not. Near 1 with the right masks, less where the scene is finely
        textured; exactly 0 if they explain no more than those of another place: masks of another
        camera, or no light.
    contrast
        Modulation by the masks relative to the calibrated one: 1 if right, less with stray light or
        haze.
    contrast_sd
        Standard deviation of the contrast, from the scatter of the fit.
    gain
        By how much masks at rest leave more of the snapshot unexplained: the mean logarithm of the
        ratio of variances.
    misfit
        Mean logarithm of the variance that these masks leave unexplained.
    """

    displacement: Displacement
    shift_sd_px: float
    match: float
    contrast: float
    contrast_sd: float = 0.0
    gain: float = 0.0
    misfit: float = 0.0


class MaskFitter:
    """Fit mask displacements to snapshots of one calibration, on one device.

    The number of `blocks`, and with it the cost, does not grow with the sensor.

    Raises ValueError if the sensor is too small, see `show_displacements`.
    """

    def __init__(self, calibration: Calibration, device: torch.device) -> None:
        if not self.fits(calibration):
            raise ValueError(
                f"masks of {calibration.shape} pixels are too small to fit displacements to"
            )
        self.blocks = MaskBlocks(calibration, device)
        """The masks, which can be corrected."""
        self._repetitive = self.blocks.repetition > _REPETITIVE
        self._space, self._time = (part.to(device) for part in _basis(calibration.n_frames))

    fits = staticmethod(show_displacements)

    @property
    def can_correct(self) -> bool:
        """Whether the blocks are enough for a correction that costs less than it gains."""
        return len(self.blocks) >= _ENOUGH_BLOCKS

    def halves(self) -> list[tuple[MaskFitter, MaskFitter]]:
        """Return fitters of each half of the picture, with that of the other one; see
        `MaskBlocks.halves`.
        """
        return [(self.behind(one), self.behind(other)) for one, other in self.blocks.halves()]

    def behind(self, blocks: MaskBlocks) -> MaskFitter:
        """Return a fitter of these blocks."""
        fitter = copy.copy(self)
        fitter.blocks = blocks
        return fitter

    def gain(self, y: F32, valid: Flags, correction: MaskCorrection) -> float:
        """Return by how much errors of each mask explain more of a snapshot than a displacement
        alone does.
        """
        misfits = []
        for trial in (MaskCorrection(correction.displacement), correction):
            fitter = self.behind(self.blocks.corrected(trial))
            misfits.append(fitter._fit_at(trial.displacement, fitter.blocks.take(y, valid)).misfit)
        return misfits[0] - misfits[1]

    def fit(self, y: F32, valid: Flags, start: Displacement = NO_DISPLACEMENT) -> MaskFit:
        """Fit the displacement, starting at ``start``, which must be correct to about a pixel.

        Parameters
        ----------
        y
            (H, W), the measurement, finite.
        valid
            (H, W) bool, False for invalid pixels: saturated ones.
        """
        pixels = self.blocks.take(y, valid)
        displacement = first = _within_reach(start.recentred())
        for _ in range(_MAX_STEPS):
            scene_fit = self._fit_at(displacement, pixels)
            step, covariance, stray = self._step(scene_fit, displacement, pixels)
            displacement, change = _moved(displacement, step)
            if change < _SETTLED:
                break
        before = self._fit_at(first, pixels)
        rest = self._fit_at(NO_DISPLACEMENT, pixels)
        # Fine texture draws a fit to blurred masks, which explain less.
        if scene_fit.misfit > before.misfit:
            scene_fit = before
            displacement = first
        match = self._match(scene_fit, displacement, pixels)
        lever = torch.tensor(
            [*TAPS, *(0,) * len(TAPS)], dtype=covariance.dtype, device=covariance.device
        )
        levers = torch.stack([lever, lever.roll(len(TAPS))])
        levers = torch.nn.functional.pad(levers, (0, 1))  # nothing of the stray light
        variance = torch.einsum("li,ij,lj->l", levers, covariance, levers)
        return MaskFit(
            displacement=displacement,
            shift_sd_px=float(variance.clamp_min(0).max().sqrt()),
            match=match,
            contrast=1.0 / max(1.0 + stray, 0.1),
            contrast_sd=math.sqrt(max(0.0, float(covariance[-1, -1]))) / max(1.0 + stray, 0.1) ** 2,
            gain=rest.misfit - scene_fit.misfit,
            misfit=scene_fit.misfit,
        )

    def gain_elsewhere(self, y: F32, valid: Flags, start: Displacement) -> float:
        """Return the gain of a displacement in the half of the picture that it is not fitted to.

        Each fit begins at ``start``. The result is the mean of `MaskFit.gain` over left and right,
        upper and lower half: displaced masks are displaced everywhere, and a scene that looks so in
        one half does not in the other. It is 0 where the blocks are too few to be halved.
        """
        if len(self.blocks) < _LEAST_BLOCKS:
            return 0.0
        gains = [
            other._gain_of(one.fit(y, valid, start).displacement, y, valid)
            for one, other in self.halves()
        ]
        return float(np.mean(gains))

    def _gain_of(self, at: Displacement, y: F32, valid: Flags) -> float:
        pixels = self.blocks.take(y, valid)
        return self._fit_at(NO_DISPLACEMENT, pixels).misfit - self._fit_at(at, pixels).misfit

    def match(self, y: F32, valid: Flags, at: Displacement) -> float:
        """Return the match of masks at a displacement, see `MaskFit`."""
        pixels = self.blocks.take(y, valid)
        return self._match(self._fit_at(at, pixels), at, pixels)

    def misfits(self, y: F32, valid: Flags, at: Displacement, courses: F64) -> F64:
        """Return the logarithm of the variance that masks leave in each block, (n, N), if they are
        shown with each of these courses, (n, 2, B).

        The two rows of a course are the integrals of 1 and of time, −1 to 1, over the time that
        each mask is shown.
        """
        pixels = self.blocks.take(y, valid)
        return (
            variances(self.blocks.displaced(at), self._space, pixels, courses).log().cpu().numpy()
        )

    def unexplained(self, y: F32, valid: Flags, at: Displacement) -> F64:
        """Return the logarithm of the share of the variance that the displaced masks leave in each
        block, (N,).
        """
        pixels = self.blocks.take(y, valid)
        mean = pixels.y.sum(-1, keepdim=True) / pixels.valid.sum(-1, keepdim=True).clamp_min(1.0)
        whole = (pixels.y - mean * pixels.valid).square().sum(-1)
        rest = self._fit_at(at, pixels).residual.square().sum(-1)
        return ((rest + TINY) / (whole + TINY)).log().double().cpu().numpy()

    def search(self, y: F32, valid: Flags) -> Displacement:
        """Return the whole-pixel displacement, up to `SEARCH_PX`, with which the masks explain y
        best.
        """
        blocks, pixels = self.blocks.thinned(self.blocks.take(y, valid), _SEARCH_BLOCKS)
        fitter = self.behind(blocks)
        span = range(-SEARCH_PX, SEARCH_PX + 1)
        candidates = [Displacement((x, y)) for y in span for x in span]
        scores = [fitter._fit_at(candidate, pixels).misfit for candidate in candidates]
        best = min(
            range(len(candidates)), key=lambda i: (scores[i], sum(map(abs, candidates[i].base_px)))
        )
        return candidates[best]

    def information(self, y: F32, valid: Flags, at: MaskCorrection) -> MaskInformation:
        """Return the information of a snapshot on the errors of each mask and the black level.

        Stray light is eliminated as the scene is. A displacement of all masks is not: the masks'
        own add up to one.

        Parameters
        ----------
        y, valid
            As for `fit`; not corrected for the black level.
        at
            The correction to linearise at, which the blocks have.
        """
        pixels = self.blocks.take(y, valid)
        moving = self._fit_at(at.displacement, pixels)
        level, slope = (
            moving.scene.view(len(moving.scene), len(self._time), -1)[:, :, 0]
            .T.double()
            .cpu()
            .numpy()
        )
        scene_fit = moving.with_still_blocks(pixels)
        video = self._video(scene_fit, pixels.valid)
        stray = _stray(scene_fit, pixels).unsqueeze(1)
        changes = self.blocks.error_changes(at, video)
        columns = torch.cat([stray, *changes, pixels.valid.unsqueeze(1)], 1).mT
        weight = scene_fit.robust_weight(pixels)
        columns = scene_fit.without_scene(columns) * weight.sqrt().view(-1, 1, 1)
        residual = scene_fit.residual * weight.sqrt().unsqueeze(1)
        scores = torch.einsum("npi,np->ni", columns, residual).double().cpu().numpy()
        information = torch.einsum("npi,npj->ij", columns, columns).double().cpu().numpy()
        used = trend_of(np.array([mask.gain for mask in at.masks]))
        return _information(information, scores, at)._replace(
            misfit=scene_fit.misfit, brightness=Brightness(level, slope + used * level)
        )

    def _fit_at(self, at: Displacement, pixels: Pixels) -> SceneFit:
        """Fit the scene behind the displaced masks."""
        return self._fit_scene(self.blocks.displaced(at), pixels)

    def _fit_scene(self, masks: Tensor, pixels: Pixels) -> SceneFit:
        """Fit the scene in every block behind its masks, (N, B, p)."""
        through = torch.einsum("kb,nbp->nkp", self._time, masks)
        design = torch.einsum("nkp,sp->npks", through, self._space).flatten(
            2
        ) * pixels.valid.unsqueeze(-1)
        return SceneFit.of(design, pixels)

    def _step(
        self, scene_fit: SceneFit, at: Displacement, pixels: Pixels
    ) -> tuple[Tensor, Tensor, float]:
        """Return the change of the weights (x, then y), the covariance of these and of stray light,
        and the fraction of stray light.
        """
        # A better fit of the scene may explain it: then it is not evidence of a displacement.
        video = self._video(scene_fit, pixels.valid)
        taps = self.blocks.tap_changes(at, video)
        change = scene_fit.without_scene(torch.stack([*taps, _stray(scene_fit, pixels)], -1))
        weight = scene_fit.weight
        normal = torch.einsum("n,npi,npj->ij", weight, change, change).double().cpu()
        scores = torch.einsum("n,npi,np->ni", weight, change, scene_fit.residual).double().cpu()
        excess = _excess(scores.numpy(), normal.diagonal().numpy())
        # A prior of width 1 decides without light.
        normal.diagonal().add_(1.0 + 1e-9 * normal.diagonal().max())
        covariance = torch.linalg.inv(normal)
        solution = covariance @ scores.sum(0)
        return solution[:-1], excess * covariance, float(solution[-1])

    def _video(self, scene_fit: SceneFit, valid: Tensor) -> Tensor:
        """Return the scene of every block, (N, B, p)."""
        coefficients = scene_fit.scene.view(len(scene_fit.scene), len(self._time), len(self._space))
        return torch.einsum(
            "nks,sp,kb->nbp", coefficients, self._space, self._time
        ) * valid.unsqueeze(1)

    def _match(self, scene_fit: SceneFit, at: Displacement, pixels: Pixels) -> float:
        """Return the fraction of the variance that the masks explain and those of another place do
        not.

        Blocks count by their light: dark ones show no masks.
        """
        if self._repetitive:
            plane = self._space.T.expand(len(pixels.y), -1, -1) * pixels.valid.unsqueeze(-1)
            without = SceneFit.of(plane, pixels).variance
        else:
            without = self._fit_scene(self.blocks.displaced_elsewhere(at), pixels).variance
        noise = TINY + 1e-8 * float(pixels.y.square().mean())
        ratio = (scene_fit.variance + noise) / (without + noise)
        weight = pixels.y.mean(-1).square()
        weight = weight.clamp_max(weight.quantile(0.9)) + TINY
        blocks = float(weight.sum().square() / weight.square().sum())
        fits = ratio < 1
        fitting = max(float(weight[fits].sum() / weight.sum()), float(fits.float().mean()))
        if len(ratio) >= _LEAST_BLOCKS and fitting < _FITTING_BLOCKS - 0.5 / math.sqrt(blocks):
            return 0.0
        return float((1.0 - _median(ratio, weight)).clamp(_LEAST_MATCH, 1.0))


def _stray(scene_fit: SceneFit, pixels: Pixels) -> Tensor:
    """Return the change of y by stray light, (N, p): the same share of the brightness at each pixel
    of a block.
    """
    return (pixels.y - scene_fit.residual).mean(-1, keepdim=True) * pixels.valid


def _median(values: Tensor, weights: Tensor) -> Tensor:
    """Return the median of values that count by weights, (N,) both."""
    order = values.argsort()
    share = weights[order].cumsum(0) / weights.sum()
    return values[order[int((share < 0.5).sum().clamp_max(len(values) - 1))]]


def _information(information: F64, scores: F64, at: MaskCorrection) -> MaskInformation:
    """Return the evidence on the parameters after the first, stray light, which is eliminated.

    Residuals are no white noise: texture and edges of a block are one error, not 64. The
    information is divided by the excess scatter of the blocks' scores.
    """
    seen = information[0, 1:] / (information[0, 0] + 1 / _STRAY**2)
    scores = scores[:, 1:] - np.outer(scores[:, 0], seen)
    information = information[1:, 1:] - np.outer(information[0, 1:], seen)
    excess = _excess(scores, information.diagonal())
    information /= excess
    score = scores.sum(0) / excess
    if at.masks:
        score += information @ np.array([*np.transpose(at.masks).ravel(), at.black])
    return MaskInformation(information, score)


def _excess(scores: F64, information: F64) -> float:
    """Return the scatter of the blocks' scores, (N, K), around their mean, relative to the
    information on each, ≥ 1.
    """
    return max(1.0, float((len(scores) * scores.var(0) / (information + TINY)).mean()))


def _basis(n_frames: int) -> tuple[Tensor, Tensor]:
    """Return the spatial (3, p) and temporal (2, B) functions whose products model a scene in a
    block.
    """
    axis = torch.linspace(-1, 1, BLOCK_PX)
    v, u = torch.meshgrid(axis, axis, indexing="ij")
    space = torch.stack([torch.ones_like(u), u, v]).flatten(1)
    return space, torch.stack([torch.ones(n_frames), torch.linspace(-1, 1, n_frames)])


def _within_reach(displacement: Displacement) -> Displacement:
    x, y = (min(max(base, -SEARCH_PX), SEARCH_PX) for base in displacement.base_px)
    return dataclasses.replace(displacement, base_px=(x, y))


def _moved(displacement: Displacement, step: Tensor) -> tuple[Displacement, float]:
    """Return the displacement after a step, shortened if it is too long, and the length of the
    step.
    """
    length = float(step.abs().max())
    values = (step * min(1.0, _LONGEST_STEP / length) if length > 0 else step).tolist()
    half = len(TAPS)
    x, y = (
        _changed(weights, change)
        for weights, change in ((displacement.x, values[:half]), (displacement.y, values[half:]))
    )
    return _within_reach(Displacement(displacement.base_px, x, y).recentred()), length


def _changed(weights: tuple[float, ...], change: list[float]) -> tuple[float, ...]:
    out = list(weights)
    for i, value in zip(TAPS, change, strict=True):
        out[TAPS_RADIUS + i] += value
        out[TAPS_RADIUS] -= value
    return tuple(out)
