r"""Snapshots of a random field: y = Φx + noise, where x is known by its covariance alone, and which x explains y.

With frames x whose deviations from a guess have covariance C, and noise of variance ν, the linear estimate of least
mean square error of these deviations is::

    CΦᵀz,   (ΦCΦᵀ + νI) z = r

for what the guess leaves unexplained, r. The energy of images falls with spatial frequency k and, as what moves by v
pixels a frame turns k into k·v, with temporal frequency ω: C is diagonal in the frequencies, of Matérn's spectrum
(κ² + k² + τω²)^−p. Conjugate gradients solve for z, each step with one Fourier transform of the frames there and one
back.

**Few steps.** A = ΦCΦᵀ + νI has large eigenvalues, of smooth patterns that all masks let through, and small ones; plain
conjugate gradients see only the former at first. So A is divided by its diagonal D, and the steps are preconditioned by
the matrix P diagonal in the spatial frequencies that is nearest to D^−½ A D^−½: two steps then do more than six plain
ones behind random masks, and far more behind physical ones, patches of one pattern that moves before the sensor. A pair
of pixels at a distance r contributes the product of its masks, on average their autocorrelation, times the covariance
there::

    P(k) = F[ Σ_ω (m_ω ⋆ m_ω)(r) c_ω(r) ](k) + ν⟨1/D⟩,   m_ω = D^−½ (masks' temporal frequency ω)

References
----------
Wiener filtering by preconditioned conjugate gradients; the nearest circulant after T. F. Chan, "An optimal circulant
preconditioner for Toeplitz systems", SIAM J. Sci. Stat. Comput. 9 (1988). Settings and what they give:
research/linear-start.md, correlated-errors.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from sci_stream.optics.forward import forward
from sci_stream.recon.denoisers.temporal import cosines, transformed
from sci_stream.recon.initialization.optical_flow import box_mean

# ν in units of Σφ² and of the frames' variance. It holds the solution where masks hardly differ.
_NOISE = 0.025

# Of `GaussianPrior.posterior_mean`, which is asked again in the next iteration.
_STEPS_EXPLAIN = 1

# Of conjugate gradients: the estimate is then 0.1 to 0.3 dB short of what it converges to.
_STEPS = 2

# Square of the part of a residual that is taken for rounding.
_SOLVED = 1e-10

# Radius of the windows in which the diagonal of an inverse is averaged, twice.
_EXPECTED_PX = 6

# Random vectors by which the diagonal of an inverse is estimated, once for all snapshots of a calibration.
_PROBES = 2

# Of all planes and frequencies, to bound memory, and on a CPU to stay in its cache.
_PIXELS_AT_ONCE = {"cpu": 2**17, "cuda": 2**25}

_TINY = 1e-20


class _Preconditioner(NamedTuple):
    """P⁻¹ by spatial frequencies, (P, h, w//2 + 1), and D^−½, (P, H, W); ``shape`` is (h, w)."""

    inverse: torch.Tensor
    scale: torch.Tensor
    shape: tuple[int, int]

    def __call__(self, residual: torch.Tensor) -> torch.Tensor:
        """Return D^−½ P⁻¹ D^−½ r, (P, H, W), a new tensor."""
        height, width = residual.shape[-2:]
        spectrum = torch.fft.rfft2(residual * self.scale, s=self.shape).mul_(self.inverse)
        image: torch.Tensor = torch.fft.irfft2(spectrum, s=self.shape)[..., :height, :width]
        return image * self.scale


class Covariance(NamedTuple):
    """κ², τ and p of a spectrum (κ² + k² + τω²)^−p; k² and ω² are 2 − 2 cos of the frequencies in radians."""

    kappa2: float
    tau: float
    power: float


FRAMES = Covariance(0.5, 1.0, 2.0)
"""Of frames around their local mean."""

ESTIMATES = Covariance(4.0, 1.0, 2.0)
"""Of what estimates of frames are wrong by in the first iterations of a solve."""


class CodedField:
    """Masks by the temporal frequencies of frames, once for all models of one mask stack.

    Parameters
    ----------
    phi
        (P, B, H, W), the mask stack of each plane, 0–1.
    measured
        (P, H, W), 1 where something is measured, else 0.
    """

    def __init__(self, phi: torch.Tensor, measured: torch.Tensor) -> None:
        self.measured = measured
        # Transformed once, the transform is out of the loop.
        self.frames = transformed(cosines(phi.shape[1]).to(phi), phi).mul_(measured.unsqueeze(1))
        self.alike = phi.sum(1, keepdim=True).mul_(measured.unsqueeze(1))
        exposure = self.frames.square().sum((1, 2, 3)) / measured.sum((1, 2)).clamp_min(1.0)
        self.noise = _NOISE * exposure.clamp_min(_TINY).view(-1, 1, 1)
        """ν, (P, 1, 1)."""


class Solution(NamedTuple):
    """z, (P, H, W), and CΦᵀz by temporal frequencies, (P, B, H, W), with the transform that makes frames of them."""

    dual: torch.Tensor
    frequencies: torch.Tensor
    frames_from: torch.Tensor

    def frames(self) -> torch.Tensor:
        """Return CΦᵀz, (P, B, H, W), in the place of the frequencies."""
        frames = self.frequencies
        rows = max(1, _PIXELS_AT_ONCE[frames.device.type] // (frames.numel() // frames.shape[-2]))
        for part in torch.split(frames, rows, dim=-2):
            part.copy_(transformed(self.frames_from, part))
        return frames


class GaussianPrior:
    """What is common to all snapshots that masks take of such a field.

    Parameters
    ----------
    masks
        (P, B, H, W), by temporal frequencies, 0 where nothing is measured: `CodedField.frames`, or with B = 1
        `CodedField.alike` for frames that are all alike.
    field
        Where these are from.
    covariance
        Of the field.
    """

    def __init__(self, masks: torch.Tensor, field: CodedField, covariance: Covariance) -> None:
        self.masks = masks
        self.noise = field.noise
        n_frames, (height, width) = masks.shape[1], masks.shape[-2:]
        # What the solutions need is put on the device here: recorded iterations cannot copy it there.
        self._shape = _fast_length(height), _fast_length(width)
        self._space = _squared_frequencies(*self._shape, masks.device)
        self._times = _squared_times(n_frames).to(masks)
        self._covariance, self._variance = covariance, _variance(covariance, n_frames, *self._shape)
        self._frames_from = cosines(n_frames).mT.to(masks)
        self._measured = field.measured
        self._precondition = self._preconditioner()

    @functools.cached_property
    def expected(self) -> torch.Tensor:
        """Diagonal of (ΦCΦᵀ + νI)⁻¹, estimated, (P, H, W)."""
        return self._inverse_diagonal()

    def posterior_mean(self, residual: torch.Tensor, measured: torch.Tensor) -> torch.Tensor:
        """Return the changes of the frames that a residual speaks for, (P, B, H, W), a new tensor; see `solve`."""
        return self.solve(residual, measured, _STEPS_EXPLAIN).frames()

    def solve(self, residual: torch.Tensor, measured: torch.Tensor, steps: int = _STEPS) -> Solution:
        """Solve (ΦCΦᵀ + νI) z = r for z by conjugate gradients from 0, each plane by itself.

        No number leaves the device. A residual of zero stays zero.

        Parameters
        ----------
        residual
            r, (P, H, W).
        measured
            1 at the pixels of the snapshot that count, 0 at the others, where r is 0 and z stays so; (P, H, W).
        steps
            How many.
        """
        dual = torch.zeros_like(residual)
        frequencies: torch.Tensor | None = None
        towards = self._precondition(residual).mul_(measured)
        direction, energy = towards, _product(residual, towards)
        enough = _SOLVED * energy
        for left in reversed(range(steps)):
            covered = torch.empty_like(self.masks)
            image = self.noise * direction
            for chunk, masks, part in self._covered(direction):
                covered[:, chunk] = part
                image += forward(masks, part)
            image *= measured
            # Once it is solved to rounding, what is left has no direction.
            length = torch.where(energy > enough, energy / _product(direction, image).clamp_min(_TINY), 0.0)
            dual += length * direction
            # CΦᵀz is the sum of what each step took it from: without a transform of its own.
            length = length.unsqueeze(1)
            frequencies = covered.mul_(length) if frequencies is None else frequencies.addcmul_(covered, length)
            if left:
                residual = residual - length.squeeze(1) * image
                towards = self._precondition(residual).mul_(measured)
                before, energy = energy, _product(residual, towards)
                direction = towards + energy / before.clamp_min(_TINY) * direction
        assert frequencies is not None
        return Solution(dual, frequencies, self._frames_from)

    def _covered(self, dual: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Yield, some frequencies at a time, which they are, the masks and CΦᵀz, (P, b, H, W) both.

        As if opposite borders met: correlations reach a few pixels, and a margin makes the transforms twice as slow.
        """
        height, width = self.masks.shape[-2:]
        for chunk, masks, spectrum in self._chunks():
            image = torch.fft.rfft2(masks * dual.unsqueeze(1), s=self._shape).mul_(spectrum)
            yield chunk, masks, torch.fft.irfft2(image, s=self._shape)[..., :height, :width]

    def _chunks(self, *, parts: int = 1) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Yield, some temporal frequencies at a time, which, the masks, (P, b, H, W), and C, (b, h, w//2 + 1).

        ``parts``: how many times fewer at once, where more is made of them.
        """
        planes, n_frames = self.masks.shape[:2]
        most = min(_PIXELS_AT_ONCE[self.masks.device.type], self.masks.numel()) // parts
        at_once = max(1, most // (planes * self._shape[0] * self._shape[1]))
        for first in range(0, n_frames, at_once):
            chunk = slice(first, first + at_once)
            spectrum = _spectrum(self._covariance, self._times[chunk], self._space).div_(self._variance)
            yield chunk, self.masks[:, chunk], spectrum

    def _preconditioner(self) -> _Preconditioner:
        shape, measured = self._shape, self._measured
        diagonal = self.noise.expand_as(measured).clone()
        for _, masks, spectrum in self._chunks(parts=4):
            diagonal += (masks.square() * torch.fft.irfft2(spectrum, s=shape)[:, :1, :1]).sum(1)
        scale = diagonal.clamp_min(_TINY).rsqrt() * measured
        total = torch.zeros_like(torch.fft.rfft2(measured, s=shape).real)
        for _, masks, spectrum in self._chunks(parts=4):
            periodogram = torch.fft.rfft2(masks * scale.unsqueeze(1), s=shape).abs().square_()
            pairs = torch.fft.irfft2(torch.complex(periodogram, torch.zeros_like(periodogram)), s=shape)
            total += torch.fft.rfft2(pairs * torch.fft.irfft2(spectrum, s=shape)).real.sum(1)
        pixels = measured.sum((-2, -1), keepdim=True).clamp_min(1.0)
        noise = self.noise * scale.square().sum((-2, -1), keepdim=True) / pixels
        return _Preconditioner((total.clamp_min_(0.0) / pixels + noise).clamp_min(_TINY).reciprocal(), scale, shape)

    def _inverse_diagonal(self) -> torch.Tensor:
        """Estimate the diagonal by random signs v: that of A is the mean of v ⊙ Av."""
        generator = torch.Generator().manual_seed(0)
        total = torch.zeros_like(self._measured)
        for _ in range(_PROBES):
            # The same for all planes: a plane is solved alike with others and alone.
            signs = torch.randint(0, 2, total.shape[1:], generator=generator).mul_(2).sub_(1).to(total)
            total += signs * self.solve(signs * self._measured, self._measured).dual
        # Positive by its nature; conjugate gradients that are not done can leave less at a few pixels.
        return box_mean(total / _PROBES, _EXPECTED_PX).clamp_min(1e-6)


def _product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the inner product of two images, plane by plane, (P, H, W) → (P, 1, 1)."""
    return (one * other).sum((-2, -1), keepdim=True)


def _spectrum(covariance: Covariance, times: torch.Tensor, space: torch.Tensor) -> torch.Tensor:
    """Return C at squared temporal frequencies, (b,), times squared spatial ones, (h, w), not scaled, (b, h, w)."""
    return (covariance.tau * times.view(-1, 1, 1) + (space + covariance.kappa2)).pow_(-covariance.power)


def _squared_times(n_frames: int) -> torch.Tensor:
    """Return ω² of the cosine transform, (B,) float64."""
    return 2 - 2 * torch.cos(math.pi / n_frames * torch.arange(n_frames, dtype=torch.float64))


@functools.lru_cache(maxsize=4)
def _squared_frequencies(height: int, width: int, device: torch.device) -> torch.Tensor:
    """Return k² of the transform of real images, (H, W//2 + 1) float32."""
    down, right = (
        2 - 2 * torch.cos(2 * math.pi * frequencies)
        for frequencies in (
            torch.fft.fftfreq(height, dtype=torch.float64),
            torch.fft.rfftfreq(width, dtype=torch.float64),
        )
    )
    return (down.unsqueeze(1) + right).to(device, torch.float32)


@functools.lru_cache(maxsize=8)
def _variance(covariance: Covariance, n_frames: int, height: int, width: int) -> float:
    """Return the mean of the unscaled spectrum over all frequencies: what a pixel's variance would be."""
    space = _squared_frequencies(height, width, torch.device("cpu")).double()
    # The transform of real images leaves out the frequencies that mirror others.
    twice = torch.full((space.shape[1],), 2.0, dtype=torch.float64)
    twice[0] = 1.0
    if width % 2 == 0:
        twice[-1] = 1.0
    sums = [float((_spectrum(covariance, time, space) * twice).sum()) for time in _squared_times(n_frames)]
    return sum(sums) / (n_frames * height * width)


@functools.lru_cache(maxsize=64)
def _fast_length(least: int) -> int:
    """Return the next even length without prime factors above 5: transforms of others can take many times as long.

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
