"""Fixtures shared with the whole rigs in `tests/e2e`."""

from __future__ import annotations

from tests.e2e.conftest import command_here

__all__ = ["command_here"]
