"""Restore the order of results with bounded waiting."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class ReorderBuffer(Generic[T]):
    """Release items in order of seq; stop waiting for a missing one after a time or a number of
    held items.

    At most ``window`` items are held back, each for at most ``patience_s``; one more releases up to
    the oldest.
    """

    def __init__(self, window: int, patience_s: float) -> None:
        if window < 1:
            raise ValueError("window must be at least 1")
        self._window = window
        self._patience_s = patience_s
        self._next = 0
        self._held: dict[int, tuple[float, T]] = {}
        self._skip = set[int]()

    def push(self, seq: int, item: T, now_s: float) -> list[T]:
        """Add an item; return those to release now, in order.

        An item behind the released ones is left out.
        """
        if seq < self._next:
            return []
        self._held[seq] = (now_s, item)
        return self.expire(now_s)

    def skip(self, seq: int, now_s: float) -> list[T]:
        """Stop waiting for ``seq``, which was dropped; return the items to release now."""
        if seq >= self._next:
            self._skip.add(seq)
        return self.expire(now_s)

    def flush(self) -> list[T]:
        """Return all held items in order, at the end of a series."""
        out = [item for _, (_, item) in sorted(self._held.items(), key=lambda entry: entry[0])]
        if self._held:
            self._next = max(self._held) + 1
        self._held.clear()
        return out

    def expire(self, now_s: float) -> list[T]:
        """Return the items to release now: those in order, and those held for longer than the
        patience.
        """
        out: list[T] = []
        while True:
            if self._next in self._held:
                out.append(self._held.pop(self._next)[1])
            elif self._next in self._skip:
                self._skip.remove(self._next)
            # Give up on the missing ones at once, not one by one: a lost node leaves a whole block
            # missing.
            elif self._held and self._must_jump(now_s):
                self._next = min(self._held)
                self._skip = {seq for seq in self._skip if seq >= self._next}
                continue
            else:
                return out
            self._next += 1

    def _must_jump(self, now_s: float) -> bool:
        oldest = min(since for since, _ in self._held.values())
        return len(self._held) > self._window or now_s - oldest >= self._patience_s
