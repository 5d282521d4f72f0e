"""Access to the live page: requests from its own pages, under its own host name, with its token if one is set."""

from __future__ import annotations

import base64
import hashlib
import html
import logging
import time
from collections.abc import Iterator
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from sci_stream.clock import unix_ns
from sci_stream.config.fields import is_loopback
from sci_stream.delivery.rate_limit import TokenBucket
from sci_stream.security.http_access import AccessDecision, HttpAccessControl

_LOG = logging.getLogger(__name__)
# RFC 6455, section 7.4.1.
_POLICY_VIOLATION = 1008
# Probes of a supervisor or a cluster have no token, and the answer reveals nothing.
_OPEN_PATHS = frozenset({"/healthz"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_TOO_OFTEN = (429, "too many requests from this address: wait a moment")
_NO_TOKEN = (403, "a token is required: open the page with ?token=…, the [preview] token of the rig")
_WRONG_TOKEN = (403, "the token is wrong: it is the [preview] token of the rig")
_EXPIRED = (403, "the token of this page has expired: the rig needs a new one ([preview] token_expires)")
_ASK_FOR_A_TOKEN = frozenset({_NO_TOKEN, _WRONG_TOKEN, _EXPIRED})
_REFUSALS = {
    AccessDecision.EXPIRED: _EXPIRED,
    AccessDecision.RATE: (429, "too many wrong tokens from this address: wait a moment"),
}
_SECURITY_HEADERS = {
    b"content-security-policy": (
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}


class AccessMiddleware:
    """Refuse requests that pages of other sites or other machines could make.

    Without a token only loopback names are accepted as ``Host``: this refuses a page of another site that resolves its
    own name to 127.0.0.1 (DNS rebinding). WebSockets and requests that change something need the page's own origin.

    Parameters
    ----------
    app
        The wrapped application.
    access
        Limits the rate per address and checks the token, which is given as ``?token=``, as ``Authorization: Bearer`` or
        in the cookie that the page sets.
    needs_token
        Whether a token is set.
    cookie
        Name of that cookie. Cookies are shared by all ports of a host, so it should contain the port.
    """

    def __init__(self, app: ASGIApp, access: HttpAccessControl, cookie: str, *, needs_token: bool) -> None:
        self._app = app
        self._access = access
        self._needs_token = needs_token
        self._cookie = cookie
        self._lines = TokenBucket(0.1, 5)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Accept or refuse a request (the ASGI interface)."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None and self._lines.take(time.monotonic()):
            _LOG.warning("Refused a request from %s: %s", (scope.get("client") or ("nowhere",))[0], refusal[1])
        if refusal is None:
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await WebSocketClose(code=_POLICY_VIOLATION, reason=refusal[1])(scope, receive, send)
        else:
            await _refused(scope, *refusal)(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and reason of a refusal; None to accept."""
        address = str((scope.get("client") or ("nowhere",))[0])
        now_s = time.monotonic()
        if self._access.check_rate(address, now_s) is AccessDecision.RATE:
            return _TOO_OFTEN
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if not self._needs_token and not is_loopback(_host_name(host)):
            self._access.count("host")
            return 403, "open this page as http://localhost or http://127.0.0.1"
        origin = headers.get("origin")
        # Browsers let pages of other sites open WebSockets and send forms here; the Origin header names the site.
        acts = scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS
        if acts and origin is not None and _network_location(origin) != host.lower():
            self._access.count("origin")
            return 403, "a page of another origin may not connect"
        if scope["path"] in _OPEN_PATHS:
            return None
        words = [word for word in self._words(scope, headers) if word]
        admission = self._access.admit(address, words, now_s, unix_ns() / 1e9)
        if admission is AccessDecision.TOKEN:
            return _WRONG_TOKEN if words else _NO_TOKEN
        return _REFUSALS.get(admission)

    def _words(self, scope: Scope, headers: dict[str, str]) -> Iterator[str]:
        """Yield the tokens given in a request."""
        yield from parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [])
        scheme, _, value = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            yield value.strip()
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            cookie = None
        if cookie is not None:
            yield cookie.value


def _refused(scope: Scope, status: int, why: str) -> Response:
    """Return the refusal; to a person who opens the page without a valid token, with a field to enter it."""
    asks = dict(scope["headers"]).get(b"accept", b"").startswith(b"text/html")
    if asks and scope["path"] == "/" and (status, why) in _ASK_FOR_A_TOKEN:
        return token_page(why)
    return PlainTextResponse(why + "\n", status_code=status)


def _network_location(origin: str) -> str | None:
    """Return host and port of an origin; None if it is not one."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message["headers"]}
            added = [(name, value) for name, value in _SECURITY_HEADERS.items() if name not in present]
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return wrapped


_STYLE = """
:root { color-scheme: dark; font: 16px/1.5 system-ui, sans-serif; color: #e6ebf0; background: #0a0d10; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; }
form { width: min(400px, 84vw); padding: 24px; background: #12171c; border: 1px solid #242d36; border-radius: 12px; }
h1 { margin: 0 0 12px; font-size: 18px; color: #5ad1c4; }
p { margin: 0 0 16px; }
label { display: block; color: #8c99a6; font-size: 14px; }
input, button { box-sizing: border-box; width: 100%; min-height: 44px; margin-top: 6px; padding: 6px 12px;
  font: inherit; color: inherit; background: #1b222a; border: 1px solid #37434e; border-radius: 8px; }
button { margin-top: 14px; font-weight: 600; cursor: pointer; }
:focus-visible { outline: 2px solid #5ad1c4; outline-offset: 2px; }
"""
_PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>sci_stream: token</title><style>{_STYLE}</style></head>
<body><form action="/" method="get"><h1>sci_stream</h1><p role="alert">REFUSAL</p>
<label>Token<input type="password" name="token" autocomplete="current-password" required autofocus></label>
<button>Open</button></form></body></html>
"""
_POLICY = (
    "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; style-src 'sha256-"
    + base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    + "'"
)


def token_page(why: str) -> HTMLResponse:
    """Return a page that gives the reason and asks for the token."""
    text = html.escape(why[:1].upper() + why[1:] + ".")
    return HTMLResponse(_PAGE.replace("REFUSAL", text), status_code=403, headers={"Content-Security-Policy": _POLICY})
