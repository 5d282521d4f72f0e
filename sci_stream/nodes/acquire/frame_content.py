"""Detection of frames that were delivered twice, or in part, from their counts."""

from __future__ import annotations

import numpy as np

from sci_stream.model import Array, Flags

# Noise makes two frames differ in nearly every pixel: as many rows and columns find a repeated
# frame as surely as all.
_SAMPLES = 64
# A scene may have one flat row.
_MIN_ROWS = 2
# A region that is missing begins at once, with rows of this share of the usual light above it;
# darkness of a scene comes gradually.
_SHARP = 0.25
# Rows that are lost on the way are those of a frame before in the same buffer.
_BUFFERS = 8
# Frames without noise, of a film for example, may be alike: as many of those before must differ in
# all rows.
_NOISY = 1 / 3
# Rows are compared by their products with odd numbers, modulo 2⁶⁴: eight frames before cost as
# little as one.
_WEIGHTS = np.random.default_rng(0).integers(0, 2**63, 2 * _SAMPLES, np.uint64) * 2 + 1
_WEIGHT_SUMS = np.concatenate([[np.uint64(0)], np.cumsum(_WEIGHTS)])


class FrameContent:
    """Compare the counts of each frame with those of the frame before."""

    def __init__(self) -> None:
        self._before = np.zeros((0, 0), np.uint64)
        self._last = 0
        self._alive = np.zeros(0, np.bool_)
        self._pairs = self._different = 0

    def check(self, counts: Array) -> str:
        """Return the fault of a frame, (H, W), ``""`` for none."""
        steps = [max(1, size // _SAMPLES) for size in counts.shape]
        rows = counts[:: steps[0], :: steps[1]]
        bits = rows.view(f"u{rows.itemsize}").astype(np.uint64)
        columns = bits.shape[1]
        sums = bits @ _WEIGHTS[:columns]
        textured = sums != bits[:, 0] * _WEIGHT_SUMS[columns]
        if not len(self._before):
            self._before = np.zeros((_BUFFERS, len(sums)), np.uint64)
            self._before[0] = sums
            self._alive = textured
            return ""
        alike = sums == self._before
        is_alike = alike.any()
        if is_alike:
            # A row without texture is never alike: neither is one of no frame yet.
            alike &= textured
            is_alike = alike.any()
        last = self._last
        self._last = (last + 1) % _BUFFERS
        self._before[self._last] = sums
        noisy = self._different >= max(1.0, _NOISY * self._pairs)
        self._pairs += 1
        lost = self._lost(rows, textured)
        self._alive |= textured
        if not is_alike:
            self._different += 1
            return "rows_missing" if lost else ""
        self._different += not alike[last].any()
        counts = alike.sum(1)
        all_ = textured.sum()
        if noisy and counts[last] == all_ > 0:
            return "identical"
        in_part = counts < all_  # a camera that plays a loop repeats whole frames
        if noisy and (alike[in_part, 1:] & alike[in_part, :-1]).any():
            return "torn"
        return "rows_missing" if lost else ""

    def _lost(self, rows: Array, textured: Flags) -> bool:
        """Return whether rows that had texture are flat now, and not because of the scene.

        The flat rows are at an end of the frame, darker than its brightest pixel.
        """
        if textured.all():
            return False
        flat = self._alive & ~textured
        if flat.sum() < _MIN_ROWS or not textured.any():
            return False
        edges = np.flatnonzero(np.diff(flat.astype(np.int8)))
        if len(edges) != 1:
            return False
        border = edges[0] if flat[-1] else edges[0] + 1
        floor = float(rows[flat].max())
        light = rows[textured].mean(1, dtype=np.float64) - floor
        return bool(
            floor < rows.max()
            and rows[border].mean(dtype=np.float64) - floor > _SHARP * np.median(light)
        )
