"""Access over HTTP: under the machine's own name, from the server's own pages, with a token if set,
at a rate.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from sci_stream.config.fields import is_loopback
from sci_stream.delivery.rate_limit import KeyedRateLimiter

_LOG = logging.getLogger(__name__)
# Ten typing errors are free; after that a token of 8 random letters would take thousands of years
# to guess.
_GUESSES_PER_S = 0.5
_GUESSES_BURST = 10
# RFC 6455, section 7.4.1.
_POLICY_VIOLATION = 1008
# Probes of a supervisor or a cluster have no token. Their answers give a reason only to those who
# have it.
_OPEN_PATHS = frozenset({"/healthz", "/readyz"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class _Refusal(NamedTuple):
    status: int
    reason: str
    asks_for_token: bool = False


@dataclass(frozen=True)
class BrowserLogin:
    """How a browser gives its token: once in the address of the page, which then sets a cookie.

    ``cookie`` is the name of that cookie. Cookies are shared by all ports of a host, so it should
    contain the port. ``page`` makes the answer to a person who opens the page without a valid
    token.
    """

    cookie: str
    page: Callable[[str], Response]


class AccessMiddleware:
    """Refuse requests that pages of other sites or other machines could make.

    Without a token only loopback names are accepted as ``Host``: this refuses a page of another
    site that resolves its own name to 127.0.0.1 (DNS rebinding). WebSockets and requests that
    change something need the page's own origin.

    The token, which ``section`` of the rig file sets, is given as ``Authorization: Bearer`` or,
    unless ``browser`` is None, as browsers can. ``per_s`` and ``burst`` limit the rate of one
    address. ``refused`` counts refused requests by reason.
    """

    def __init__(
        self,
        app: ASGIApp,
        section: str,
        token: str | None,
        refused: Counter[str],
        browser: BrowserLogin | None = None,
        *,
        per_s: float,
        burst: float,
    ) -> None:
        self._app = app
        self._section = section
        self._token = token.encode() if token else None
        self.refused = refused
        self._browser = browser
        self._visits = KeyedRateLimiter[str](per_s, burst)
        self._guesses = KeyedRateLimiter[str](_GUESSES_PER_S, _GUESSES_BURST)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Accept or refuse a request (the ASGI interface)."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, _with_headers(send))
            return
        # %r: the path is the client's, and may contain line breaks and escape sequences of
        # terminals.
        _LOG.warning(
            "Refused a request for %.80r from %s: %s",
            scope["path"],
            _address(scope),
            refusal.reason,
        )
        if scope["type"] == "websocket":
            await WebSocketClose(code=_POLICY_VIOLATION, reason=refusal.reason)(
                scope, receive, send
            )
        else:
            await self._answer(scope, refusal)(scope, receive, _with_headers(send))

    def within_rate(self, address: str, now_s: float) -> bool:
        """Count a request against the rate limit; return whether it is within it."""
        within = self._visits.take(address, now_s)
        if not within:
            self.refused["rate"] += 1
        return within

    def admit(self, address: str, tokens: Iterable[str], now_s: float) -> str:
        """Check the tokens given with a request; return the reason of a refusal, ``""`` if it is
        accepted.

        ``token``: no token, or a wrong one; ``rate``: too many wrong ones from this address, whose
        tokens are not even compared for a while.
        """
        if self._token is None:
            return ""
        words = [word.encode() for word in tokens if word]
        reason = "token"
        if not self._guesses.has(address, now_s):
            reason = "rate"
        elif any(hmac.compare_digest(word, self._token) for word in words):
            reason = ""
        elif words:
            self._guesses.take(address, now_s)
        if reason:
            self.refused[reason] += 1
        return reason

    def _refusal(self, scope: Scope) -> _Refusal | None:
        now_s = time.monotonic()
        if not self.within_rate(_address(scope), now_s):
            return _Refusal(429, "too many requests from this address: wait a moment")
        request = HTTPConnection(scope)
        host = request.headers.get("host", "")
        if self._token is None and not is_loopback(_host_name(host)):
            self.refused["host"] += 1
            return _Refusal(
                403,
                "without a token, open it on this machine as http://localhost or http://127.0.0.1",
            )
        origin = request.headers.get("origin")
        # Browsers let pages of other sites open WebSockets and send forms here; the Origin header
        # names the site.
        acts = scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS
        if acts and origin is not None and _network_location(origin) != host.lower():
            self.refused["origin"] += 1
            return _Refusal(403, "a page of another origin may not connect")
        tokens = self._tokens(request)
        is_open = scope["path"] in _OPEN_PATHS
        if is_open and self._token is not None and not tokens:
            return None
        reason = self.admit(_address(scope), tokens, now_s)
        request.state.has_access = not reason
        return None if is_open or not reason else self._token_refusal(reason, sent=bool(tokens))

    def _token_refusal(self, reason: str, *, sent: bool) -> _Refusal:
        if reason == "rate":
            return _Refusal(429, "too many wrong tokens from this address: wait a moment")
        if sent:
            text = f"the token is wrong: it is the [{self._section}] token of the rig"
        else:
            how = (
                "send Authorization: Bearer with"
                if self._browser is None
                else "open the page with ?token=…,"
            )
            text = f"a token is required: {how} the [{self._section}] token of the rig"
        return _Refusal(401 if self._browser is None else 403, text, asks_for_token=True)

    def _tokens(self, request: HTTPConnection) -> list[str]:
        """Return the tokens given in a request."""
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        tokens = [value.strip()] if scheme.lower() == "bearer" else []
        if self._browser is not None:
            tokens += request.query_params.getlist("token")
            tokens.append(request.cookies.get(self._browser.cookie, ""))
        return [token for token in tokens if token]

    def _answer(self, scope: Scope, refusal: _Refusal) -> Response:
        """Return the refusal; to a person who opens the page without a valid token, with a field to
        enter it.
        """
        opens_page = scope["path"] == "/" and Headers(scope=scope).get("accept", "").startswith(
            "text/html"
        )
        if refusal.asks_for_token and opens_page and self._browser is not None:
            return self._browser.page(refusal.reason)
        return PlainTextResponse(refusal.reason + "\n", status_code=refusal.status)


def _address(scope: Scope) -> str:
    return str((scope.get("client") or ("unknown",))[0])


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
            headers = MutableHeaders(scope=message)
            for name, value in _SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return wrapped
