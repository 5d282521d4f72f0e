"""Encode messages to frames and decode them. Pure: no socket, no clock, no state.

A message is a multipart ``[kind][msgpack header][payload…]`` (docs/wire.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sci_stream.errors import CalibrationError, InputError, WireError
from sci_stream.model import SeriesInfo
from sci_stream.wire.header import MAX_FRAMES, MAX_PAYLOAD_BYTES, pack_header, refuse, unpack_header
from sci_stream.wire.kinds import KINDS
from sci_stream.wire.payload import pack_payloads, unpack_payloads
from sci_stream.wire.schema import FieldError

if TYPE_CHECKING:
    from sci_stream.wire.messages import Message

    Buffer = bytes | bytearray | memoryview

_BY_NAME = {kind.name.encode(): kind for kind in KINDS}
_BY_TYPE = {kind.type: kind for kind in KINDS}
_LONGEST_NAME = max(len(name) for name in _BY_NAME)


def encode(message: Message) -> list[bytes | memoryview]:
    """Return the frames of a message: kind, header, payloads.

    Payloads are views of the message's own arrays: do not modify these until the frames have been
    sent.

    Raises ValueError, with the field and both values, if a receiver would refuse the message;
    TypeError if it is none.
    """
    kind = _BY_TYPE.get(type(message))
    if kind is None:
        raise TypeError(f"not a message: {type(message).__name__}")
    try:
        descriptions, views = pack_payloads(kind.payloads, message)
        header = kind.dump(message, descriptions)
        kind.read(header)
        kind.check(message)
    except FieldError as error:
        raise ValueError(f"this {kind.name} cannot be sent: {error}") from None
    return [kind.name.encode(), pack_header(header), *views]


def decode(frames: Sequence[Buffer], max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> Message:
    """Return the message of the given frames, fully validated.

    Parameters
    ----------
    frames
        The parts of one multipart message: ``bytes``, or views of a receive buffer. Arrays of the
        message share their memory, read-only: it must not be modified during the life of the
        message.
    max_payload_bytes
        Limit on the size of each payload.

    Raises
    ------
    WireError
        The only exception, whatever the frames contain; `Reason` lists the values of its
        ``reason``.
    """
    if not 2 <= len(frames) <= MAX_FRAMES:
        refuse(
            "frames",
            "A message has the wrong number of frames",
            expected=f"2 to {MAX_FRAMES}",
            got=len(frames),
        )
    views = [memoryview(frame).cast("B") for frame in frames]
    kind = _BY_NAME.get(bytes(views[0])) if views[0].nbytes <= _LONGEST_NAME else None
    if kind is None:
        got = ascii(bytes(views[0][:_LONGEST_NAME]))
        refuse(
            "unknown_kind",
            "The first frame is not a kind of message",
            expected="one of docs/wire.md",
            got=got,
        )
    header = unpack_header(views[1])
    try:
        fields, descriptions = kind.read(header)
        message: Message = kind.make(
            fields, unpack_payloads(kind.payloads, descriptions, views[2:], max_payload_bytes)
        )
    except CalibrationError as error:
        refuse(
            "payload_value",
            f"Not a usable calibration: {error.what}",
            expected=error.expected,
            got=error.got,
        )
    except FieldError as error:
        refuse(
            error.reason, f"{error.field} of a {kind.name}", expected=error.expected, got=error.got
        )
    return message


def sendable(info: SeriesInfo) -> SeriesInfo:
    """Return the description of a series as receivers and readers get it, with long labels cut.

    Call it before a series begins: all of them would refuse values beyond the limits.

    Raises `InputError`, with the field and the limit.
    """
    try:
        received = decode([bytes(frame) for frame in encode(info)])
    except (ValueError, WireError) as error:
        raise InputError(
            f"The series {info.series!a} cannot begin",
            got=error,
            hint="Numbers that come with each snapshot are those of camera, modulator and analyses "
            "together; sci-stream check counts them.",
        ) from error
    assert isinstance(received, SeriesInfo)
    refused = info.chunks.keys() - received.chunks.keys()
    if refused:
        raise InputError(
            "Numbers that come with each snapshot have impossible names",
            expected="at most 64 characters, without / and control characters",
            got=", ".join(map(ascii, sorted(refused))),
        )
    return received


def payload_bytes(message: Message) -> int:
    """Return the size of the arrays of a message."""
    total = 0
    for name, payload in _BY_TYPE[type(message)].payloads.items():
        value = getattr(message, name)
        arrays = value if payload.many else [value]
        total += sum(array.nbytes for array in arrays if array is not None)
    return total
