"""How many snapshots each reconstruct node gets, and when it has kept one for too long."""

from __future__ import annotations

import math
from dataclasses import dataclass

# A node that has returned nothing yet gets one snapshot; one that keeps it while others are done
# gets none for a while, longer each time. Patience is this many times the slowest result so far,
# and at least so long.
_PATIENCE = 20.0
_LEAST_PATIENCE_S = 20.0
_BARRED_FIRST_S = 30.0
_BARRED_MAX_S = 3600.0
# Barred nodes that are remembered: names from outside cost no more memory.
_MAX_BARRED = 256
# The usual time of a solve is an exponential mean.
_SMOOTHING = 0.2
# Of solves of milliseconds, the pauses of an operating system are many, and no person sees a fifth
# of a second.
_LEAST_WAIT_S = 0.2
# With slow solves, a node gets its next snapshot only when it has done this share of its present
# one.
_SLOW_SOLVE_S = 0.1
_PREFETCH_AT = 0.7


@dataclass
class _Progress:
    """When a node last settled a snapshot or held none, and whether it has returned a result."""

    progress_s: float
    is_proven: bool = False


class Admission:
    """The progress of the nodes, by name, and the credit that follows from it. Time is an argument.

    A node that holds snapshots and settles none for ``solve_timeout_s`` is overdue. When a snapshot
    has waited ``max_wait_s`` for a node, or for 0 as long as a solve takes, it is stale; None:
    never.
    """

    def __init__(self, solve_timeout_s: float = math.inf, max_wait_s: float | None = None) -> None:
        self._solve_timeout_s = solve_timeout_s
        self._max_wait_s = max_wait_s
        self._nodes: dict[str, _Progress] = {}
        self._slowest_s = 0.0
        self._solve_s = 0.0
        self._barred: dict[str, tuple[float, float]] = {}

    def join(self, name: str, now_s: float) -> None:
        """Add a node, or begin its time to solve again."""
        known = self._nodes.get(name)
        self._nodes[name] = _Progress(now_s, known is not None and known.is_proven)

    def leave(self, name: str) -> None:
        """Remove a node; one that was barred stays so."""
        self._nodes.pop(name, None)

    def expect_nothing(self, now_s: float) -> None:
        """Begin the time to solve of all nodes again: the sink accepts no results."""
        for node in self._nodes.values():
            node.progress_s = now_s

    def settle(self, name: str, now_s: float, *, solved: bool) -> None:
        """Note that a node has returned a snapshot, with a video if it is ``solved``."""
        node = self._nodes.get(name)
        if node is None:
            return
        if solved:
            took_s = now_s - node.progress_s
            self._slowest_s = max(self._slowest_s, took_s)
            self._solve_s += (_SMOOTHING if self._solve_s else 1.0) * (took_s - self._solve_s)
            node.is_proven = True
            self._barred.pop(name, None)
        # A failure is progress too: the node works.
        node.progress_s = now_s

    def overdue(self, name: str, now_s: float, *, holds: bool, pause_s: float) -> float | None:
        """Return the seconds that a node had, if it keeps a snapshot for longer: it is then barred.

        ``pause_s`` of this process do not count.
        """
        node = self._nodes[name]
        node.progress_s = min(now_s, node.progress_s + pause_s)
        # A node without snapshots has nothing to return: its time to solve starts with the next.
        if not holds:
            node.progress_s = now_s
        limit_s = self._solve_timeout_s
        if self._slowest_s:
            limit_s = min(limit_s, max(_LEAST_PATIENCE_S, _PATIENCE * self._slowest_s))
        if now_s - node.progress_s <= limit_s:
            return None
        if self._slowest_s:  # others do return results
            self._bar(name, now_s)
        return limit_s

    def _bar(self, name: str, now_s: float) -> None:
        """Give a node no snapshots for a while; one that restarts gets some again."""
        _, before_s = self._barred.get(name, (0.0, _BARRED_FIRST_S / 2))
        pause_s = min(2 * before_s, _BARRED_MAX_S)
        self._barred[name] = now_s + pause_s, pause_s
        while len(self._barred) > _MAX_BARRED:
            del self._barred[next(iter(self._barred))]

    def credit(self, name: str, credit: int, now_s: float) -> int:
        """Return how many snapshots a node may hold that asks for so many."""
        node = self._nodes[name]
        # A snapshot that waits in a node is no longer the newest when its solve begins.
        is_early = now_s - node.progress_s < _PREFETCH_AT * self._solve_s
        if self._max_wait_s is not None and self._solve_s > _SLOW_SOLVE_S and is_early:
            credit = min(credit, 1)
        if not node.is_proven:
            until_s, _ = self._barred.get(name, (0.0, 0.0))
            credit = min(credit, int(now_s >= until_s))
        return credit

    @property
    def stale_after_s(self) -> float:
        """Seconds after which a snapshot has waited too long; infinite if none is ever stale."""
        if self._max_wait_s is None:
            return math.inf
        usual_s = max(self._solve_s, _LEAST_WAIT_S) if self._solve_s else math.inf
        return self._max_wait_s or usual_s
