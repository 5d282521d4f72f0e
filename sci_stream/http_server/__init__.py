"""HTTP serving for health and live page: one access middleware, limits on connections, one server thread each."""

from sci_stream.http_server.connections import LimitedConnection
from sci_stream.http_server.middleware import AccessMiddleware, BrowserLogin
from sci_stream.http_server.server import HttpServer, listen

__all__ = ["AccessMiddleware", "BrowserLogin", "HttpServer", "LimitedConnection", "listen"]
