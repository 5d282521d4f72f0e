"""Free TCP ports for tests that run at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# Below the ephemeral range, and below the ports that demos draw, from 12,000 on: no other process
# takes a port before it is bound, and no test takes that of a demo.
_FIRST = 9_000
_LAST = 12_000
_BLOCK = 200


@cache
def _block() -> Iterator[int]:
    """Reserve a block of ports for this process and cycle through it.

    A port that a test has found free is bound only when its rig starts: without the lock, another
    test process could take it in between.
    """
    for first in range(_FIRST, _LAST, _BLOCK):
        lock = Path(tempfile.gettempdir(), f"sci-stream-test-ports-{first}")
        with contextlib.suppress(OSError):  # it is locked, or belongs to another user
            number = os.open(lock, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until this process ends
            except BlockingIOError:
                os.close(number)
            else:
                return itertools.cycle(range(first, first + _BLOCK))
    raise RuntimeError(
        f"every block of ports in {tempfile.gettempdir()} is in use by another test process"
    )


def free_ports(n: int) -> list[int]:
    """Return ``n`` free TCP ports that no other test process returns."""
    found: list[int] = []
    for port in itertools.islice(_block(), _BLOCK):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == n:
            return found
    raise RuntimeError(f"fewer than {n} of {_BLOCK} ports are free")


def free_endpoint() -> str:
    """Return a free TCP endpoint of this machine for ZeroMQ."""
    return f"tcp://127.0.0.1:{free_ports(1)[0]}"
