"""Faults of real hardware, each as a change of masks, exposure, light or counts.

A fault is a function of a `Moment`, which it changes: the masks, the frames and the light with
which an exposure is made, or the counts that come of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import ndimage

from sci_stream.plugins import F32, F64
from sci_stream_drivers.simulated.exposure import Exposure
from sci_stream_drivers.simulated.sensor import Sensor

_SEED = 8


@dataclass(slots=True)
class Moment:
    """One exposure, before it is made.

    Parameters
    ----------
    number
        Number of the exposure.
    since
        Exposures since the fault began.
    scene
        The scene, for frames of other times.
    sensor
        The sensor: black level and range.
    phi
        (B, H, W), the masks as they are shown.
    frames
        (B, H, W), the scene of each mask.
    transmission
        (H, W) or a number: the share of the light that reaches the sensor.
    stray
        (H, W) or a number: light that no mask codes, in units of y.
    before
        (H, W), counts of the exposure before, above the black level.
    """

    number: int
    since: int
    scene: Exposure
    sensor: Sensor
    phi: F32
    frames: F32
    transmission: F64 | float = 1.0
    stray: F64 | float = 0.0
    before: F64 | float = 0.0

    @property
    def measurement(self) -> F64:
        """Light of the exposure, (H, W), in units of y."""
        y = np.einsum("bhw,bhw->hw", self.phi, self.frames) * self.transmission + self.stray
        return np.asarray(y.clip(0), np.float64)

    @property
    def rng(self) -> np.random.Generator:
        """A generator that is another one for each exposure."""
        return np.random.default_rng([_SEED, self.number])


Change = Callable[[Moment], None]
OfCounts = Callable[[Moment, F64], F64]


class Fault(NamedTuple):
    """A fault: its change of an exposure or of counts, and the names that are right for it."""

    names: frozenset[str]
    change: Change | None = None
    of_counts: OfCounts | None = None


def _window(moment: Moment, delay: float, length: float) -> None:
    """Expose for ``length`` masks, beginning ``delay`` masks after the first."""
    B = len(moment.phi)
    weights = np.zeros(B)
    light = np.zeros(moment.phi.shape)
    for place in range(math.floor(delay), math.ceil(delay + length)):
        weight = min(place + 1, delay + length) - max(place, delay)
        if weight > 0:
            light[place % B] += weight * moment.scene.frame(moment.number * B + place)
            weights[place % B] += weight
    moment.frames = light.astype(np.float32)


def _with_order(order: Callable[[int], list[int]]) -> Change:
    def change(moment: Moment) -> None:
        moment.phi = moment.phi[order(len(moment.phi))]

    return change


def _exchanged(B: int) -> list[int]:
    places = list(range(B))
    first, second = B // 4, B // 4 + 2
    places[first], places[second] = second, first
    return places


def _twice(B: int) -> list[int]:
    places = list(range(B))
    places[B // 2] = B // 2 - 1
    return places


def _dark_pattern(moment: Moment) -> None:
    moment.phi = moment.phi.copy()
    moment.phi[len(moment.phi) // 2] = moment.phi.min()


def _dwell(moment: Moment) -> None:
    gains = np.ones(len(moment.phi), np.float32)
    gains[[0, -1]] = 2
    moment.frames = moment.frames * (gains / gains.mean())[:, None, None]


def _ripple(depth: float) -> Change:
    def change(moment: Moment) -> None:
        B = len(moment.phi)
        phase = moment.rng.uniform(0, 2 * np.pi)
        light = 1 + depth * np.sin(phase + 2 * np.pi * np.arange(B) / B)
        moment.frames = moment.frames * light[:, None, None].astype(np.float32)

    return change


def _mapped(matrix: F64) -> Change:
    """Move the masks by a matrix about the centre."""

    def change(moment: Moment) -> None:
        centre = (np.array(moment.phi.shape[1:]) - 1) / 2
        offset = centre - matrix @ centre
        moved = [
            ndimage.affine_transform(mask, matrix, offset=offset, order=3, mode="reflect")
            for mask in moment.phi
        ]
        moment.phi = np.stack(moved).clip(0, 1).astype(np.float32)

    return change


def _turned(degrees: float) -> F64:
    angle = math.radians(degrees)
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def _moved(moment: Moment, shift_px: tuple[float, float]) -> None:
    moved = ndimage.shift(moment.phi, (0, shift_px[1], shift_px[0]), order=3, mode="reflect")
    moment.phi = moved.clip(0, 1)


def _vibration(sd_px: float) -> Change:
    def change(moment: Moment) -> None:
        _moved(moment, tuple(moment.rng.normal(0, sd_px, 2)))

    return change


def _other_roi(moment: Moment) -> None:
    # The region that is read moves over picture, masks and colour filters.
    moment.phi = np.roll(moment.phi, -2, 2)
    moment.frames = np.roll(moment.frames, -2, 2)


def _blurred(moment: Moment) -> None:
    moment.phi = ndimage.gaussian_filter(moment.phi, (0, 0.8, 0.8), mode="nearest")


def _inverted(moment: Moment) -> None:
    lightest = moment.phi.max((1, 2), keepdims=True)
    darkest = moment.phi.min((1, 2), keepdims=True)
    moment.phi = lightest + darkest - moment.phi


def _stray_light(share: float) -> Change:
    def change(moment: Moment) -> None:
        moment.stray = share * float(moment.measurement.mean())

    return change


def _falling_light(moment: Moment) -> None:
    width = moment.phi.shape[2]
    moment.stray = 160 / 4096 * np.linspace(0, 1, width) ** 2 * _white(moment)


def _white(moment: Moment) -> float:
    """Return the light, in units of y, that fills the range of the sensor."""
    return (moment.sensor.max_dn - moment.sensor.black_dn) / moment.sensor.full_scale_dn


def _dust(moment: Moment) -> None:
    height, width = moment.phi.shape[1:]
    y, x = np.mgrid[:height, :width]
    passes = np.ones((height, width))
    # Three specks take 70 % of the light: their places and radii in 128ths of the picture.
    for y_px, x_px, radius_px in ((40, 50, 5), (90, 80, 8), (70, 20, 3)):
        distance = np.hypot(y - y_px * height / 128, x - x_px * width / 128)
        passes *= 1 - 0.7 / (1 + np.exp((distance - radius_px) * 1.5))
    moment.transmission = passes


def _gains(moment: Moment) -> None:
    shape = moment.phi.shape[1:]
    moment.transmission = 1 + 0.05 * np.random.default_rng(_SEED).standard_normal(shape)


def _some_pixels(shape: tuple[int, ...], share: float) -> np.ndarray:
    return np.random.default_rng(3).random(shape) < share


def _with_offset(offset: Callable[[Moment, tuple[int, ...]], F64 | float]) -> OfCounts:
    """Add counts of the 12-bit range."""

    def of_counts(moment: Moment, counts: F64) -> F64:
        return counts + offset(moment, counts.shape) * (moment.sensor.max_dn / 4095)

    return of_counts


def _half(_moment: Moment, shape: tuple[int, ...]) -> F64:
    offset = np.zeros(shape)
    offset[:, : shape[1] // 2] = 60
    return offset


def _columns(_moment: Moment, shape: tuple[int, ...]) -> F64:
    return np.tile(np.random.default_rng(_SEED).normal(0, 40, (1, shape[1])), (shape[0], 1))


def _row_noise(moment: Moment, shape: tuple[int, ...]) -> F64:
    return np.tile(moment.rng.normal(0, 40, (shape[0], 1)), (1, shape[1]))


def _dead(moment: Moment, counts: F64) -> F64:
    return np.where(_some_pixels(counts.shape, 0.003), moment.sensor.black_dn, counts)


def _warm(_moment: Moment, shape: tuple[int, ...]) -> F64:
    return 400.0 * _some_pixels(shape, 0.01)


def _hot(_moment: Moment, shape: tuple[int, ...]) -> F64:
    return 4095.0 * _some_pixels(shape, 0.003)


def _hot_columns(_moment: Moment, shape: tuple[int, ...]) -> F64:
    offset = np.zeros(shape)
    offset[:, 40:43] = 4095
    return offset


def _black(share: float) -> OfCounts:
    return _with_offset(lambda _moment, _shape: share * 4095)


def _of_light(change: Callable[[Moment, F64], F64]) -> OfCounts:
    """Change counts above the black level."""

    def of_counts(moment: Moment, counts: F64) -> F64:
        black = moment.sensor.black_dn
        return change(moment, counts - black) + black

    return of_counts


def _lag(moment: Moment, light: F64) -> F64:
    return light + 0.1 * moment.before


def _drift(moment: Moment, light: F64) -> F64:
    return light * (1 + 0.015 * (moment.since + 1))


def _flicker(moment: Moment) -> None:
    moment.frames = moment.frames * np.float32(1 + moment.rng.uniform(-0.2, 0.2))


def _gamma(moment: Moment, light: F64) -> F64:
    white = moment.sensor.max_dn - moment.sensor.black_dn
    return np.asarray((light / white).clip(0, 1) ** 0.7 * white, np.float64)


def _optical(names: str, change: Change) -> Fault:
    return Fault(frozenset(names.split()), change)


def _electrical(names: str, of_counts: OfCounts) -> Fault:
    return Fault(frozenset(names.split()), None, of_counts)


_EXPOSURE = "uneven_exposure"
_ADDED = "stray_light black_level"

FAULTS: dict[str, Fault] = {
    "none": Fault(frozenset()),
    # Exposure and order of the patterns.
    "long125": _optical(_EXPOSURE, lambda moment: _window(moment, 0, 1.25 * len(moment.phi))),
    "short08": _optical(_EXPOSURE, lambda moment: _window(moment, 0, 0.8 * len(moment.phi))),
    "late05": _optical(_EXPOSURE, lambda moment: _window(moment, 0.5, len(moment.phi))),
    "pulse": _optical("mask_order", _with_order(lambda B: [*range(1, B), 0])),
    "swap2": _optical(f"mask_order {_EXPOSURE}", _with_order(_exchanged)),
    "twice": _optical(f"mask_order {_EXPOSURE}", _with_order(_twice)),
    "dark": _optical(_EXPOSURE, _dark_pattern),
    # The first and the last mask are shown twice as long as the others.
    "dwell": _optical(f"{_EXPOSURE} light", _dwell),
    "reverse": _optical("mask_order", _with_order(lambda B: list(range(B))[::-1])),
    "invert": _optical("mask_sign", _inverted),
    # Light.
    "ripple": _optical("light", _ripple(0.3)),
    # From exposure to exposure, and not within one.
    "flicker": _optical("brightness", _flicker),
    "stray": _optical(_ADDED, _stray_light(0.3)),
    "gradient": _optical("stray_light", _falling_light),
    # Masks.
    "rotate": _optical("mask_geometry", _mapped(_turned(0.3))),
    "scale": _optical("mask_geometry", _mapped(np.eye(2) / 1.005)),
    "shift": _optical("mask_shift", lambda moment: _moved(moment, (0.7, 0.4))),
    "blur": _optical("mask_blur", _blurred),
    "vibration": _optical("mask_shift", _vibration(0.5)),
    "roi2": _optical("mask_shift mosaic", _other_roi),
    # The sensor.
    "dust": _optical("dust", _dust),
    "prnu": _optical("pixel_gains", _gains),
    # A snapshot that still shows a part of the one before is brighter: the text names lag, too.
    "lag": _electrical("image_lag brightness", _of_light(_lag)),
    "half60": _electrical("two_taps", _with_offset(_half)),
    "black": _electrical(f"{_ADDED} below_black", _black(0.045)),
    "gain": _electrical("brightness camera_gain", _of_light(lambda _moment, y: 1.3 * y)),
    "drift": _electrical("brightness camera_gain", _of_light(_drift)),
    "gamma": _electrical("gamma", _of_light(_gamma)),
    "warm": _electrical("warm_pixels stuck_pixels", _with_offset(_warm)),
    "hot": _electrical("warm_pixels stuck_pixels", _with_offset(_hot)),
    "dead": _electrical("warm_pixels stuck_pixels", _dead),
    "column": _electrical("stuck_pixels", _with_offset(_hot_columns)),
    "colfix": _electrical("column_offsets", _with_offset(_columns)),
    "rows": _electrical("row_offsets unexplained", _with_offset(_row_noise)),
}
"""Faults by name: most of those of a rig's first year."""
