r"""Measure the course of the light within one exposure: a gain for each frame, from one snapshot.

Mains light pulses at 100 or 120 Hz, and a camera that films more frames a second than that sees it.
Frame b then has the light g_b: y = Σ_b g_b φ_b x_b + noise. In a block of a few pixels that is at
rest, the scene is nearly a plane, x(r) ≈ c₀ + c₁u + c₂v, and 64 pixels over-determine the three
c_k. The c_k of each block are eliminated (variable projection), and Gauss–Newton steps find the
gains, whose mean is 1, that leave least of the snapshot unexplained. Blocks count by how well a
plane fits them, so that what moves counts little.

The scatter of the blocks gives the covariance C of the gains. Their prior is a normal one with the
covariance τ²K: white, or that of a sinusoid of one frequency. τ and the frequency are those of
greatest evidence; the posterior mean is the measured light.

A scene can look like a light that changes. So a light is accepted only if it also explains the half
of the picture that it was not fitted to, where each block may fade and be cut as well.

References
----------
Variable projection and evidence as in `sci_stream.calibration.registration` and `mask_errors`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.model import F32, F64, Flags, SnapshotId
from sci_stream.optics.mask_errors import MAX_MASKS, MaskCorrection, MaskError
from sci_stream.recon.mask_stack import MaskStack

# A block has 64 measurements for three unknowns.
_BLOCK_PX = 8
# A measurement of so many blocks takes 0.03 s of one CPU core.
_MAX_BLOCKS = 512
# On fewer blocks nothing is concluded.
_LEAST_BLOCKS = 16
# Two frames have one difference of light, which a scene that fades has, too.
_LEAST_FRAMES = 3
_MAX_STEPS = 16
# Longer steps, relative to the largest gain, are shortened.
_LONGEST_STEP = 0.3
_SETTLED = 2e-3
# A frame has some light: of less, nothing could be recovered.
_LEAST_GAIN = 0.02
# Brightness relative to the brightest block, from which a block counts.
_LIT = 0.1
# Variance that no block is trusted below, relative to that of most.
_LEAST_VARIANCE = 0.1
_FINEST = 1e-6
# Variance of the gains over that by the scatter of blocks: things that move do so in many blocks
# alike. Median 5, 95 % below 40 (18 clips behind five kinds of masks); 10 gives the least error.
_EXCESS = 10.0
_SCALES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
# Light of fewer periods an exposure has no shape that shows its period.
_LEAST_PERIODS = 1.25
# Periods a frame that are tried.
_PERIODS = np.arange(0.02, 0.501, 0.01)
# Share of a light that is no sinusoid.
_HARMONICS = 1e-2
MAINS_HZ = (100.0, 120.0)
# Least logarithm of the odds for a light that changes. Even light had at most 7 in 180 snapshots of
# 18 clips, but for a cut within an exposure, and a clip that flickers.
_LEAST_LOG_ODDS = 8.0
# Least gain in the logarithm of the variance in the other half of the picture.
_LEAST_ELSEWHERE = 0.006
# The frequency of the lamps may be known: then a light need not be as certain elsewhere.
_LEAST_ELSEWHERE_OF_LAMPS = -0.006
# Fewer frames show no light beside scenes that fade and are cut.
_FADING_FRAMES = 8
# Snapshots whose gains are compared.
_REMEMBERED = 10
# So many in a row show an exposure of another length.
_ALIKE = 3
# Masks of such gains are kept while new ones differ by less: other masks make the solve start cold.
_SAME_GAINS = 0.05
# Gains of the masks scatter less between snapshots, relative to their size.
_CONSTANT = 0.5
# Gains of a stage that dwells scatter less in the middle frames, relative to the difference of the
# ends.
_AT_ENDS = 0.2
# Exposures of these lengths, in cycles, show some masks twice, or not at all.
_LENGTHS = np.arange(0.6, 1.41, 0.02)
# They begin up to so many frames early or late.
_DELAYS = np.arange(-1.0, 1.01, 0.25)
# They leave less than this share of the variance of the gains unexplained: 0.00 to 0.04 of those of
# 0.8 and 1.25 cycles, a synchronous lamp of one to three periods 0.2 and more.
_UNLIKE = 0.1
# Masks whose neighbours are alike hardly show light that alternates between frames, and seem to
# have it where they are displaced, with this share of the changes. Their correlation is 0.5 to 0.6
# where large elements move slowly, 0.27 at most where fine ones move by a pixel.
_ALTERNATES = 0.85
_ARE_ALIKE = 0.4
_TINY = 1e-12

_Kernel = tuple[F64, float | None, float]
"""Covariance of a light, its frequency in Hz, and the logarithm of its prior."""


class Light(NamedTuple):
    """Light of each frame, relative to their mean; its frequency, if it has one and the duration of
    a frame is known.
    """

    gains: tuple[float, ...]
    hz: float | None = None

    @property
    def defect(self) -> Defect:
        """The light as a defect that is corrected."""
        depth = MaskCorrection(light=self.gains).light_depth
        period = "" if self.hz is None else f", {self.hz:.0f} Hz"
        text = (
            f"the light changes by {depth:.0%} within exposures{period}: the video is in even light"
        )
        return Defect("light", text, corrected=True)


class LightWatch:
    """The light of the latest snapshots, and whether it is one of the masks.

    One snapshot does not tell gains of the masks from light. If only masks at the ends differ, and
    the same in each snapshot, it is the exposure that begins late, or a stage that turns back.
    """

    def __init__(self, masks: MaskStack, lamps_hz: float | None = None) -> None:
        self._masks = masks
        self._meter = LightMeter(masks, lamps_hz)
        self._gains: dict[SnapshotId, F64] = {}
        self.of_masks: tuple[float, ...] = ()
        """The gains of an exposure that the present masks have; empty if it is as the cycle."""
        self.latest: Light | None = None
        """The light of the last snapshot; None if it is even."""

    def measure(
        self, id_: SnapshotId, y: F32, valid: Flags, frame_s: float | None
    ) -> tuple[float, ...]:
        """Return the light of each frame besides gains of the masks, see `LightMeter.measure`;
        empty if it is even.
        """
        light = self.latest = self._meter.measure(y, valid, frame_s, self.of_masks)
        if light is None:
            return ()
        masks = self._masks.correction.masks
        gains = np.array(light.gains) * [1 + mask.gain for mask in masks or (MaskError(),)]
        gains = gains / np.array(self.of_masks or (1.0,))
        self._gains[id_] = gains / gains.mean()
        if len(self._gains) > _REMEMBERED:
            del self._gains[next(iter(self._gains))]
        if not self.of_exposure:
            return light.gains
        # Most masks are shown as long as in the calibration.
        usual = np.array(light.gains) / np.median(light.gains)
        if self.of_masks and np.abs(usual - self.of_masks).max() < _SAME_GAINS:
            return self.of_masks
        return tuple(usual.tolist())

    def skip(self) -> None:
        """Pass over a snapshot whose light is not measured."""
        self.latest = None

    @property
    def of_exposure(self) -> bool:
        """Whether the exposures are not as long as the cycle, or lack a pattern.

        This is the same in each snapshot. Then masks, and not frames, have more light or less.
        """
        if self.latest is None or len(self._gains) < 2:
            return False
        gains = np.array(list(self._gains.values())[-_ALIKE:])
        constant = np.ptp(gains, 0).mean() < _CONSTANT * np.abs(gains.mean(0) - 1).mean()
        shown = gains.mean(0)
        return bool(constant) and (_is_of_exposure(shown) or _is_of_pattern(shown))

    @property
    def is_told(self) -> bool:
        """Whether enough snapshots have shown light to tell it from gains of the masks."""
        return len(self._gains) >= _ALIKE

    @property
    def seen(self) -> bool:
        """Whether a snapshot showed light that changes."""
        return bool(self._gains)

    @property
    def changes(self) -> bool:
        """Whether the light of the snapshots is none of the masks."""
        if not self._gains:
            return False
        gains = np.array(list(self._gains.values()))
        mean = gains.mean(0)
        within = mean[1:-1]
        apart = np.abs(mean[[0, -1]] - within.mean()).max()
        at_ends = len(within) >= _LEAST_FRAMES and within.std() < _AT_ENDS * apart
        constant = gains.std(0).mean() < _CONSTANT * np.abs(mean - 1).mean()
        return not (at_ends and constant)


def _is_of_exposure(gains: F64) -> bool:
    """Return whether gains of mean 1 are those of an exposure that is not as long as the cycle."""
    n_frames = len(gains)
    begins, lengths = (grid.reshape(-1, 1, 1) for grid in np.meshgrid(_DELAYS, _LENGTHS))
    # A mask is shown in this cycle, in the one before, and in the one after.
    shown_at = np.arange(n_frames) + n_frames * np.arange(-1, 2)[:, np.newaxis]
    ends = np.minimum(shown_at + 1, begins + lengths * n_frames)
    light = (ends - np.maximum(shown_at, begins)).clip(0).sum(1)
    rests = np.square(light / light.mean(1, keepdims=True) - gains).sum(1)
    return bool(rests.min() < _UNLIKE * np.square(gains - 1).sum())


def _is_of_pattern(gains: F64) -> bool:
    """Return whether gains of mean 1 are those of a pattern that is dark, or shown in place of
    another.
    """
    dark = np.ones_like(gains)
    dark[gains.argmin()] = 0
    twice = dark.copy()
    twice[gains.argmax()] = 2
    rests = [np.square(shown / shown.mean() - gains).sum() for shown in (dark, twice)]
    return bool(min(rests) < _UNLIKE * np.square(gains - 1).sum())


def _alternates(gains: Sequence[float]) -> bool:
    """Return whether light of mean 1 mostly changes from each frame to the next and back."""
    changes = np.array(gains) - 1
    alternation = changes @ (-1.0) ** np.arange(len(changes))
    share = alternation**2 / (len(changes) * np.square(changes).sum() + _TINY)
    return bool(share > _ALTERNATES)


def _are_alike(masks: Tensor) -> bool:
    """Return whether consecutive masks, (N, B, 64), are correlated."""
    contrasts = masks - masks.mean(2, keepdim=True)
    first, second = contrasts[:, :-1], contrasts[:, 1:]
    scale = (first.square().sum() * second.square().sum()).sqrt() + _TINY
    return bool((first * second).sum() > _ARE_ALIKE * scale)


class _Blocks(NamedTuple):
    """Pixels of blocks that are lit: y, (N, 64), with masks, (N, B, 64), both 0 at invalid pixels;
    the level of y², (N,); and the rows and columns of their corners, (N, 2).
    """

    y: Tensor
    masks: Tensor
    valid: Tensor
    level: Tensor
    corners: Tensor

    def part(self, which: Tensor) -> _Blocks:
        """Return some of the blocks."""
        return _Blocks(*(field[which] for field in self))


class _Fit(NamedTuple):
    """Still scene of each block: residual, (N, 64), its variance, (N,), and the change of y by each
    gain that no other scene explains, (N, 64, B).
    """

    residual: Tensor
    variance: Tensor
    changes: Tensor


class LightMeter:
    """Measure the light of snapshots behind a stack of masks.

    ``lamps_hz``: the frequency at which the lamps pulse, if that is known.
    """

    def __init__(self, masks: MaskStack, lamps_hz: float | None = None) -> None:
        self._masks = masks
        self._lamps_hz = lamps_hz
        self._at = _places(masks.phi.shape[-2:], _MAX_BLOCKS // len(masks.phi))
        planes = len(masks.phi)
        width = masks.phi.shape[-1]
        corners = self._at[:, 0].repeat(planes)
        self._corners = torch.stack((corners // width, corners % width), 1)
        self.possible = (
            len(corners) >= _LEAST_BLOCKS and _LEAST_FRAMES <= len(masks.turns) <= MAX_MASKS
        )
        """Whether the sensor and the frames are enough."""

    def measure(
        self,
        y: F32,
        valid: Flags,
        frame_s: float | None = None,
        of_masks: tuple[float, ...] = (),
    ) -> Light | None:
        """Return the light besides the gains that the masks are corrected by; None if it is even.

        Parameters
        ----------
        y, valid
            (H, W): the measurement, finite, and its valid pixels.
        frame_s
            Duration of a frame, with which mains light is recognised; None if unknown.
        of_masks
            Gains of the masks that count as light.
        """
        if not self.possible:
            return None
        blocks = self._blocks(y, valid, of_masks)
        if len(blocks.y) < _LEAST_BLOCKS:
            return None
        even = torch.ones(blocks.masks.shape[1])
        gains = _fitted(blocks, even)
        lamps_hz = None if frame_s is None else self._lamps_hz
        kernels = _kernels(len(gains), frame_s, lamps_hz)
        least = _LEAST_ELSEWHERE if lamps_hz is None else _LEAST_ELSEWHERE_OF_LAMPS
        light, log_odds = _likely(gains, blocks, kernels)
        if log_odds < _LEAST_LOG_ODDS or _gain_elsewhere(blocks, gains, kernels) < least:
            return None
        if lamps_hz is None and _alternates(light.gains) and _are_alike(blocks.masks):
            return None
        return light

    def _blocks(self, y: F32, valid: Flags, of_masks: tuple[float, ...]) -> _Blocks:
        stack = self._masks
        device = self._masks.phi.device
        at = self._at.to(device)
        planes = torch.stack((torch.from_numpy(y), torch.from_numpy(valid).to(torch.float32)))
        pictures = torch.stack([stack.planes(picture) for picture in planes])
        values, known = pictures.flatten(-2)[..., self._at].flatten(1, 2)
        masks = stack.phi.flatten(-2)[..., at].cpu()
        masks = torch.stack([part.sum(1) for part in torch.split(masks, list(stack.turns), 1)], 1)
        masks = masks.transpose(1, 2).flatten(0, 1)
        if light := stack.correction.light or of_masks:
            masks = masks / masks.new_tensor(light).unsqueeze(1)
        values = values * known
        level = values.square().sum(1) / known.sum(1).clamp_min(1.0) + _TINY
        lit = (level > _LIT**2 * level.max()) & (known.mean(1) > 0.5)
        masks = masks * known.unsqueeze(1)
        return _Blocks(values, masks, known, level, self._corners).part(lit)


def _places(shape: tuple[int, ...], most: int) -> Tensor:
    """Spread at most ``most`` blocks evenly; return the flat indices of their pixels, (n, 64)."""
    height, width = shape
    step = max(float(_BLOCK_PX), math.sqrt(height * width / most))
    tops, lefts = (
        torch.arange(0, max(size - _BLOCK_PX + 1, 0), step).long() for size in (height, width)
    )
    corners = (tops.unsqueeze(1) * width + lefts).reshape(-1, 1)
    side = torch.arange(_BLOCK_PX)
    return corners + (side.unsqueeze(1) * width + side).reshape(1, -1)


def _scene(blocks: _Blocks, gains: Tensor, times: Tensor | None = None) -> _Fit:
    """Fit a plane in each block under this light: still, or one for each of some functions of time,
    (k, B).
    """
    axis = torch.linspace(-1, 1, _BLOCK_PX)
    v, u = torch.meshgrid(axis, axis, indexing="ij")
    planes = torch.stack((torch.ones_like(u), u, v)).flatten(1)
    courses = gains * (torch.ones(1, len(gains)) if times is None else times)
    through = torch.einsum("kb,nbp->nkp", courses, blocks.masks)
    design = torch.einsum("nkp,sp->npks", through, planes).flatten(2)
    # Stray light, which no mask codes, looks like light of each frame that changes.
    stray = blocks.valid * blocks.level.sqrt().unsqueeze(1)
    design = torch.cat((design, stray.unsqueeze(2)), 2)
    normal = design.mT @ design
    ridge = 1e-5 * normal.diagonal(dim1=-2, dim2=-1).mean(-1) + _TINY
    factor = torch.linalg.cholesky_ex(normal + ridge.view(-1, 1, 1) * torch.eye(design.shape[-1])).L
    scene = torch.cholesky_solve(design.mT @ blocks.y.unsqueeze(-1), factor)
    residual = blocks.y - (design @ scene).squeeze(-1)
    changes = (blocks.masks * (planes.T @ scene[:, :3]).mT).mT
    changes = changes - design @ torch.cholesky_solve(design.mT @ changes, factor)
    variance = residual.square().sum(1) / blocks.valid.sum(1).clamp_min(1.0)
    return _Fit(residual, variance, changes)


def _scores(blocks: _Blocks, fit: _Fit) -> tuple[Tensor, Tensor]:
    """Return the information on the gains, (B, B), and the score of each block, (N, B)."""
    relative = fit.variance / blocks.level
    usual = relative.median() + _FINEST
    uncertain = (relative + _LEAST_VARIANCE * usual) * (1 + (relative / usual).square())
    weight = 1 / (blocks.level * uncertain)
    weighted = fit.changes * weight.view(-1, 1, 1)
    information = torch.einsum("npi,npj->ij", weighted, fit.changes).double()
    return information, torch.einsum("npi,np->ni", weighted, fit.residual).double()


def _fitted(blocks: _Blocks, start: Tensor) -> Tensor:
    """Return gains of mean 1 that explain the blocks best."""
    gains = start
    n_frames = len(start)
    for _ in range(_MAX_STEPS):
        information, scores = _scores(blocks, _scene(blocks, gains))
        size = float(information.diagonal().mean()) + _TINY
        # The mean is the brightness of the scene.
        information = information + size + 1e-3 * size * torch.eye(n_frames, dtype=torch.double)
        step = torch.linalg.solve(information, scores.sum(0))
        length = float(step.abs().max())
        step *= min(1.0, _LONGEST_STEP * float(gains.max()) / max(length, _TINY))
        gains = (gains + step.float()).clamp_min(_LEAST_GAIN)
        gains = gains / gains.mean()
        if length < _SETTLED:
            break
    return gains


def _likely(gains: Tensor, blocks: _Blocks, kernels: Sequence[_Kernel]) -> tuple[Light, float]:
    """Return the light of greatest evidence, and the logarithm of its odds against even light."""
    information, scores = _scores(blocks, _scene(blocks, gains))
    n_frames = len(gains)
    # Gains of mean 1 have B − 1 coordinates.
    basis = np.linalg.svd(np.ones((1, n_frames)))[2][1:].T
    inverse = np.linalg.pinv(basis.T @ information.numpy() @ basis)
    scatter = (scores - scores.mean(0)).numpy() @ basis
    covariance = _EXCESS * inverse @ scatter.T @ scatter @ inverse
    covariance += 1e-8 * np.eye(n_frames - 1)
    seen = basis.T @ (gains.double().numpy() - 1)
    unexplained = 0.5 * seen @ np.linalg.solve(covariance, seen)
    volume = 0.5 * np.linalg.slogdet(covariance)[1]
    best = Light((1.0,) * n_frames)
    log_odds = 0.0
    for kernel, hz, prior in kernels:
        inside = basis.T @ kernel @ basis
        for scale in _SCALES:
            total = scale**2 * inside + covariance
            solution = np.linalg.solve(total, seen)
            odds = float(unexplained - 0.5 * seen @ solution)
            odds += float(volume - 0.5 * np.linalg.slogdet(total)[1]) + prior
            if odds > log_odds:
                likely = 1 + basis @ (scale**2 * inside @ solution)
                best = Light(tuple(likely.clip(_LEAST_GAIN).tolist()), hz)
                log_odds = odds
    return best, log_odds


def _kernels(n_frames: int, frame_s: float | None, lamps_hz: float | None) -> list[_Kernel]:
    """Return covariances of light: white, and sinusoids, or that of the lamps alone."""
    if frame_s is not None and lamps_hz is not None:
        return [(_sinusoid(lamps_hz * frame_s, n_frames), lamps_hz, 0.0)]
    periods = _PERIODS[_PERIODS * n_frames >= _LEAST_PERIODS]
    unknown = [(float(one), None if frame_s is None else float(one) / frame_s) for one in periods]
    mains = [(hz * frame_s, hz) for hz in MAINS_HZ] if frame_s is not None else []
    kernels: list[_Kernel] = [(np.eye(n_frames), None, 0.0)]
    for sinusoids in (mains, unknown):
        for per_frame, hz in sinusoids:
            kernels.append((_sinusoid(per_frame, n_frames), hz, -math.log(len(sinusoids))))
    return kernels


def _sinusoid(per_frame: float, n_frames: int) -> F64:
    """Return the covariance of a sinusoid of so many periods a frame, with some harmonics."""
    frame = np.arange(n_frames)
    wave = np.cos(2 * np.pi * per_frame * (frame[:, None] - frame))
    covariance: F64 = wave + _HARMONICS * np.eye(n_frames)
    return covariance


def _gain_elsewhere(blocks: _Blocks, gains: Tensor, kernels: Sequence[_Kernel]) -> float:
    """Return by how much the light that each half of the picture shows explains the other half,
    where each block may also fade and be cut.
    """
    n_frames = len(gains)
    even = torch.ones(n_frames)
    after = torch.arange(n_frames) > int(gains.diff().abs().argmax())
    times = torch.stack((~after, after)).float()
    if n_frames >= _FADING_FRAMES:
        times = torch.cat((times, times * torch.linspace(-1, 1, n_frames)))
    differences = []
    ranks = blocks.corners.argsort(dim=0, stable=True).argsort(0)
    # Halves of the lit blocks: a scene may lie in a corner.
    for half in (ranks < len(ranks) // 2).T:
        for which in (half, ~half):
            shown = blocks.part(which)
            hidden = blocks.part(~which)
            light, _ = _likely(_fitted(shown, gains), shown, kernels)
            explained = _misfit(hidden, gains.new_tensor(light.gains), times)
            differences.append(_misfit(hidden, even, times) - explained)
    return float(np.mean(differences))


def _misfit(blocks: _Blocks, gains: Tensor, times: Tensor) -> float:
    """Return the mean logarithm of the variance that a light and scenes in time leave
    unexplained.
    """
    floor = _FINEST * blocks.level.mean() + _TINY
    return float((_scene(blocks, gains, times).variance + floor).log().mean())
