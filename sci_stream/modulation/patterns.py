"""Masks by design: binary patterns with an open share, random, balanced or shifting; and when
sparser ones pay.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from sci_stream.model import U8

Kind = Literal["random", "balanced", "shifting", "one-hot"]

ONE_HOT_HINT = (
    "one-hot masks (sci-stream masks make --kind one-hot) have B/2 times the head room of "
    "half-open ones, for about 1 dB of PSNR"
)
"""What to try where even sparse masks clip. Crash behind eight masks, TV: 25.55 dB one-hot, 26.63
half open."""

# PSNR, dB, on the published Crash, 12 iterations, by the share of pixels that masks half open clip
# (rows) and the open share of masks in the same light (columns). `sci-stream masks advise` measures
# it for a rig.
_CLIPPED = (0.0, 0.15, 0.30)
_SHARES = (0.5, 0.35, 0.25)
_PSNR_DB = ((27.72, 27.61, 27.50), (25.01, 27.55, 27.47), (18.80, 24.11, 27.44))
# Sparser masks for less are not worth a new calibration.
_WORTH_DB = 0.5
_HALF_OPEN = 0.4


def make_masks(
    kind: Kind,
    n: int,
    shape: tuple[int, int],
    *,
    open_share: float = 0.5,
    block: int = 1,
    seed: int = 0,
) -> U8:
    """Return binary masks, (B, H, W) uint8 of 0 and 255; equal seeds give equal masks.

    ``random``: each element by itself; ``balanced``: each open in equally many masks, so that no
    pixel is blind, but the sum, which shows a monitor where the masks are, is even; ``one-hot``:
    each open in one mask alone, whatever ``open_share``; ``shifting``: one pattern, moved down by
    an element per mask. ``shape`` is in mirrors, as ``block``, the side
    of an element; ``open_share`` is 0–1.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    height, width = (-(-size // block) for size in shape)
    if kind == "shifting":
        pattern = rng.random((height + n - 1, width)) < open_share
        masks = np.stack([pattern[n - 1 - b : n - 1 - b + height] for b in range(n)])
    elif kind in ("balanced", "one-hot"):
        open_masks = 1 if kind == "one-hot" else max(1, round(open_share * n))
        masks = rng.random((n, height, width)).argsort(axis=0) < open_masks
    else:
        masks = rng.random((n, height, width)) < open_share
    large = masks.repeat(block, axis=1).repeat(block, axis=2)[:, : shape[0], : shape[1]]
    return np.where(large, np.uint8(255), np.uint8(0))


def sparser_masks_hint(clipped_share: float, open_share: float) -> str:
    """Return a sentence if sparser masks would pay for the clipped share of the pixels; ``""`` if
    not.

    It interpolates measured figures, which are of masks that are half open: of others no gain is
    stated.
    """
    if open_share < _HALF_OPEN or clipped_share <= 0.0:
        return ""
    columns = [
        float(np.interp(clipped_share, _CLIPPED, [row[i] for row in _PSNR_DB]))
        for i in range(len(_SHARES))
    ]
    best = int(np.argmax(columns))
    gain_db = columns[best] - columns[0]
    if gain_db < _WORTH_DB:
        return ""
    more = "at least " if clipped_share > _CLIPPED[-1] else "about "
    hint = (
        f"{clipped_share:.0%} of the pixels are saturated: masks {_SHARES[best]:.0%} open instead "
        f"of {open_share:.0%} "
        f"are worth {more}{gain_db:.1f} dB in this light"
    )
    return f"{hint}; {ONE_HOT_HINT}" if clipped_share > _CLIPPED[-1] else hint
