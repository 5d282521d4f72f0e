"""What makes a kind of message, and the checks that several kinds share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from sci_stream.model import Array, BayerPhase
from sci_stream.wire.messages import StatusValue
from sci_stream.wire.payload import MAX_DIM, PayloadSpec
from sci_stream.wire.validators import Check, Choice, Integer, Maybe, Number, Prose, Record, Table, Text

# Names become files, folders and socket identities: no separators, no leading dot, nothing that a shell would read.
NAME = Text(96, r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name of letters, digits and . _ -")
WORD = Text(64, r"[a-z][a-z0-9_]*", "a word of small letters, digits and _")
# What cameras, drivers and devices call themselves is not ours to bound: cut, not refused.
LABEL = Prose(256)
COUNT = Integer(0, 2**63 - 1)
SMALL_COUNT = Integer(0, 2**31 - 1)
DIM = Integer(1, MAX_DIM)
BAYER = Maybe(Choice({phase.value: phase for phase in BayerPhase}))
VERSIONS = Table(Text(128), most=64)


class StatusEntry(Check):
    """What a node may say of itself: a finite number, a flag or a short text."""

    _number, _integer, _text = Number(), Integer(-(2**63), 2**63 - 1), Prose(1024)

    def read(self, value: object) -> StatusValue:
        """Return the value."""
        if isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text.read(value)
        return self._integer.read(value) if type(value) is int else self._number.read(value)

    def dump(self, value: Any) -> Any:
        """Return what to send."""
        return self._text.dump(value) if isinstance(value, str) else value


class Status(Table):
    """The status of a heartbeat. A rate that is not known yet, NaN, must not silence the node that reports it."""

    def dump(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return what to send."""
        known = {key: entry for key, entry in value.items() if not isinstance(entry, float) or math.isfinite(entry)}
        return super().dump(known)


PARAMETERS = Table(StatusEntry(), most=16)
CHUNKS = Status(StatusEntry(), most=16)
"""What a camera adds to a frame; a number that is none must not hold the frame up."""
UNITS = Table(Prose(64), most=16)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of message.

    Parameters
    ----------
    name
        The first frame.
    type
        The value it carries.
    record
        The fields of its header, without ``v`` and ``payloads``.
    payloads
        The arrays behind it, in order.
    arrays
        Takes the payloads from a value, by name.
    build
        Puts a value together from checked fields and arrays.
    agree
        Raises `UnfitError` if a value's parts contradict each other.
    """

    name: str
    type: type
    record: Record
    payloads: tuple[PayloadSpec, ...] = ()
    arrays: Callable[[Any], Mapping[str, Array | None]] = lambda _: MappingProxyType({})
    build: Callable[[dict[str, Any], dict[str, Array | None]], Any] | None = None
    agree: Callable[[Any], None] | None = None

    def make(self, fields: dict[str, Any], arrays: dict[str, Array | None]) -> Any:
        """Return the value."""
        return self.record.make(**fields) if self.build is None else self.build(fields, arrays)


ID_FIELDS: Final[dict[str, Check]] = {"series": NAME, "epoch": SMALL_COUNT, "seq": COUNT}
"""Which snapshot a message is about."""
