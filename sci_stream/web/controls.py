"""Operator controls of the live page: POST requests with JSON, answered with JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from sci_stream.config.error_messages import validate_options
from sci_stream.errors import InputError
from sci_stream.model import JsonObject
from sci_stream.parameters import MAX_CHANGES, Changes, ControlAnswer
from sci_stream.web.display import Display
from sci_stream.web.recordings import MAX_NOTE
from sci_stream.web.replays import MAX_ITERATIONS, Replays
from sci_stream.web.slots import Slots

_LOG = logging.getLogger(__name__)
# Far above a request that sets the 16 parameters allowed.
_MAX_BODY_BYTES = 1 << 14
# A node applies settings between two snapshots, which may take seconds on a CPU.
_TIMEOUT_S = 10.0
# Names appear in the log with every change.
_MAX_NAME = 64
_UNANSWERED = (
    "The instrument did not answer in time. The request may still take effect: check "
    "before repeating it."
)


_Name = Annotated[str, Field(min_length=1, max_length=_MAX_NAME)]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("expected printable characters")
    return text


Ask = Callable[[str, str, Changes, str], Future[ControlAnswer]]
"""Requests that a node, or all nodes of a kind, set parameters or perform an action, on behalf of
an operator.

Takes node, action, parameters and operator
(`sci_stream.nodes.sink.operator_commands.OperatorCommands.ask`).
"""


class _PageRequest(BaseModel):
    """What every request may contain; members that it does not know are ignored."""

    model_config = ConfigDict(strict=True)

    who: Annotated[str, Field(max_length=_MAX_NAME), AfterValidator(_printable)] = "unknown"

    def sender(self, address: str) -> str:
        """Return the name of the operator, as given in the request, with the client's address."""
        return f"{self.who or 'unknown'} from {address}"


class _SetRequest(_PageRequest):
    node: _Name
    parameters: Annotated[dict[str, JsonValue], Field(max_length=MAX_CHANGES)]
    action: _Name = "set"


class _DoRequest(_SetRequest):
    parameters: Annotated[dict[str, JsonValue], Field(max_length=MAX_CHANGES)] = {}
    action: _Name


class _ReplayRequest(_PageRequest):
    """A recording to replay; without one, the running replay is stopped."""

    recording: str = ""
    iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] = 1


class _NoteRequest(_PageRequest):
    recording: str
    note: Annotated[str, Field(max_length=MAX_NOTE), AfterValidator(_printable)]


async def answer(
    request: Request, display: Display, replays: Replays, ask: Ask | None, slots: Slots
) -> Response:
    """Answer ``POST /control/{name}`` with ``{"ok": true, …}``. Raises `SciStreamError`."""
    name = request.path_params["name"]
    address = request.client.host if request.client is not None else "an unknown address"
    try:
        body = await asyncio.wait_for(_body(request), _TIMEOUT_S)
        result = await asyncio.wait_for(
            _do(name, body, address, display=display, replays=replays, ask=ask, slots=slots),
            _TIMEOUT_S,
        )
    except TimeoutError:
        return JSONResponse({"ok": False, "error": _UNANSWERED}, status_code=504)
    _LOG.info("The page requested %s %s", name, body)
    return JSONResponse({"ok": True, **result})


async def _do(
    name: str,
    body: JsonObject,
    address: str,
    *,
    display: Display,
    replays: Replays,
    ask: Ask | None,
    slots: Slots,
) -> JsonObject:
    where = f"/control/{name}"
    match name:
        case "tone":
            sender = validate_options(_PageRequest, body, where).sender(address)
            return {
                "tone": display.set_tone(
                    {key: value for key, value in body.items() if key != "who"}, sender
                )
            }
        case "replay":
            wanted = validate_options(_ReplayRequest, body, where)
            if wanted.recording:
                start = partial(replays.start, wanted.recording, wanted.iterations)
                return {"text": await slots.run(start)}
            await slots.run(replays.stop)
            return {}
        case "note":
            noted = validate_options(_NoteRequest, body, where)
            await slots.run(partial(replays.recordings.write_note, noted.recording, noted.note))
            return {}
    if ask is None:
        raise InputError("Neither the recording nor the nodes can be controlled from here")
    if name not in {"set", "do"}:
        hint = "It is a parameter of the sink: set." if name == "recording" else None
        raise InputError(
            f"Unknown control command {name!r}", expected="tone, replay, note, set or do", hint=hint
        )
    order = validate_options(_SetRequest if name == "set" else _DoRequest, body, where)
    answered = await asyncio.wrap_future(
        ask(order.node, order.action, order.parameters, order.sender(address))
    )
    return {"values": answered.values, "text": answered.text}


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
    # A page of another site cannot send this content type without a preflight request, which is
    # never granted.
    if (
        request.headers.get("content-type", "").partition(";")[0].strip().lower()
        != "application/json"
    ):
        raise InputError("The request body must be JSON", expected="Content-Type: application/json")
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_BODY_BYTES:
                raise InputError(
                    "The request body is too long", expected=f"at most {_MAX_BODY_BYTES} bytes"
                )
    except ClientDisconnect:
        raise InputError("The request ended within its body") from None
    try:
        document = json.loads(body, parse_int=_integer, parse_float=_finite, parse_constant=_finite)
        json.dumps(document, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise InputError("Request body is not valid JSON", got=str(error)) from None
    if not isinstance(document, dict):
        raise InputError("The request body must be a JSON object", got=type(document).__name__)
    return document
