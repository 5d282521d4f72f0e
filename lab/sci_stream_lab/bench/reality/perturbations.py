"""Errors of a rig's calibration: perturbations of the optics or the sensor that the calibration
does not have.

The levels are those of a rig that was calibrated with care and has since warmed up, been touched or
refocused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from sci_stream.errors import ConfigError
from sci_stream.model import Array
from sci_stream_lab.bench.reality.optics import F32, PatternOptics

NONE: Final = "none"
ALL: Final = "all"

Change = Callable[[PatternOptics, np.random.Generator], PatternOptics]


def _shifted(optics: PatternOptics, rng: np.random.Generator) -> PatternOptics:
    angle = rng.uniform(0, 2 * math.pi)
    return optics.shifted(0.25 * math.cos(angle), 0.25 * math.sin(angle))


OPTICAL: Final[Mapping[str, Change]] = {
    "shift": _shifted,
    "jitter": lambda optics, rng: optics.jittered(0.2, rng),
    "blur0.6": lambda optics, _: optics.blurred(0.6),
    "blur0.3": lambda optics, _: optics.blurred(0.3),
    "smooth": lambda optics, rng: optics.with_smooth_errors(0.05, rng),
    "gain": lambda optics, rng: optics.with_gains(0.05, rng),
    "dwell": lambda optics, rng: optics.with_dwell(_DWELL, rng),
}
"""Shift of all masks by 0.25 px in a random direction; of each by N(0, 0.2 px) along each axis;
further blur of 0.6 and
of 0.3 px; smooth errors of each mask, 5 %; exposure of each frame, 5 %; exposure of the last or the
first frame of a
stage that dwells where it turns."""

# Exposure of the mask at a turning point: 2.2, 1.9 and 1.5 times that of the others in three
# captures.
_DWELL = 1.9

NOISE: Final = "noise"
"""A converter of 8 bits and Gaussian noise of 1 % of its range."""
NOISE_FRACTION: Final = 0.01
_BITS = 8
_EXPOSURE = 0.9

TOGETHER: Final = ("shift", "jitter", "blur0.3", "gain", NOISE)
"""What ``all`` combines: everything that a calibrator may be expected to estimate, at once."""

PERTURBATIONS: Final = (NONE, *OPTICAL, NOISE, ALL)


@dataclass(frozen=True, slots=True)
class Perturbation:
    """One perturbation, or several at once."""

    name: str
    parts: tuple[str, ...]

    @property
    def is_noisy(self) -> bool:
        """Whether the sensor is a noisy one of 8 bits; else counts are exact."""
        return NOISE in self.parts

    def applied(self, optics: PatternOptics, seed: int) -> PatternOptics:
        """Return the optics as they really are; equal seeds give equal errors in
        every combination.
        """
        for part in self.parts:
            if part != NOISE:
                number = list(OPTICAL).index(part)
                optics = OPTICAL[part](optics, np.random.default_rng([seed, number]))
        return optics


def parse_perturbation(name: str) -> Perturbation:
    """Return the perturbation of a name such as ``shift``, ``all`` or ``shift+gain``.

    Raises
    ------
    ConfigError
        If a part is unknown.
    """
    parts = {NONE: (), ALL: TOGETHER}.get(name, tuple(name.split("+")))
    for part in parts:
        if part not in OPTICAL and part != NOISE:
            raise ConfigError(
                "Unknown --perturbation",
                expected=f"{', '.join(PERTURBATIONS)}, or some joined by +",
                got=repr(part),
            )
    return Perturbation(name, parts)


@dataclass(frozen=True, slots=True)
class SensorModel:
    """Digital numbers from light: ``counts = y · full_scale_dn``, exact, or rounded to 8 bits with
    noise.

    ``full_scale_dn`` is the counts of one white frame through an open mask, ``noise_dn`` the
    standard deviation without light, rounding included; both are 1 and 0 for an exact sensor.
    """

    full_scale_dn: float = 1.0
    noise_dn: float = 0.0

    @property
    def max_dn(self) -> int | None:
        """Counts at which the sensor saturates; None for an exact one."""
        return (1 << _BITS) - 1 if self.noise_dn else None

    def counts(self, y: F32, rng: np.random.Generator) -> Array:
        """Return the counts of a measurement, (H, W): float32 if exact, else uint8."""
        if self.max_dn is None:
            return y * np.float32(self.full_scale_dn)
        read_dn = math.sqrt(max(self.noise_dn**2 - 1 / 12, 0.0))
        dn = y * self.full_scale_dn + read_dn * rng.standard_normal(y.shape)
        return np.clip(np.rint(dn), 0, self.max_dn).astype(np.uint8)


def sensor_for(perturbation: Perturbation, brightest: float) -> SensorModel:
    """Return the sensor of a rig, exposed so that the brightest pixel of the series, in units of y,
    fills 90 %.
    """
    exact = SensorModel()
    if not perturbation.is_noisy:
        return exact
    most = (1 << _BITS) - 1
    noise_dn = math.hypot(NOISE_FRACTION * most, math.sqrt(1 / 12))
    return replace(exact, full_scale_dn=_EXPOSURE * most / max(brightest, 1e-6), noise_dn=noise_dn)
