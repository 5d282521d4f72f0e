"""What was sent and is not yet safe at the other end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Frames = Sequence[bytes | memoryview]


@dataclass(slots=True)
class _Letter:
    frames: Frames
    nbytes: int


class Outbox(Generic[K]):
    """Messages kept until the peer says that they are safe, in the order they were put in.

    At-least-once delivery: whenever delivery is uncertain (a reconnection, a peer restarted, no progress for
    ``patience_s``) everything kept is sent again, and the receiver recognises what it has.
    """

    def __init__(self, patience_s: float) -> None:
        self._letters: OrderedDict[K, _Letter] = OrderedDict()
        self._unsent: OrderedDict[K, None] = OrderedDict()
        self._patience_s = patience_s
        self._progress_s = 0.0
        self.nbytes = 0
        self.resent = 0

    def __len__(self) -> int:
        return len(self._letters)

    def __contains__(self, key: K) -> bool:
        return key in self._letters

    def put(self, key: K, frames: Frames, now_s: float, *, first: bool = False) -> None:
        """Keep a message; it is due for sending, ahead of all others if ``first``."""
        if key in self._letters:
            return
        if not self._letters:
            self._progress_s = now_s
        nbytes = sum(memoryview(frame).nbytes for frame in frames)
        self._letters[key] = _Letter(frames, nbytes)
        self._unsent[key] = None
        if first:
            self._letters.move_to_end(key, last=False)
            self._unsent.move_to_end(key, last=False)
        self.nbytes += nbytes

    def due(self) -> Iterator[tuple[K, Frames]]:
        """Yield what has to be sent, oldest first; each is taken for sent once the next is asked for."""
        while self._unsent:
            key = next(iter(self._unsent))
            yield key, self._letters[key].frames
            self._unsent.pop(key, None)

    def confirm(self, key: K, now_s: float) -> bool:
        """Forget a message that is safe; return False if it was not kept (any more)."""
        letter = self._letters.pop(key, None)
        if letter is None:
            return False
        self._unsent.pop(key, None)
        self.nbytes -= letter.nbytes
        self._progress_s = now_s
        return True

    def mark_for_resend(self, now_s: float) -> None:
        """Have everything that is kept sent again."""
        self.resent += len(self._letters) - len(self._unsent)
        self._unsent = OrderedDict.fromkeys(self._letters)
        self._progress_s = now_s

    def still_sending(self, seen_s: float) -> None:
        """Learn when the connection was last seen to carry what was sent: over a slow one that takes its time."""
        self._progress_s = max(self._progress_s, seen_s)

    def stalled(self, now_s: float) -> bool:
        """Return whether sent messages have been waiting for a confirmation for longer than the patience."""
        waiting = len(self._letters) > len(self._unsent)
        return waiting and now_s - self._progress_s > self._patience_s
