"""CIEDE2000: how different two colours look."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

_TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
_WHITE = _TO_XYZ.sum(axis=1)
_25_TO_7 = 25.0**7


def lab(srgb: npt.ArrayLike) -> F64:
    """Return CIE L*a*b* (white D65) of sRGB colours, (…, 3) with levels 0–255."""
    level = np.asarray(srgb, np.float64) / 255
    light = np.where(level <= 0.04045, level / 12.92, ((level + 0.055) / 1.055) ** 2.4)
    t = light @ _TO_XYZ.T / _WHITE
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    x, y, z = np.moveaxis(f, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def delta_e_2000(one: npt.ArrayLike, other: npt.ArrayLike) -> F64:
    """Return the CIEDE2000 difference of L*a*b* colours, (…, 3) → (…); about 1 is just noticeable
    side by side.

    Reference: Sharma, Wu, Dalal, *The CIEDE2000 color-difference formula*, Color Res. Appl. 30
    (2005); their eqs. 2–22.
    """
    (l1, a1, b1), (l2, a2, b2) = (
        np.moveaxis(np.asarray(colours, np.float64), -1, 0) for colours in (one, other)
    )
    mean_c7 = ((np.hypot(a1, b1) + np.hypot(a2, b2)) / 2) ** 7
    stretch = 1 + 0.5 * (1 - np.sqrt(mean_c7 / (mean_c7 + _25_TO_7)))
    c1, h1 = _polar(a1 * stretch, b1)
    c2, h2 = _polar(a2 * stretch, b2)
    grey = c1 * c2 == 0
    turn = np.where(grey, 0.0, (h2 - h1 + 180) % 360 - 180)
    # Exactly opposite hues turn by +180 in the standard.
    turn = np.where((turn == -180) & (h2 > h1), 180.0, turn)
    d_l, d_c, d_h = l2 - l1, c2 - c1, 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2))
    lightness, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    apart = np.abs(h1 - h2) > 180
    hue = np.where(
        grey, h1 + h2, (h1 + h2 + np.where(apart, np.where(h1 + h2 < 360, 360, -360), 0)) / 2
    )
    s_l = 1 + 0.015 * (lightness - 50) ** 2 / np.sqrt(20 + (lightness - 50) ** 2)
    s_c, s_h = 1 + 0.045 * chroma, 1 + 0.015 * chroma * _hue_weight(hue)
    rotation = -np.sin(np.radians(60 * np.exp(-(((hue - 275) / 25) ** 2)))) * 2
    rotation *= np.sqrt(chroma**7 / (chroma**7 + _25_TO_7))
    by_l, by_c, by_h = d_l / s_l, d_c / s_c, d_h / s_h
    squared = by_l**2 + by_c**2 + by_h**2 + rotation * by_c * by_h
    return np.asarray(np.sqrt(np.maximum(squared, 0)), np.float64)


def _polar(a: F64, b: F64) -> tuple[F64, F64]:
    return np.hypot(a, b), np.degrees(np.arctan2(b, a)) % 360


def _hue_weight(hue: F64) -> F64:
    terms = ((-0.17, 1, -30), (0.24, 2, 0), (0.32, 3, 6), (-0.20, 4, -63))
    return np.asarray(
        1 + sum(w * np.cos(np.radians(k * hue + offset)) for w, k, offset in terms), np.float64
    )
