"""A snapshot on the device: the measurement y with its masks, its noise and its valid pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sci_stream.optics.forward import forward

# Root mean square of y, in units of scene brightness, below which a relative residual means
# nothing.
_DARK = 1e-6
_TINY = 1e-20


@dataclass(frozen=True, eq=False)
class Measurement:
    """y = Φx + noise by planes P (1, or a mosaic's 4).

    Parameters
    ----------
    y
        (P, h, w), finite.
    phi
        (P, B, h, w), the masks.
    r_inv
        (P, h, w), (ΦΦᵀ)⁻¹, 0 at pixels without a valid measurement.
    noise
        n², (P, h, w), the variance of y's noise; None to fit every pixel exactly.
    mismatch
        Variance of y that errors of the masks cause, in units of y, (h, w); part of n², None where
        n² is.
    r_inv_clipped
        As ``r_inv``, but with saturated pixels: clipped y is wrong, yet the best guess of a
        highlight. None if none are saturated.
    """

    y: Tensor
    phi: Tensor
    r_inv: Tensor
    noise: Tensor | None = None
    mismatch: Tensor | None = None
    r_inv_clipped: Tensor | None = None

    def thinned(self, stride: int) -> Measurement:
        """Subsample rows and columns by `stride`, without the noise."""
        lattice = (..., slice(None, None, stride), slice(None, None, stride))
        y, phi, r_inv = (image[lattice].contiguous() for image in (self.y, self.phi, self.r_inv))
        return Measurement(y, phi, r_inv)

    def fitted(self, v: Tensor) -> Tensor:
        """Return v with the part of its residual that is an error of v, and not the noise of y.

        The residual beyond the noise gives the variance s² of the error, that of all frames and
        pixels; the result is the linear minimum mean square error estimate with it::

            v + φ (y − Φv)/R · s²R/(s²R + n²),   s² = mean((y − Φv)² − n²)/mean(R),   R = Σφ²
        """
        valid = self.r_inv > 0
        part = valid.to(v.dtype)
        noise = torch.zeros_like(self.y) if self.noise is None else self.noise
        difference = (self.y - forward(self.phi, v)) * part
        power = torch.where(valid, 1 / self.r_inv, 0.0)
        excess = (difference.square() - noise * part).sum().clamp_min(0.0)
        error = excess / power.sum().clamp_min(_TINY)
        share = error / (error + noise * self.r_inv).clamp_min(_TINY)
        return v + self.phi * (difference * self.r_inv * share).unsqueeze(-3)

    def figures(self, v: Tensor) -> Tensor:
        """Return the root mean square of y's noise, of its part that grows with y, and of y − Φv,
        (3,).

        Over the pixels that take part in the projection, relative to the root mean square of y; NaN
        if not known.
        """
        y = self.y
        part = (self.r_inv > 0).to(self.y.dtype)
        dark = _DARK * y.numel() ** 0.5
        norm: Tensor = torch.linalg.vector_norm(y * part)
        noise = mismatch = y.new_full((), float("nan"))
        if self.noise is not None and self.mismatch is not None:
            power = (y.square() * part).sum().clamp_min(_DARK**2 * y.numel())
            noise, grows = (
                (variance * part).sum()
                for variance in (self.noise, self.mismatch * y.clamp_min(0.0))
            )
            noise = (noise / power).sqrt()
            mismatch = (grows / power).sqrt()
        difference: Tensor = torch.linalg.vector_norm((y - forward(self.phi, v)) * part)
        residual = torch.where(norm > dark, difference / norm.clamp_min(dark), 0.0)
        return torch.stack((noise, mismatch, residual))
