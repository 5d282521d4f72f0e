"""Reports of drops: every snapshot once, in a bounded number of messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sci_stream.nodes.acquire.in_flight import DropReports
from sci_stream.wire.messages import Dropped


def test_drops_without_acknowledgement_share_few_messages() -> None:
    posted: list[Dropped] = []
    reports = DropReports("run-1", lambda message, _now_s: posted.append(message))
    for seq in range(100_000):
        reports.add(seq, 0, "queue_full")
        reports.send(0.0)
    assert len(posted) == 64
    reports.send(0.0, everything=True)
    assert len(posted) <= 64 + 25, "the rest are a few runs"
    assert [seq for message in posted for seq in message.seqs] == list(range(100_000))


@given(st.lists(st.sampled_from(["queue_full", "ring_full", "", "acknowledge"]), max_size=300))
def test_each_drop_is_reported_once_and_acknowledged(steps: list[str]) -> None:
    posted: list[Dropped] = []
    reports = DropReports("run-1", lambda message, _now_s: posted.append(message))
    dropped: dict[int, str] = {}
    confirmed: list[int] = []
    open_messages = 0
    for seq, step in enumerate(steps):
        if step == "acknowledge":
            if open_messages < len(posted):
                confirmed += reports.acknowledged(posted[open_messages].seq)
                open_messages += 1
        elif step:
            dropped[seq] = step
            reports.add(seq, 0, step)
        reports.send(0.0)
    reports.send(0.0, everything=True)
    for message in posted[open_messages:]:
        confirmed += reports.acknowledged(message.seq)
    reported = {seq: message.reason for message in posted for seq in message.seqs}
    assert reported == dropped
    assert sorted(confirmed) == sorted(dropped)
