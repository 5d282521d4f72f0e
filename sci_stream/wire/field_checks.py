"""Checks of fields that several kinds of messages share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from sci_stream.model import BayerPhase
from sci_stream.wire.payload import MAX_DIM
from sci_stream.wire.validators import Check, Choice, Fields, Integer, Maybe, Number, Prose, Table, Text

StatusValue = int | float | str | bool

# Names become files, folders and socket identities: no separators, no leading dot, no shell characters.
NAME = Text(96, r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name of letters, digits and . _ -")
WORD = Text(64, r"[a-z][a-z0-9_]*", "a word of small letters, digits and _")
REASON = Text(64, r"|[a-z][a-z0-9_]*", "a word of small letters, digits and _")
# Cameras, drivers and devices choose their own labels: too long ones are cut, not refused.
LABEL = Prose(256)
COUNT = Integer(0, 2**63 - 1)
SMALL_COUNT = Integer(0, 2**31 - 1)
# Numbers of snapshots: a million per second for nine years. Sums of a few stay exact as floats and as 64-bit integers.
SEQ = Integer(0, 2**48 - 1)
# Chunk values become columns of the recording, so their names must be names in HDF5.
CHUNK_NAME = Text(64, r"[^/\x00-\x1f\x7f]+", "a name without / and control characters")
DIM = Integer(1, MAX_DIM)
BAYER = Maybe(Choice({phase.value: phase for phase in BayerPhase}))
VERSIONS = Table(Text(128), most=64)


class StatusEntry(Check):
    """A value of a node's status: a finite number, a flag or a short text."""

    _number, _integer, _text = Number(), Integer(-(2**63), 2**63 - 1), Prose(1024)

    def read(self, value: object) -> StatusValue:
        """Return the validated value."""
        if isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text.read(value)
        return self._integer.read(value) if type(value) is int else self._number.read(value)

    def dump(self, value: Any) -> Any:
        """Return the value to send."""
        return self._text.dump(value) if isinstance(value, str) else value


class Chunks(Table):
    """A camera's chunk data, or their units. An invalid name or number must not prevent the frame, so it is omitted."""

    def __init__(self, value: Check) -> None:
        super().__init__(value, most=16, keys=CHUNK_NAME)

    def dump(self, value: Mapping[str, object]) -> Fields:
        """Return the map to send."""
        return super().dump({k: v for k, v in value.items() if CHUNK_NAME.admits(k) and not _is_infinite(v)})


class Status(Table):
    """The status in a heartbeat. An unknown rate (NaN) must not prevent the heartbeat, so it is omitted."""

    def dump(self, value: Mapping[str, object]) -> Fields:
        """Return the map to send."""
        return super().dump({key: entry for key, entry in value.items() if not _is_infinite(entry)})


def _is_infinite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


STATUS = Status(StatusEntry(), most=128)
PARAMETERS = Table(StatusEntry(), most=16)
CHUNKS = Chunks(StatusEntry())
UNITS = Chunks(Prose(64))


# Fields that identify the snapshot of a message.
ID_FIELDS: Final[dict[str, Check]] = {"series": NAME, "epoch": SMALL_COUNT, "seq": SEQ}
