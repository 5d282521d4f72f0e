"""Find light that no mask codes: stray light, another black level, or two taps.

Such light adds to y and does not know of the masks. A solve takes it for light of the scene. Its
frames then promise more modulation by the masks than y has: by that light times the modulation. The
sum over a block of the sensor has the light there, and the blocks have its shape.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from sci_stream.calibration.evidence.line_offsets import LineOffsets
from sci_stream.calibration.evidence.mask_match import local_mean, modulation
from sci_stream.model import F32, F64, Array, Flags
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import NO_CORRECTION, MaskCorrection
from sci_stream.optics.mask_shift import corrected_masks
from sci_stream.optics.sensor_errors import LIGHT, SMOOTH, SensorErrors, shapes_of_light

# Figures and thresholds: eight simulated rigs of 96 to 160 px, one for each scene, right ones and
# with 60 DN on one half, a gradient, 30 DN more, 25 DN of each column, lag or dust.
# Looks whose sums count.
_LOOKS = 6
# Fewer looks show nothing.
_FEWEST = 3
# So many blocks along each side.
_BLOCKS = 8
# Smaller sensors show nothing, pixels.
_LEAST_PX = 64
# A block has so many pixels along a side, at most; blocks are spread over the sensor.
_MAX_BLOCK_PX = 48
# Pixels beside another block do not count there: their local means know of it.
_SEAM_PX = 9
# Darker places count as having this share of the mean light.
_DARK = 0.05
# Even light exceeds this share of that of the scene: right rigs seem to have up to 0.019.
_LEAST_EVEN = 0.05
# Uneven light exceeds this share, as a standard deviation: right rigs seem to have up to 0.022.
_LEAST_UNEVEN = 0.03
# Smooth light exceeds this one: one of 150 right rigs seems to have 0.037.
_LEAST_SMOOTH = 0.045
# A black level is known to so many times the read noise, which includes that of rounding: light of
# 0.4 counts of 8 bits was none in four of 300 right rigs.
_LEAST_READ_NOISE = 3.0
# It lowers an information criterion by so much: right rigs by 0.2 at most, 60 DN on one half by 24
# and more.
_LEAST_GAIN = 10.0
# Each part of it costs so much: the Bayesian information criterion takes the logarithm of the
# number of blocks, 4.2, and chance exceeds that in one of 25 rigs.
_COST = 7.0
# Light of the darker half is an error of the estimate if it is a smaller share of that of the
# brighter one.
_OF_OTHER_HALF = 0.2
# Light that is known stays so until snapshots show less than this share of it.
_STAYS = 0.5
# They must exclude the light by so many standard errors.
_EXCLUDES = 3.0
# Stray light varies by less than this share of it while the scene moves on.
_VARIES = 0.5
# Masks that change by this share of their light are others, which need looks of their own.
_OTHER_MASKS = 0.05
_TINY = 1e-12
_HALVES = (("left",), ("upper",), ("left", "upper"))
_OTHERS = ("left", "upper", *SMOOTH)
_MODELS = (("even",), *(("even", *names) for names in _HALVES), ("even", *SMOOTH))


class Fit(NamedTuple):
    """Light that no mask codes, by field of `SensorErrors`, in units of y."""

    light: dict[str, float]
    darkest: float
    """Light of the darkest block, in units of y."""
    brightest: float


class UncodedLight:
    """Sums over blocks of the latest looks of a sensor."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._step = 1 if calibration.bayer is None else 2
        self._looks = deque[F64](maxlen=_LOOKS)
        self.lines = LineOffsets()
        self._possible = min(calibration.shape) >= _LEAST_PX
        if not self._possible:
            return
        spread = [_spread(size) for size in calibration.shape]
        self._places: tuple[Any, ...] = (..., *np.ix_(*(places for places, _ in spread)))
        self._inside = np.logical_and.outer(*(inside for _, inside in spread))
        # The shapes of light at the centre of each block.
        rows, columns = (places.reshape(_BLOCKS, -1).mean(1) for places, _ in spread)
        shapes = shapes_of_light(rows, columns, calibration.shape)
        self._shapes = {name: shape.ravel() for name, shape in shapes.items()}
        self._black = 0.0
        self._correction: MaskCorrection | None = None
        self._phi_of_looks = calibration.phi
        self._take_masks(NO_CORRECTION)

    def forget(self) -> None:
        """Forget all looks."""
        self._looks.clear()
        self.lines.forget()

    def _take_masks(self, correction: MaskCorrection) -> None:
        """Take the masks with this correction, and forget the looks behind others."""
        if correction == self._correction:
            return
        self._correction = correction
        phi = self._calibration.phi
        if not correction.is_none:
            phi = corrected_masks(torch.from_numpy(phi.copy()), correction).numpy()
        if np.abs(phi - self._phi_of_looks).mean() > _OTHER_MASKS * phi.mean():
            self.forget()
            self._phi_of_looks = phi
        self._phi = phi[self._places]
        light = self._phi.sum(0, dtype=np.float64)
        # Masks that are displaced are not known at the edge.
        edge_px = math.ceil(max(map(abs, correction.displacement.shift_px)))
        inside = np.zeros(self._calibration.shape, bool)
        rows, columns = (slice(edge_px, size - edge_px) for size in inside.shape)
        inside[rows, columns] = True
        lit = inside[self._places]
        self._modulation, _, self._is_lit = modulation(light, lit, self._calibration.bayer)

    def add(
        self, counts: Array, video: Array, masks: MaskCorrection, corrected: SensorErrors
    ) -> None:
        """Add a snapshot, (H, W) DN without ``corrected``, and its video, (B, H, W), behind masks
        with this correction.
        """
        if not self._possible:
            return
        calibration = self._calibration
        self._take_masks(masks.of_masks.lit(()))
        frames = np.asarray(video[self._places], np.float32)
        if masks.light:
            frames *= np.array(masks.light, np.float32).reshape(-1, 1, 1)
        self._black = masks.black
        expected = np.einsum("bhw,bhw->hw", self._phi, ring_mean(frames, self._step))
        y = calibration.measurement(counts)[self._places] - np.float32(masks.black)
        valid = calibration.good[self._places] & np.isfinite(y)
        if calibration.saturation_dn is not None:
            valid &= counts[self._places] < calibration.saturation_dn
        y = np.where(valid, y, expected)
        bayer = calibration.bayer
        level = local_mean(y.astype(np.float64), bayer)
        level = np.maximum(level, _DARK * max(level.mean(), _TINY))
        rest = (y - expected).astype(np.float64)
        t = self._modulation
        weight = np.where(self._is_lit & self._inside & valid, 1 / level**2, 0.0)
        self.lines.add(np.clip(rest, -level, level), t, weight, level)
        rest = np.clip(rest - local_mean(rest, bayer), -level, level)
        sums = np.stack([-weight * t * rest, weight * t * t, weight * t * t * level])
        height, width = (size // _BLOCKS for size in sums.shape[1:])
        sums = sums.reshape(3, _BLOCKS, height, _BLOCKS, width).sum((2, 4)).reshape(3, -1)
        sums[0] += sums[1] * (self._light_of(corrected) + masks.black)
        while self._looks and self._is_other(sums):
            # Light that drifts is near that of the latest looks.
            self._looks.popleft()
        self._looks.append(sums)

    def _is_other(self, sums: F64) -> bool:
        """Return whether a look shows other light than those before."""
        before = np.sum(self._looks, 0)
        light, known = (part[0] / np.maximum(part[1], _TINY) for part in (sums, before))
        weights = np.maximum(sums[1], _TINY)
        change = self._best(light - known, weights, sums[2] / weights - light, ())
        if change is None:
            return False
        changed = self._light_of(_errors(change.light))
        return bool(np.square(changed).mean() > _VARIES**2 * np.square(known).mean())

    def _light_of(self, errors: SensorErrors) -> F64:
        """Return the light of each block that no mask codes."""
        parts = [getattr(errors, name) * shape for name, shape in self._shapes.items()]
        # The brighter half has the light of two taps.
        of_halves = (abs(errors.left) + abs(errors.upper)) / 2
        return np.asarray(np.sum(parts, 0) + of_halves, np.float64)

    def fit(self, known: SensorErrors) -> Fit | None:
        """Return the light that the looks show beside the black level of the masks; None for none.

        Light that is known stays until the looks exclude it.
        """
        if not self._possible:
            return None
        known_light = self._light_of(known)
        names = tuple(name for name in ("even", *_OTHERS) if name == "even" or getattr(known, name))
        if len(self._looks) < _FEWEST:
            parts = {name: getattr(known, name) for name in names}
            return self._fit_of(parts) if known_light.any() else None
        of_light, weights, levels = np.sum(self._looks, 0)
        weights = np.maximum(weights, _TINY)
        light = of_light / weights - self._black
        scene = levels / weights - self._black - light
        if not known_light.any():
            return self._best(light, weights, scene, ())
        best = self._best(light, weights, scene, names)
        (share,), (error,), _ = _least_squares(light, weights, [known_light])
        is_over = share < _STAYS and 1 - share > _EXCLUDES * error
        return best if best is not None or is_over else self._fit(light, weights, names)

    def _best(self, light: F64, weights: F64, scene: F64, known: tuple[str, ...]) -> Fit | None:
        """Return the light whose shape explains the blocks best; None if none is needed, or if
        masks with less contrast explain them as well, which take a share of the light of the scene.

        The shape that is known stays if another one explains little more.
        """
        _, _, misfit = _least_squares(light, weights, [])
        _, _, of_contrast = _least_squares(light, weights, [scene])
        size = len(light)
        most = _LEAST_GAIN + max(0.0, size * math.log(misfit / of_contrast) - _COST)
        best = None
        for names in _MODELS:
            shapes = [self._shapes[name] for name in names]
            _, _, rest = _least_squares(light, weights, shapes)
            gain = size * math.log(misfit / rest) - len(names) * _COST
            if names == known:
                gain += _LEAST_GAIN
            if gain > most:
                best = self._fit(light, weights, names)
                most = gain
        if best is None:
            return None
        usual = float(weights @ scene / weights.sum())
        blocks = self._light_of(_errors(best.light))
        calibration = self._calibration
        least_dn = _LEAST_READ_NOISE * (calibration.read_noise_dn or 0.0)
        least = least_dn / calibration.full_scale_dn
        is_smooth = any(name in best.light for name in SMOOTH)
        uneven = _LEAST_SMOOTH if is_smooth else _LEAST_UNEVEN
        is_even = abs(blocks.mean()) > max(_LEAST_EVEN * usual, least)
        return best if is_even or blocks.std() > max(uneven * usual, least) else None

    def _fit(self, light: F64, weights: F64, names: tuple[str, ...]) -> Fit:
        parts, _, _ = _least_squares(light, weights, [self._shapes[name] for name in names])
        found = {name: float(part) for name, part in zip(names, parts, strict=True)}
        of_halves = abs(found.get("left", 0.0)) + abs(found.get("upper", 0.0))
        found["even"] -= of_halves / 2
        if abs(found["even"]) < _OF_OTHER_HALF * of_halves:
            found["even"] = 0.0
        return self._fit_of(found)

    def _fit_of(self, parts: dict[str, float]) -> Fit:
        blocks = self._light_of(_errors(parts))
        return Fit(parts, float(blocks.min()), float(blocks.max()))


def _errors(parts: dict[str, float]) -> SensorErrors:
    """Return the errors of a sensor that has this light."""
    light = {name: parts.get(name, 0.0) for name in LIGHT}
    return SensorErrors(specks=(), **light)


def _least_squares(light: F64, weights: F64, shapes: list[F64]) -> tuple[F64, F64, float]:
    """Return the parts of shapes in light; their standard errors; and the misfit."""
    root = np.sqrt(weights)
    matrix = np.array(shapes).reshape(-1, len(light)).T * root[:, np.newaxis]
    inverse = np.linalg.pinv(matrix.T @ matrix)
    parts = inverse @ (matrix.T @ (light * root))
    misfit = float(np.square(light * root - matrix @ parts).sum()) + _TINY
    errors = np.sqrt(np.diag(inverse) * misfit / (len(light) - matrix.shape[1]))
    return parts, errors, misfit


def _spread(size: int) -> tuple[NDArray[np.intp], Flags]:
    """Return the pixels along a side that are read, in blocks of one length that begin at even
    ones, and which of them count.
    """
    length = min(size // _BLOCKS, _MAX_BLOCK_PX) // 2 * 2
    counts = np.ones((_BLOCKS, length), bool)
    gap = (size - _BLOCKS * length) // (_BLOCKS - 1)
    if gap < 2:
        start = (size - _BLOCKS * length) // 4 * 2
        return start + np.arange(_BLOCKS * length), counts.ravel()
    counts[1:, :_SEAM_PX] = False
    counts[:-1, -_SEAM_PX:] = False
    starts = np.linspace(0, size - length, _BLOCKS).astype(int) // 2 * 2
    return np.add.outer(starts, np.arange(length)).ravel(), counts.ravel()


def ring_mean(frames: F32, step: int) -> F32:
    """Return the mean of the eight neighbours of one colour, (B, H, W)."""
    kernel = torch.full((1, 1, 3, 3), 1 / 8)
    kernel[0, 0, 1, 1] = 0
    padded = functional.pad(torch.from_numpy(frames).unsqueeze(1), (step,) * 4, mode="reflect")
    return np.asarray(functional.conv2d(padded, kernel, dilation=step)[:, 0].numpy())
