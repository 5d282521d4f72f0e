"""Unix time that does not step while a process runs, for timestamps from which durations are
computed.

The host's clock is stepped at boot, by an administrator or by a time service. A stage of a snapshot
that contains a step would appear to take an hour, or a negative time. So each process reads the
host's clock once and continues with the monotonic clock, which runs at the same rate (a time
service slews both) and is never set. The difference between two processes after a step is measured
as between hosts (`sci_stream.delivery.clock_offset`).
"""

from __future__ import annotations

import time

_ahead_ns = time.time_ns() - time.monotonic_ns()


def unix_ns() -> int:
    """Return nanoseconds since 1970 by this process's clock; never less than an earlier call."""
    return time.monotonic_ns() + _ahead_ns


def read_again() -> int:
    """Read the host's clock again; return by how much `unix_ns` steps, ns.

    Call it only between series: a step within one would corrupt its durations.
    """
    global _ahead_ns
    before_ns, _ahead_ns = _ahead_ns, time.time_ns() - time.monotonic_ns()
    return _ahead_ns - before_ns
