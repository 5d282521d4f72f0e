"""Validators for the fields of headers.

A `Record` names the fields of a map, and each field has a `Check`. Both sides run the same checks: a sender gets a
``ValueError`` for what a receiver would refuse.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NoReturn

_LONGEST_QUOTE = 40

# Fields of a record by name. Each has a type of its own, which only its `Check` knows.
Fields = dict[str, Any]


def quoted(value: object) -> str:
    """Describe a received value in a few words, however large or deeply nested it is."""
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= _LONGEST_QUOTE else f"{value[:_LONGEST_QUOTE]!r}… ({len(value)} characters)"
    return f"a {type(value).__name__}"


class FieldError(Exception):
    """A value that is invalid for its field. Internal: becomes a `WireError` or a ``ValueError``."""

    def __init__(self, expected: str, got: str, field: str = "") -> None:
        self.expected = expected
        self.got = got
        self.field = field
        super().__init__(f"{field}: expected {expected}, got {got}")

    def within(self, name: str) -> FieldError:
        """Prepend the name of the field that contains it."""
        return FieldError(self.expected, self.got, f"{name}.{self.field}" if self.field else name)


class Check(ABC):
    """Validator of a field: `read` returns the value or raises `FieldError`, `dump` converts it for the wire."""

    __slots__ = ()

    @abstractmethod
    def read(self, value: object) -> Any:
        """Return the validated value."""

    def dump(self, value: Any) -> Any:
        """Return the value to send."""
        return value


class Integer(Check):
    """An integer between two bounds, inclusive; booleans are refused."""

    __slots__ = ("_high", "_low")

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high

    def read(self, value: object) -> int:
        """Return the integer."""
        if type(value) is int and self._low <= value <= self._high:
            return value
        raise FieldError(f"an integer from {self._low} to {self._high}", quoted(value))


class Number(Check):
    """A finite number. Integers are accepted and stay integers: packers of some languages write 1.0 as 1."""

    __slots__ = ("_high", "_low")

    def __init__(self, low: float = -math.inf, high: float = math.inf) -> None:
        self._low, self._high = low, high

    def read(self, value: object) -> float:
        """Return the number."""
        if isinstance(value, bool) or not isinstance(value, float | int) or not self._contains(value):
            raise FieldError(f"a finite number from {self._low:g} to {self._high:g}", quoted(value))
        return value

    def _contains(self, value: float) -> bool:
        return self._low <= value <= self._high and math.isfinite(value)


class Flag(Check):
    """True or false."""

    __slots__ = ()

    def read(self, value: object) -> bool:
        """Return the boolean."""
        if isinstance(value, bool):
            return value
        raise FieldError("true or false", quoted(value))


class Text(Check):
    """A string of bounded length without NUL, which neither HDF5 nor file names can hold; optionally with a pattern."""

    __slots__ = ("_description", "_most", "_pattern")

    def __init__(self, most: int, pattern: str | None = None, description: str = "") -> None:
        self._most = most
        self._pattern = re.compile(pattern) if pattern is not None else None
        self._description = description or "a string"

    def read(self, value: object) -> str:
        """Return the string."""
        if not isinstance(value, str) or len(value) > self._most or "\0" in value or not self._matches(value):
            raise FieldError(f"{self._description} of at most {self._most} characters, without NUL", quoted(value))
        return value

    def _matches(self, value: str) -> bool:
        return self._pattern is None or self._pattern.fullmatch(value) is not None

    def admits(self, value: object) -> bool:
        """Return whether a value is valid."""
        try:
            self.read(value)
        except FieldError:
            return False
        return True


class Prose(Text):
    """Text for people: too long text is cut when it is sent, since it is not worth an error."""

    __slots__ = ()

    def dump(self, value: str) -> str:
        """Return the text cut to length, with NUL and characters that UTF-8 cannot encode replaced."""
        text = value.encode(errors="replace").decode().replace("\0", "?")
        return text if len(text) <= self._most else text[: self._most - 1] + "…"


class Choice(Check):
    """One of several strings; ``options`` maps each to its value."""

    __slots__ = ("_options",)

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = dict(options)

    def read(self, value: object) -> Any:
        """Return the value of the string."""
        if isinstance(value, str) and value in self._options:
            return self._options[value]
        raise FieldError(f"one of {', '.join(self._options)}", quoted(value))

    def dump(self, value: str) -> str:
        """Return a plain string, also for a member of an enumeration."""
        return str(value)


class Maybe(Check):
    """A value of another check, or nil."""

    __slots__ = ("_check",)

    def __init__(self, check: Check) -> None:
        self._check = check

    def read(self, value: object) -> Any:
        """Return None or the validated value."""
        return None if value is None else self._check.read(value)

    def dump(self, value: Any) -> Any:
        """Return None or the value to send."""
        return None if value is None else self._check.dump(value)


class FiniteOrNil(Maybe):
    """A finite number or nil; infinity and NaN are sent as nil."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(Number())

    def dump(self, value: float | None) -> float | None:
        """Return the value to send."""
        return value if value is not None and math.isfinite(value) else None


class Table(Check):
    """A map of free keys: a bounded number of short names with values of one kind."""

    __slots__ = ("_keys", "_most", "_value")

    def __init__(self, value: Check, *, most: int, keys: Text | None = None) -> None:
        self._value, self._most = value, most
        self._keys = Text(64) if keys is None else keys

    def read(self, value: object) -> Fields:
        """Return the map with validated values."""
        if not isinstance(value, dict) or len(value) > self._most:
            got = f"{len(value)} entries" if isinstance(value, dict) else quoted(value)
            raise FieldError(f"a map of at most {self._most} entries", got)
        out = {}
        for key, entry in value.items():
            name = self._keys.read(key)
            try:
                out[name] = self._value.read(entry)
            except FieldError as error:
                raise error.within(quoted(key)) from None
        return out

    def dump(self, value: Mapping[str, object]) -> Fields:
        """Return the map to send."""
        return {key: self._value.dump(entry) for key, entry in value.items()}


class Record(Check):
    """A map with exactly the given fields.

    Parameters
    ----------
    make
        Makes the value from the fields as keyword arguments.
    fields
        Check by field name.
    paths
        Attribute of the value for fields with another name (``"id.series"``).
    """

    __slots__ = ("_fields", "_getters", "make")

    def __init__(
        self, make: Callable[..., Any], fields: Mapping[str, Check], paths: Mapping[str, str] | None = None
    ) -> None:
        self.make = make
        self._fields = dict(fields)
        self._getters = {name: attrgetter((paths or {}).get(name, name)) for name in fields}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields, in order."""
        return tuple(self._fields)

    def read(self, value: object) -> Any:
        """Return the value of the map."""
        return self.make(**self.values(value))

    def values(self, value: object) -> Fields:
        """Return the validated fields."""
        if not isinstance(value, dict):
            raise FieldError("a map", quoted(value))
        if value.keys() != self._fields.keys():
            self._refuse_names(value)
        out = {}
        for name, check in self._fields.items():
            try:
                out[name] = check.read(value[name])
            except FieldError as error:
                raise error.within(name) from None
        return out

    def _refuse_names(self, value: dict[Any, Any]) -> NoReturn:
        missing = [name for name in self._fields if name not in value]
        if missing:
            raise FieldError("a required field", "no such field", missing[0])
        unknown = next(key for key in value if key not in self._fields)
        raise FieldError("only the fields of this version", "an unknown field", quoted(unknown))

    def dump(self, value: Any) -> Fields:
        """Return the map to send."""
        return {name: check.dump(self._getters[name](value)) for name, check in self._fields.items()}
