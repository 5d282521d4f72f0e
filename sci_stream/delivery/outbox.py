"""Messages that are not yet acknowledged by their receiver."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Frames = Sequence[bytes | memoryview]


class Outbox(Generic[K]):
    """Messages kept until they are acknowledged, in order.

    At-least-once delivery: whenever delivery is uncertain (after a reconnection, a restart of the
    peer, or no progress for ``patience_s``) all messages are resent, and the receiver recognises
    duplicates.
    """

    def __init__(self, patience_s: float) -> None:
        self._messages = OrderedDict[K, Frames]()
        self._unsent = OrderedDict[K, None]()
        self._patience_s = patience_s
        self._progress_s = 0.0
        self.resent = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def has_unsent(self) -> bool:
        """Whether a message waits to be sent."""
        return bool(self._unsent)

    def __contains__(self, key: K) -> bool:
        return key in self._messages

    def put(self, key: K, frames: Frames, now_s: float, *, first: bool = False) -> None:
        """Add a message to send, ahead of all others if ``first``; a message with a known key is
        ignored.
        """
        if key in self._messages:
            return
        # An idle outbox makes no progress: patience starts with the first message, not with the
        # last acknowledgement.
        if not self._messages:
            self._progress_s = now_s
        self._messages[key] = frames
        self._unsent[key] = None
        if first:
            self._messages.move_to_end(key, last=False)
            self._unsent.move_to_end(key, last=False)

    def due(self) -> Iterator[tuple[K, Frames]]:
        """Yield the messages to send, oldest first; each counts as sent once the next one is
        requested.
        """
        while self._unsent:
            key = next(iter(self._unsent))
            yield key, self._messages[key]
            self._unsent.pop(key, None)

    def confirm(self, key: K, now_s: float) -> bool:
        """Remove an acknowledged message; return False if it is unknown."""
        if self._messages.pop(key, None) is None:
            return False
        self._unsent.pop(key, None)
        self._progress_s = now_s
        return True

    def mark_for_resend(self, now_s: float) -> None:
        """Schedule all messages to be resent."""
        self.resent += len(self._messages) - len(self._unsent)
        self._unsent = OrderedDict.fromkeys(self._messages)
        self._progress_s = now_s

    def still_sending(self, seen_s: float) -> None:
        """Record when the connection last moved bytes: a slow one is making progress without
        acknowledgements.
        """
        self._progress_s = max(self._progress_s, seen_s)

    def stalled(self, now_s: float) -> bool:
        """Return whether sent messages have been unacknowledged for longer than the patience."""
        waiting = len(self._messages) > len(self._unsent)
        return waiting and now_s - self._progress_s > self._patience_s
