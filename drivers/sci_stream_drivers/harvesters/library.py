"""The optional packages behind this driver: imported on demand, kept quiet, their failures put into words."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from sci_stream.errors import CameraError

T = TypeVar("T")

QUIET = logging.getLogger("sci_stream.harvesters_library")
"""Where the library's own words go. It logs a traceback for whatever it raises or swallows, and a warning for every
incomplete buffer; all of these reach the user through this driver, once and in words."""
QUIET.setLevel(logging.CRITICAL)


class Library(NamedTuple):
    """The modules of the optional packages."""

    core: ModuleType
    gentl: ModuleType
    genapi: ModuleType

    @property
    def transport_errors(self) -> tuple[type[Exception], ...]:
        """What GenTL and GenApi raise: the camera or its connection failed."""
        return (self.gentl.GenericException, self.genapi.GenericException)

    @property
    def no_answer(self) -> tuple[type[Exception], ...]:
        """What is raised where camera or producer lack something that is optional."""
        return (*self.transport_errors, AttributeError)


@functools.cache
def library() -> Library:
    """Import harvesters and genicam.

    Raises
    ------
    CameraError
        If they are not installed or do not work here.
    """
    try:
        from genicam import genapi, gentl  # noqa: PLC0415  # optional
        from harvesters import core  # noqa: PLC0415
    except ImportError as error:
        raise CameraError(
            "GenICam cameras need the packages harvesters and genicam",
            got=error,
            hint="Install them: pip install 'sci-stream[genicam]'.",
        ) from error
    return Library(core, gentl, genapi)


def words(error: BaseException) -> str:
    """Return what an exception of the library says, without the place in the library's own source."""
    text = " ".join(str(error).split()) or type(error).__name__
    for clutter in ("GenTL exception: ", "GenApi exception: "):
        text = text.removeprefix(clutter)
    return text.split(" : ")[0].removesuffix(".")


def get(read: Callable[[], T], *, default: Any = None) -> T | Any:
    """Return what ``read`` does, or the default where camera or producer have no answer.

    Whatever is optional in GenTL raises where it is absent, each producer in its own way.
    """
    # Not contextlib.suppress: this is asked ten times a frame, and `try` costs nothing where nothing is raised.
    try:
        return read()
    except library().no_answer:
        return default


def attribute(thing: Any, name: str, default: Any = None) -> Any:
    """Return an attribute, or the default where camera or producer have no answer."""
    try:
        return getattr(thing, name)
    except library().no_answer:
        return default


def feature(node_map: Any, name: str, default: Any = None) -> Any:
    """Return the value of a feature, or the default if there is none, or none that can be read now."""
    return get(lambda: node_map.get_node(name).value, default=default)
