"""Masks by class, with the errors that a calibration of them has.

Independent ones, of a micromirror device or of a published data set; and one pattern on a stage
that moves by less than the size of its features, so that neighbours are correlated: drawn, or a
part of masks that were measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from sci_stream_drivers.simulated.masks import moving_patterns
from sci_stream_lab.training.video.scenes import Video, disturb_masks, draw_masks, turned

# Shares of binary masks that are half open, as published ones, of `draw_masks` and of drawn moving
# ones; the rest are measured ones where there are any.
_PUBLISHED, _INDEPENDENT, _MOVING = 0.25, 0.27, 0.28
# Samples with errors as are left after self-calibration, in units of those before it; and with
# errors of that size.
_SMALL_SHARE, _SMALL, _LARGE_SHARE = 0.35, 0.35, 0.14
# Of moving masks with large errors, those whose exposure is displaced against their positions; and,
# of all with large errors, those with another share of the light at an end, as where a stage turns
# (measured: up to 2.2).
_DISPLACED_SHARE, _DWELL_SHARE, _DWELL = 0.4, 0.4, (0.5, 2.2)
# Samples of any masks whose frames have other light than the solver assumes.
_LIGHT_SHARE = 0.25
# Limits of the spread of that light, as an estimate of it leaves.
_LIGHT = (0.01, 0.05)


@dataclass(frozen=True, slots=True, eq=False)
class MaskPair:
    """Masks that the solver knows, and those that code the scene, (B, H, W)."""

    known: Video
    true: Video


def draw_pair(
    rng: np.random.Generator, n_frames: int, size: int, measured: Sequence[Video]
) -> MaskPair:
    """Draw masks of a class, with errors or without.

    Parameters
    ----------
    measured
        Stacks of measured masks to cut from.
    """
    pair = _with_errors(rng, n_frames, _class(rng, n_frames, size, measured))
    if rng.random() >= _LIGHT_SHARE:
        return pair
    spread = math.exp(rng.uniform(*np.log(_LIGHT)))
    light = 1 + spread * rng.standard_normal((n_frames, 1, 1), np.float32)
    return MaskPair(pair.known, pair.true * light / light.mean())


def _with_errors(
    rng: np.random.Generator, n_frames: int, masks: Callable[[float], Video]
) -> MaskPair:
    known, chance = masks(0.0), rng.random()
    if chance < _SMALL_SHARE:
        return MaskPair(known, disturb_masks(rng, known, _SMALL))
    if chance >= _SMALL_SHARE + _LARGE_SHARE:
        return MaskPair(known, known)
    true = masks(rng.uniform(-0.7, 0.7)) if rng.random() < _DISPLACED_SHARE else known
    if true is known:
        true = disturb_masks(rng, known)
    if rng.random() < _DWELL_SHARE:
        gains = np.ones((n_frames, 1, 1), np.float32)
        gains[[[0], [-1], [0, -1]][rng.integers(3)]] = rng.uniform(*_DWELL)
        true = true * gains
    return MaskPair(known, true)


def _class(
    rng: np.random.Generator, n_frames: int, size: int, measured: Sequence[Video]
) -> Callable[[float], Video]:
    """Draw masks as a function of how many frames the exposure comes too late, which only moving
    ones depend on.
    """
    usable = [
        stack for stack in measured if len(stack) >= n_frames and min(stack.shape[1:]) >= size
    ]
    chance = rng.random()
    if chance < _PUBLISHED:
        masks = (rng.random((n_frames, size, size)) < 0.5).astype(np.float32)
    elif chance < _PUBLISHED + _INDEPENDENT:
        masks = draw_masks(rng, n_frames, size)
    elif chance < _PUBLISHED + _INDEPENDENT + _MOVING or not usable:
        return moving_masks(rng, n_frames, size)
    else:
        masks = _part(rng, usable[rng.integers(len(usable))], n_frames, size)
    return lambda _late: masks


def _part(rng: np.random.Generator, stack: Video, n_frames: int, size: int) -> Video:
    """Cut a part out of a stack of masks, mirrored, turned and reversed at random; the most open
    pixel is 1.
    """
    limits = zip(stack.shape, (n_frames, size, size), strict=True)
    part = stack[tuple(slice(at := int(rng.integers(n - m + 1)), at + m) for n, m in limits)]
    part = turned(int(rng.integers(8)), part[:: rng.choice((-1, 1))])
    return np.ascontiguousarray(part / max(float(part.max()), 1e-3), dtype=np.float32)


def moving_masks(rng: np.random.Generator, n_frames: int, size: int) -> Callable[[float], Video]:
    """Draw a random pattern that moves, as a function of how many frames the exposure comes too
    late.

    The ranges contain the measured masks of a capture: correlation of neighbours 0.64, contrast
    0.63.
    """
    shape, drawn = (
        (size, size),
        {"feature_px": rng.uniform(1.5, 3.2), "step_px": rng.uniform(0.6, 1.6)},
    )
    blur_px, darkest, kind, seed = (
        rng.uniform(0.35, 1.0),
        rng.uniform(0.0, 0.25),
        int(rng.integers(8)),
        rng.integers(2**31),
    )
    density = rng.uniform(0.4, 0.6)

    def masks(late: float) -> Video:
        patterns = moving_patterns(
            n_frames, shape, np.random.default_rng(seed), density=density, late=late, **drawn
        )
        stack = np.stack([cv2.GaussianBlur(pattern, (0, 0), blur_px) for pattern in patterns])
        stack = darkest + (1 - darkest) * (stack - stack.min()) / max(float(np.ptp(stack)), 1e-3)
        return np.ascontiguousarray(turned(kind, stack.astype(np.float32)), dtype=np.float32)

    return masks
