"""Timing of a mask modulator and of the camera behind it: requests, limits and capabilities.

Times are in µs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sci_stream.errors import ConfigError
from sci_stream.model import U8, Array

Master = Literal["modulator", "camera", "external"]
"""The device that starts each cycle of B masks."""
Pulse = Literal["per_pattern", "per_cycle", "none"]
"""Pulses that a modulator gives."""


@dataclass(frozen=True)
class MaskTiming:
    """Timing of one cycle of ``n_patterns``.

    Each pattern is shown for ``pattern_us`` and followed by ``dark_us`` without light; ``gap_us``
    of darkness follows the last one. Another ``master`` starts each cycle by a rising edge. A pulse
    of ``pulse_width_us`` begins ``pulse_delay_us`` after its pattern or cycle.
    """

    master: Master = "modulator"
    pattern_us: float = 0.0
    dark_us: float = 0.0
    gap_us: float = 0.0
    pulse: Pulse = "per_cycle"
    pulse_delay_us: float = 0.0
    pulse_width_us: float = 0.0
    n_patterns: int = 1

    @property
    def slot_us(self) -> float:
        """Time from one pattern to the next."""
        return self.pattern_us + self.dark_us

    @property
    def cycle_us(self) -> float:
        """Time from one cycle to the next, if it is not triggered."""
        return self.n_patterns * self.slot_us + self.gap_us


@dataclass(frozen=True)
class ModulatorCapabilities:
    """Properties of an open modulator; times of 0 mean any.

    ``height_px`` and ``width_px`` are the shape of a pattern, ``bits`` its depth; ``pulses`` those
    that it gives, ``masters`` the devices that may start a cycle; ``gap``: it can stay dark after a
    cycle, and needs ``min_gap_us`` then; ``max_delay_us`` is the largest delay of a pulse. It
    ``holds`` a pattern for any time, unless a waveform moves the mask; ``field_brightness`` is that
    of the uniform field meanwhile, relative to white, if it has a lamp.
    """

    model: str
    serial: str
    height_px: int
    width_px: int
    bits: int = 1
    max_patterns: int = 65_536
    min_pattern_us: float = 0.0
    min_dark_us: float = 0.0
    step_us: float = 1.0
    pulses: tuple[Pulse, ...] = ("per_cycle",)
    masters: tuple[Master, ...] = ("modulator",)
    gap: bool = False
    min_gap_us: float = 0.0
    max_delay_us: float = 0.0
    holds: bool = True
    field_brightness: float = 1.0


@dataclass(frozen=True)
class CameraTrigger:
    """Start and length of an exposure: by a pulse at the ``line``, or ``free``, by the camera
    itself.

    The exposure begins ``delay_us`` after each ``every``-th pulse, or ``period_us`` after the one
    before (0: as the camera is set).
    """

    source: Literal["line", "free"] = "free"
    exposure_us: float = 0.0
    delay_us: float = 0.0
    every: int = 1
    period_us: float = 0.0


@dataclass(frozen=True)
class CameraTiming:
    """Limits of a camera's exposures: range and step, delay, time from the end of one to the start
    of the next.

    ``max_every`` is the largest number of pulses that it can count for one exposure, 1 if it cannot
    count.
    """

    min_exposure_us: float = 1.0
    max_exposure_us: float = 1e9
    step_us: float = 0.0
    max_delay_us: float = 0.0
    readout_us: float = 0.0
    max_every: int = 1


def pattern_hash(patterns: Array) -> str:
    """Return the content hash of patterns, 32 hexadecimal digits."""
    digest = hashlib.sha256(
        repr(patterns.shape).encode() + np.ascontiguousarray(patterns, np.uint8).tobytes()
    )
    return digest.hexdigest()[:32]


def checked_patterns(patterns: Array, capabilities: ModulatorCapabilities) -> U8:
    """Return patterns as (B, H, W) uint8, 0 closed and 255 open.

    Raises `ConfigError` if a modulator cannot show them.

    Grey values of a binary modulator are refused.
    """
    shape = (capabilities.height_px, capabilities.width_px)
    expected = ""
    got = ""
    if (
        patterns.dtype != np.uint8
        or patterns.ndim != 3
        or patterns.shape[1:] != shape
        or not len(patterns)
    ):
        expected = f"uint8 of (B, {shape[0]}, {shape[1]})"
        got = f"{patterns.dtype} of {patterns.shape}"
    elif len(patterns) > capabilities.max_patterns:
        expected = f"at most {capabilities.max_patterns} patterns"
        got = str(len(patterns))
    elif capabilities.bits == 1 and not np.isin(levels := np.unique(patterns), (0, 255)).all():
        expected = "binary patterns of 0 and 255"
        got = str(levels[:4].tolist())
    if expected:
        what = f"The patterns do not fit the modulator {capabilities.model}"
        raise ConfigError(
            what, expected=expected, got=got, hint="To make some: sci-stream masks make."
        )
    return np.ascontiguousarray(patterns)


def checked_timing(timing: MaskTiming, capabilities: ModulatorCapabilities) -> MaskTiming:
    """Return a timing in whole steps of a modulator.

    Raises `ConfigError` if the modulator is slower.
    """
    if timing.pattern_us < capabilities.min_pattern_us or timing.dark_us < capabilities.min_dark_us:
        raise ConfigError(
            f"The modulator {capabilities.model} is slower",
            expected=f"patterns of at least {capabilities.min_pattern_us:g} µs, "
            f"{capabilities.min_dark_us:g} dark",
            got=f"{timing.pattern_us:g} and {timing.dark_us:g} µs",
        )
    step = capabilities.step_us
    names = ("pattern_us", "dark_us", "gap_us", "pulse_delay_us")
    return replace(
        timing,
        **{name: round(getattr(timing, name) / step) * step for name in names} if step else {},
    )
