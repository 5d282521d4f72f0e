"""A snapshot on the device: the measurement y with its masks, its noise and its valid pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
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
        Variance of y that errors of the masks cause, in units of y, (h, w); part of n², None where n² is.
    r_inv_clipped
        As ``r_inv``, but with saturated pixels: clipped y is wrong, yet the best guess of a highlight. None if none
        are saturated.
    """

    y: torch.Tensor
    phi: torch.Tensor
    r_inv: torch.Tensor
    noise: torch.Tensor | None = None
    mismatch: torch.Tensor | None = None
    r_inv_clipped: torch.Tensor | None = None

    def thinned(self, stride: int) -> Measurement:
        """Subsample rows and columns by `stride`, without the noise."""
        lattice = (..., slice(None, None, stride), slice(None, None, stride))
        y, phi, r_inv = (image[lattice].contiguous() for image in (self.y, self.phi, self.r_inv))
        return Measurement(y, phi, r_inv)
