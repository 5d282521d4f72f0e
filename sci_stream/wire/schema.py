"""The table of all kinds of messages by name, specified in docs/wire.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args

from sci_stream.wire import messages as msg
from sci_stream.wire.field_codecs import CALIBRATION, RECONSTRUCTION, SERIES_START, SNAPSHOT
from sci_stream.wire.message_spec import (
    COUNT,
    ID_FIELDS,
    LABEL,
    NAME,
    PARAMETERS,
    SEQ,
    VERSIONS,
    WORD,
    MessageKind,
    Status,
    StatusEntry,
)
from sci_stream.wire.validators import Check, Choice, Flag, Integer, Number, Prose, Record, Text, UnfitError


def _dropped_agrees(dropped: msg.Dropped) -> None:
    if dropped.outcome == "dropped" and not dropped.reason:
        raise UnfitError("a reason, since the snapshot is lost", "none", "reason")


def _one_of(literal: Any) -> Choice:
    return Choice({option: option for option in get_args(literal)})


def _plain(name: str, kind: type, fields: dict[str, Check], agree: Callable[[Any], None] | None = None) -> MessageKind:
    return MessageKind(name, kind, Record(kind, fields), agree=agree)


_SHOWN = Text(64, r"([0-9a-f]{1,16}:[0-9a-f]{32})?", "an address and 16 bytes, hexadecimal")

KINDS: Final = (
    SERIES_START,
    SNAPSHOT,
    RECONSTRUCTION,
    _plain(
        "series_end", msg.SeriesEnd, {"series": NAME, "acquired": SEQ, "reason": Prose(1024), "camera_dropped": COUNT}
    ),
    _plain(
        "dropped",
        msg.Dropped,
        {
            **ID_FIELDS,
            "reason": Text(64, r"|[a-z][a-z0-9_]*", "a word of small letters, digits and _"),
            "outcome": _one_of(msg.Outcome),
        },
        _dropped_agrees,
    ),
    _plain(
        "accepted",
        msg.Accepted,
        {
            "series": NAME,
            "seq": SEQ,
            "of": _one_of(msg.Acceptable),
        },
    ),
    _plain(
        "hello",
        msg.Hello,
        {
            "node": NAME,
            "kind_of_node": _one_of(msg.NodeKind),
            "incarnation": NAME,
            "device": LABEL,
            "credit": Integer(0, 1024),
            "protocol": Integer(1, 2**31 - 1),
            "versions": VERSIONS,
            "shows": _SHOWN,
            "reads": Flag(),
        },
    ),
    _plain(
        "welcome",
        msg.Welcome,
        {"node": NAME, "incarnation": NAME, "heartbeat_s": Number(0.01, 3600), "shows": _SHOWN, "reads": Flag()},
    ),
    _plain("heartbeat", msg.Heartbeat, {"node": NAME, "status": Status(StatusEntry(), most=128)}),
    _plain("ping", msg.Ping, {"sent_ns": COUNT}),
    _plain("pong", msg.Pong, {"sent_ns": COUNT, "received_ns": COUNT, "answered_ns": COUNT}),
    _plain("goodbye", msg.Goodbye, {"node": NAME}),
    _plain("refused", msg.Refused, {"reason": WORD, "text": Prose(2048)}),
    _plain("done", msg.Done, {"series": NAME, "seq": SEQ, "ok": Flag(), "reason": Prose(1024)}),
    _plain("calibration_request", msg.CalibrationRequest, {"hash": NAME}),
    CALIBRATION,
    _plain("calibration_missing", msg.CalibrationMissing, {"hash": NAME}),
    _plain(
        "control",
        msg.Control,
        {"request": NAME, "node": NAME, "action": WORD, "parameters": PARAMETERS, "who": LABEL},
    ),
    _plain(
        "control_result",
        msg.ControlResult,
        {"request": NAME, "ok": Flag(), "text": Prose(2048), "values": PARAMETERS},
    ),
)
"""Every kind of message (docs/wire.md)."""
