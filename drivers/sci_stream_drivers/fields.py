"""Option types that several drivers share."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticKnownError

from sci_stream.plugins import BayerPhase


class DriverOptions(BaseModel):
    """Options of a camera: immutable, and an unknown name is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Put each description on one line."""
        for field in cls.model_fields.values():
            field.description = " ".join((field.description or "").split())


T = TypeVar("T")
Rare = Annotated[T, Field(json_schema_extra={"expert": True})]
"""The type of an option that `sci-stream config init` writes only with ``--all``."""

_MONO = ("none", "mono", "")


def _mono_is_none(value: object) -> object:
    """Convert ``"none"`` to None: TOML and environment variables have no null."""
    if not isinstance(value, str):
        return value
    if value.lower() in _MONO:
        return None
    phases = [phase.value for phase in BayerPhase]
    if value.upper() not in phases:
        raise PydanticKnownError("enum", {"expected": f"{', '.join(phases)} or none"})
    return value.upper()


BayerOption = Annotated[BayerPhase | None, BeforeValidator(_mono_is_none)]
"""A Bayer phase in any case, or ``"none"`` for a sensor without colour filters."""


def pixel_format_name(bit_depth: int, bayer: BayerPhase | None) -> str:
    """Return the GenICam (PFNC) name of an unpacked pixel format, e.g. ``BayerRG12``."""
    return f"Mono{bit_depth}" if bayer is None else f"Bayer{bayer.value[:2]}{bit_depth}"
