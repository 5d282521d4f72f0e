"""HTTP connections: limits on their number and on slow requests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import ClassVar, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

# Time for the kernel to deliver data to a client that does not read.
_UNREAD_MS = 30_000


class LimitedConnection(H11Protocol):
    """An HTTP connection that must complete each request in time. Too many: the oldest one without a request is closed.

    The limits are those of the live page: a browser opens about six connections, and there are at most 64 viewers
    (`[preview] max_viewers`).
    """

    most_connections: ClassVar[int] = 128
    """Connections at once."""
    request_s: ClassVar[float] = 10.0
    """Time for a complete request, however slowly its parts arrive."""
    has_short_answers: ClassVar[bool] = False
    """Serve one request per connection; ``request_s`` includes its answer, and the oldest connection makes room."""

    _deadline: asyncio.TimerHandle | None = None
    _since_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        """Admit a connection."""
        super().connection_made(transport)
        _limit_unread(transport)
        self._since_s = self.loop.time()
        self._deadline = self.loop.call_later(self.request_s, transport.abort)
        # Aborted connections remain in the set until the next turn of the loop, and many are accepted in one turn.
        present = [other for other in self.connections if not other.transport.is_closing()]
        if len(present) > self.most_connections:
            waiting = [other for other in present if isinstance(other, LimitedConnection) and other.waits]
            min(waiting, key=lambda other: other._since_s, default=self).transport.abort()

    @property
    def waits(self) -> bool:
        """Whether the connection may be ended: no complete request has arrived since the last answer."""
        return self.has_short_answers or self._deadline is not None or self.timeout_keep_alive_task is not None

    def data_received(self, data: bytes) -> None:
        """Handle a part of a request; the first part starts the timeout of the whole request."""
        super().data_received(data)
        if self.has_short_answers:
            return
        if self.transport.get_protocol() is not self or self.conn.their_state not in {h11.IDLE, h11.SEND_BODY}:
            self._disarm()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.request_s, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Refuse an invalid request. An earlier request that is still being answered ends without its answer."""
        with contextlib.suppress(h11.LocalProtocolError):  # its answer has begun
            super().send_400_response(msg)
        self.transport.close()
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        if cycle is not None and not cycle.response_complete:
            # Otherwise its answer, sent after this one, is an error with a traceback in the log.
            cycle.disconnected = True
            cycle.message_event.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout of the connection."""
        self._disarm()
        super().connection_lost(exc)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _limit_unread(transport: asyncio.Transport) -> None:
    """Have the kernel end a connection whose client has not read for a while."""
    connection = transport.get_extra_info("socket")
    if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
