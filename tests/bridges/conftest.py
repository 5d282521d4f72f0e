"""Fixtures of the bridges."""

from __future__ import annotations

import pytest

from tests.ports import free_endpoint


@pytest.fixture
def taps() -> str:
    """Return an endpoint that is free."""
    return free_endpoint()
