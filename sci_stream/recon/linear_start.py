r"""The cold start: the best linear estimate of a snapshot's frames, where they move, and ȳ where they do not.

What is known of a snapshot before any denoiser has seen it is y = Φx, and how images behave on average: their energy
falls with spatial frequency k and, as what moves by v pixels a frame turns k into k·v, with temporal frequency ω. If
the frames differ from their local mean m by a stationary random field of covariance C, and y has noise of variance ν,
the linear estimate of least mean square error is::

    x⁰ = m + CΦᵀz,   (ΦCΦᵀ + νI) z = y − Φm

ȳ = y/Σφ, in which all frames are alike, has the blur of the whole exposure and the masks' pattern in it wherever
something moves; here the masks' differences already tell the frames apart. C is diagonal in the frequencies, and a few
steps of conjugate gradients solve for z, each with one Fourier transform of the frames there and one back.

**What y says of a guess.** z_p/[(ΦCΦᵀ + νI)⁻¹]_pp is the error with which the other pixels predict y_p, itself left
out, if the frames are a guess (here m) and such a field. Put all frames alike, S = Σφ in the place of Φ, and it is the
error of the assumption that nothing moves. Averaged around each pixel, the squares of such errors weigh one guess
against another: a guess of error e has the weight 1/(1 + (e/e')⁴) beside one of error e'. So x⁰ is weighed against ȳ,
which is exact where nothing moves and x⁰ takes texture for motion; and so a warm start is weighed against either. The
same errors, without what texture has in them, tell how far the start is from the truth, and so at which σ to begin.

References
----------
Wiener filtering by conjugate gradients; leave-one-out residuals of a Gaussian process after Rasmussen and Williams,
"Gaussian Processes for Machine Learning" (2006), section 5.4.2; C is Matérn's covariance, of spectrum
(κ² + k² + τω²)^−p. Settings and what they give: docs/results/linear-start.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from sci_stream.optics.forward import forward
from sci_stream.recon.along_time import cosines, transformed
from sci_stream.recon.motion import box_mean
from sci_stream.recon.restraint import StartError, start_error

_KAPPA2, _TAU, _POWER = 0.5, 1.0, 2.0
"""κ², τ and p of the covariance; k² and ω² are 2 − 2 cos of the frequencies in radians a pixel and a frame."""

_NOISE = 0.025
"""ν in units of Σφ² and of the frames' variance. It holds the solution where masks hardly differ."""

_STEPS_MOVING, _STEPS_STILL = 6, 10
"""Of conjugate gradients: the estimate is then 0.2 dB short of what it converges to."""

_MEAN_PX, _CHOICE_PX, _EXPECTED_PX = 2, 3, 6
"""Radius of the windows in which brightness, prediction errors and what is expected of these are averaged, twice."""

_DECISION = 4.0
"""Exponent of the ratio of two squared errors in a weight."""

_SURELY_BETTER = 0.2
"""By which share squared prediction errors must be lower than those of frames that are all alike, to be of motion."""

_TEXTURE = 0.25
"""Share of prediction errors that are not of motion, taken for errors of the frames all the same."""

_PROBES = 2
"""Random vectors by which the diagonal of an inverse is estimated, once for all snapshots of a calibration."""

_PIXELS_AT_ONCE = {"cpu": 2**17, "cuda": 2**25}
"""Of all planes and frequencies, to bound memory, and on a CPU to stay in its cache."""

_TINY = 1e-20


class Guess(NamedTuple):
    """Frames to begin with, (P, B, H, W), and the local mean of the squares by which they mispredict y, (P, H, W)."""

    video: torch.Tensor
    error: torch.Tensor


class LinearStart:
    """What is common to all snapshots of one mask stack.

    Parameters
    ----------
    phi
        (P, B, H, W), the mask stack Φ of each plane; kept, and not to be changed while this is in use.
    r_inv
        (P, H, W), (ΦΦᵀ)⁻¹ with 0 at pixels that are never to be believed.
    """

    def __init__(self, phi: torch.Tensor, r_inv: torch.Tensor) -> None:
        self._phi = phi
        self._r_inv = r_inv
        self._expected: tuple[torch.Tensor, torch.Tensor] | None = None

    def evidence(self, y: torch.Tensor, r_inv: torch.Tensor) -> Evidence:
        """Return what a measurement says, (P, H, W) both; ``r_inv`` with 0 at pixels without a valid measurement."""
        if self._expected is None:
            moving, alike = _models(self._phi, self._r_inv)
            self._expected = moving.inverse_diagonal(), alike.inverse_diagonal()
        return Evidence(y, self._phi, r_inv, self._expected)


class Evidence:
    """What one measurement says for and against guesses at its frames; made by `LinearStart.evidence`."""

    def __init__(
        self, y: torch.Tensor, phi: torch.Tensor, r_inv: torch.Tensor, expected: tuple[torch.Tensor, torch.Tensor]
    ) -> None:
        self._measured = (r_inv > 0).to(y.dtype)
        self._r_inv = r_inv
        self._y = y * self._measured
        self._phi = phi
        self._moving, self._alike = _models(phi, r_inv)
        self._expected_moving, self._expected_alike = expected

    def cold(self, still: torch.Tensor, *, linear: bool = True) -> Guess:
        """Return the cold start.

        Parameters
        ----------
        still
            (P, B, H, W), ȳ from `sci_stream.recon.gap.cold_start`; it stays where nothing valid was measured.
        linear
            Whether to take x⁰ where it is more likely; False for ȳ everywhere.

        Returns
        -------
        Of new tensors, finite. It explains the measurement nearly, not exactly.
        """
        alike = Guess(still, self._alike_error)
        if not linear or self._phi.shape[1] == 1:  # a single frame is what was measured
            return alike
        return self.blended(self.refined(self._mean.unsqueeze(1).expand_as(self._phi)), alike)

    @functools.cached_property
    def _mean(self) -> torch.Tensor:
        """m, (P, H, W), the same in all frames."""
        return _local_mean(self._y, self._alike.masks[:, 0])

    @functools.cached_property
    def _alike_error(self) -> torch.Tensor:
        """Local mean of the squares by which frames that are all alike mispredict y, (P, H, W)."""
        return _squared_error(self._alike.solve(self._y - self._alike.masks[:, 0] * self._mean), self._expected_alike)

    def refined(self, video: torch.Tensor) -> Guess:
        """Return the best linear estimate of frames of which these are a guess, (P, B, H, W)."""
        dual = self._moving.solve(self._residual(video))
        return Guess(self._moving.estimate(dual).add_(video), _squared_error(dual, self._expected_moving))

    def blended(self, one: Guess, other: Guess) -> Guess:
        """Return two guesses in one, each pixel by the weight that y gives it; the other where nothing was measured."""
        weight = self._measured / (1 + (one.error / other.error.clamp_min(_TINY)).pow(_DECISION))
        return Guess(other.video.lerp(one.video, weight.unsqueeze(1)), other.error.lerp(one.error, weight))

    def without_texture(self, guess: Guess, moves: torch.Tensor) -> Guess:
        """Return a guess with less of the prediction errors that are likely texture's.

        Fine texture mispredicts y, since its neighbourhood does not tell of it, though the frames be right. Where
        nothing speaks for motion, the errors are taken for texture's.

        Parameters
        ----------
        guess
            Frames to begin with.
        moves
            (P or 1, H, W), 0–1: where something moves; see `moving`.
        """
        return Guess(guess.video, guess.error * (_TEXTURE**2 + (1 - _TEXTURE**2) * moves))

    def moving(self, guess: Guess) -> torch.Tensor:
        """Return where something moves: a cold start predicts y better there than frames that are all alike; (P, H, W).

        0 where it does not, 1 where it surely does.
        """
        better = 1 - guess.error / self._alike_error.clamp_min(_TINY)
        return (better / _SURELY_BETTER).clamp_(0.0, 1.0)

    def start_error(self, guess: Guess, moves: torch.Tensor) -> StartError:
        """Return how far the frames of a guess are from the truth, as its prediction errors tell.

        ``moves``, (P, H, W), 0–1: where something moves.
        """
        exposure = torch.where(self._r_inv > 0, self._r_inv, 1.0).reciprocal().mul_(self._measured)
        return start_error(guess.error * self._measured, exposure, moves)

    def misfit(self, video: torch.Tensor) -> torch.Tensor:
        """Return ‖y − Φx‖₂/‖y‖₂ of frames, (P, B, H, W), over the pixels that count; ()."""
        return (self._residual(video).square().sum() / self._y.square().sum().clamp_min(_TINY)).sqrt()

    def _residual(self, video: torch.Tensor) -> torch.Tensor:
        return (self._y - forward(self._phi, video)).mul_(self._measured)


def _squared_error(dual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return box_mean((dual / expected).square_(), _CHOICE_PX)


@dataclass(frozen=True, slots=True, eq=False)
class _Model:
    """y = Φx + noise for x with covariance C, the frames given by temporal frequencies.

    ``masks`` (P, B, H, W) are Φ, cosine transformed along time: applied to them once, the transform is out of the loop.
    Zero where nothing valid was measured. ``noise`` (P, 1, 1) is ν. Frames that are all alike are a single frame.
    """

    masks: torch.Tensor
    noise: torch.Tensor
    steps: int

    def solve(self, residual: torch.Tensor) -> torch.Tensor:
        """Solve (ΦCΦᵀ + νI) z = r for z, (P, H, W), by conjugate gradients from 0, each plane by itself; a new tensor.

        No number leaves the device. A residual of zero stays zero.
        """
        solution, direction = torch.zeros_like(residual), residual
        energy = _energy(residual, residual)
        for _ in range(self.steps):
            image = self.noise * direction
            for masks, covered in self._covered(direction):
                image += (masks * covered).sum(1)
            length = energy / _energy(direction, image).clamp_min(_TINY)
            solution = solution + length * direction
            residual = residual - length * image
            before, energy = energy, _energy(residual, residual)
            direction = residual + energy / before.clamp_min(_TINY) * direction
        return solution

    def estimate(self, dual: torch.Tensor) -> torch.Tensor:
        """Return CΦᵀz, (P, B, H, W), a new tensor."""
        frequencies = torch.cat([covered for _, covered in self._covered(dual)], dim=1)
        return transformed(cosines(frequencies.shape[1]).mT.to(frequencies), frequencies)

    def _covered(self, dual: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield, some frequencies at a time, the masks and CΦᵀz, (P, b, H, W) both.

        As if opposite borders met: correlations reach a few pixels, and a margin makes the transforms twice as slow.
        """
        planes, n_frames, height, width = self.masks.shape
        shape = (_fast_length(height), _fast_length(width))
        scale = _variance(n_frames, *shape)
        space, times = _squared_frequencies(*shape, dual.device), _squared_times(n_frames).to(dual)
        at_once = max(1, _PIXELS_AT_ONCE[dual.device.type] // (planes * shape[0] * shape[1]))
        for first in range(0, n_frames, at_once):
            chunk = slice(first, first + at_once)
            masks = self.masks[:, chunk]
            spectrum = torch.fft.rfft2(masks * dual.unsqueeze(1), s=shape)
            spectrum *= _spectrum(times[chunk], space).div_(scale)
            yield masks, torch.fft.irfft2(spectrum, s=shape)[..., :height, :width]

    def inverse_diagonal(self) -> torch.Tensor:
        """Estimate the diagonal of (ΦCΦᵀ + νI)⁻¹ by random signs v: that of A is the mean of v ⊙ Av."""
        generator = torch.Generator().manual_seed(0)
        total = torch.zeros_like(self.masks[:, 0])
        for _ in range(_PROBES):
            # The same for all planes: a plane is solved alike with others and alone.
            signs = torch.randint(0, 2, total.shape[1:], generator=generator).mul_(2).sub_(1).to(total)
            total += signs * self.solve(signs.expand_as(total))
        # Positive by its nature; conjugate gradients that are not done can leave less at a few pixels.
        return box_mean(total / _PROBES, _EXPECTED_PX).clamp_min(1e-6)


def _models(phi: torch.Tensor, r_inv: torch.Tensor) -> tuple[_Model, _Model]:
    """Return the models of frames that move and of frames that are all alike."""
    measured = (r_inv > 0).to(phi.dtype)
    masks = transformed(cosines(phi.shape[1]).to(phi), phi).mul_(measured.unsqueeze(1))
    per_pixel = masks.square().sum((1, 2, 3)) / measured.sum((1, 2)).clamp_min(1.0)
    noise = _NOISE * per_pixel.clamp_min(_TINY).view(-1, 1, 1)
    opened = phi.sum(1).mul_(measured)
    return _Model(masks, noise, _STEPS_MOVING), _Model(opened.unsqueeze(1), noise, _STEPS_STILL)


def _energy(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the inner product of two images, plane by plane, (P, H, W) → (P, 1, 1)."""
    return (one * other).sum((-2, -1), keepdim=True)


def _local_mean(y: torch.Tensor, opened: torch.Tensor) -> torch.Tensor:
    """Average y/Σφ around each pixel, each weighed by Σφ; where nothing near is measured, over the whole plane."""
    near = box_mean(opened, _MEAN_PX)
    everywhere = y.sum((-2, -1), keepdim=True) / opened.sum((-2, -1), keepdim=True).clamp_min(_TINY)
    known = near > 1e-6 * opened.amax((-2, -1), keepdim=True)
    return torch.where(known, box_mean(y, _MEAN_PX) / torch.where(known, near, 1.0), everywhere)


def _spectrum(times: torch.Tensor, space: torch.Tensor) -> torch.Tensor:
    """Return C at squared temporal frequencies, (b,), times squared spatial ones, (h, w), not scaled, (b, h, w)."""
    return (_TAU * times.view(-1, 1, 1) + (space + _KAPPA2)).pow_(-_POWER)


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
def _variance(n_frames: int, height: int, width: int) -> float:
    """Return the mean of the unscaled spectrum over all frequencies: what a pixel's variance would be."""
    space = _squared_frequencies(height, width, torch.device("cpu")).double()
    # The transform of real images leaves out the frequencies that mirror others.
    twice = torch.full((space.shape[1],), 2.0, dtype=torch.float64)
    twice[0] = 1.0
    if width % 2 == 0:
        twice[-1] = 1.0
    sums = [float((_spectrum(time, space) * twice).sum()) for time in _squared_times(n_frames)]
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
