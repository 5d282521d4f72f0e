"""Fixtures of the bridges."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture
def taps() -> str:
    """Return an endpoint that is free."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{found.getsockname()[1]}"
