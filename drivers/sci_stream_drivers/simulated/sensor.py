"""The sensor: from light to digital numbers."""

from __future__ import annotations

import math

import numpy as np

from sci_stream.plugins import F32, Array
from sci_stream_drivers.simulated.options import SimulatedOptions

_NOISE_STREAM = 2
# Above this many electrons a Gaussian of equal variance replaces Poisson's law: the skewness is
# under 0.16, and drawing is ten times faster.
_POISSON_BELOW_E = 40.0


class Sensor:
    r"""A linear sensor with full well, shot noise, read noise, black level and a converter of
    limited range.

    .. math:: counts = clip(round(black + (Poisson(g·F·y) + N(0, σ_r²)) / g), 0, 2^bits − 1)

    with F = `full_scale_dn` and g = `gain_e_per_dn` such that the full well is at the top of the
    range. F is chosen so that a white scene takes the most open pixel to the fraction ``exposure``
    of the range above black.
    """

    def __init__(self, options: SimulatedOptions, phi: F32) -> None:
        self.black_dn = options.black_dn
        self.max_dn = options.max_dn
        self.full_scale_dn = (
            options.exposure * (self.max_dn - self.black_dn) / float(phi.sum(axis=0).max())
        )
        self.gain_e_per_dn = options.full_well_e / (self.max_dn - self.black_dn)
        self._read_noise_e = options.read_noise_e
        self._noise = options.noise
        self.read_noise_dn = math.hypot(
            self._read_noise_e / self.gain_e_per_dn if self._noise else 0.0, 12**-0.5
        )
        """Standard deviation of counts without light: read noise and rounding."""
        self._seed = options.seed
        self._dtype = np.uint8 if options.bit_depth == 8 else np.uint16

    def convert(self, y: F32, index: int) -> Array:
        """Expose the sensor to a measurement.

        ``y`` is (H, W) Σ_b φ_b ⊙ x_b, ≥ 0, and not modified; ``index``, the number of the exposure,
        determines the noise with the seed.

        Returns
        -------
        (H, W) uint8 (8 bit) or uint16, DN, a new array.
        """
        dn = y * np.float32(self.full_scale_dn)
        if self._noise:
            dn = self._with_noise(dn, index)
        dn += np.float32(self.black_dn)
        np.rint(dn, out=dn)
        np.clip(dn, 0, self.max_dn, out=dn)
        return dn.astype(self._dtype)

    def _with_noise(self, dn: F32, index: int) -> F32:
        rng = np.random.Generator(np.random.SFC64([self._seed, _NOISE_STREAM, index]))
        electrons = dn * np.float32(self.gain_e_per_dn)
        dim = electrons < _POISSON_BELOW_E
        dim_electrons = rng.poisson(electrons[dim])
        variance = np.where(dim, np.float32(0), electrons)
        variance += np.float32(self._read_noise_e**2)
        noise = rng.standard_normal(dn.shape, dtype=np.float32)
        noise *= np.sqrt(variance, out=variance)
        electrons[dim] = dim_electrons
        electrons += noise
        electrons /= np.float32(self.gain_e_per_dn)
        return electrons
