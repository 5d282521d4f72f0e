"""Where the preview listens, and how its web server is set up."""

from __future__ import annotations

import socket
from urllib.parse import quote

import uvicorn
from starlette.types import ASGIApp

from sci_stream.errors import TransportError

_MOST_INCOMING_BYTES = 1 << 16


def address(host: str, port: int, token: str | None) -> str:
    """Return the address to open, with the token in it."""
    if host in {"0.0.0.0", "::"}:  # every interface; viewers need a name
        host = socket.gethostname()
    host = f"[{host}]" if ":" in host else host
    query = f"?token={quote(token)}" if token else ""
    return f"http://{host}:{port}/{query}"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 for any free one.

    Raises
    ------
    TransportError
        If the address is in use or not this machine's.
    """
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen()
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise TransportError(
            f"The preview cannot listen on {host}:{port}",
            got=error.strerror or error,
            hint="Another program may use the port: choose another, or 0 for any free one.",
        ) from error
    return listener


def server_config(app: ASGIApp) -> uvicorn.Config:
    """Return the web server's settings."""
    return uvicorn.Config(
        app,
        loop="asyncio",
        ws="websockets-sansio",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws_max_size=_MOST_INCOMING_BYTES,
        ws_per_message_deflate=False,  # JPEG does not shrink
        timeout_graceful_shutdown=2,
    )
