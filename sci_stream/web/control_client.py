"""Control of a running rig from Python and from the command line, by way of its live page."""

from __future__ import annotations

import getpass
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeVar
from urllib.parse import parse_qs, urlsplit

from pydantic import JsonValue, PlainValidator, TypeAdapter

from sci_stream.errors import InputError, TransportError
from sci_stream.model import Json
from sci_stream.parameters import Parameter, Value, parameter_of
from sci_stream.transport.proxies import opener_for

T = TypeVar("T")

# Bounds the memory for the answer: the server at that address may be any other program.
_MAX_BYTES = 1 << 22
# Longer than the page waits for the nodes (10 s): its answer is more informative than a timeout
# here.
_TIMEOUT_S = 15.0


def _by_name(listed: object) -> dict[str, Parameter]:
    """Return the valid ones of listed parameters."""
    parameters = map(parameter_of, listed if isinstance(listed, list) else [])
    return {parameter.name: parameter for parameter in parameters if parameter is not None}


@dataclass(frozen=True)
class Controllable:
    """A node with its settable parameters and its actions."""

    node: str
    kind: str
    parameters: Annotated[dict[str, Parameter], PlainValidator(_by_name)]
    actions: tuple[str, ...]


@dataclass(frozen=True)
class _Answer:
    """An answer of the live page, as far as it is read here."""

    controls: list[Controllable] = field(default_factory=list)
    values: dict[str, dict[str, Value]] = field(default_factory=dict)
    text: str = ""
    error: str = ""


_ANSWER = TypeAdapter(_Answer)


class RigControl:
    """Control of a running rig.

    ::

        rig = sci_stream.control("http://127.0.0.1:8765")
        rig.set("reconstruct", iterations=12)
        rig.do("acquire", "next_series")

    Parameters
    ----------
    url
        Of its live page, with or without ``?token=``.
    token
        ``[preview] token`` of the rig, if it has one.
    who
        Name of the operator in the log and the recording; by default this user on this host.
    timeout_s
        Timeout of a request.

    Raises
    ------
    InputError
        If the address is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        who: str | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise InputError("Invalid live-page URL", expected="http://HOST:PORT/", got=url)
        self.url = f"{parts.scheme}://{parts.netloc}/"
        self._token = token or parse_qs(parts.query).get("token", [""])[0]
        self._who = who if who is not None else _this_user()
        self._timeout_s = timeout_s

    def status(self) -> dict[str, JsonValue]:
        """Return the status of the rig, as the page shows it: an object of JSON."""
        return self._request("status", TypeAdapter(dict[str, JsonValue]))

    def nodes(self) -> dict[str, Controllable]:
        """Return the current parameters and actions by node; the sink is one of them.

        Raises
        ------
        TransportError
            If the page does not answer or denies access.
        """
        return {entry.node: entry for entry in self._request("status", _ANSWER).controls}

    def set(self, node: str, **parameters: Value) -> dict[str, dict[str, Value]]:
        """Set parameters of a node, or of all nodes of a kind (``reconstruct``); return the new
        values by node.

        Raises
        ------
        InputError
            If a parameter is unknown or out of range; then none is set.
        TransportError
            If the page, or the node, does not answer.
        """
        return self._request(
            "control/set", _ANSWER, {"node": node, "parameters": parameters}
        ).values

    def do(self, node: str, action: str) -> str:
        """Trigger an action of a node; return its answer. Raises as `set`."""
        return self._request("control/do", _ANSWER, {"node": node, "action": action}).text

    def _request(
        self, path: str, answer: TypeAdapter[T], body: Mapping[str, Json] | None = None
    ) -> T:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps({**body, "who": self._who}).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        opener, proxy = opener_for(self.url, has_token=bool(self._token))
        page = f"{self.url} through the proxy {proxy}" if proxy else self.url
        try:
            with opener.open(request, timeout=self._timeout_s) as response:
                return answer.validate_json(response.read(_MAX_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(page, error.code, error.read(_MAX_BYTES)) from None
        except (OSError, ValueError) as error:
            raise TransportError(
                f"The live page at {page} does not answer",
                got=getattr(error, "reason", error)
                if isinstance(error, OSError)
                else "no answer of a live page",
                hint="Is the rig running, and its [preview] enabled at this address?",
            ) from None

    @staticmethod
    def _refusal(page: str, code: int, body: bytes) -> InputError | TransportError:
        try:
            text = _ANSWER.validate_json(body).error
        except ValueError:
            text = ""
        text = text or body[:200].decode(errors="replace").strip()
        if code == 400:
            return InputError(text)
        if code == 403:
            return TransportError(
                f"Access to the live page at {page} denied",
                got=text,
                hint="Pass its [preview] token.",
            )
        return TransportError(text or f"The live page at {page} answers {code}")


def _this_user() -> str:
    try:
        user = getpass.getuser()
    except (ImportError, OSError, KeyError):  # users without a name exist in containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:64]


control = RigControl
"""The name of `RigControl` in `sci_stream`."""
