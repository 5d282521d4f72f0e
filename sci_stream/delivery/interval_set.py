"""A set of sequence numbers whose size does not grow with the length of a series."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class IntervalSet:
    """Set of non-negative integers that arrive nearly in order.

    Stored as runs of consecutive numbers: memory grows with the number of gaps, not of snapshots.
    ``runs`` are the first members, as [start, stop), ascending and apart; ValueError otherwise.
    """

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in runs:
            if start < (self._stops[-1] + 1 if self._stops else 0) or stop <= start:
                raise ValueError(f"runs must be ascending and apart, got [{start}, {stop})")
            self._starts.append(start)
            self._stops.append(stop)
        self._count = sum(self._stops) - sum(self._starts)

    def add(self, seq: int) -> bool:
        """Add ``seq``; return False if it is a member already."""
        run = bisect_right(self._starts, seq)
        if run and seq < self._stops[run - 1]:
            return False
        self._count += 1
        # Runs that touch are merged, so that memory grows with gaps and not with numbers.
        joins_before = run > 0 and self._stops[run - 1] == seq
        joins_after = run < len(self._starts) and self._starts[run] == seq + 1
        if joins_before and joins_after:
            self._stops[run - 1] = self._stops.pop(run)
            del self._starts[run]
        elif joins_before:
            self._stops[run - 1] = seq + 1
        elif joins_after:
            self._starts[run] = seq
        else:
            self._starts.insert(run, seq)
            self._stops.insert(run, seq + 1)
        return True

    def update(self, seqs: Iterable[int]) -> None:
        """Add some numbers."""
        for seq in seqs:
            self.add(seq)

    def __contains__(self, seq: int) -> bool:
        run = bisect_right(self._starts, seq)
        return run > 0 and seq < self._stops[run - 1]

    def __len__(self) -> int:
        return self._count

    def first_missing(self, start: int = 0) -> int:
        """Return the first number from ``start`` up that is not a member."""
        run = bisect_right(self._starts, start)
        return max(start, self._stops[run - 1]) if run else start

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Runs of consecutive numbers, as [start, stop), ascending,
        as the constructor takes them.
        """
        return list(zip(self._starts, self._stops, strict=True))

    def missing(self, end: int, limit: int = 20) -> list[int]:
        """Return the first ``limit`` numbers in [0, end) that are not members."""
        gaps: list[int] = []
        begin = 0
        for start, stop in [*zip(self._starts, self._stops, strict=True), (end, end)]:
            gaps.extend(range(begin, min(start, end, begin + limit - len(gaps))))
            if len(gaps) >= limit:
                break
            begin = stop
        return gaps
