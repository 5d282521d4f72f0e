"""Which reconstruct node gets which snapshot: credit, blocks, redelivery, and what gives way when all are busy."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_ATTEMPTS = 3
"""A snapshot that was in the hands of this many nodes when they failed is given up: it may be what kills them."""


@dataclass(slots=True)
class Entry(Generic[T]):
    """One snapshot on its way: ``attempts`` counts how often it was handed out."""

    seq: int
    item: T
    attempts: int = 0


@dataclass(slots=True)
class _Node(Generic[T]):
    credit: int
    in_flight: dict[int, Entry[T]] = field(default_factory=dict)

    @property
    def free(self) -> int:
        return self.credit - len(self.in_flight)


class DispatchQueue(Generic[T]):
    """Bounded queue in front of the reconstruct nodes.

    A node may hold at most its credit. Consecutive snapshots, in blocks, go to one node, so that its warm start has a
    past; a block moves on to a node without work once its own node has no credit left and snapshots are waiting.
    When the queue is full its oldest snapshot gives way, except one that is being redelivered: that one was promised.

    Parameters
    ----------
    capacity
        Snapshots that may wait.
    block
        Consecutive snapshots that go to one node.
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

    @property
    def total_credit(self) -> int:
        """Snapshots that all nodes together may hold."""
        return sum(node.credit for node in self._nodes.values())

    def join(self, name: str, credit: int) -> None:
        """Let a node take part, or change its credit."""
        if name in self._nodes:
            self._nodes[name].credit = credit
        else:
            self._nodes[name] = _Node(credit)

    def leave(self, name: str) -> list[Entry[T]]:
        """Take a node out. What it held waits again, foremost; entries tried too often are returned, given up."""
        node = self._nodes.pop(name, None)
        self._owner = {block: owner for block, owner in self._owner.items() if owner != name}
        if node is None:
            return []
        return [entry for entry in node.in_flight.values() if not self._requeue(entry)]

    def recall(self, name: str) -> None:
        """Take back what a node holds, without blaming it: its connection was interrupted, it may have got none."""
        node = self._nodes.get(name)
        if node is not None:
            for entry in node.in_flight.values():
                entry.attempts -= 1
                self._requeue(entry)
            node.in_flight.clear()

    # --- snapshots

    @property
    def waiting(self) -> int:
        """Snapshots that no node holds."""
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        """Snapshots in the hands of nodes."""
        return sum(len(node.in_flight) for node in self._nodes.values())

    def offer(self, seq: int, item: T, *, promised: bool = False) -> list[Entry[T]]:
        """Queue a snapshot; return those that give way to it.

        A ``promised`` one was handed out before, by an earlier process: it gives way to none.
        """
        self.redelivered += promised
        bisect.insort(self._waiting, Entry(seq, item, attempts=int(promised)), key=lambda entry: entry.seq)
        out: list[Entry[T]] = []
        while len(self._waiting) > self._capacity:
            oldest = next((entry for entry in self._waiting if entry.attempts == 0), None)
            if oldest is None:
                break
            self._waiting.remove(oldest)
            out.append(oldest)
        return out

    def assign(self) -> tuple[str, Entry[T]] | None:
        """Hand out one snapshot: (node, entry), or None if none can go now. Call until None."""
        for rule in (self._owner_or_new, self._takeover):
            for index, entry in enumerate(self._waiting):
                name = rule(entry.seq // self._block)
                if name is not None:
                    del self._waiting[index]
                    entry.attempts += 1
                    self._nodes[name].in_flight[entry.seq] = entry
                    return name, entry
        return None

    def done(self, name: str, seq: int) -> bool:
        """Forget a snapshot that is safe at the sink, wherever it is by now; return False if it was unknown."""
        node = self._nodes.get(name)
        found = node is not None and node.in_flight.pop(seq, None) is not None
        # A node that was given up may still deliver: then the copy on its way elsewhere need not be waited for.
        for other in self._nodes.values():
            found = other.in_flight.pop(seq, None) is not None or found
        kept = [entry for entry in self._waiting if entry.seq != seq]
        found = found or len(kept) < len(self._waiting)
        self._waiting = kept
        self._forget_blocks()
        return found

    def failed(self, name: str, seq: int) -> Entry[T] | None:
        """Take back a snapshot that a node could not reconstruct; return it if it is given up."""
        node = self._nodes.get(name)
        entry = node.in_flight.pop(seq, None) if node is not None else None
        if entry is None:
            return None
        self._owner.pop(seq // self._block, None)
        return None if self._requeue(entry) else entry

    def clear(self) -> list[Entry[T]]:
        """Take out everything, waiting and in flight: the time to drain is over."""
        out = [*self._waiting, *(entry for node in self._nodes.values() for entry in node.in_flight.values())]
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
        """Return the block's node if it has credit; for a new block the best node: the last block's, an idle one."""
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
        """Return a node without work for a block whose own node leaves two or more snapshots waiting."""
        idle = self._idle()
        if not idle or sum(entry.seq // self._block == block for entry in self._waiting) < 2:
            return None
        self._owner[block] = idle[0]
        return idle[0]

    def _forget_blocks(self) -> None:
        if len(self._owner) > 64:
            newest = max(self._owner)
            self._owner = {block: owner for block, owner in self._owner.items() if block > newest - 32}
