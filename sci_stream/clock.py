"""Unix time that does not step while a process runs, for timestamps from which durations are
computed.

The host's clock is stepped at boot, by an administrator or by a time service. A stage of a snapshot
that contains a step would appear to take an hour, or a negative time. So each process reads the
host's clock once and continues with the monotonic clock, which runs at the same rate (a time
service slews both) and is never set. The difference between two processes after a step is measured
as between hosts (`sci_stream.delivery.clock_offset`). A process that resumes a series continues the
clock of its predecessor: a step between the two would move triggers, hold-offs and ages.
"""

from __future__ import annotations

import time
from pathlib import Path

NOTEWORTHY_STEP_S = 1.0
"""Time servers correct smaller steps all the time; they matter to no figure."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_ahead_ns = time.time_ns() - time.monotonic_ns()


def unix_ns() -> int:
    """Return nanoseconds since 1970 by this process's clock; never less than an earlier call."""
    return time.monotonic_ns() + _ahead_ns


def clock_mark() -> bytes:
    """Return what another process needs to continue this clock: the boot of the host, and its Unix
    time.
    """
    return f"{_boot()} {_ahead_ns}".encode()


def continue_clock(mark: bytes) -> int:
    """Continue the clock of another process of this host; return by how much `unix_ns` steps, ns.

    A mark of another boot, whose monotonic time is another one, changes nothing.
    """
    global _ahead_ns  # noqa: PLW0603 - the clock of this process
    boot, _, ahead = mark.decode(errors="replace").rpartition(" ")
    if not boot or boot != _boot():
        return 0
    before_ns = _ahead_ns
    _ahead_ns = int(ahead)
    return _ahead_ns - before_ns


def _boot() -> str:
    try:
        return _BOOT.read_text("utf-8").strip()
    except OSError:
        return ""  # another system: its monotonic time cannot be compared


def read_again() -> int:
    """Read the host's clock again; return by how much `unix_ns` steps, ns.

    Call it only between series: a step within one would corrupt its durations.
    """
    global _ahead_ns
    before_ns, _ahead_ns = _ahead_ns, time.time_ns() - time.monotonic_ns()
    return _ahead_ns - before_ns
