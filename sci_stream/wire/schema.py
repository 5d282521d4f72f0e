"""The table of all kinds of messages by name, specified in docs/wire.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from sci_stream.wire import messages as msg
from sci_stream.wire.message_kind import MessageKind
from sci_stream.wire.model_codecs import CALIBRATION, RECONSTRUCTION, SERIES_START, SNAPSHOT
from sci_stream.wire.validators import Check, Choice, FieldError, Flag, Record


def _check(annotation: Any) -> Check:
    """Return the check of a field from its type."""
    if annotation is bool:
        return Flag()
    if get_origin(annotation) is Literal:
        return Choice({option: option for option in get_args(annotation)})
    check: Check = annotation.__metadata__[0]
    return check


def _plain(name: str, kind: type, validate: Callable[[Any], None] | None = None) -> MessageKind:
    """Return a kind of message without payloads, whose fields are declared in `sci_stream.wire.messages`."""
    fields = get_type_hints(kind, include_extras=True)
    return MessageKind(name, kind, Record(kind, {field: _check(fields[field]) for field in fields}), validate=validate)


def _validate_dropped(dropped: msg.Dropped) -> None:
    if dropped.outcome == "dropped" and not dropped.reason:
        raise FieldError("a reason, since the snapshot is lost", "none", "reason")


KINDS: Final = (
    SERIES_START,
    SNAPSHOT,
    RECONSTRUCTION,
    _plain("series_end", msg.SeriesEnd),
    _plain("dropped", msg.Dropped, _validate_dropped),
    _plain("accepted", msg.Accepted),
    _plain("hello", msg.Hello),
    _plain("welcome", msg.Welcome),
    _plain("heartbeat", msg.Heartbeat),
    _plain("ping", msg.Ping),
    _plain("pong", msg.Pong),
    _plain("goodbye", msg.Goodbye),
    _plain("refused", msg.Refused),
    _plain("done", msg.Done),
    _plain("calibration_request", msg.CalibrationRequest),
    CALIBRATION,
    _plain("calibration_missing", msg.CalibrationMissing),
    _plain("control", msg.Control),
    _plain("control_result", msg.ControlResult),
)
"""Every kind of message (docs/wire.md)."""
