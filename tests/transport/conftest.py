"""A separate context and separate addresses for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import zmq

from tests import ports

Context = zmq.Context


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    made: zmq.Context = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def free_endpoint() -> Callable[[], str]:
    return ports.free_endpoint
