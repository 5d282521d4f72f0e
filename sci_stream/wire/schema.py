"""Schemas of headers: a map with exactly the fields of a value, each checked as its type declares.

The types are those of `sci_stream.field_types`; pydantic checks them. A dataclass is sent as a map,
an enumeration as a string. Both sides run the same checks: a sender gets a ``ValueError`` for a
message that a receiver would refuse.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import Field, JsonValue, TypeAdapter, ValidationError
from pydantic_core import CoreConfig, CoreSchema, ErrorDetails, SchemaValidator, core_schema

from sci_stream.field_types import FieldType
from sci_stream.quantities import Aspect, quantities_of
from sci_stream.wire.header import Reason, quoted

M = TypeVar("M")


class FieldError(Exception):
    """A value that is invalid for its field.

    Internal: becomes a `WireError` or a ``ValueError``.
    """

    def __init__(
        self, field: str, expected: str, got: str, reason: Reason = "header_field"
    ) -> None:
        self.field = field
        self.expected = expected
        self.got = got
        self.reason: Reason = reason
        super().__init__(f"{field}: expected {expected}, got {got}")


class MapSchema:
    """The fields of a map: their types by name, in the order in which they are sent.

    ``paths`` are the attributes of a value for fields with another name (``"id.series"``). Where
    fields are ``optional``, unknown ones are ignored as well.
    """

    def __init__(
        self,
        types: Mapping[str, Any],
        paths: Mapping[str, str] = MappingProxyType({}),
        optional: Collection[str] = (),
    ) -> None:
        fields = {
            name: core_schema.typed_dict_field(_schema(kind), required=name not in optional)
            for name, kind in types.items()
        }
        extra: Literal["ignore", "forbid"] = "ignore" if optional else "forbid"
        self.core = core_schema.typed_dict_schema(
            fields, extra_behavior=extra, config=CoreConfig(strict=True)
        )
        self._steps = [
            (name, attrgetter(paths.get(name, name)), _conversion(kind))
            for name, kind in types.items()
        ]

    @functools.cached_property
    def _validator(self) -> SchemaValidator:
        return SchemaValidator(self.core)

    def dump(self, value: object) -> dict[str, JsonValue]:
        """Return the fields of a value to send."""
        return {
            name: convert(get(value)) if convert else get(value)
            for name, get, convert in self._steps
        }

    def read(self, fields: object) -> dict[str, Any]:
        """Return the validated fields. Raises `FieldError`."""
        try:
            return dict(self._validator.validate_python(fields))
        except ValidationError as error:
            raise _field_error(error.errors(include_url=False)[0]) from None


def types_of(kind: type) -> dict[str, Any]:
    """Return the declared types of a dataclass's fields, with their metadata except those of
    reports.
    """
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: _without_aspects(hints[field.name]) for field in dataclasses.fields(kind)}


def _without_aspects(annotation: Any) -> Any:
    if get_origin(annotation) is not Annotated:
        return annotation
    plain, *metadata = get_args(annotation)
    of_field = [entry for entry in metadata if not isinstance(entry, Aspect)]
    return Annotated[plain, *of_field] if of_field else plain


def metadata_of(annotation: Any, kind: type[M]) -> M | None:
    """Return the metadata of a field of this kind."""
    metadata = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((entry for entry in metadata if isinstance(entry, kind)), None)


def optional_type(annotation: Any) -> Any:
    """Return the type of an optional value; None for a type that is not optional."""
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()
    return next((option for option in options if option is not NoneType), None)


@functools.cache
def _map_of(kind: type) -> MapSchema:
    if not quantities_of(kind):
        return MapSchema(types_of(kind))
    # Nodes of two builds understand each other's reports if one has more quantities.
    with_default = {
        field.name for field in dataclasses.fields(kind) if field.default is not dataclasses.MISSING
    }
    return MapSchema(types_of(kind), optional=with_default)


def _conversion(annotation: Any) -> Callable[[Any], Any] | None:
    """Return the conversion of a value before it is sent; None if it is sent as it is."""
    declared = metadata_of(annotation, FieldType)
    if declared is not None:
        return declared.send
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _map_of(annotation).dump
    if get_origin(annotation) is list:
        each = _conversion(get_args(annotation)[0])
        return None if each is None else lambda values: list(map(each, values))
    if (optional := optional_type(annotation)) is None or (
        convert := _conversion(optional)
    ) is None:
        return None
    return lambda value: None if value is None else convert(value)


# most types are declared by many messages, and a node makes all schemas when it starts
@functools.cache
def _schema(annotation: Any) -> CoreSchema:
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        fields = _map_of(annotation).core
        return core_schema.no_info_after_validator_function(
            lambda values: annotation(**values), fields
        )
    if get_origin(annotation) is list:
        return core_schema.list_schema(_schema(get_args(annotation)[0]))
    if (optional := optional_type(annotation)) is not None:
        return core_schema.nullable_schema(_schema(optional))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        annotation = Annotated[annotation, Field(strict=False)]  # its members arrive as strings
    return TypeAdapter(annotation).core_schema


def _field_error(details: ErrorDetails) -> FieldError:
    parts = [str(part) for part in details["loc"] if part != "[key]"]
    field = ".".join(
        part if part.isidentifier() and len(part) <= 64 else quoted(part) for part in parts
    )
    context = details.get("ctx", {})
    match details["type"]:
        case "missing":
            return FieldError(field, "a required field", "no such field")
        case "extra_forbidden":
            return FieldError(field, "only the fields of this version", "an unknown field")
        case "bool_type":
            expected = "true or false"
        case "literal_error" | "enum":
            expected = "one of " + str(context["expected"]).replace("'", "").replace(" or ", ", ")
        case "too_long":
            expected = f"a map of at most {context['max_length']} entries"
        case "dict_type":
            expected = "a map"
        case _:
            expected = details["msg"]
    return FieldError(field or "the header", expected, quoted(details["input"]))
