"""Determine the order of the masks from consecutive reconstructed snapshots.

A single snapshot does not reveal the order: y = Σ_b φ_b x_b is the same for any order of the pairs,
and a reversed order reconstructs equally well, as a video that runs backwards. But the scene is
continuous from one snapshot to the next. In the right order the last frame of one snapshot is
followed, one time step later, by the first of the next; in reverse order they are 2B − 1 steps
apart. If the exposure began with another mask, the discontinuity is elsewhere.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from sci_stream.model import F32, F64, Array

UNKNOWN, FORWARD, REVERSED, ROTATED = "unknown", "forward", "reversed", "rotated"

# Averages 64 pixels: the order is decided by motion, not by noise and mosaic.
_CELL_PX = 8
# Four pairs recognised every order on the simulated scenes (lab/research/shift-tracking.md); older
# pairs are forgotten so that a modulator that is restarted is noticed.
_PAIRS_KEPT, _PAIRS_NEEDED = 8, 4
# Fraction of the pairs that must agree on an order.
_AGREED = 0.75
# The path of an order must be this much shorter than its alternative (reversed for forward, forward
# for all others).
_SHORTER = 0.97
# Least RMS change between distant frames, relative to the mean brightness: below it, noise decides
# the order.
_MOTION = 0.003


def thumbnails(video: Array) -> F32:
    """Return (B, h, w) means over cells of 8×8 pixels, which average out the mosaic and the
    reconstruction noise.
    """
    B, H, W = video.shape
    height, width = H // _CELL_PX * _CELL_PX, W // _CELL_PX * _CELL_PX
    if not height or not width:
        return np.asarray(np.mean(video, (1, 2), np.float32, keepdims=True), np.float32)
    cells = np.asarray(video[:, :height, :width], np.float32).reshape(
        B, H // _CELL_PX, _CELL_PX, W // _CELL_PX, -1
    )
    return np.asarray(cells.mean((2, 4)), np.float32)


class MaskOrderDetector:
    """Determine the mask order from the latest pairs of consecutive snapshots.

    Every order that begins with mask k and runs forward or backward is a path through the 2B frames
    of a pair; the true order is the shortest path, in squared distance.
    """

    def __init__(self, n_frames: int) -> None:
        steps = np.arange(n_frames)
        self._orders = np.stack(
            [(start + sign * steps) % n_frames for sign in (1, -1) for start in range(n_frames)]
        )
        self._lengths = deque[F64](maxlen=_PAIRS_KEPT)

    def add(self, before: F32, after: F32) -> None:
        """Add a pair of consecutive snapshots, as `thumbnails`, unless the scene is static."""
        inside = _distances(before, before) + _distances(after, after)
        across = _distances(before, after)
        brightness = float(np.mean(before)) ** 2 + 1e-12
        if across.max() < _MOTION**2 * brightness or not np.isfinite(across).all():
            return
        lengths = np.array(
            [
                inside[order[:-1], order[1:]].sum() / 2 + across[order[-1], order[0]]
                for order in self._orders
            ]
        )
        self._lengths.append(lengths / (lengths.mean() + 1e-12))

    @property
    def order(self) -> tuple[str, int]:
        """The order and its first mask; ``("unknown", 0)`` as long as there is too little evidence.

        ``"forward"`` begins with 0; ``"rotated"`` runs forward from another mask; ``"reversed"``
        runs backward, from the last mask if only the direction is wrong.
        """
        if len(self._lengths) < _PAIRS_NEEDED:
            return UNKNOWN, 0
        votes = [int(lengths.argmin()) for lengths in self._lengths]
        best = max(set(votes), key=votes.count)
        mean = np.mean(self._lengths, axis=0)
        B = len(self._orders) // 2
        rival = 0 if best else 2 * B - 1
        if votes.count(best) < _AGREED * len(votes) or mean[best] > _SHORTER * mean[rival]:
            return UNKNOWN, 0
        if best == 0:
            return FORWARD, 0
        return (ROTATED if best < B else REVERSED), int(self._orders[best][0])


def _distances(a: F32, b: F32) -> F64:
    """Return mean squared differences between all frames of two videos, (B, B)."""
    difference = a[:, None].astype(np.float64) - b[None]
    return np.asarray(np.square(difference).mean((2, 3)))
