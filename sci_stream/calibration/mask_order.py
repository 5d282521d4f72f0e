"""Determine the order of the masks from consecutive reconstructed snapshots.

A single snapshot does not reveal the order: y = Σ_b φ_b x_b is the same for any order of the pairs,
and a reversed order reconstructs equally well, as a video that runs backwards. But the scene is
continuous from one snapshot to the next. In the right order the last frame of one snapshot is
followed, one time step later, by the first of the next; in reverse order they are 2B − 1 steps
apart. If the exposure began with another mask, the discontinuity is elsewhere.
"""

from __future__ import annotations

from collections import deque
from statistics import median

import numpy as np
import numpy.typing as npt

from sci_stream.calibration.registration.scene_fit import certainty
from sci_stream.model import F32, F64, Array

Places = npt.NDArray[np.intp]

UNKNOWN = "unknown"
FORWARD = "forward"
REVERSED = "reversed"
ROTATED = "rotated"

# Averages 64 pixels: the order is decided by motion, not by noise and mosaic.
_CELL_PX = 8
# Older pairs are forgotten, so that a modulator that is restarted is noticed.
_PAIRS_KEPT = 8
# Four pairs recognised every order on the simulated scenes (lab/research/shift-tracking.md).
_PAIRS_NEEDED = 4
# Fraction of the pairs that must agree on an order.
_AGREED = 0.75
# The path of an order is shorter than its alternative (reversed for forward, forward for all
# others) by so many standard errors: drops whose frames are mostly noise seemed to be reversed, by
# 1.
_SHORTER = 2.5
# A path is shorter than all others by this factor, or a pair does not show the first mask. It is
# shorter than the mean of all, or pairs show no order: errors in solves of a still scene have 0.98.
_CLEAR = 0.9
# A path that is so many times as long as usual, relative to the next longer one, is suspect: 3 to
# 4 times after a lost pulse, at most 2.2 times without (six scenes, B = 4 and 8).
_DOUBT = 2.5
# A pair of less motion than this share of the usual one is not suspect: where motion dies, noise
# makes its path long. Where a splash came to rest, 0.02 and 0.03 of the motion were left.
_LEAST_MOTION = 0.1
# A lost snapshot makes one suspect path; so many in a row make the order uncertain.
_UNUSUAL = 2
# After them, so many solves start cold to decide.
_COLD_STARTS = 5
# Least RMS change between distant frames, relative to the mean brightness: below it, noise decides
# the order.
_MOTION = 0.003


def thumbnails(video: Array) -> F32:
    """Return (B, h, w) means over cells of 8×8 pixels, which average out the mosaic and the
    reconstruction noise.
    """
    B, H, W = video.shape
    height = H // _CELL_PX * _CELL_PX
    width = W // _CELL_PX * _CELL_PX
    if not height or not width:
        return np.asarray(np.mean(video, (1, 2), np.float32, keepdims=True), np.float32)
    rows = video[:, :height, :width].reshape(B, -1, _CELL_PX, width).mean(2, np.float32)
    return np.asarray(rows.reshape(B, len(rows[0]), -1, _CELL_PX).mean(3), np.float32)


def cyclic_orders(n_frames: int) -> Places:
    """Return the orders that run forward, (B, B): the k-th begins with mask k."""
    steps = np.arange(n_frames)
    return np.asarray((steps[:, np.newaxis] + steps) % n_frames)


def path_lengths(
    before: F32 | None, after: F32, orders: Places
) -> tuple[F64, float] | tuple[None, float]:
    """Return the length of the path through the frames of consecutive snapshots, as `thumbnails`,
    for each order, relative to their mean, None for a scene that is static; and the motion: the
    largest mean square difference of two frames, relative to the brightness.

    Without ``before``, the path through one snapshot, which is less certain.
    """
    inside = _distances(after, after)
    steps = inside[orders[:, :-1], orders[:, 1:]].sum(1)
    furthest = inside
    if before is not None:
        earlier = _distances(before, before)
        furthest = _distances(before, after)
        steps = (steps + earlier[orders[:, :-1], orders[:, 1:]].sum(1)) / 2
        steps = steps + furthest[orders[:, -1], orders[:, 0]]
    motion = float(furthest.max()) / (float(np.mean(after)) ** 2 + 1e-12)
    if motion < _MOTION**2 or not np.isfinite(furthest).all():
        return None, motion
    return np.asarray(steps / (steps.mean() + 1e-12)), motion


class MaskOrderDetector:
    """Determine the mask order from the latest pairs of consecutive snapshots.

    Every order that begins with mask k and runs forward or backward is a path through the 2B frames
    of a pair; the true order is the shortest path, in squared distance. A solve that starts from
    the video before it keeps that video's order, right or wrong. A path that is suddenly longer
    than usual is a reason to start the next solves cold, and to forget the earlier pairs; not if
    the first of the pair began cold, which the second continues, and they show the right order.
    """

    def __init__(self, n_frames: int) -> None:
        forward = cyclic_orders(n_frames)
        self._orders = np.concatenate([forward, np.roll(forward[:, ::-1], -1, 0)])
        self._n_frames = n_frames
        self.latest: F32 | None = None
        """The last video, as `thumbnails`."""
        self._lengths = deque[F64](maxlen=_PAIRS_KEPT)
        self._usual = deque[float](maxlen=_PAIRS_KEPT)
        self._motions = deque[float](maxlen=_PAIRS_KEPT)
        self._before_doubt = float("inf")
        """The usual path, relative to the next longer one, before the order became uncertain."""
        self._cold_starts = self._unusual = 0
        self._was_warm = True
        self.first_mask: int | None = None
        """First mask of the last exposure, by the last pair alone; None if that does not show
        it."""

    def forget(self) -> None:
        """Forget earlier snapshots: the modulator was changed."""
        self.latest = None
        self._lengths.clear()
        self._usual.clear()
        self._motions.clear()

    @property
    def in_doubt(self) -> bool:
        """Whether the next solve has to start cold to show the order."""
        return self._cold_starts > 0

    def see(self, video: Array, *, continues: bool, is_warm: bool = True) -> None:
        """Add the video of a snapshot, (B, H, W), which directly ``continues`` the one before or
        not, and whose solve had a warm start or not.
        """
        before = self.latest
        self.latest = thumbnails(video)
        self.add(before if continues else None, self.latest, is_warm=is_warm)

    def add(self, before: F32 | None, after: F32, *, is_warm: bool = True) -> None:
        """Add a pair of consecutive snapshots, or one alone, as `thumbnails`, unless the scene is
        static.
        """
        shows_order = not self._was_warm
        is_deciding = self._cold_starts > 0
        self._was_warm = is_warm
        self.first_mask = None
        lengths, motion = path_lengths(before, after, self._orders)
        if lengths is None or self._n_frames < 2:
            return
        forward = lengths[: self._n_frames]
        best, second = np.partition(forward, 1)[:2]
        length = float(best / second)
        self.first_mask = int(forward.argmin()) if length < _CLEAR else None
        self._cold_starts = max(0, self._cold_starts - 1)
        if before is None:
            return
        if self.first_mask == 0 and self._cold_starts < _COLD_STARTS - 1:
            self._cold_starts = 0  # both solves of the pair began cold, and the order is right
        is_right = shows_order and self.first_mask == 0
        moves = not self._motions or motion > _LEAST_MOTION * median(self._motions)
        self._motions.append(motion)
        known = len(self._usual) >= _PAIRS_NEEDED and moves and not is_right
        usual = median(self._usual) if known else float("inf")
        if not self._cold_starts and length > _DOUBT * usual:
            self.first_mask = None if self.first_mask == 0 else self.first_mask
            self._unusual += 1
            if self._unusual < _UNUSUAL:
                return
            self._cold_starts = _COLD_STARTS
            self._before_doubt = usual
            self._usual.clear()
            self._lengths.clear()
            return
        self._unusual = 0
        # A warm start keeps the order, right or wrong.
        if is_deciding and (is_warm or not shows_order):
            return
        joins_badly = length > _DOUBT * self._before_doubt
        if is_warm and joins_badly and self.order[0] in (ROTATED, REVERSED):
            return
        self._lengths.append(lengths)
        self._usual.append(length)

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
        lengths = np.array(self._lengths)
        B = len(self._orders) // 2
        rival = 0 if best else 2 * B - 1
        if votes.count(best) < _AGREED * len(votes) or lengths[:, best].mean() > _CLEAR:
            return UNKNOWN, 0
        if certainty(lengths[:, rival] - lengths[:, best]) < _SHORTER:
            return UNKNOWN, 0
        if best == 0:
            return FORWARD, 0
        return (ROTATED if best < B else REVERSED), int(self._orders[best][0])


def _distances(a: F32, b: F32) -> F64:
    """Return mean squared differences between all frames of two videos, (B, B)."""
    difference = a[:, None].astype(np.float64) - b[None]
    return np.asarray(np.square(difference).mean((2, 3)))
