"""Operator controls of the live page: POST requests with JSON, answered with JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from concurrent.futures import Future
from typing import Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from sci_stream.errors import EnvironmentFault, InputError, SciStreamError
from sci_stream.model import JsonObject
from sci_stream.parameters import MOST_CHANGES, Changes

_LOG = logging.getLogger(__name__)
# Far above a request that sets the 16 parameters allowed.
_MOST_BODY_BYTES = 1 << 14
# A node applies settings between two snapshots, which may take seconds on a CPU.
_PATIENCE_S = 10.0


# The name appears in the log with every change.
_MOST_WHO = 64
_UNANSWERED = "The instrument did not answer in time. The request may still take effect: check before repeating it."


class OperatorControl(Protocol):
    """Operations of the sink node that the page can request. Called from any thread; does not block."""

    def switch_recording(self, on: bool, who: str) -> Future[str]:
        """Request that recording is switched on or off.

        The future returns the name of the file, or raises the error.
        """
        ...

    def ask(self, node: str, action: str, parameters: Changes, who: str) -> Future[JsonObject]:
        """Request that a node, or all nodes of a kind, set parameters or perform an action.

        The future returns the ``values`` by node and a ``text``, or raises the error.
        """
        ...


class Controls(Protocol):
    """Operations behind the page's buttons. The first two are quick; the others may block, in separate threads."""

    def set_tone(self, changes: Changes) -> JsonObject:
        """Change the tone settings for all viewers; return all of them. Raises `InputError`."""
        ...

    def pick_white(self, x: float, y: float) -> JsonObject:
        """Make a point of the image grey; return all tone settings. Raises `InputError`."""
        ...

    def save_still(self, series: str | None = None, seq: int | None = None) -> str:
        """Save a snapshot that was shown, or the newest one; return the folder. Raises `SciStreamError`."""
        ...

    def switch_recording(self, on: bool, who: str) -> Future[str]:
        """See `OperatorControl.switch_recording`."""
        ...

    def ask(self, node: str, action: str, parameters: Changes, who: str) -> Future[JsonObject]:
        """See `OperatorControl.ask`."""
        ...


async def answer(request: Request, controls: Controls) -> Response:
    """Answer ``POST /control/{name}``: ``{"ok": true, …}``, or ``{"ok": false, "error": …}`` with an HTTP status."""
    name = request.path_params["name"]
    try:
        body = await asyncio.wait_for(_body(request), _PATIENCE_S)
        report = await asyncio.wait_for(_do(name, body, controls, _who(request, body)), _PATIENCE_S)
    except TimeoutError:
        return JSONResponse({"ok": False, "error": _UNANSWERED}, status_code=504)
    except SciStreamError as error:
        status = 503 if isinstance(error, EnvironmentFault) else 400
        return JSONResponse({"ok": False, "error": str(error)}, status_code=status)
    _LOG.info("The page requested %s %s", name, body)
    return JSONResponse({"ok": True, **report})


def _who(request: Request, body: JsonObject) -> str:
    """Return the name of the operator, as given in the request, with the client's address."""
    said = body.pop("who", "unknown")
    if not isinstance(said, str) or len(said) > _MOST_WHO or not said.isprintable():
        expected = f"at most {_MOST_WHO} printable characters"
        raise InputError("Invalid name of the operator", expected=expected, got=f"{str(said)[:20]!r}")
    host = request.client.host if request.client is not None else "nowhere"
    return f"{said or 'unknown'} from {host}"


async def _do(name: str, body: JsonObject, controls: Controls, who: str) -> JsonObject:
    match name:
        case "set":
            changes = body.get("parameters")
            if not isinstance(changes, dict) or len(changes) > MOST_CHANGES:
                expected = f'{{"parameters": {{"NAME": VALUE}}}} of at most {MOST_CHANGES}'
                raise InputError("No parameters given", expected=expected, got=type(changes).__name__)
            return await asyncio.wrap_future(controls.ask(_word(body, "node"), "set", changes, who))
        case "do":
            return await asyncio.wrap_future(controls.ask(_word(body, "node"), _word(body, "action"), {}, who))
        case "tone":
            return {"tone": controls.set_tone(body)}
        case "white":
            return {"tone": controls.pick_white(_fraction(body, "x"), _fraction(body, "y"))}
        case "snapshot":
            series, seq = _shown_snapshot(body)
            return {"saved": await asyncio.to_thread(controls.save_still, series, seq)}
        case "recording":
            on = body.get("on")
            if not isinstance(on, bool):
                raise InputError("Recording can be on or off", expected='{"on": true} or false', got=repr(on))
            return {"file": await asyncio.wrap_future(controls.switch_recording(on, who))}
    raise InputError(f"Unknown control command {name!r}", expected="tone, white, snapshot, recording, set or do")


def _shown_snapshot(body: JsonObject) -> tuple[str | None, int | None]:
    """Return series and number of the snapshot that the viewer sees; None and None for the newest one."""
    series, seq = body.get("series"), body.get("seq")
    if series is None and seq is None:
        return None, None
    if not isinstance(series, str) or type(seq) is not int:
        expected = '{"series": NAME, "seq": NUMBER}, or {} for the newest snapshot'
        raise InputError("Invalid snapshot", expected=expected, got=f"{series!r}, {seq!r}"[:60])
    return series, seq


def _word(body: JsonObject, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_WHO:
        raise InputError(f"The {name} is missing", expected="a name", got=repr(value)[:60])
    return value


def _fraction(body: JsonObject, name: str) -> float:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"The point's {name} is missing", expected="a fraction, 0 to 1", got=repr(value))
    if not 0 <= value <= 1:
        raise InputError(f"The point's {name} is outside the image", expected="a fraction, 0 to 1", got=f"{value:g}")
    return float(value)


def _integer(text: str) -> int:
    """Return an integer that is also a number to every receiver: 64 bits."""
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError("an integer is too large")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


async def _body(request: Request) -> JsonObject:
    # A page of another site cannot send this content type without a preflight request, which is never granted.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise InputError("The request body must be JSON", expected="Content-Type: application/json")
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MOST_BODY_BYTES:
                raise InputError("The request body is too long", expected=f"at most {_MOST_BODY_BYTES} bytes")
    except ClientDisconnect:
        raise InputError("The request ended within its body") from None
    try:
        found = json.loads(body, parse_int=_integer, parse_float=_finite, parse_constant=_finite)
        json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise InputError("Request body is not valid JSON", got=str(error)) from None
    if not isinstance(found, dict):
        raise InputError("The request body must be a JSON object", got=type(found).__name__)
    return found
