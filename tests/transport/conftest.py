"""A separate context and separate addresses for each test."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
import zmq

Context = zmq.Context


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    made: zmq.Context = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def free_endpoint() -> Callable[[], str]:
    def make() -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"tcp://127.0.0.1:{probe.getsockname()[1]}"

    return make
