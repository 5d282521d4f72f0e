"""How masks that do not fit y as they are would fit it: turned, inverted or displaced."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.calibration.evidence.mask_match import (
    CHANCE,
    MATCH,
    MAX_SHIFT_PX,
    correlation,
    displaced_correlations,
    distinction_of,
    modulation,
)
from sci_stream.model import F64, Array, BayerPhase, Flags

_WRONG = 0.15
# How much better a displaced mask must fit: neighbours of masks with large features fit nearly as
# well.
_SHIFT_MARGIN = 0.03
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


def orientation_defect(
    r: F64, light: F64, usable: Flags, fit: float, bayer: BayerPhase | None
) -> Defect | None:
    """Return in which other orientation the masks fit, or that they fit in none."""
    best = abs(fit)
    sign = 1.0
    fitting = None
    for name, (remedy, turn) in _ORIENTATIONS.items():
        turned = np.ascontiguousarray(turn(light))
        if turned.shape != light.shape:
            continue
        t, _, lit = modulation(turned, np.ones_like(usable), bayer)
        other = correlation(r, t, usable & lit)
        if abs(other) > max(best, MATCH):
            best = abs(other)
            sign = np.sign(other)
            fitting = name, remedy, turn
    if fitting is None:
        t, _, lit = modulation(light, np.ones_like(usable), bayer)
        if abs(fit) > _WRONG and distinction_of(r, t, usable & lit) > CHANCE:
            return None
        text = (
            f"the masks explain nothing of y (correlation {fit:.2f}): pass those that y was "
            "taken with"
        )
        return Defect("mask_match", text, fatal=abs(fit) < _WRONG)
    name, remedy, repair = fitting
    if sign < 0:
        name = f"{name} and inverted"
        remedy = f"1 - {remedy}"

    def repaired(masks: Array) -> Array:
        turned = np.stack([repair(mask) for mask in masks])
        return inverted(turned) if sign < 0 else turned

    text = f"the masks {fit_words(name, best, fit)}: pass {remedy}"
    return Defect("mask_orientation", text, fatal=True, repair=repaired)


def fit_words(turned: str, fit: float, as_given: float) -> str:
    """Return in which orientation masks fit y, with both correlations."""
    return f"fit y {turned} (correlation {fit:.2f}, as they are {as_given:.2f})"


def shift_defect(r: F64, t: F64, usable: Flags, fit: float) -> Defect | None:
    """Return by how many whole pixels the masks are displaced, if they fit clearly better there."""
    if min(r.shape) <= 2 * MAX_SHIFT_PX:  # such a displacement would have no meaning
        return None
    product = displaced_correlations(r, t, usable)
    near = range(-MAX_SHIFT_PX, MAX_SHIFT_PX + 1)
    best, dy, dx = max((float(product[dy, dx]), dy, dx) for dy in near for dx in near)
    if (dy, dx) == (0, 0) or best < max(fit + _SHIFT_MARGIN, MATCH):
        return None
    text = (
        f"the masks fit y {best:.2f} instead of {fit:.2f} moved by ({dx:+d}, {dy:+d}) px in "
        f"(x, y): pass np.roll(masks, ({dy}, {dx}), (1, 2))"
    )

    def moved(masks: Array) -> Array:
        return np.roll(masks, (dy, dx), (1, 2))

    return Defect("mask_shift", text, corrected=True, shift_px=(dx, dy), repair=moved)


def inverted(masks: Array) -> Array:
    """Return masks that are open where these are closed."""
    return 1 - masks
