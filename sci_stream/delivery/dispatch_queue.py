"""Assign snapshots to reconstruct nodes: credit, blocks, redelivery, and drops when all nodes are
busy.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_ATTEMPTS = 3
"""A snapshot that this many nodes held when they failed is given up: it may be the cause of the
failures."""


@dataclass
class Entry(Generic[T]):
    """A queued or assigned snapshot; ``attempts`` counts assignments, a ``promised`` one is not
    dropped for others.
    """

    seq: int
    item: T
    attempts: int = 0
    promised: bool = False


@dataclass
class _Node(Generic[T]):
    credit: int
    in_flight: dict[int, Entry[T]] = field(default_factory=dict)

    @property
    def free(self) -> int:
        return self.credit - len(self.in_flight)


class DispatchQueue(Generic[T]):
    """Bounded queue in front of the reconstruct nodes.

    A node may hold at most its credit. Consecutive snapshots go to one node in blocks, so that it
    can start warm; an idle node takes over a block whose own node has no credit left while
    snapshots are queued. When the queue is full, the oldest queued snapshot is dropped, except
    redelivered ones: those were promised to a node already.

    At most ``capacity`` snapshots are queued; ``block`` consecutive ones go to one node.
    """

    def __init__(self, capacity: int, block: int) -> None:
        if capacity < 1 or block < 1:
            raise ValueError("capacity and block must be at least 1")
        self._capacity = capacity
        self._block = block
        self._nodes: dict[str, _Node[T]] = {}
        self._waiting: list[Entry[T]] = []
        self._owner: dict[int, str] = {}
        self.redelivered = 0

    # --- nodes

    @property
    def nodes(self) -> dict[str, int]:
        """Credit by node."""
        return {name: node.credit for name, node in self._nodes.items()}

    def join(self, name: str, credit: int) -> None:
        """Add a node, or change its credit."""
        if name in self._nodes:
            self._nodes[name].credit = credit
        else:
            self._nodes[name] = _Node(credit)

    def leave(self, name: str) -> list[Entry[T]]:
        """Remove a node and requeue its entries, in order of seq; return the entries that are given
        up.
        """
        node = self._nodes.pop(name, None)
        self._owner = {block: owner for block, owner in self._owner.items() if owner != name}
        if node is None:
            return []
        return [entry for entry in node.in_flight.values() if not self._requeue(entry)]

    def recall(self, name: str) -> None:
        """Requeue the entries of a node without counting an attempt: a node may have lost them with
        its connection.
        """
        node = self._nodes.get(name)
        if node is not None:
            for entry in node.in_flight.values():
                entry.attempts -= 1
                self._requeue(entry)
            node.in_flight.clear()

    # --- snapshots

    @property
    def waiting(self) -> int:
        """Number of queued snapshots."""
        return len(self._waiting)

    def holds(self, name: str) -> int:
        """Return the number of snapshots in the hands of a node."""
        node = self._nodes.get(name)
        return 0 if node is None else len(node.in_flight)

    @property
    def in_flight(self) -> int:
        """Number of snapshots that nodes hold."""
        return sum(len(node.in_flight) for node in self._nodes.values())

    def offer(self, seq: int, item: T, *, promised: bool = False) -> list[Entry[T]]:
        """Queue a snapshot; return those that are dropped for it.

        A ``promised`` snapshot was assigned by an earlier process of the node: it is never dropped.
        """
        self.redelivered += promised
        bisect.insort(
            self._waiting, Entry(seq, item, int(promised), promised), key=lambda entry: entry.seq
        )
        out: list[Entry[T]] = []
        # The oldest goes first: a live view wants the newest, and the oldest has the least left to
        # warm-start.
        while len(self._waiting) > self._capacity:
            oldest = next((entry for entry in self._waiting if not entry.promised), None)
            if oldest is None:
                break
            self._waiting.remove(oldest)
            out.append(oldest)
        return out

    def drop_stale(self, is_stale: Callable[[T], bool]) -> list[Entry[T]]:
        """If a node has credit and the oldest snapshot is stale, drop all but the newest, one for
        each node.

        Returns those that are dropped; redelivered ones are not. The nodes then get consecutive
        snapshots again, which start warm, where dropping the stale ones alone would leave a gap
        before each.
        """
        if not any(node.free > 0 for node in self._nodes.values()):
            return []
        entries = [entry for entry in self._waiting if not entry.promised]
        out = entries[: -len(self._nodes)] if entries and is_stale(entries[0].item) else []
        dropped = {entry.seq for entry in out}
        self._waiting = [entry for entry in self._waiting if entry.seq not in dropped]
        return out

    def assign(self) -> tuple[str, Entry[T]] | None:
        """Assign one snapshot: (node, entry), or None if none can be assigned now.

        Call until None.
        """
        # Owners first: a takeover costs a warm start, so it is considered only for entries that no
        # owner can take.
        for rule in (self._owner_or_new, self._takeover):
            for index, entry in enumerate(self._waiting):
                name = rule(entry.seq // self._block)
                if name is not None:
                    del self._waiting[index]
                    entry.attempts = entry.attempts + 1
                    entry.promised = True
                    self._nodes[name].in_flight[entry.seq] = entry
                    return name, entry
        return None

    def done(self, name: str, seq: int) -> bool:
        """Remove a snapshot that the sink has stored, wherever it is; return False if it was
        unknown.
        """
        node = self._nodes.get(name)
        known = node is not None and node.in_flight.pop(seq, None) is not None
        # A node presumed lost may still deliver: then the copy that another node holds is not
        # needed either.
        for other in self._nodes.values():
            known = other.in_flight.pop(seq, None) is not None or known
        others = [entry for entry in self._waiting if entry.seq != seq]
        known = known or len(others) < len(self._waiting)
        self._waiting = others
        self._forget_blocks()
        return known

    def failed(self, name: str, seq: int) -> Entry[T] | None:
        """Requeue a snapshot that a node could not reconstruct; return it if it is given up."""
        node = self._nodes.get(name)
        entry = node.in_flight.pop(seq, None) if node is not None else None
        if entry is None:
            return None
        # The next attempt must go to another node: this one would fail again.
        self._owner.pop(seq // self._block, None)
        return None if self._requeue(entry) else entry

    def clear(self) -> list[Entry[T]]:
        """Remove and return everything, queued and in flight: the time to drain is over."""
        out = [
            *self._waiting,
            *(entry for node in self._nodes.values() for entry in node.in_flight.values()),
        ]
        self._waiting = []
        for node in self._nodes.values():
            node.in_flight.clear()
        return sorted(out, key=lambda entry: entry.seq)

    # --- rules

    def _requeue(self, entry: Entry[T]) -> bool:
        if entry.attempts >= MAX_ATTEMPTS:
            return False
        self.redelivered += 1
        bisect.insort(self._waiting, entry, key=lambda waiting: waiting.seq)
        return True

    def _idle(self) -> list[str]:
        return [name for name, node in self._nodes.items() if node.free > 0 and not node.in_flight]

    def _owner_or_new(self, block: int) -> str | None:
        """Return the block's node if it has credit; for a new block the previous one's if idle, an
        idle one, or any.
        """
        owner = self._owner.get(block)
        if owner is not None:
            return owner if self._nodes[owner].free > 0 else None
        idle = self._idle()
        previous = self._owner.get(block - 1)
        free = [name for name, node in self._nodes.items() if node.free > 0]
        if previous in idle:
            owner = previous
        elif idle or free:
            owner = (idle or sorted(free, key=lambda name: -self._nodes[name].free))[0]
        if owner is not None:
            self._owner[block] = owner
        return owner

    def _takeover(self, block: int) -> str | None:
        """Return an idle node for a block whose own node leaves two or more snapshots queued."""
        idle = self._idle()
        # A single queued snapshot will go to its own node at the next credit: worth more than a
        # cold start elsewhere.
        if not idle or sum(entry.seq // self._block == block for entry in self._waiting) < 2:
            return None
        self._owner[block] = idle[0]
        return idle[0]

    def _forget_blocks(self) -> None:
        # A series has millions of blocks; redelivery reaches back a few. Pruning in bulk keeps this
        # off the hot path.
        if len(self._owner) > 64:
            newest = max(self._owner)
            self._owner = {
                block: owner for block, owner in self._owner.items() if block > newest - 32
            }
