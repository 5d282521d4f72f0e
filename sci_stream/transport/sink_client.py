"""The client side of the sink connection: at-least-once delivery with acknowledgement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sci_stream.delivery.outbox import Frames, Outbox
from sci_stream.transport.client_connection import ClientConnection, PeerEvent
from sci_stream.wire.codec import encode
from sci_stream.wire.messages import Acceptable, Accepted, Acknowledged, Message, acknowledgement_of

_PATIENCE_S = 5.0


@dataclass(frozen=True)
class LinkNews:
    """Result of one poll: acknowledgements, other messages, liveness events of the sink."""

    safe: list[Accepted]
    messages: list[Message]
    events: list[PeerEvent]


class SinkClient:
    """A connection to the sink with an outbox: at-least-once delivery; the sink recognises
    duplicates.

    The sink may take ``wait_s`` before it acknowledges a message.
    """

    def __init__(self, connection: ClientConnection, wait_s: float = 0.0) -> None:
        self.connection = connection
        self.outbox = Outbox[Accepted](_PATIENCE_S + wait_s)

    def post(
        self, message: Acknowledged, now_s: float, *, first: bool = False, frames: Frames = ()
    ) -> None:
        """Send a message, ahead of all others if ``first``, and keep it until it is safe.

        ``frames`` are those of the message, if it is encoded already.
        """
        # A message of many snapshots is kept under the first, and acknowledged as a whole.
        key = replace(acknowledgement_of(message), count=1)
        self.outbox.put(key, frames or encode(message), now_s, first=first)

    def poll(self, now_s: float) -> LinkNews:
        """Receive, and process acknowledgements. Never blocks."""
        received, events = self.connection.receive(now_s)
        self.outbox.still_sending(self.connection.delivering_s)
        safe: list[Accepted] = []
        others: list[Message] = []
        for message in received:
            if isinstance(message, Accepted):
                safe += self._confirm(message, now_s)
            else:
                others.append(message)
        if PeerEvent.NEW in events or PeerEvent.BACK in events or self.outbox.stalled(now_s):
            self.outbox.mark_for_resend(now_s)
        return LinkNews(safe, others, events)

    def _confirm(self, accepted: Accepted, now_s: float) -> Iterator[Accepted]:
        """Yield an acknowledgement for each message that it newly acknowledges."""
        of: Acceptable = "snapshot" if accepted.of == "not_kept" else accepted.of
        for seq in range(accepted.seq, accepted.seq + accepted.count):
            if self.outbox.confirm(Accepted(accepted.series, seq, of), now_s):
                yield Accepted(accepted.series, seq, accepted.of)

    def send_due(self) -> None:
        """Send due messages until the socket is full."""
        if self.connection.connected:
            for _, frames in self.outbox.due():
                if not self.connection.try_send(frames):
                    break
