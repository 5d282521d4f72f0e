"""A set of sequence numbers that stays small however long a series runs."""

from __future__ import annotations


class SeqSet:
    """Set of non-negative integers that arrive nearly in order.

    All numbers below a low-water mark are in; only the few beyond it are stored, so that days of snapshots cost no
    memory as long as no number stays missing.
    """

    def __init__(self) -> None:
        self._below = 0
        self._beyond: set[int] = set()

    def add(self, seq: int) -> bool:
        """Add ``seq``; return False if it was in already."""
        if seq in self:
            return False
        self._beyond.add(seq)
        while self._below in self._beyond:
            self._beyond.remove(self._below)
            self._below += 1
        return True

    def __contains__(self, seq: int) -> bool:
        return seq < self._below or seq in self._beyond

    def __len__(self) -> int:
        return self._below + len(self._beyond)

    def missing(self, end: int, most: int = 20) -> list[int]:
        """Return the first ``most`` numbers in [0, end) that are not in."""
        gaps: list[int] = []
        for seq in range(self._below, end):
            if seq not in self._beyond:
                gaps.append(seq)
                if len(gaps) == most:
                    break
        return gaps
