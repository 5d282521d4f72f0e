"""The optional package ``genicam``: imported on demand, its errors translated."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from sci_stream.errors import CameraLost, require_optional

T = TypeVar("T")


class Library(NamedTuple):
    """The modules of the package: access to producers, and to features of cameras."""

    gentl: ModuleType
    genapi: ModuleType

    @property
    def transport_errors(self) -> tuple[type[Exception], ...]:
        """Exceptions of GenTL and GenApi for a failed camera or connection."""
        return (self.gentl.GenericException, self.genapi.GenericException)

    @property
    def no_answer(self) -> tuple[type[Exception], ...]:
        """Exceptions for optional features that a camera or producer lacks; also for texts that are
        not UTF-8.
        """
        return (*self.transport_errors, AttributeError, UnicodeDecodeError)


@functools.cache
def library() -> Library:
    """Import genicam. Raises `ConfigError` if it is not installed or unusable on this machine."""
    gentl, genapi = (
        require_optional(f"genicam.{name}", "genicam", "A GenICam camera")
        for name in ("gentl", "genapi")
    )
    return Library(gentl, genapi)


def message_of(error: BaseException) -> str:
    """Return the message of a library exception, without source locations."""
    text = " ".join(str(error).split()) or type(error).__name__
    for clutter in ("GenTL exception: ", "GenApi exception: "):
        text = text.removeprefix(clutter)
    return text.split(" : ")[0].removesuffix(".")


@contextlib.contextmanager
def lost_if_failing(what: str) -> Iterator[None]:
    """Raise exceptions of the library as `CameraLost`, whose message is ``what``."""
    try:
        yield
    except library().transport_errors as error:
        raise CameraLost(what, got=message_of(error)) from None


def get(read: Callable[[], T], *, default: Any = None) -> T | Any:
    """Return the result of ``read``, or the default if the camera or producer does not support it.

    Optional features of GenTL raise an exception where they are missing, a different one with each
    producer.
    """
    # Not contextlib.suppress: this runs ten times per frame, and `try` costs nothing without an
    # exception.
    try:
        return read()
    except library().no_answer:
        return default


def attribute(thing: Any, name: str, default: Any = None) -> Any:
    """Return an attribute, or the default if the camera or producer does not support it."""
    try:
        return getattr(thing, name)
    except library().no_answer:
        return default


def feature(node_map: Any, name: str, default: Any = None) -> Any:
    """Return the value of a feature, or the default if it is missing or not readable now."""
    return get(lambda: node_map.get_node(name).value, default=default)
