"""An ASGI application served from its own thread, which does not block the node, with limits on its
connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from typing import Any, ClassVar, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from sci_stream.errors import TransportError

_LOG = logging.getLogger(__name__)
# Longer than uvicorn's own shutdown timeout; the thread is a daemon in case it hangs.
_JOIN_S = 5.0
# Time for the kernel to deliver data to a client that does not read.
_UNREAD_MS = 30_000
# asyncio accepts so many connections at once, before any of them can be ended to make room.
_BACKLOG = 32
# Viewers send acknowledgements of a few bytes; uvicorn would buffer 16 MiB of anything else.
_MAX_INCOMING_BYTES = 1 << 16


def listen(host: str, port: int, *, what: str, hint: str) -> socket.socket:
    """Return a listening socket; port 0 for any free one.

    Raises `TransportError` if the address is in use or not on this machine; `what` and `hint` are
    for its text.
    """
    reasons = []
    try:
        for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                # With SO_REUSEADDR: a restarted node gets its port back while old connections are
                # still in TIME_WAIT.
                return socket.create_server(place, family=family)
            except OSError as error:
                reasons.append(error)
    except OSError as error:
        reasons.append(error)
    reason = (reasons[0].strerror or str(reasons[0])).partition(" (while")[0]
    raise TransportError(f"{what} cannot listen on {host}:{port}", got=reason, hint=hint)


class LimitedConnection(H11Protocol):
    """An HTTP connection that must complete each request in time.

    Too many: the oldest one without a request is closed.

    The limits are those of the live page: a browser opens about six connections, and there are at
    most 64 viewers (`[preview] max_viewers`).
    """

    max_connections: ClassVar[int] = 128
    """Connections at once."""
    request_s: ClassVar[float] = 10.0
    """Time for a complete request, however slowly its parts arrive."""
    has_short_answers: ClassVar[bool] = False
    """Serve one request per connection; ``request_s`` includes its answer, and the oldest
    connection makes room."""

    _deadline: asyncio.TimerHandle | None = None
    _since_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        """Admit a connection."""
        super().connection_made(transport)
        _limit_unread(transport)
        self._since_s = self.loop.time()
        self._deadline = self.loop.call_later(self.request_s, transport.abort)
        # Aborted connections remain in the set until the next turn of the loop, and many are
        # accepted in one turn.
        present = [other for other in self.connections if not other.transport.is_closing()]
        if len(present) > self.max_connections:
            waiting = [
                other for other in present if isinstance(other, LimitedConnection) and other.waits
            ]
            min(waiting, key=lambda other: other._since_s, default=self).transport.abort()

    @property
    def waits(self) -> bool:
        """Whether the connection may be ended: no complete request has arrived since the last
        answer.
        """
        return (
            self.has_short_answers
            or self._deadline is not None
            or self.timeout_keep_alive_task is not None
        )

    def data_received(self, data: bytes) -> None:
        """Handle a part of a request; the first part starts the timeout of the whole request."""
        super().data_received(data)
        if self.has_short_answers:
            return
        if self.transport.get_protocol() is not self or self.conn.their_state not in {
            h11.IDLE,
            h11.SEND_BODY,
        }:
            self._disarm()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.request_s, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Refuse an invalid request.

        An earlier request that is still being answered ends without its answer.
        """
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


class HttpServer:
    """Serve an ASGI application in a thread until `close`, which also closes the ``listener``.

    ``connections`` and ``websockets`` are the classes of the connections, which limit them; without
    the latter there are no WebSockets. ``trust_proxy``: take the address of a client from the
    headers of a proxy on this host.
    """

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        name: str,
        connections: type[LimitedConnection] = LimitedConnection,
        *,
        websockets: type[asyncio.Protocol] | None = None,
        trust_proxy: bool = False,
    ) -> None:
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                loop="asyncio",
                http=connections,
                ws=websockets or "none",
                lifespan="off",
                log_config=None,
                # its warnings are about malformed requests, which any stranger can send
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=trust_proxy,
                headers=[("Connection", "close")] if connections.has_short_answers else [],
                backlog=_BACKLOG,
                ws_max_size=_MAX_INCOMING_BYTES,
                ws_per_message_deflate=False,  # JPEG does not compress further
                # A client that does not close its connection must not delay the shutdown of the
                # node.
                timeout_graceful_shutdown=2,
            )
        )
        self._listener = listener
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the application."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), name=name, daemon=True)
        self._thread.start()
        ready.wait()  # for the event loop, so that other threads can call it

    def _serve(self, ready: threading.Event) -> None:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            self.loop.set_exception_handler(_log_fault)
            ready.set()
            await self._server.serve(sockets=[self._listener])
            for connection in list(
                self._server.server_state.connections
            ):  # clients that do not read their answers
                connection.transport.abort()

        try:
            asyncio.run(main())
        except (
            Exception
        ):  # health and live page are optional: the instrument continues without them
            _LOG.exception("The HTTP server %s failed", self._thread.name)
        finally:
            ready.set()
            self._listener.close()

    def close(self) -> None:
        """End connections and stop. May be called again."""
        self._server.should_exit = True
        self._thread.join(_JOIN_S)


def _log_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a fault of the event loop; exhausted descriptors, which asyncio reports many times a
    second, in one line.
    """
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
        _LOG.error("cannot accept HTTP connections: %s (raise `ulimit -n`)", error.strerror)
    else:
        loop.default_exception_handler(context)
