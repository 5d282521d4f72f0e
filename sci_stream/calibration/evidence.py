r"""What one snapshot says of its own data: orientation, sign and place of the masks, black level,
gamma, bad pixels.

Divided by their local means, y and the light Σ_b φ_b have a common part: r = y/ȳ − 1 and t =
Σφ/Σ̄φ̄ − 1. For right data r is t plus the scene's texture and motion, which do not know of the
masks: their correlation is 0.5 to 1 and the slope of r over t is 1. Measured on 156 snapshots of 37
clips and the published sets, behind random, blurred, moving and measured masks, with 0 to 1 % of
noise: correlation at least 0.49, slope weighted by ȳ 0.968 to 1.027, correlation with masks in
another orientation at most 0.15 (lab/research/foreign-data.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from sci_stream.model import F64, Array, BayerPhase, Flags
from sci_stream.optics import bayer as mosaics
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import NO_CORRECTION, MaskCorrection
from sci_stream.optics.white import brightness_percentile, fit_white

Places = npt.NDArray[np.intp]

_BLUR_PX = 3.0
# Light of less variation than this says nothing, as that of masks that add up to a constant.
_MIN_VARIATION = 0.02
MATCH = 0.3
"""Correlation from which masks belong to y: between that of wrong masks, 0.15, and of right ones,
0.49."""
OF_RIGHT_MASKS = {"black_level", "gamma"}
"""Defects that masks with errors show, too: looked for with corrected ones."""
_WRONG = 0.15
_MAX_SHIFT_PX = 6
# Right masks whose correlation is less still stand out from chance by more than this many standard
# deviations: by 6.3 and more in 216 snapshots, others by up to 5.8 (six scenes behind six kinds of
# masks, B from 2 to 24, 64 and 128 px).
CHANCE = 6.0
# Fewer pixels do not tell right masks from others.
_LEAST_PIXELS, _BORDER = 300, 3
# How much better a displaced mask must fit: neighbours of masks with large features fit nearly as
# well.
_SHIFT_MARGIN = 0.03
# Of the slope; the capture 4fan14 has 0.947. A black level of 3 % of the range has less, and costs
# 0.2 dB.
_SLOPE = (0.94, 1.05)
_SURE = 2.5
# Negative local means over positive ones, and differences of brightness within cells of 2×2 pixels:
# 0.12 in right data.
_NEGATIVE, _MOSAIC = 0.1, 0.2
# Curvature over slope: a gamma g has (g − 1)/2; a black level bends upwards, if at all.
_GAMMA_CURVATURE = -0.03
_GAMMAS = (0.3, 3.5)
_CONTRAST = (
    "the masks modulate y {:.2f} times as much as they should: stray light, masks that are "
    "missing, or that are "
    "sharper or blurrier than on the sensor: pass those of this exposure, or calibrate again"
)
# Share of the mean light that each mask contributes: below it, it had no part in y.
_ABSENT_SHARE, _PRESENT_SHARE = 0.2, 0.5
# Of masks in another order: right ones explain y best but for chance. And of frames that belong to
# y, with its noise.
_BETTER, _MAX_MISFIT = 0.97, 0.1
# Neighbours of noise differ; those of another scene are alike.
_NOISE_ALIKE = 0.1
# Brightness, 99.5th percentile, 1 for white, above which no scene is.
_BRIGHTEST = 1.5
# Brightness of a dark snapshot, whatever its bits.
_NO_LIGHT = 0.01
# Finest step of counts that were divided: a camera counts in whole numbers.
_FINEST = 2.0**-8
# Brightness of a usual scene, by which the nearest power of two is named.
_USUAL = 0.8
# Pixels along each side by which shares are measured: enough, and quick.
_SHARES_PX = 384
_SATURATED = 0.005
# Of the 7×7 pixels around one of another brightness than most of these, the frames are fitted. Its
# error over theirs was at most 7.3 upwards (16 behind four masks) and 2.7 downwards, near 0, in 556
# right snapshots, and above 9 in one of 391 more.
_AROUND, _STANDS_OUT = 3, (0.4, 1.3)
_STUCK, _MANY_OPEN, _DEAD, _DARK = 11.0, 4, -3.5, 0.05
# A stuck pixel is brighter or darker than its surroundings by this factor, but for so many pixels
# that may be stuck, too. Without it, edges over black behind masks that are 12 % open and one-hot
# looked stuck.
_BEYOND, _OTHERS = 1.2, 2
# A point of light that optics spread over 3×3 pixels is brighter than its neighbours, above the
# rest, by less than this factor. It hides 1 of 592 stuck pixels in four scenes.
_OF_SPOT = 8.0
# Behind sparser masks, few pixels around one show the same frame: it must outshine the whole scene.
_SPARSE = 0.2
_RIDGE, _FLOOR, _MAX_PLACES = 0.1, 0.03, 4000
# Of the brightest of the scene: thin lines on black stand out, too, where few masks show them.
_BRIGHT = 0.8
# Lines that are as wide as this minus one are seen, and vary by less than this share of the masks.
_LINES, _MODULATED = 4, 0.5
_OF_LINE, _DEAD_LINE, _LIT_LINE, _HOT_LINE = 0.2, 0.1, 0.3, 2.0
# Middle frequencies of 8×8 blocks, see `_blockiness`.
_JPEG = 0.15


@dataclass(frozen=True)
class Defect:
    """A defect of the data: name, figure and remedy in one sentence.

    ``fatal`` if a video would be made up; ``corrected`` if the solve allows for it. ``repair``
    brings masks, (B, H, W), to where y has them; ``shift_px``, (x, y), if it moves them.
    """

    name: str
    text: str
    fatal: bool = False
    corrected: bool = False
    shift_px: tuple[int, int] | None = None
    repair: Callable[[Array], Array] | None = field(default=None, repr=False, compare=False)

    @property
    def text_for_rig(self) -> str:
        """The text for a rig, whose operator passes no arrays."""
        return re.sub(
            r": pass .*?(, or |$)",
            lambda match: ": " if match[1] else ": calibrate again",
            self.text,
        )


# What to pass in place of the masks, and how the light of all masks changes by it.
_ORIENTATIONS: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "transposed": ("masks.transpose(0, 2, 1)", lambda m: m.T),
    "upside down": ("masks[:, ::-1]", lambda m: m[::-1]),
    "mirrored": ("masks[:, :, ::-1]", lambda m: m[:, ::-1]),
    "turned by 180°": ("masks[:, ::-1, ::-1]", lambda m: m[::-1, ::-1]),
    "turned by 90°": ("np.rot90(masks, 1, (1, 2))", np.rot90),
    "turned by 270°": ("np.rot90(masks, 3, (1, 2))", lambda m: np.rot90(m, 3)),
    "transposed and turned by 180°": (
        "masks[:, ::-1, ::-1].transpose(0, 2, 1)",
        lambda m: m[::-1, ::-1].T,
    ),
}


def inspect(
    counts: Array,
    calibration: Calibration,
    correction: MaskCorrection = NO_CORRECTION,
    stuck: Flags | None = None,
) -> list[Defect]:
    """Return the defects of a snapshot, (H, W) DN.

    ``stuck``, (H, W): its stuck pixels, from `stuck_in`; None to find them here.
    """
    calibration = _corrected(calibration, correction)
    y = _valid_measurement(counts, calibration)
    if stuck is None:
        stuck = stuck_pixels(y, calibration.phi, calibration.bayer) & np.isfinite(y)
    y[stuck] = np.nan
    defects = examine(y, calibration.phi, calibration.bayer)
    if (scale := _scale_defect(counts, y, calibration)) is not None:
        defects.insert(0, scale)
    if stuck.any():
        text = (
            f"{int(stuck.sum())} pixels are brighter or darker than their neighbours and the "
            "masks allow: left out"
        )
        defects.insert(0, Defect("stuck_pixels", text, corrected=True))
    return defects


def _scale_defect(counts: Array, y: F64, calibration: Calibration) -> Defect | None:
    """Return whether counts, (H, W), are on another scale than the calibration's."""
    valid = np.isfinite(y)
    saturation = calibration.saturation_dn or math.inf
    if counts.max(where=valid, initial=0) < _BRIGHTEST * saturation:  # more is on another scale
        valid &= counts < saturation
    phi = calibration.phi * valid
    if not phi.any():
        return None
    y = np.where(valid, y, 0)
    level = brightness_percentile(y[np.newaxis], phi)
    if level > _BRIGHTEST:
        # Noise can be brighter than white, its local means are not.
        means = (_local_mean(image, calibration.bayer)[np.newaxis] for image in (y, phi.sum(0)))
        level = level if brightness_percentile(*means) > 1 else 1.0
    step = _step(counts[valid])
    bits = calibration.bit_depth or int(calibration.saturation_dn or 0).bit_length()
    # Values whose white is 1 are no counts: a made scene of 0.5 everywhere is right.
    are_counts = calibration.full_scale_dn > 1
    is_divided = are_counts and step < 1 and _NO_LIGHT * step < level < _BRIGHTEST * step
    of_8_bits = 2.0 ** (8 - bits)
    if level > _BRIGHTEST or is_divided:
        # The step is the factor if neighbouring counts occur, and not where the scene has few.
        steps = np.diff(np.unique(counts[valid]).astype(np.float64))
        is_unit = steps.min(initial=np.inf) == step != 1
        factor = step if is_unit else 2.0 ** round(math.log2(level / _USUAL))
    elif counts.dtype == np.uint8 and bits > 8 and _NO_LIGHT < level < _BRIGHTEST * of_8_bits:
        factor = of_8_bits
    else:
        return None
    text = (
        f"the scene is {level:.3g} times as bright as white was in the calibration: its counts "
        f"have another bit depth, exposure, gain or binning: pass y * {1 / factor:.6g}, or "
        "calibrate with the same settings"
    )
    return Defect("scale", text)


def _step(counts: Array) -> float:
    """Return the largest power of two of which all counts are multiples; 1 if `_FINEST` is none."""
    with np.errstate(invalid="ignore"):  # numbers beyond all integers
        whole = (counts.astype(np.float64) / _FINEST).astype(np.int64)
    if (whole * _FINEST != counts).any():
        return 1.0
    together = int(np.bitwise_or.reduce(whole))
    return (together & -together) * _FINEST


def stuck_in(
    counts: Array, calibration: Calibration, correction: MaskCorrection = NO_CORRECTION
) -> Flags:
    """Return the stuck pixels of a snapshot, (H, W), besides the bad ones of its calibration."""
    calibration = _corrected(calibration, correction)
    y = _valid_measurement(counts, calibration)
    return stuck_pixels(y, calibration.phi, calibration.bayer) & np.isfinite(y)


def _corrected(calibration: Calibration, correction: MaskCorrection) -> Calibration:
    if correction.is_none:
        return calibration
    import torch  # noqa: PLC0415 - a light host has no torch, and no correction

    from sci_stream.optics.mask_shift import corrected_masks  # noqa: PLC0415 - it imports torch

    phi = corrected_masks(torch.from_numpy(calibration.phi.copy()), correction).numpy()
    dark = calibration.dark + np.float32(correction.black * calibration.full_scale_dn)
    return replace(calibration, phi=phi.clip(0, 1), dark=dark)


def _valid_measurement(counts: Array, calibration: Calibration) -> F64:
    """Return y, (H, W), NaN at the bad pixels of the calibration."""
    y = calibration.measurement(counts).astype(np.float64)
    y[~calibration.good] = np.nan
    return y


def examine(y: Array, phi: Array, bayer: BayerPhase | None = None) -> list[Defect]:
    """Return the defects of a snapshot and its masks, none for right data.

    Parameters
    ----------
    y
        (H, W), the measurement, without its dark frame, in any unit; NaN where it is invalid.
    phi
        (B, H, W), masks, 0–1.
    bayer
        Colour filters of the sensor, if it has them.
    """
    even = (
        ...,
        slice(len(y) // 2 * 2),
        slice(y.shape[1] // 2 * 2),
    )  # whole cells of colour filters
    y, phi = np.asarray(y[even], np.float64), phi[even]
    valid = np.isfinite(y)
    if not valid.any() or np.ptp(y[valid]) == 0:
        return []
    few = phi[:, ::8, ::8]
    for first, second in combinations(range(len(phi)), 2):
        if np.array_equal(few[first], few[second]) and np.array_equal(phi[first], phi[second]):
            text = (
                f"masks {first} and {second} are equal: y cannot tell their frames apart: pass "
                "one of them"
            )
            return [Defect("equal_masks", text, fatal=bool((phi == phi[:1]).all()))]
    # A few pixels, however negative, count no more than bright ones. Noise has no part in means.
    top = np.quantile(np.abs(y[valid]), 0.98)
    means = _local_mean(np.where(valid, np.clip(y, -top, top), 0.0), bayer)
    if -means[means < 0].sum() > _NEGATIVE * means[means > 0].sum():
        text = (
            f"y is negative where no light can make it so: pass y + {-y[valid].min():.4g}, or "
            "y as the camera gave it"
        )
        return [Defect("black_level", text, fatal=True)]
    y = np.where(valid, y, np.median(y[valid]))
    light = np.asarray(phi, np.float64).sum(0)
    found = [*_saturation(y, light), *_blocks(y, light)]
    spread = 0.0 if bayer else _cell_spread(y, light)
    bayer = BayerPhase.RGGB if spread > _MOSAIC else bayer
    r, level, usable = _modulation(y, valid, bayer)
    t, _, lit = _modulation(light, valid, bayer)
    usable &= lit
    if not usable.any() or np.std(t[usable]) < _MIN_VARIATION:
        return found
    fit = _correlation(r, t, usable)
    if shift := _shift(r, t, usable, abs(fit)):
        return [*found, shift]
    first, last = present_masks(y, phi, bayer) if fit >= MATCH else (0, len(phi))
    if spread > _MOSAIC and fit >= MATCH:
        text = (
            f"y differs by {spread:.0%} within 2×2 pixels, as behind colour filters: pass "
            "their phase, bayer='RGGB'"
        )
        found.append(Defect("mosaic", text))
    if abs(fit) < MATCH:
        found += _orientation(r, light, usable, fit, bayer)
    elif fit < 0:
        text = f"y is dark where the masks are open (correlation {fit:.2f}): pass 1 - masks"
        found.append(Defect("mask_sign", text, fatal=True, repair=_inverted))
    elif last - first < len(phi):
        remedy = f"pass masks[{first or ''}:{last if last < len(phi) else ''}]"
        text = (
            f"only {last - first} of {len(phi)} masks have a part in y, or the other frames "
            f"are dark: {remedy}"
        )
        found.append(Defect("mask_number", text))
    else:
        found += _response(y, r, t, level, usable & (y < y.max()), bayer=bayer)
    return found


def _cell_spread(y: F64, light: F64) -> float:
    """Return by how much the pixels of 2×2 cells differ in brightness, as a share of that of the
    picture.
    """
    planes = (mosaics.split(image) for image in (y, light))
    of_y, of_light = (np.stack([_local_mean(plane, None) for plane in cells]) for cells in planes)
    levels = of_y / np.maximum(of_light, 0.01 * of_light.mean())
    return float(np.ptp(levels, 0).mean()) / max(float(levels.mean()), 1e-300)


def present_masks(y: Array, phi: Array, bayer: BayerPhase | None = None) -> tuple[int, int]:
    """Return the first of the masks (B, H, W), on any scale, that has a part in y, (H, W), and the
    one after the last.

    y's modulation is the sum of those of all masks, each times the brightness of its frame.
    """
    top, left = (max(0, (side - _SHARES_PX) // 4 * 2) for side in y.shape)
    inside = (..., slice(top, top + _SHARES_PX), slice(left, left + _SHARES_PX))
    y, phi = np.asarray(y[inside], np.float64), np.asarray(phi[inside], np.float64)
    valid = np.isfinite(y)
    _, level, usable = _modulation(np.where(valid, y, 0.0), valid, bayer)
    light = _local_mean(phi.sum(0), bayer)
    usable &= light > 0.05 * light.mean()
    parts = np.stack([(mask - _local_mean(mask, bayer))[usable] for mask in phi])
    target = y[usable] * light[usable] / level[usable] - light[usable]
    target = np.clip(target, *np.quantile(target, (0.01, 0.99)))
    gram = parts @ parts.T
    gram += 1e-6 * np.trace(gram) * np.eye(len(gram)) / len(gram)
    shares = np.linalg.solve(gram, parts @ target)
    rest = target - shares @ parts
    errors = np.sqrt(np.mean(rest**2) * np.diag(np.linalg.inv(gram))) * _alike(rest * parts)
    absent = (shares < _ABSENT_SHARE) & (shares + _SURE * errors < _PRESENT_SHARE)
    present = np.flatnonzero(~absent)
    return (int(present[0]), int(present[-1]) + 1) if len(present) else (0, len(phi))


def truth_defects(y: Array, calibration: Calibration, truth: Array) -> list[Defect]:
    """Return whether true frames, (n, B, H, W), explain counts y, (n, H, W), badly, or better in
    another order.
    """
    good = calibration.good
    y, phi, misfits = good * (y - calibration.dark), good * calibration.phi, {}
    for name, order in {
        "masks[::-1]": np.arange(len(phi))[::-1],
        "masks": np.arange(len(phi)),
    }.items():
        white, misfits[name] = fit_white(y, phi[order], truth)
    # Each mask brings out the frame that differs from their mean as y does where it is open.
    changes = truth - truth.mean(1, keepdims=True)
    rest = (y - white * np.einsum("bhw,nhw->nhw", phi, truth.mean(1)))[:, np.newaxis]
    closeness = np.tensordot(
        rest * (phi - phi.mean((1, 2), keepdims=True)), changes, ((0, 2, 3), (0, 2, 3))
    )
    closeness /= np.maximum(np.linalg.norm(changes, axis=(2, 3)).sum(0), 1e-300)
    order = np.arange(len(phi))
    for _ in order:
        mask, frame = np.unravel_index(np.argmax(closeness), closeness.shape)
        order[frame], closeness[mask], closeness[:, frame] = mask, -np.inf, -np.inf
    name = f"masks[{order.tolist()}]"
    _, misfits[name] = fit_white(y, phi[order], truth)
    best = min(misfits, key=lambda name: misfits[name])
    if misfits[best] < _BETTER * misfits["masks"]:
        return [
            Defect(
                "mask_order",
                f"the true frames belong to the masks in another order: pass {best}",
                fatal=True,
            )
        ]
    rest = y - white * np.einsum("bhw,nbhw->nhw", phi, truth)
    together = float((rest[..., 1:] * rest[..., :-1]).sum())
    if misfits["masks"] > _MAX_MISFIT and together > _NOISE_ALIKE * float((rest**2).sum()):
        text = (
            f"the true frames explain y only to within {misfits['masks']:.0%}: pass those of "
            "y, or the masks of both"
        )
        return [Defect("truth", text)]
    return []


def mask_fit(
    y: Array, phi: Array, bayer: BayerPhase | None = None, *, where: Flags | None = None
) -> float:
    """Return the correlation of y, (H, W), with the light of masks (B, H, W) on any scale, both
    without local means.
    """
    y, light = np.asarray(y, np.float64), np.asarray(phi, np.float64).sum(0)
    valid = np.isfinite(y)
    r, _, usable = _modulation(np.where(valid, y, 0.0), valid, bayer)
    t, _, lit = _modulation(light, valid, bayer)
    usable &= lit if where is None else lit & where
    return _correlation(r, t, usable) if usable.any() else 0.0


def stuck_pixels(y: Array, phi: Array, bayer: BayerPhase | None = None) -> Flags:
    """Return the pixels, (H, W), that the frames of their neighbours of one colour cannot make so
    bright, or so dark.

    Lines of such pixels count as well.
    """
    if bayer is not None:
        planes = zip(mosaics.split(np.asarray(y)), mosaics.split(np.asarray(phi)), strict=True)
        return mosaics.merge(np.stack([stuck_pixels(*plane) for plane in planes]))
    y, phi = np.nan_to_num(np.asarray(y, np.float64), nan=0.0), np.asarray(phi, np.float64)
    light = phi.sum(0)
    least = 0.1 * float(light.mean())
    lit = light > least
    light = np.maximum(light, least)
    level, singles = y / light, np.zeros(y.shape, np.bool_)
    top = float(np.quantile(level, 0.98))
    if min(y.shape) <= 2 * _AROUND or top <= 0:
        return singles
    ratio = (np.maximum(level, 0) + _FLOOR * top) / (
        np.maximum(_local_mean(level, None), 0) + _FLOOR * top
    )
    strength = np.maximum(ratio / _STANDS_OUT[1], _STANDS_OUT[0] / ratio)
    places = np.argsort(strength, axis=None)[-_MAX_PLACES:]
    places = places[strength.flat[places] > 1]
    rows, columns = np.unravel_index(places, y.shape)
    if len(places):
        here = level[rows, columns]
        value, (expected, error) = y[rows, columns], _expected(y, phi, rows, columns)
        excess = (value - expected) / error
        low, high, spot = _range_around(level, rows, columns)
        if phi.mean() < _SPARSE:
            high = np.maximum(high, np.quantile(level, 0.999))
            low = np.full_like(low, -np.inf)  # a dark frame is no dead pixel
        bright = (here > _BRIGHT * top) & (here > _BEYOND * high) & (here > _OF_SPOT * spot)
        dark = (value < _DARK * expected) & (here * _BEYOND < low)
        few = max(1.0, _MANY_OPEN / float(phi.sum(0).mean()))
        singles[rows, columns] = bright & (excess > _STUCK * few)
        # At the border, the surroundings of a dark object are out of sight.
        last_row, last_column = np.array(y.shape) - 1
        dark &= (rows % last_row > 0) & (columns % last_column > 0)
        singles[rows, columns] |= dark & (excess < _DEAD)
    # Of a hot line, some pixels lie behind bright ones; a dead one is dark between others.
    stuck = singles
    for axis in (0, 1):
        line = np.minimum(level, 2 * top).mean(axis, keepdims=True)
        padded = np.pad(line.ravel(), _LINES, mode="edge")
        beside = [padded[: -2 * _LINES], padded[2 * _LINES :]]
        darker, brighter = np.sort(beside, 0).reshape(2, *line.shape)
        dead = (line < _DEAD_LINE * darker) & (darker > _LIT_LINE * level.mean())
        dead &= lit.mean(axis, keepdims=True) > 0.5  # a line that no mask opens is dark
        hot = line > _HOT_LINE * np.maximum(brighter, level.mean())
        # The masks modulate a bright line of the scene.
        hot &= _variation(y, axis) < _MODULATED * _variation(light, axis)
        stuck = stuck | (singles.mean(axis, keepdims=True) > _OF_LINE) | dead | hot
    return stuck


def _variation(image: F64, axis: int) -> F64:
    """Return the standard deviation along lines over their mean."""
    mean = np.maximum(np.abs(image.mean(axis, keepdims=True)), 1e-300)
    return np.asarray(image.std(axis, keepdims=True) / mean)


def _range_around(level: F64, rows: Places, columns: Places) -> tuple[F64, F64, F64]:
    """Return the lowest and the highest brightness around pixels, and that of the nearest eight
    above the rest, but for `_OTHERS` of each.

    An edge of the scene is as bright as its surroundings on one side, a stuck pixel on none. Optics
    spread a point of light over its neighbours.
    """
    reach = np.arange(-_AROUND, _AROUND + 1)
    down, right = (grid.ravel() for grid in np.meshgrid(reach, reach, indexing="ij"))
    near = (down != 0) | (right != 0)
    padded = np.pad(level, _AROUND, mode="reflect")
    around = padded[
        rows[:, np.newaxis] + _AROUND + down[near], columns[:, np.newaxis] + _AROUND + right[near]
    ]
    beside = np.maximum(np.abs(down), np.abs(right))[near] == 1
    spot = np.sort(around[:, beside], axis=1)[:, -1 - _OTHERS]
    around.sort(axis=1)
    return around[:, _OTHERS], around[:, -1 - _OTHERS], spot - np.median(around, axis=1)


def _expected(y: F64, phi: F64, rows: Places, columns: Places) -> tuple[F64, F64]:
    """Return pixels of y as the frames of the squares around them make them, and the error of
    these.
    """
    size = 2 * _AROUND + 1
    top, left = (
        np.clip(places - _AROUND, 0, side - size)
        for places, side in zip((rows, columns), y.shape, strict=True)
    )
    square = (
        top[:, np.newaxis] + np.arange(size**2) // size,
        left[:, np.newaxis] + np.arange(size**2) % size,
    )
    around, masks = y[square], np.moveaxis(phi[:, *square], 0, -1)
    here = (np.arange(len(rows)), (rows - top) * size + columns - left)
    around[here], masks[here] = 0, 0
    lit = masks.sum(-1)
    # Other stuck pixels are not to be fitted.
    bound = 3 * np.quantile(around / np.maximum(lit, 1e-3 * lit.mean()), 0.8, 1, keepdims=True)
    around = np.minimum(around, lit * bound)
    mean = around.sum(1, keepdims=True) / np.maximum(lit.sum(1, keepdims=True), 1e-300)
    gram = masks.transpose(0, 2, 1) @ masks
    ridge = _RIDGE / len(phi) * np.trace(gram, axis1=1, axis2=2) + 1e-300
    gram += ridge[:, np.newaxis, np.newaxis] * np.eye(len(phi))
    rest = (around - lit * mean)[..., np.newaxis]
    frames = np.maximum(mean + np.linalg.solve(gram, masks.transpose(0, 2, 1) @ rest)[..., 0], 0)
    errors = np.abs(around - (masks @ frames[..., np.newaxis])[..., 0])
    error = np.quantile(errors, 0.8, 1) + _FLOOR * float(np.maximum(y, 0).mean())
    beside = (rows - top != _AROUND) | (columns - left != _AROUND)
    return (phi[:, rows, columns].T * frames).sum(1), np.where(
        beside, 2 * error, error
    )  # extrapolated at the border


def _modulation(image: F64, valid: Flags, bayer: BayerPhase | None) -> tuple[F64, F64, Flags]:
    """Return an image over its local mean, minus 1, clipped to ±3; the local mean; and where this
    is large enough.
    """
    mean = _local_mean(image, bayer)
    usable = valid & (mean > 0.05 * mean.mean())
    return (
        np.clip(np.where(usable, image / np.where(usable, mean, 1.0) - 1, 0.0), -3, 3),
        mean,
        usable,
    )


def local_contrast(y: Array, phi: Array, bayer: BayerPhase | None, strips: int) -> tuple[F64, F64]:
    """Return the slope of the modulation of y, (H, W), over that of the light of all masks,
    (B, H, W), and the mean of y: (2, strips) each, of strips of columns and of rows.

    The slope is 1 behind right masks, and less where y has light that no mask codes.
    """
    y, light = np.asarray(y, np.float64), np.asarray(phi, np.float64).sum(0)
    valid = np.isfinite(y)
    r, level, usable = _modulation(np.where(valid, y, 0.0), valid, bayer)
    t, _, lit = _modulation(light, valid, bayer)
    weight = np.where(usable & lit, level**2, 0.0)
    slopes, levels = [], []
    for axis in (1, 0):
        common, light_alone, levels_of = (
            np.array([part.sum() for part in np.array_split(image, strips, axis)])
            for image in (weight * r * t, weight * t * t, level)
        )
        slopes.append(common / np.maximum(light_alone, 1e-12))
        levels.append(levels_of * strips / level.size)
    return np.array(slopes), np.array(levels)


def _local_mean(image: F64, bayer: BayerPhase | None) -> F64:
    if bayer is None:
        return _blurred(_blurred(image, _BLUR_PX).T, _BLUR_PX).T
    return mosaics.merge(np.stack([_local_mean(plane, None) for plane in mosaics.split(image)]))


def _blurred(image: F64, sigma: float) -> F64:
    """Return an image blurred by a Gaussian along its columns."""
    reach = min(round(3 * sigma), len(image) - 1)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    padded = np.pad(image, ((reach, reach), (0, 0)), mode="reflect")
    shifted = (
        weight * padded[start : start + len(image)]
        for start, weight in enumerate(weights / weights.sum())
    )
    return np.asarray(sum(shifted), np.float64)


def _correlation(a: F64, b: F64, where: Flags) -> float:
    a, b = a[where] - a[where].mean(), b[where] - b[where].mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else 0.0


def _inverted(masks: Array) -> Array:
    return 1 - masks


def _unchanged(mask: Array) -> Array:
    return mask


def _orientation(
    r: F64, light: F64, usable: Flags, fit: float, bayer: BayerPhase | None
) -> list[Defect]:
    """Return in which other orientation the masks fit, or that they fit in none."""
    best, name, remedy, sign = abs(fit), "", "", 1.0
    repair: Callable[[Array], Array] = _unchanged
    for orientation, (text, turn) in _ORIENTATIONS.items():
        turned = np.ascontiguousarray(turn(light))
        if turned.shape != light.shape:
            continue
        t, _, lit = _modulation(turned, np.ones_like(usable), bayer)
        other = _correlation(r, t, usable & lit)
        if abs(other) > max(best, MATCH):
            best, name, remedy, sign = abs(other), orientation, text, np.sign(other)
            repair = turn
    if not name:
        t, _, lit = _modulation(light, np.ones_like(usable), bayer)
        if abs(fit) > _WRONG and _distinction(r, t, usable & lit) > CHANCE:
            return []
        text = (
            f"the masks explain nothing of y (correlation {fit:.2f}): pass those that y was "
            "taken with"
        )
        return [Defect("mask_match", text, fatal=abs(fit) < _WRONG)]
    if sign < 0:
        name, remedy = f"{name} and inverted", f"1 - {remedy}"

    def repaired(masks: Array) -> Array:
        turned = np.stack([repair(mask) for mask in masks])
        return _inverted(turned) if sign < 0 else turned

    text = f"the masks {fit_words(name, best, fit)}: pass {remedy}"
    return [Defect("mask_orientation", text, fatal=True, repair=repaired)]


def fit_words(turned: str, fit: float, as_given: float) -> str:
    """Return in which orientation masks fit y, with both correlations."""
    return f"fit y {turned} (correlation {fit:.2f}, as they are {as_given:.2f})"


def _shift(r: F64, t: F64, usable: Flags, fit: float) -> Defect | None:
    """Return by how many whole pixels the masks are displaced, if they fit clearly better there."""
    if min(r.shape) <= 2 * _MAX_SHIFT_PX:  # such a displacement would have no meaning
        return None
    product = _correlations(r, t, usable)
    near = range(-_MAX_SHIFT_PX, _MAX_SHIFT_PX + 1)
    best, dy, dx = max((float(product[dy, dx]), dy, dx) for dy in near for dx in near)
    if (dy, dx) == (0, 0) or best < max(fit + _SHIFT_MARGIN, MATCH):
        return None
    text = (
        f"the masks fit y {best:.2f} instead of {fit:.2f} moved by ({dx:+d}, {dy:+d}) px in "
        "(x, y): "
    )
    text += f"pass np.roll(masks, ({dy}, {dx}), (1, 2))"

    def moved(masks: Array) -> Array:
        return np.roll(masks, (dy, dx), (1, 2))

    return Defect("mask_shift", text, corrected=True, shift_px=(dx, dy), repair=moved)


def _correlations(a: F64, b: F64, where: Flags) -> F64:
    """Return the correlation of a with b, (H, W), displaced cyclically by each number of pixels."""
    a, b = np.where(where, a - a[where].mean(), 0), np.where(where, b - b[where].mean(), 0)
    product = np.fft.irfft2(np.fft.rfft2(a) * np.conj(np.fft.rfft2(b)), a.shape)
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return np.asarray(product / max(scale, 1e-300))


def distinction(y: Array, light: Array, bayer: BayerPhase | None = None) -> float:
    """Return by how many standard deviations of chance y, (H, W), fits the light of all masks.

    They may be displaced by a few pixels. Masks that are displaced further show what chance does.
    """
    even = (slice(len(y) // 2 * 2), slice(y.shape[1] // 2 * 2))
    y, light = np.asarray(y[even], np.float64), np.asarray(light[even], np.float64)
    valid = np.isfinite(y)
    r, _, usable = _modulation(np.where(valid, y, 0.0), valid, bayer)
    t, _, lit = _modulation(light, valid, bayer)
    return _distinction(r, t, usable & lit)


def _distinction(r: F64, t: F64, usable: Flags) -> float:
    # All masks fade alike towards the border, as by a blur that meets nothing there.
    inside = slice(_BORDER, -_BORDER), slice(_BORDER, -_BORDER)
    usable = usable[inside]
    if usable.sum() < _LEAST_PIXELS:
        return math.inf
    product = _correlations(r[inside], t[inside], usable)
    reach = np.arange(-_MAX_SHIFT_PX, _MAX_SHIFT_PX + 1)
    near = np.ix_(reach, reach)
    best = float(product[near].max())
    product[near] = np.nan
    return best / max(float(np.nanstd(product)), 1e-300)


def _response(
    y: F64, r: F64, t: F64, level: F64, usable: Flags, *, bayer: BayerPhase | None
) -> list[Defect]:
    """Return the defects that the slope of r over t shows: a camera's gamma, a black level, masks
    of less contrast.

    Gamma g bends r ≈ g t + g(g − 1)/2 t². A black level β divides the slope by 1 + β/ȳ: most where
    the scene is dark. Weighted by ȳ, the scene's texture, which does not know of the masks, has no
    part in the mean slope.
    """
    r, t, level = r[usable], t[usable], level[usable]
    slope, error = _slope(r * level, t * level, t)
    if _SLOPE[0] <= slope + _SURE * error and slope - _SURE * error <= _SLOPE[1]:
        return []
    _, first, second = np.linalg.lstsq(np.stack([np.ones_like(t), t, t * t], 1), r, rcond=None)[0]
    if (second / first < _GAMMA_CURVATURE) if slope < 1 else (second / first > -_GAMMA_CURVATURE):
        exponent = 1.0
        for _ in range(4):
            r, level, _ = _modulation((y.clip(0) / y.max()) ** exponent, usable, bayer)
            exponent /= max(0.1, _slope((r * level)[usable], t * level[usable], t)[0])
        if not _GAMMAS[0] < exponent < _GAMMAS[1]:
            return [Defect("mask_contrast", _CONTRAST.format(slope))]
        text = (
            f"y is not proportional to the light but has a gamma of about {1 / exponent:.2f}: "
            f"pass y ** {exponent:.2f}, or switch the camera's gamma off"
        )
        return [Defect("gamma", text)]
    # r ȳ = t (ȳ − β): steeper where the scene is bright, by an amount that masks of less contrast
    # do not have.
    black = (1 - slope) * float((t * t * level).sum() / (t * t).sum())
    bright = level >= np.median(level)
    steeper, expected = (
        _slope(r[bright] * level[bright], t[bright] * level[bright], t[bright])[0]
        - _slope(r[~bright] * level[~bright], t[~bright] * level[~bright], t[~bright])[0],
        black * (1 / level[~bright].mean() - 1 / level[bright].mean()),
    )
    if steeper / expected > 0.5:
        remedy = f"has a black level of about {black:.4g}: pass y - {black:.4g}"
        if black < 0:
            remedy = f"lacks about {-black:.4g}, subtracted as black level: pass y + {-black:.4g}"
        return [Defect("black_level", f"y {remedy}")]
    return [Defect("mask_contrast", _CONTRAST.format(slope))]


def _slope(z: F64, x: F64, t: F64) -> tuple[float, float]:
    """Return the slope of z over x, by their means weighted by t, and its standard error."""
    power = max(float((t * x).sum()), 1e-300)
    slope = float((t * z).sum()) / power
    rest = t * (z - slope * x)
    return slope, float(np.linalg.norm(rest) * _alike(rest)) / power


def _alike(values: F64) -> F64:
    """Return by how much larger the error of a sum is than that of independent values.

    Errors of neighbours in a row, and in a column, are alike behind blurred masks.
    """
    shared = (values[..., 1:] * values[..., :-1]).sum(-1)
    likeness = np.clip(shared / np.maximum(np.square(values).sum(-1), 1e-300), 0.0, 0.9)
    return np.asarray((1 + likeness) / (1 - likeness))


def _saturation(y: F64, light: F64) -> list[Defect]:
    """Return whether many pixels have one largest value, though their light differs; a flat scene
    is no saturation.
    """
    top = y >= y.max()
    share = float(np.mean(top))
    if share < _SATURATED or y.min() == y.max() or np.ptp(light[top]) < 0.1 * light[top].max():
        return []
    text = (
        f"{share:.1%} of y has its largest value, {y.max():.6g}: saturated pixels say less; "
        "shorten the exposure"
    )
    return [Defect("saturation", text)]


_DCT = np.sqrt(np.where(np.arange(8) == 0, 1, 2) / 8)[:, None] * np.cos(
    np.pi * np.outer(np.arange(8), 2 * np.arange(8) + 1) / 16
)
_BANDS = [
    np.isin(np.add.outer(np.arange(8), np.arange(8)), range(low, high))
    for low, high in ((2, 4), (4, 7), (7, 11), (11, 15))
]


def _blocks(y: F64, light: F64) -> list[Defect]:
    """Return whether y was compressed as JPEG: many coefficients of its 8×8 blocks are near zero,
    of others few, and the masks are no cause of it.
    """
    if min(y.shape) < 32 or _blockiness(y) - max(_blockiness(light), 0.0) < _JPEG:
        return []
    return [
        Defect(
            "jpeg", "y was compressed as JPEG, which removes the code of the masks: use raw frames"
        )
    ]


def _blockiness(image: F64) -> float:
    """Return how many more coefficients of 8×8 blocks are near zero than in displaced blocks."""
    aligned, *displaced = (_smallness(image[start:, start:]) for start in (0, 2, 4, 6))
    return float((np.mean(displaced, 0) - aligned).max())


def _smallness(y: F64) -> F64:
    """Return the median over the mean of the coefficients' sizes in 8×8 blocks,
    by frequency band.
    """
    h, w = (size // 8 * 8 for size in y.shape)
    blocks = y[:h, :w].reshape(h // 8, 8, w // 8, 8).transpose(0, 2, 1, 3)
    sizes = np.abs(_DCT @ blocks @ _DCT.T)
    bands = [sizes[..., band] for band in _BANDS]
    return np.array([np.median(band) / max(float(band.mean()), 1e-300) for band in bands])
