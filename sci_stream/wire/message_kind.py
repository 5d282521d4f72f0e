"""The description of a kind of message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sci_stream.model import Array
from sci_stream.wire.payload import Arrays, PayloadSpec
from sci_stream.wire.validators import Fields, Record


@dataclass(frozen=True, slots=True)
class MessageKind:
    """One kind of message.

    Parameters
    ----------
    name
        Name, sent as the first frame.
    type
        Class of the value.
    record
        Fields of the header, without ``v`` and ``payloads``.
    payloads
        Arrays after the header, in order.
    arrays
        Returns the payloads of a value by name.
    build
        Makes a value from validated fields and arrays.
    validate
        Raises `FieldError` if the parts of a value are inconsistent.
    """

    name: str
    type: type
    record: Record
    payloads: tuple[PayloadSpec, ...] = ()
    arrays: Callable[[Any], Mapping[str, Array | None]] = lambda _: MappingProxyType({})
    build: Callable[[Fields, Arrays], Any] | None = None
    validate: Callable[[Any], None] | None = None

    def make(self, fields: Fields, arrays: Arrays) -> Any:
        """Make the value from fields and arrays."""
        return self.record.make(**fields) if self.build is None else self.build(fields, arrays)
