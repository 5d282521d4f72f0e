"""Plug-ins of other packages, by the names of their entry points."""

from __future__ import annotations

import importlib.metadata


def plugin_names(group: str) -> list[str]:
    """Return the names of the installed plug-ins of a group."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=group)})


def plugin_entry(group: str, name: str) -> importlib.metadata.EntryPoint | None:
    """Return the entry point of a plug-in; None if none of that name is installed."""
    return next(iter(importlib.metadata.entry_points(group=group, name=name)), None)
