"""Drive transport objects over real sockets until a condition holds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

import numpy as np
import zmq

from sci_stream.model import Reconstruction, Snapshot, SnapshotId, StageTimes
from sci_stream.reports import SolveReport, Start
from sci_stream.wire.messages import Hello
from tests.hostile_messages import HostileCase

HEARTBEAT_S = 0.1
SERIES = "series-1"


def until(
    condition: Callable[[], object], poll: Callable[[], object], timeout_s: float = 60.0
) -> None:
    """Poll until the condition holds; fail on timeout."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not hold in time"
        poll()
        time.sleep(0.002)


def send_until_counted(
    raw: zmq.Socket[bytes],
    cases: Sequence[HostileCase],
    counted: Callable[[], int],
    poll: Callable[[], object],
) -> None:
    """Send bad messages and see each counted.

    Again where they are not: on a busy machine the connection may break for want of a heartbeat,
    and messages on their way are gone.
    """
    for _ in range(10):
        before = counted()
        for case in cases:
            raw.send_multipart(case.frames)
        with contextlib.suppress(AssertionError):
            until(lambda before=before: counted() - before >= len(cases), poll)
            return
    raise AssertionError(f"of {len(cases)} messages only {counted() - before} were counted")


def hello(node: str = "reconstruct-0", credit: int = 0, incarnation: str = "a") -> Hello:
    return Hello(node=node, kind_of_node="reconstruct", incarnation=incarnation, credit=credit)


def snapshot(seq: int, *, calibration_hash: str = "0" * 32) -> Snapshot:
    return Snapshot(
        id=SnapshotId(SERIES, 0, seq),
        counts=np.full((4, 6), seq, np.uint16),
        calibration_hash=calibration_hash,
        n_frames=2,
        host_time_ns=1,
    )


def reconstruction(seq: int) -> Reconstruction:
    report = SolveReport(
        iterations=3,
        start=Start.COLD,
        start_reason="first",
        budget_limited=False,
        solve_ns=1,
        residual=0.1,
    )
    return Reconstruction(
        id=SnapshotId(SERIES, 0, seq),
        video=np.zeros((2, 4, 6), np.float16),
        calibration_hash="0" * 32,
        report=report,
        times=StageTimes(),
        node="reconstruct-0",
        device="cpu",
    )
