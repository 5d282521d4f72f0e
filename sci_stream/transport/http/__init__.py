"""HTTP serving for health and live page: one access middleware, limits on connections, one server
thread each.
"""

from sci_stream.transport.http.access import AccessMiddleware, BrowserLogin
from sci_stream.transport.http.server import HttpServer, LimitedConnection, listen

__all__ = ["AccessMiddleware", "BrowserLogin", "HttpServer", "LimitedConnection", "listen"]
