"""Plug-ins of other packages, by the names of their entry points."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

from sci_stream.errors import ConfigError, SciStreamError


def plugin_names(group: str) -> list[str]:
    """Return the names of the installed plug-ins of a group."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=group)})


def plugin_entry(group: str, name: str) -> importlib.metadata.EntryPoint | None:
    """Return the entry point of a plug-in; None if none of that name is installed."""
    return next(iter(importlib.metadata.entry_points(group=group, name=name)), None)


def imported(load: Callable[[], Any], what: str, hint: str | None = None) -> Any:
    """Return the object that the ``load`` of a plug-in returns; messages say ``what`` it is.

    Raises `ConfigError` if it cannot be imported; errors of this project pass.
    """
    try:
        return load()
    except SciStreamError:
        raise
    except Exception as error:  # a module may raise anything when it is imported
        got = f"{type(error).__name__}: {error}"
        raise ConfigError(f"Cannot import {what}", got=got, hint=hint) from error
