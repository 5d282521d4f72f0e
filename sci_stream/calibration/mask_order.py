"""In which order the masks were shown, found from how reconstructed snapshots follow one another.

Within one snapshot the order cannot be seen: y = Σ_b φ_b x_b is the same for any order of the pairs, and a reversed
one reconstructs as well as the right one, as a video that runs backwards. But a scene goes from one snapshot to the
next. In the right order the last frame of one is followed, after one step of time, by the first of the next; in reverse
they lie 2B − 1 steps apart. If the exposure began with another mask than it should, the break is elsewhere.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from sci_stream.model import Array

UNKNOWN, FORWARD, REVERSED, ROTATED = "unknown", "forward", "reversed", "rotated"

_CELL_PX = 8
_PAIRS_KEPT, _PAIRS_NEEDED = 8, 4
_AGREED = 0.75
"""Part of the pairs that must be for an order."""
_SHORTER = 0.97
"""The path of an order must be this much shorter than that of its rival: forward's is reversed, all others' forward."""
_MOTION = 0.003
"""Root mean square of the brightness that must move between frames far apart, of the mean brightness."""


def thumbnails(video: Array) -> npt.NDArray[np.float32]:
    """Return (B, h, w) means over cells of 8×8 pixels, which even out a mosaic and the noise of reconstruction."""
    B, H, W = video.shape
    height, width = H // _CELL_PX * _CELL_PX, W // _CELL_PX * _CELL_PX
    if not height or not width:
        return np.asarray(np.mean(video, (1, 2), np.float32, keepdims=True), np.float32)
    cells = np.asarray(video[:, :height, :width], np.float32).reshape(B, H // _CELL_PX, _CELL_PX, W // _CELL_PX, -1)
    return np.asarray(cells.mean((2, 4)), np.float32)


class OrderWatch:
    """Gathers evidence from the latest pairs of consecutive snapshots.

    Every order that begins with mask k and runs forward or backward is a path through the 2B frames of a pair; the
    true one is the shortest, in squared distance.

    Parameters
    ----------
    n_frames
        B.
    """

    def __init__(self, n_frames: int) -> None:
        steps = np.arange(n_frames)
        self._orders = np.stack([(start + sign * steps) % n_frames for sign in (1, -1) for start in range(n_frames)])
        self._lengths: deque[npt.NDArray[np.float64]] = deque(maxlen=_PAIRS_KEPT)

    def see(self, before: npt.NDArray[np.float32], after: npt.NDArray[np.float32]) -> None:
        """Take a pair of consecutive snapshots, as `thumbnails`, unless nothing moves in it."""
        inside = _distances(before, before) + _distances(after, after)
        across = _distances(before, after)
        brightness = float(np.mean(before)) ** 2 + 1e-12
        if across.max() < _MOTION**2 * brightness or not np.isfinite(across).all():
            return
        lengths = np.array(
            [inside[order[:-1], order[1:]].sum() / 2 + across[order[-1], order[0]] for order in self._orders]
        )
        self._lengths.append(lengths / (lengths.mean() + 1e-12))

    @property
    def order(self) -> tuple[str, int]:
        """The order that the evidence is for, and with which mask it begins: ``("unknown", 0)`` while there is little.

        ``"forward"`` begins with 0; ``"rotated"`` runs forward from another one; ``"reversed"`` runs backward, from
        the last one if only the direction is wrong.
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


def _distances(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return mean squared differences between all frames of two videos, (B, B)."""
    difference = a[:, None].astype(np.float64) - b[None]
    return np.asarray(np.square(difference).mean((2, 3)))
