"""Timestamps do not follow steps of the host's clock; only `sci_stream.clock` reads it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from sci_stream import clock
from tests.e2e.kit import ROOT

HOUR_NS = 3600 * 10**9


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the host's clock back by an hour, for this process."""
    real = time.time_ns
    monkeypatch.setattr(clock, "_ahead_ns", clock._ahead_ns)  # put back afterwards
    monkeypatch.setattr(time, "time_ns", lambda: real() - HOUR_NS)
    return iter(())


def test_clock_is_unix_time() -> None:
    clock.read_again()
    assert abs(clock.unix_ns() - time.time_ns()) < 10**9


def test_clock_step_has_no_effect_until_requested(stepped: None) -> None:
    before_ns = clock.unix_ns()
    assert before_ns - time.time_ns() > HOUR_NS / 2
    assert clock.unix_ns() >= before_ns
    assert abs(clock.read_again() + HOUR_NS) < 10**9
    assert abs(clock.unix_ns() - time.time_ns()) < 10**9


def test_host_clock_is_read_in_one_module() -> None:
    reads = re.compile(
        r"\btime\.time(_ns)?\(\)|\bdatetime\.(now|utcnow)\(|\bdate\.today\(|CLOCK_REALTIME"
    )
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in (
            "sci_stream",
            "drivers/sci_stream_drivers",
            "lab/sci_stream_lab",
            "bridges/sci_stream_bridges",
        )
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "clock.py"
        for line in path.read_text().splitlines()
        if reads.search(line)
    ]
    assert found == []
