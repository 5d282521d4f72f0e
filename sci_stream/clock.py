"""Unix time that is never set while a process runs: for stamps from which durations are computed.

A host's clock is stepped: at boot, by an administrator, by a time service that finds it wrong. A stage of a snapshot's
way that a step falls into would have taken an hour, or less than no time. So each process reads that clock once, and
goes on from there by the monotonic one, which runs at the same rate (a time service slews both) and which is never set.
What two processes have apart after a step is measured as between hosts (`sci_stream.delivery.clock_offset`).
"""

from __future__ import annotations

import time

_ahead_ns = time.time_ns() - time.monotonic_ns()


def unix_ns() -> int:
    """Return nanoseconds since 1970 by this process's clock: later calls never return less."""
    return time.monotonic_ns() + _ahead_ns


def host_s() -> float:
    """Return seconds since 1970 by the host's clock as it is set now: for moments that people name, as an expiry."""
    return time.time()


def read_again() -> int:
    """Take over what the host's clock says now; return by how much `unix_ns` steps, ns.

    For a moment at which nothing is under way: before a series, whose stamps are then right.
    """
    global _ahead_ns
    before_ns, _ahead_ns = _ahead_ns, time.time_ns() - time.monotonic_ns()
    return _ahead_ns - before_ns
