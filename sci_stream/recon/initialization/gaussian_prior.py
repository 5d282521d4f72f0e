r"""Snapshots of a Gaussian random field: y = Φx + noise, with x known by its covariance; the
posterior mean of x.

With frames x whose deviations from a guess have covariance C, and noise of variance ν, the
posterior mean of these deviations is::

    CΦᵀz,   (ΦCΦᵀ + νI) z = r

with r the residual of the guess. The energy of images falls with spatial frequency k and, as what
moves by v pixels a frame turns k into k·v, with temporal frequency ω: C is diagonal in the
frequencies, with a Matérn spectrum (κ² + k² + τω²)^−p. Conjugate gradients solve for z, each step
with one Fourier transform of the frames there and one back.

**Preconditioning.** A = ΦCΦᵀ + νI has large eigenvalues, of smooth patterns that all masks
transmit, and small ones; plain conjugate gradients reduce only the former at first. So A is scaled
by its diagonal D, and preconditioned by the matrix P, diagonal in the spatial frequencies, that is
nearest to D^−½ A D^−½: two steps are then better than six plain ones with random masks, and far
better with physical ones, patches of one pattern that moves in front of the sensor. A pair of
pixels at a distance r contributes the product of its masks, on average their autocorrelation, times
the covariance there::

    P(k) = F[ Σ_ω (m_ω ⋆ m_ω)(r) c_ω(r) ](k) + ν⟨1/D⟩,   m_ω = D^−½ (masks' temporal frequency ω)

References
----------
Wiener filtering by preconditioned conjugate gradients; the nearest circulant after T. F. Chan, "An
optimal circulant preconditioner for Toeplitz systems", SIAM J. Sci. Stat. Comput. 9 (1988).
Settings and figures: lab/research/linear-start.md, correlated-errors.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from sci_stream.optics.forward import forward
from sci_stream.recon.denoisers.temporal import cosines, transformed
from sci_stream.recon.initialization.optical_flow import WINDOW_PX, box_mean

# ν in units of Σφ² and of the frames' variance. It regularises where masks hardly differ; 0.01 and
# 0.05 gain on one group of sequences as much as they lose on another
# (lab/research/correlated-errors.md).
_NOISE = 0.025

# Steps of `GaussianPrior.posterior_mean`: one, since the next iteration of the solve continues from
# it.
_STEPS_PER_ITERATION = 1

# Conjugate gradient steps of a start, which is then 0.1 to 0.3 dB below the converged one; after 8
# iterations of a solve a third step gains nothing (lab/research/correlated-errors.md).
_STEPS = 2

# Square of the relative residual below which a solution is converged to rounding in float32.
_SOLVED = 1e-10

# Random vectors for estimating the diagonal of an inverse, once per calibration.
_PROBES = 2

# Pixels of all planes and frequencies at once: bounds memory, and on a CPU keeps them in its cache.
_PIXELS_AT_ONCE = {"cpu": 2**17, "cuda": 2**25}

# Pixels of masks up to which C is kept at all frequencies.
_KEPT_PIXELS = 2**24

_TINY = 1e-20


class _Preconditioner(NamedTuple):
    """P⁻¹/(h·w) by spatial frequencies, (P, h, w//2 + 1), and D^−½, (P, H, W); ``shape`` is (h,
    w).
    """

    inverse: Tensor
    scale: Tensor
    shape: tuple[int, int]

    def __call__(self, residual: Tensor) -> Tensor:
        """Return D^−½ P⁻¹ D^−½ r, (P, H, W), a new tensor."""
        height, width = residual.shape[-2:]
        spectrum = torch.fft.rfft2(residual * self.scale, s=self.shape).mul_(self.inverse)
        image: Tensor = torch.fft.irfft2(spectrum, s=self.shape, norm="forward")[
            ..., :height, :width
        ]
        return image * self.scale


class Covariance(NamedTuple):
    """κ², τ and p of a spectrum (κ² + k² + τω²)^−p; k² and ω² are 2 − 2 cos of the frequencies in
    radians.
    """

    kappa2: float
    tau: float
    power: float


FRAMES = Covariance(0.5, 1.0, 2.0)
"""Covariance of frames around their local mean."""

ESTIMATES = Covariance(4.0, 1.0, 2.0)
"""Covariance of the errors of estimates in the first iterations of a solve."""


class CodedField:
    """Masks transformed to temporal frequencies, shared by all models of one mask stack.

    Parameters
    ----------
    phi
        (P, B, H, W), the mask stack of each plane, 0–1.
    measured
        (P, H, W), 1 where something is measured, else 0.
    """

    def __init__(self, phi: Tensor, measured: Tensor) -> None:
        self.measured = measured
        # Transforming the masks once keeps the temporal transform out of the loop.
        self.frames = transformed(cosines(phi.shape[1]).to(phi), phi).mul_(measured.unsqueeze(1))
        self.still = phi.sum(1, keepdim=True).mul_(measured.unsqueeze(1))
        exposure = self.frames.square().sum((1, 2, 3)) / measured.sum((1, 2)).clamp_min(1.0)
        self.noise = _NOISE * exposure.clamp_min(_TINY).view(-1, 1, 1)
        """ν, (P, 1, 1)."""


class Solution(NamedTuple):
    """z, (P, H, W), and CΦᵀz by temporal frequencies, (P, B, H, W),
    with the transform to frames.
    """

    dual: Tensor
    frequencies: Tensor
    frames_from: Tensor

    def frames(self) -> Tensor:
        """Return CΦᵀz, (P, B, H, W), overwriting the frequencies."""
        frames = self.frequencies
        rows = max(1, _PIXELS_AT_ONCE[frames.device.type] // (frames.numel() // frames.shape[-2]))
        for first in range(0, frames.shape[-2], rows):
            part = frames[..., first : first + rows, :]
            part.copy_(transformed(self.frames_from, part))
        return frames


class GaussianPrior:
    """Gaussian random field behind one mask stack.

    Parameters
    ----------
    masks
        (P, B, H, W), by temporal frequencies, 0 where nothing is measured: `CodedField.frames`, or
        with B = 1 `CodedField.still` for equal frames.
    """

    def __init__(self, masks: Tensor, field: CodedField, covariance: Covariance) -> None:
        self.masks = masks
        self.noise = field.noise
        n_frames, (height, width) = masks.shape[1], masks.shape[-2:]
        # All constants are copied to the device here: recorded iterations cannot copy from the
        # host.
        self._shape = _fast_length(height), _fast_length(width)
        self._space = _squared_frequencies(*self._shape, masks.device)
        self._times = _squared_times(n_frames).to(masks)
        self._covariance = covariance
        self._variance = _variance(covariance, n_frames, *self._shape)
        self._frames_from = cosines(n_frames).mT.to(masks)
        # C itself of small videos; of larger ones it is made again for each use.
        self._spectra = self._spectrum(slice(None)) if masks.numel() <= _KEPT_PIXELS else None
        self._measured = field.measured
        self._precondition = self._preconditioner()

    @functools.cached_property
    def expected(self) -> Tensor:
        """Diagonal of (ΦCΦᵀ + νI)⁻¹, estimated, (P, H, W)."""
        return self._inverse_diagonal()

    def posterior_mean(self, residual: Tensor, measured: Tensor) -> Tensor:
        """Return the posterior mean of the frames' errors given a residual, (P, B, H, W), a new
        tensor; see `solve`.
        """
        return self.solve(residual, measured, _STEPS_PER_ITERATION).frames()

    def solve(self, residual: Tensor, measured: Tensor, steps: int = _STEPS) -> Solution:
        """Solve (ΦCΦᵀ + νI) z = r for z by conjugate gradients from 0, each plane by itself.

        No value is copied to the host. A residual of zero stays zero.

        Parameters
        ----------
        residual
            r, (P, H, W).
        measured
            1 at valid pixels of the snapshot, 0 at others, where r and z are 0; (P, H, W).
        """
        dual = torch.zeros_like(residual)
        frequencies = None
        direction = self._precondition(residual).mul_(measured)
        energy = _product(residual, direction)
        for step in range(steps):
            covered, coded = self._covered(direction)
            image = torch.addcmul(coded, self.noise, direction).mul_(measured)
            length = energy / _product(direction, image).clamp_min(_TINY)
            if step == 0:
                enough = _SOLVED * energy
            else:
                # Converged to rounding, the residual is noise: a step along it would diverge.
                length *= energy > enough
            # CΦᵀz is accumulated from the steps, which saves a transform.
            along = length.unsqueeze(1)
            dual.addcmul_(length, direction)
            frequencies = (
                covered.mul_(along) if frequencies is None else frequencies.addcmul_(covered, along)
            )
            if step + 1 < steps:
                residual = torch.addcmul(residual, length, image, value=-1)
                towards = self._precondition(residual).mul_(measured)
                before = energy
                energy = _product(residual, towards)
                direction = torch.addcmul(towards, energy / before.clamp_min(_TINY), direction)
        assert frequencies is not None
        return Solution(dual, frequencies, self._frames_from)

    def _covered(self, dual: Tensor) -> tuple[Tensor, Tensor]:
        """Return CΦᵀz by temporal frequencies, (P, B, H, W), and ΦCΦᵀz, (P, H, W).

        Borders are periodic: correlations reach a few pixels, and padding makes the transforms
        twice as slow.
        """
        height, width = self.masks.shape[-2:]
        covered = torch.empty_like(self.masks)
        coded = torch.zeros_like(dual)
        for chunk, masks, spectrum in self._chunks():
            image = torch.fft.rfft2(masks * dual.unsqueeze(1), s=self._shape).mul_(spectrum)
            part = torch.fft.irfft2(image, s=self._shape, norm="forward")[..., :height, :width]
            if part.shape == self.masks.shape:
                return part, forward(masks, part)
            covered[:, chunk] = part
            coded += forward(masks, part)
        return covered, coded

    def _chunks(self, *, parts: int = 1) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield, in chunks of temporal frequencies, the chunk, the masks, (P, b, H, W), and C, (b,
        h, w//2 + 1).

        ``parts`` divides the size of a chunk, for callers that need more memory per frequency.
        """
        planes, n_frames = self.masks.shape[:2]
        most = min(_PIXELS_AT_ONCE[self.masks.device.type], self.masks.numel()) // parts
        at_once = max(1, most // (planes * self._shape[0] * self._shape[1]))
        for first in range(0, n_frames, at_once):
            chunk = slice(first, first + at_once)
            spectrum = self._spectrum(chunk) if self._spectra is None else self._spectra[chunk]
            yield chunk, self.masks[:, chunk], spectrum

    def _spectrum(self, chunk: slice) -> Tensor:
        """Return C at a chunk of temporal frequencies, (b, h, w//2 + 1), divided by h·w.

        Inverse transforms of it need no factor of their own, which would be a pass over the video.
        """
        height, width = self._shape
        return _spectrum(self._covariance, self._times[chunk], self._space).div_(
            self._variance * height * width
        )

    def _preconditioner(self) -> _Preconditioner:
        shape = self._shape
        measured = self._measured
        diagonal = self.noise.expand_as(measured).clone()
        for _, masks, spectrum in self._chunks(parts=4):
            diagonal += (
                masks.square() * torch.fft.irfft2(spectrum, s=shape, norm="forward")[:, :1, :1]
            ).sum(1)
        scale = diagonal.clamp_min(_TINY).rsqrt() * measured
        total = torch.zeros_like(torch.fft.rfft2(measured, s=shape).real)
        for _, masks, spectrum in self._chunks(parts=4):
            periodogram = torch.fft.rfft2(masks * scale.unsqueeze(1), s=shape).abs().square_()
            pairs = torch.fft.irfft2(
                torch.complex(periodogram, torch.zeros_like(periodogram)), s=shape
            )
            total += torch.fft.rfft2(
                pairs * torch.fft.irfft2(spectrum, s=shape, norm="forward")
            ).real.sum(1)
        pixels = measured.sum((-2, -1), keepdim=True).clamp_min(1.0)
        noise = self.noise * scale.square().sum((-2, -1), keepdim=True) / pixels
        inverse = (total.clamp_min_(0.0) / pixels + noise).clamp_min(_TINY).reciprocal()
        return _Preconditioner(inverse.div_(shape[0] * shape[1]), scale, shape)

    def _inverse_diagonal(self) -> Tensor:
        """Estimate the diagonal with random signs v (Hutchinson):
        that of A is the mean of v ⊙ Av.
        """
        generator = torch.Generator().manual_seed(0)
        total = torch.zeros_like(self._measured)
        for _ in range(_PROBES):
            # The same signs for all planes, so that a plane's result does not depend on the others.
            signs = (
                torch.randint(0, 2, total.shape[1:], generator=generator).mul_(2).sub_(1).to(total)
            )
            total += signs * self.solve(signs * self._measured, self._measured).dual
        # The diagonal is positive; unconverged conjugate gradients can give negative values at a
        # few pixels.
        return box_mean(total / _PROBES, WINDOW_PX).clamp_min(1e-6)


def _product(one: Tensor, other: Tensor) -> Tensor:
    """Return the inner product of two images, plane by plane, (P, H, W) → (P, 1, 1)."""
    return (one * other).sum((-2, -1), keepdim=True)


def _spectrum(covariance: Covariance, times: Tensor, space: Tensor) -> Tensor:
    """Return C at squared temporal frequencies, (b,), times squared spatial ones, (h, w), not
    scaled, (b, h, w).
    """
    return (covariance.tau * times.view(-1, 1, 1) + (space + covariance.kappa2)).pow_(
        -covariance.power
    )


def _squared_times(n_frames: int) -> Tensor:
    """Return ω² of the cosine transform, (B,) float64."""
    return 2 - 2 * torch.cos(math.pi / n_frames * torch.arange(n_frames, dtype=torch.float64))


@functools.cache
def _squared_frequencies(height: int, width: int, device: torch.device) -> Tensor:
    """Return k² of the transform of real images, (H, W//2 + 1) float32."""
    down, right = (
        2 - 2 * torch.cos(2 * math.pi * frequencies)
        for frequencies in (
            torch.fft.fftfreq(height, dtype=torch.float64),
            torch.fft.rfftfreq(width, dtype=torch.float64),
        )
    )
    return (down.unsqueeze(1) + right).to(device, torch.float32)


@functools.cache
def _variance(covariance: Covariance, n_frames: int, height: int, width: int) -> float:
    """Return the mean of the unscaled spectrum over all frequencies: a pixel's variance."""
    space = _squared_frequencies(height, width, torch.device("cpu")).double()
    # The transform of real images omits the mirrored frequencies.
    twice = torch.full((space.shape[1],), 2.0, dtype=torch.float64)
    twice[0] = 1.0
    if width % 2 == 0:
        twice[-1] = 1.0
    sums = [
        float((_spectrum(covariance, time, space) * twice).sum())
        for time in _squared_times(n_frames)
    ]
    return sum(sums) / (n_frames * height * width)


@functools.cache
def _fast_length(least: int) -> int:
    """Return the next even length without prime factors above 5: transforms of other lengths can be
    many times slower.

    >>> _fast_length(256), _fast_length(1644)
    (256, 1728)
    """
    length = least + least % 2
    while True:
        rest = length
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return length
        length += 2
