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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sci_stream.calibration.mask_errors import (
    Brightness,
    MaskInformation,
    trend_of,
)
from sci_stream.calibration.mask_order import Places
from sci_stream.model import F32, F64, Array, Flags
from sci_stream.optics import bayer
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.displacement import NO_DISPLACEMENT, TAPS_RADIUS, Displacement
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.optics.mask_shift import mask_changes, mask_gains, reshaped_masks, weighted_slices

# 64 measurements for six unknowns: smaller blocks leave too few degrees of freedom, in larger ones
# scenes are not planes.
BLOCK_PX = 8
# `MaskFitter.search` tries whole-pixel displacements up to this far in each direction.
SEARCH_PX = 3

# A fit costs 0.04 s on one CPU core at any sensor size, a search 0.11 s
# (lab/research/shift-tracking.md); both grow with the number of blocks, the error falls with its
# square root.
_BLOCKS = 512
# The search tries every whole pixel in reach: fewer blocks than for the fit are enough to find the
# best one.
_SEARCH_BLOCKS = 192
_HALO_PX = SEARCH_PX + TAPS_RADIUS + 1
# Pixels that derivatives of masks reach to either side; beyond the halo, masks are continued.
_SLOPE_PX = 2
# Gauss–Newton converges in a few steps from within a pixel; long steps leave the range of the
# linearisation and are shortened.
_MAX_STEPS = 8
_SETTLED = 1e-3
_LONGEST_STEP = 0.4
# Masks that open alike make the normal matrix singular.
_RIDGE = 1e-5
# Standard deviation of stray light, relative to the light itself. A black level looks nearly the
# same: without a limit to stray light nothing would be known of it.
_STRAY = 0.03
# Share of the blocks that fit masks better than masks of another place: 0.80 to 1 with the right
# ones, 0.45 to 0.64 with masks of another camera (six rigs, seven scenes of the tuning half of
# `bench reality`, all perturbations).
_FITTING_BLOCKS = 0.72
# On fewer blocks nothing is concluded.
_LEAST_BLOCKS = 16
# And nothing is corrected: sensors of about 96 × 96 pixels have more.
_ENOUGH_BLOCKS = 64
# Match of masks that explain little of a fine texture, but more than those of another place.
_LEAST_MATCH = 0.01
# Masks that repeat across the sensor, as a grid does, cannot be compared with themselves at another
# place.
_REPETITIVE = 0.5
# Brightness relative to the brightest block, from which a block counts; and how much worse the
# residual of a scene that does not change may be for it to be taken for one.
_LIT, _STILL = 0.05, 2.0
# Variance that no block is trusted below, relative to that of most. Blocks count by the inverse of
# theirs, as the misfit asks for; with 1, moving edges of a wheel outweighed its still background,
# and a cut was corrected.
_LEAST_VARIANCE = 0.1
# Relative variance that no camera is below: masks are not known better than to a thousandth.
_FINEST = 1e-6
_TINY = 1e-12
# Texture of the sum of all masks, of that of independent ones: 1 of random ones, below 0.1 of those
# by `masks make
# --kind balanced`. A snapshot of an even sum shows nothing of the masks where the scene is at rest.
_EVEN = 0.25
_TILE_PX = 16
_TAPS = tuple(i for i in range(-TAPS_RADIUS, TAPS_RADIUS + 1) if i)


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


class _Pixels(NamedTuple):
    """Pixels of all blocks, (N, p) float32 each, N = planes × places: y, and 1 where it is valid;
    both 0 elsewhere.
    """

    y: Tensor
    valid: Tensor


@dataclass(frozen=True, eq=False)
class _SceneFit:
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
    def of(cls, design: Tensor, pixels: _Pixels) -> _SceneFit:
        normal = design.mT @ design
        level = normal.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
        eye = torch.eye(normal.shape[-1], device=normal.device)
        ridge = (_RIDGE * level + _TINY).unsqueeze(-1) * eye
        # `cholesky` alone waits for the device to check positivity, which the ridge ensures.
        factor = torch.linalg.cholesky_ex(normal + ridge).L
        scene = torch.cholesky_solve(design.mT @ pixels.y.unsqueeze(-1), factor)
        residual = pixels.y - (design @ scene).squeeze(-1)
        floor = _FINEST * float(pixels.y.square().mean()) + _TINY
        return cls(design, scene.squeeze(-1), factor, residual, _variance(residual, pixels), floor)

    @property
    def weight(self) -> Tensor:
        """Weight of each block by the quality of the fit, (N,): edges count little."""
        return (self.variance + 0.5 * self.variance.median() + _TINY).reciprocal()

    @property
    def misfit(self) -> float:
        """Mean logarithm of the residual's variance: a few blocks with strong texture must not
        outweigh all others.
        """
        return float((self.variance + self.floor).log().mean())

    def robust_weight(self, pixels: _Pixels) -> Tensor:
        """Return the weight of each block, (N,), as little as none where the fit is far worse than
        in most.
        """
        level = pixels.y.square().sum(-1) / pixels.valid.sum(-1).clamp_min(1.0) + _TINY
        lit = level > _LIT**2 * level.max()
        relative = self.variance / level
        usual = relative[lit].median() + _FINEST
        return lit / (
            level * (relative + _LEAST_VARIANCE * usual) * (1 + (relative / usual).square())
        )

    def with_still_blocks(self, pixels: _Pixels) -> _SceneFit:
        """Return the fit of a scene that does not change in blocks where that is nearly as good."""
        still = self.design.clone()
        still[..., still.shape[-1] // 2 :] = 0.0
        fixed = _SceneFit.of(still, pixels)
        alike = (fixed.variance < _STILL * self.variance).view(-1, 1, 1)
        return _SceneFit.of(torch.where(alike, still, self.design), pixels)

    def without_scene(self, columns: Tensor) -> Tensor:
        """Return changes of y, (N, p, K'), without what another scene explains of them (variable
        projection).
        """
        return columns - self.design @ torch.cholesky_solve(self.design.mT @ columns, self.factor)


class MaskFitter:
    """Fit mask displacements to snapshots of one calibration, on one device.

    It uses about `_BLOCKS` blocks spread evenly over the sensor, so that its cost does not grow
    with the sensor.

    Raises ValueError if the sensor is too small, see `fits`.
    """

    def __init__(self, calibration: Calibration, device: torch.device) -> None:
        if not self.fits(calibration):
            raise ValueError(
                f"masks of {calibration.shape} pixels are too small to fit displacements to"
            )
        self._calibration = calibration
        self.device = device
        self._size = _block_px(calibration)
        self._planes = 1 if calibration.bayer is None else 4
        top, left = _places(calibration.shape, self._size, _BLOCKS // self._planes)
        self._rows = top[:, None, None] + np.arange(self._size)[None, :, None]
        self._columns = left[:, None, None] + np.arange(self._size)[None, None, :]
        side = np.arange(self._size + 2 * _HALO_PX) - _HALO_PX
        wide = calibration.phi[
            :, top[:, None, None] + side[None, :, None], left[:, None, None] + side[None, None, :]
        ]
        self._calibrated = torch.from_numpy(np.ascontiguousarray(wide.swapaxes(0, 1))).to(device)
        self._even = self._calibrated
        self._phi, self._black = self._calibrated, 0.0
        # Each block's masks at another place: a third of the sensor away.
        self._repetitive = (
            _correlation(self._calibrated, self._elsewhere(self._calibrated)) > _REPETITIVE
        )
        self._good = calibration.good
        self._space, self._time = (part.to(device) for part in _basis(calibration.n_frames))

    @staticmethod
    def fits(calibration: Calibration) -> bool:
        """Return whether a displacement shows: the sensor is large enough, and the masks do not add
        up evenly.
        """
        if (
            min(calibration.shape) < _block_px(calibration) + 2 * _HALO_PX + 2
            or calibration.n_frames == 1
        ):
            return False
        separate = float(np.sqrt(sum(_texture(mask) ** 2 for mask in calibration.phi)))
        return _texture(calibration.phi.sum(axis=0)) > _EVEN * separate

    @property
    def can_correct(self) -> bool:
        """Whether the blocks are enough for a correction that costs less than it gains."""
        return self._planes * len(self._rows) >= _ENOUGH_BLOCKS

    def halves(self) -> list[tuple[MaskFitter, MaskFitter]]:
        """Return fitters of the left and the right half of the picture, and of its upper and lower
        half.
        """
        places = (self._columns[:, 0, 0], self._rows[:, 0, 0])
        return [
            (self._part(place < np.median(place)), self._part(place >= np.median(place)))
            for place in places
        ]

    def _part(self, blocks: Flags) -> MaskFitter:
        part = copy.copy(self)
        part._rows, part._columns = self._rows[blocks], self._columns[blocks]
        part._calibrated, part._phi = (
            phi[torch.from_numpy(blocks)] for phi in (self._calibrated, self._phi)
        )
        return part

    def gain(self, y: F32, valid: Flags, correction: MaskCorrection) -> float:
        """Return by how much errors of each mask explain more of a snapshot than a displacement
        alone does.
        """
        misfits = []
        for trial in (MaskCorrection(correction.displacement), correction):
            fitter = copy.copy(self)
            fitter.correct(trial)
            masks = fitter._displaced(fitter._phi, trial.displacement)
            misfits.append(fitter._fit_scene(masks, fitter._take(y, valid)).misfit)
        return misfits[0] - misfits[1]

    def light(self, gains: Sequence[float]) -> None:
        """Take the masks under this light, empty if it is even; call `correct` next."""
        light = self._even.new_tensor(gains or (1.0,)).view(-1, 1, 1)
        self._calibrated = self._even * light

    def correct(self, correction: MaskCorrection) -> None:
        """Take the masks with these errors of each, and this black level, from now on."""
        masks = reshaped_masks(self._calibrated, correction)
        self._phi, self._black = masks.mul_(mask_gains(masks, correction)), correction.black

    def fit(self, y: F32, valid: Flags, start: Displacement = NO_DISPLACEMENT) -> MaskFit:
        """Fit the displacement, starting at ``start``, which must be correct to about a pixel.

        Parameters
        ----------
        y
            (H, W), the measurement, finite.
        valid
            (H, W) bool, False for invalid pixels: saturated ones.
        """
        pixels = self._take(y, valid)
        displacement = first = _within_reach(start.recentred())
        for _ in range(_MAX_STEPS):
            scene_fit = self._fit_scene(self._displaced(self._phi, displacement), pixels)
            step, covariance, stray = self._step(scene_fit, displacement, pixels)
            displacement, change = _moved(displacement, step)
            if change < _SETTLED:
                break
        before, rest = (
            self._fit_scene(self._displaced(self._phi, at), pixels)
            for at in (first, NO_DISPLACEMENT)
        )
        if (
            scene_fit.misfit > before.misfit
        ):  # fine texture draws a fit to blurred masks, which explain less
            scene_fit, displacement = before, first
        match = self._match(scene_fit, displacement, pixels)
        lever = torch.tensor(
            [*_TAPS, *(0,) * len(_TAPS)], dtype=covariance.dtype, device=covariance.device
        )
        levers = torch.stack([lever, lever.roll(len(_TAPS))])
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
        if self._planes * len(self._rows) < _LEAST_BLOCKS:
            return 0.0
        gains = []
        for halves in self.halves():
            for one, other in (halves, halves[::-1]):
                fitted = one.fit(y, valid, start).displacement
                gains.append(other._gain_of(fitted, y, valid))
        return float(np.mean(gains))

    def _gain_of(self, at: Displacement, y: F32, valid: Flags) -> float:
        pixels = self._take(y, valid)
        at_rest, displaced = (
            self._fit_scene(self._displaced(self._phi, place), pixels).misfit
            for place in (NO_DISPLACEMENT, at)
        )
        return at_rest - displaced

    def match(self, y: F32, valid: Flags, at: Displacement) -> float:
        """Return the match of masks at a displacement, see `MaskFit`."""
        pixels = self._take(y, valid)
        return self._match(self._fit_scene(self._displaced(self._phi, at), pixels), at, pixels)

    def misfits(self, y: F32, valid: Flags, at: Displacement, orders: Places) -> F64:
        """Return the logarithm of the variance that masks in each of these orders, (n, B) times,
        leave in each block, (n, N).
        """
        pixels, masks = self._take(y, valid), self._displaced(self._phi, at)
        fits = (self._fit_scene(masks, pixels, self._time[:, order]) for order in orders)
        return np.array([(fit.variance + fit.floor).log().double().cpu().numpy() for fit in fits])

    def search(self, y: F32, valid: Flags) -> Displacement:
        """Return the whole-pixel displacement, up to `SEARCH_PX`, with which the masks explain y
        best.
        """
        pixels = self._take(y, valid)
        every = max(1, len(self._phi) // (_SEARCH_BLOCKS // self._planes))
        some = slice(None, None, every)
        phi = self._phi[some]
        pixels = _Pixels(
            *(part.view(self._planes, -1, part.shape[-1])[:, some].flatten(0, 1) for part in pixels)
        )
        span = range(-SEARCH_PX, SEARCH_PX + 1)
        candidates = [Displacement((x, y)) for y in span for x in span]
        scores = [
            self._fit_scene(self._displaced(phi, candidate), pixels).misfit
            for candidate in candidates
        ]
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
            The correction to linearise at, which `correct` was called with.
        """
        pixels = self._take(y, valid)
        moving = self._fit_scene(self._displaced(self._phi, at.displacement), pixels)
        level, slope = (
            moving.scene.view(len(moving.scene), len(self._time), -1)[:, :, 0]
            .T.double()
            .cpu()
            .numpy()
        )
        scene_fit = moving.with_still_blocks(pixels)
        video = self._video(scene_fit, pixels.valid)
        stray = self._stray(scene_fit, pixels).unsqueeze(1)
        # Displaced first, and with a narrow margin: derivatives of the whole blocks took a third of
        # a check.
        margin = min(_SLOPE_PX, _HALO_PX - TAPS_RADIUS - max(map(abs, at.displacement.base_px)))
        inner = slice(margin, -margin)
        across = self._filtered(self._calibrated, at.displacement, 0, margin)
        masks = self._filtered(across, at.displacement, 1, margin)
        changes = [
            self._flat(change[..., inner, inner]) * video for change in mask_changes(masks, at)
        ]
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

    # --- blocks

    def _take(self, y: F32, valid: Flags) -> _Pixels:
        """Return the pixels of the blocks, less the black level."""
        known = torch.from_numpy((valid & self._good)[self._rows, self._columns]).to(
            self.device, torch.float32
        )
        blocks = torch.from_numpy(y[self._rows, self._columns] - np.float32(self._black)).to(
            self.device
        )
        return _Pixels(self._flat(blocks * known), self._flat(known))

    def _flat(self, blocks: Tensor) -> Tensor:
        """Reorder (places, …, h, w) to (N, …, p), the planes of a mosaic first."""
        if self._planes == 4:
            blocks = bayer.split(blocks).flatten(0, 1)
        return blocks.flatten(-2)

    def _filtered(self, phi: Tensor, at: Displacement, axis: int, margin: int = 0) -> Tensor:
        """Displace extended blocks along one axis (0: x, 1: y), which consumes the halo except for
        a margin.
        """
        weights, base = (at.x, at.base_px[0]) if axis == 0 else (at.y, at.base_px[1])
        return weighted_slices(
            phi, weights, _HALO_PX - base - margin, -1 - axis, self._size + 2 * margin
        )

    def _fit_scene(self, masks: Tensor, pixels: _Pixels, times: Tensor | None = None) -> _SceneFit:
        """Fit the scene in every block behind its masks, (N, B, p), at their times."""
        through = torch.einsum("kb,nbp->nkp", self._time if times is None else times, masks)
        design = torch.einsum("nkp,sp->npks", through, self._space).flatten(
            2
        ) * pixels.valid.unsqueeze(-1)
        return _SceneFit.of(design, pixels)

    def _step(
        self, scene_fit: _SceneFit, at: Displacement, pixels: _Pixels
    ) -> tuple[Tensor, Tensor, float]:
        """Return the change of the weights (x, then y), the covariance of these and of stray light,
        and the fraction of stray light.
        """
        # A better fit of the scene may explain it: then it is not evidence of a displacement.
        change = scene_fit.without_scene(
            self._changes(scene_fit, at, pixels, self._video(scene_fit, pixels.valid))
        )
        weight = scene_fit.weight
        normal = torch.einsum("n,npi,npj->ij", weight, change, change).double().cpu()
        scores = torch.einsum("n,npi,np->ni", weight, change, scene_fit.residual).double().cpu()
        excess = _excess(scores.numpy(), normal.diagonal().numpy())
        normal.diagonal().add_(
            1.0 + 1e-9 * normal.diagonal().max()
        )  # a prior of width 1, which decides without light
        covariance = torch.linalg.inv(normal)
        solution = covariance @ scores.sum(0)
        return solution[:-1], excess * covariance, float(solution[-1])

    def _video(self, scene_fit: _SceneFit, valid: Tensor) -> Tensor:
        """Return the scene of every block, (N, B, p)."""
        coefficients = scene_fit.scene.view(len(scene_fit.scene), len(self._time), len(self._space))
        return torch.einsum(
            "nks,sp,kb->nbp", coefficients, self._space, self._time
        ) * valid.unsqueeze(1)

    def _displaced(self, phi: Tensor, at: Displacement) -> Tensor:
        """Return the displaced masks of the blocks, (N, B, p)."""
        return self._flat(self._filtered(self._filtered(phi, at, 0), at, 1))

    def _changes(
        self, scene_fit: _SceneFit, at: Displacement, pixels: _Pixels, video: Tensor
    ) -> Tensor:
        """Return the changes of y by the weights (x, then y) and by stray light, (N, p,
        4·`TAPS_RADIUS` + 1).
        """
        columns = []
        for axis in (0, 1):
            part = self._filtered(self._phi, at, 1 - axis)
            dim, base = -1 - axis, at.base_px[axis]
            shifted_y = [
                (self._flat(part.narrow(dim, _HALO_PX - base - i, self._size)) * video).sum(1)
                for i in (0, *_TAPS)
            ]
            columns += [shifted - shifted_y[0] for shifted in shifted_y[1:]]
        return torch.stack([*columns, self._stray(scene_fit, pixels)], -1)

    @staticmethod
    def _stray(scene_fit: _SceneFit, pixels: _Pixels) -> Tensor:
        """Return the change of y by stray light, (N, p): the same share of the brightness at each
        pixel of a block.
        """
        return (pixels.y - scene_fit.residual).mean(-1, keepdim=True) * pixels.valid

    def _match(self, scene_fit: _SceneFit, at: Displacement, pixels: _Pixels) -> float:
        """Return the fraction of the variance that the masks explain and those of another place do
        not.

        Blocks count by their light: dark ones show no masks.
        """
        if self._repetitive:
            plane = self._space.T.expand(len(pixels.y), -1, -1) * pixels.valid.unsqueeze(-1)
            without = _SceneFit.of(plane, pixels).variance
        else:
            without = self._fit_scene(
                self._displaced(self._elsewhere(self._phi), at), pixels
            ).variance
        noise = _TINY + 1e-8 * float(pixels.y.square().mean())
        ratio = (scene_fit.variance + noise) / (without + noise)
        weight = pixels.y.mean(-1).square()
        weight = weight.clamp_max(weight.quantile(0.9)) + _TINY
        blocks = float(weight.sum().square() / weight.square().sum())
        fits = ratio < 1
        fitting = max(float(weight[fits].sum() / weight.sum()), float(fits.float().mean()))
        if len(ratio) >= _LEAST_BLOCKS and fitting < _FITTING_BLOCKS - 0.5 / math.sqrt(blocks):
            return 0.0
        return float((1.0 - _median(ratio, weight)).clamp(_LEAST_MATCH, 1.0))

    @staticmethod
    def _elsewhere(phi: Tensor) -> Tensor:
        """Return the masks of a third of the sensor further on for each block."""
        return phi.roll(len(phi) // 3, 0)


def _variance(residual: Tensor, pixels: _Pixels) -> Tensor:
    """Return the mean square of the residual of each block, (N,)."""
    return residual.square().sum(-1) / pixels.valid.sum(-1).clamp_min(1.0)


def _correlation(a: Tensor, b: Tensor) -> float:
    """Return the mean correlation of images, (…, h, w) both."""
    a, b = (images - images.mean((-2, -1), keepdim=True) for images in (a, b))
    norms = a.square().sum((-2, -1)) * b.square().sum((-2, -1))
    return float(((a * b).sum((-2, -1)) / (norms.sqrt() + _TINY)).mean())


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
    return max(1.0, float((len(scores) * scores.var(0) / (information + _TINY)).mean()))


def _texture(image: Array) -> float:
    """Return the standard deviation within tiles in the middle of an image: of (H, W), at most 512
    pixels a side.
    """
    height, width = (min(size, 512) // _TILE_PX * _TILE_PX for size in image.shape)
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    tiles = image[top : top + height, left : left + width].reshape(
        -1, _TILE_PX, width // _TILE_PX, _TILE_PX
    )
    return float(tiles.std(axis=(1, 3)).mean())


def _block_px(calibration: Calibration) -> int:
    """Side of a block on the sensor: doubled for a mosaic,
    whose planes have half the resolution.
    """
    return BLOCK_PX if calibration.bayer is None else 2 * BLOCK_PX


def _places(
    shape: tuple[int, int], size: int, most: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Spread at most `most` blocks with halo evenly over the sensor; return the top left pixel of
    each, even.
    """
    free = [extent - size - 2 * _HALO_PX for extent in shape]
    step = max(1.0, math.sqrt((free[0] + size) * (free[1] + size) / most))
    axes = [
        np.linspace(0, length, max(1, math.floor((length + step) / max(step, size))))
        for length in free
    ]
    top, left = (((_HALO_PX + 1) // 2 * 2 + axis.astype(np.intp) // 2 * 2) for axis in axes)
    grid = np.meshgrid(top, left, indexing="ij")
    return grid[0].ravel(), grid[1].ravel()


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
    half = len(_TAPS)
    x, y = (
        _changed(weights, change)
        for weights, change in ((displacement.x, values[:half]), (displacement.y, values[half:]))
    )
    return _within_reach(Displacement(displacement.base_px, x, y).recentred()), length


def _changed(weights: tuple[float, ...], change: list[float]) -> tuple[float, ...]:
    out = list(weights)
    for i, value in zip(_TAPS, change, strict=True):
        out[TAPS_RADIUS + i] += value
        out[TAPS_RADIUS] -= value
    return tuple(out)
