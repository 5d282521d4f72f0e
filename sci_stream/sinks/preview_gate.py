"""Who may talk to the preview: only pages it served itself, under its own name, with its token where one is set."""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from sci_stream.config.fields import is_loopback
from sci_stream.sinks.preview_asking import asking_page

_POLICY_VIOLATION = 1008
_OPEN_PATHS = frozenset({"/healthz"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
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

_NO_TOKEN = "a token is needed: open the page with ?token=…, as the sink node printed it"
_WRONG_TOKEN = "the token is not the right one: take it from the address that the sink node printed"


class Gate:
    """Refuse requests that a stranger's page or a stranger's machine could make.

    Without a token only loopback names are accepted as ``Host``: a page elsewhere that lets its own name resolve to
    127.0.0.1 (DNS rebinding) is refused. WebSockets and whatever changes something need the page's own origin.

    Parameters
    ----------
    app
        The application behind.
    token
        Must come as ``?token=``, as ``Authorization: Bearer`` or in the cookie the page sets; None for none.
    cookie
        Name of that cookie. Cookies are shared between the ports of a host, so it should name the port.
    """

    def __init__(self, app: ASGIApp, token: str | None, cookie: str) -> None:
        self._app = app
        self._token = token
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through or refuse it (the ASGI interface)."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await WebSocketClose(code=_POLICY_VIOLATION, reason=refusal)(scope, receive, send)
        else:
            await _refused(scope, refusal)(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> str | None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if self._token is None and not is_loopback(_host_name(host)):
            return "open this page as http://localhost or http://127.0.0.1"
        origin = headers.get("origin")
        # Browsers let pages elsewhere open WebSockets and send forms here; they say whose page it was.
        acts = scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS
        if acts and origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return "a page of another origin may not connect"
        if self._token is None or scope["path"] in _OPEN_PATHS:
            return None
        given = self._given_tokens(scope, headers)
        if any(hmac.compare_digest(candidate.encode(), self._token.encode()) for candidate in given):
            return None
        return _WRONG_TOKEN if given else _NO_TOKEN

    def _given_tokens(self, scope: Scope, headers: dict[str, str]) -> list[str]:
        given = [*parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [])]
        scheme, _, value = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given.append(value.strip())
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            cookie = None
        if cookie is not None:
            given.append(cookie.value)
        return given


def _refused(scope: Scope, refusal: str) -> Response:
    """Say why: to a person who opens the page without the right token, with a place to put it."""
    asks = dict(scope["headers"]).get(b"accept", b"").startswith(b"text/html")
    if asks and scope["path"] == "/" and refusal in {_NO_TOKEN, _WRONG_TOKEN}:
        return asking_page(refusal)
    return PlainTextResponse(refusal + "\n", status_code=403)


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
