"""Triggered recording at the sink, through any events and deaths of the sink."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sci_stream.config import Rig
from sci_stream.errors import InputError
from sci_stream.model import StageTimes
from sci_stream.nodes.sink import series_session
from sci_stream.nodes.sink.ledger_file import LedgerFile
from sci_stream.nodes.sink.series_session import Callbacks, OfSnapshot, SeriesSession
from sci_stream.nodes.sink.triggered import block_means
from sci_stream.recording.series import RecordedSeries
from sci_stream.wire.messages import Accepted, Dropped, SeriesEnd, acknowledgement_of
from tests.series_fixtures import Series, make_series

MS = 1_000_000
START_NS = 1_700_000_000_000_000_000


def rig(folder: Path, **record: object) -> Rig:
    section = {
        "mode": "triggered",
        "before_s": 0.03,
        "after_s": 0.02,
        "folder": str(folder),
        "min_free_mib": 0,
    }
    return Rig.model_validate({"record": section | record})


class Nodes:
    """The other nodes: they keep each message until it is acknowledged, and send it again to a
    restarted sink.
    """

    def __init__(self, folder: Path, **record: object) -> None:
        self.series: Series = make_series()
        self.now_ns = START_NS
        self.times: dict[int, int] = {}
        self.shown: list[int] = []
        self.unsafe: dict[Accepted, OfSnapshot] = {}
        self._rig = rig(folder, **record)
        self._file = LedgerFile(folder / "rig.ledger")
        self.later: list[tuple[int, str]] = []
        self.solves_kept = record.get("reconstruct") == "kept"
        self.start()

    def start(self) -> None:
        """Start the sink, and send everything that it has not acknowledged."""
        callbacks = Callbacks(show=lambda reconstruction: self.shown.append(reconstruction.id.seq))
        self.sink = SeriesSession.open(
            self.series.info, self.series.calibration, self._rig, callbacks, self._file
        )
        self.sink.checkpoint()  # as the node does twice a second
        for message in list(self.unsafe.values()):
            self.send(message)

    def send(self, message: OfSnapshot) -> None:
        key = acknowledgement_of(message)
        self.unsafe[key] = message
        if self.sink.receive(b"node", message, 0.0):
            self._acknowledged(key)

    def expose(self, seq: int, step_ms: int, delivery: str) -> None:
        """Take a snapshot; its video comes before or after its raw counts, three snapshots later,
        or not at all.
        """
        self.now_ns += step_ms * MS
        self.times[seq] = self.now_ns
        if delivery == "early":
            self.solve(seq)
        self.send(self.series.snapshot(seq, host_time_ns=self.now_ns))
        if delivery == "late":
            self.solve(seq)
        elif delivery in {"none", "later"}:
            self.later.append((seq, delivery))
        if len(self.later) > 3 or delivery == "none":
            self.deliver_oldest()

    def deliver_oldest(self) -> None:
        """Deliver the oldest of the snapshots that wait for it."""
        seq, delivery = self.later.pop(0)
        if delivery == "later":
            self.solve(seq)
        else:
            self.send(Dropped("run-1", 1, seq, "queue_full", "raw_only"))

    def solve(self, seq: int) -> None:
        times = StageTimes(acquired_ns=self.times[seq], finished_ns=self.times[seq] + MS)
        self.send(self.series.reconstruction(seq, times=times, redelivered=0))

    def take(self) -> None:
        for _, accepted in self.sink.take_acknowledgements():
            self._acknowledged(accepted)

    def _acknowledged(self, accepted: Accepted) -> None:
        of = "snapshot" if accepted.of == "not_kept" else accepted.of
        for seq in range(accepted.seq, accepted.seq + accepted.count):
            self.unsafe.pop(Accepted(accepted.series, seq, of), None)
            if self.solves_kept and accepted.of == "snapshot":
                self.solve(seq)

    def kill(self, *, before_saving: bool, unwritten: bool) -> None:
        """End the sink; perhaps before it has noted its writes, at the latest before it
        acknowledges them.

        ``unwritten`` forgets the queue of the recorder.
        """
        if not before_saving:
            self.sink.take_acknowledgements()
        if unwritten:
            with self.sink.recorder._changed:
                self.sink.recorder._queue.clear()
        with mock.patch.object(self.sink, "_save"):
            self.sink.abandon()
        self.start()

    def finish(self) -> None:
        while self.later:
            self.deliver_oldest()
        self.solves_kept = False  # snapshots that are confirmed from now on get no node
        self.sink.end(b"acquire", SeriesEnd("run-1", len(self.times), "finished"))
        deadline_s = time.monotonic() + 60
        while not self.sink.may_end():
            self.take()
            assert time.monotonic() < deadline_s, self.sink.ledger.counts()
        self.sink.close()
        self.sink.ledger.check()


def assert_kept_once(nodes: Nodes, folder: Path) -> set[int]:
    """Compare the recording with the events; return the numbers of the kept snapshots."""
    events = nodes.sink.status(0.0).events
    assert events is not None
    covered = {seq for seq, at in nodes.times.items() if any(event.covers(at) for event in events)}
    with RecordedSeries(folder / "run-1.h5") as recording:
        stored = [seq for segment in recording.segments for seq in segment.raw_seqs]
        assert sorted(stored) == sorted(covered)
        for seq in stored:
            np.testing.assert_array_equal(recording.frame_of("raw", seq), nodes.series.counts(seq))
        outcomes = dict(
            zip(
                (recording.first_seq + row for row in range(10**6)),
                recording.rows["outcome"],
                strict=False,
            )
        )
        assert all(
            outcomes[seq] == (4 if seq not in covered else outcomes[seq]) for seq in nodes.times
        )
        assert [event.number for event in recording.events] == [event.number for event in events]
        for event in events:
            assert recording.seqs_of_event(event.number) == [
                s for s in sorted(covered) if event.covers(nodes.times[s])
            ]
    counts = nodes.sink.ledger.counts()
    assert counts["not_kept"] == len(nodes.times) - len(covered)
    assert counts["reconstructed"] + counts["raw_only"] == len(covered)
    return covered


STEPS = st.tuples(
    st.integers(1, 40),
    st.sampled_from(["late", "later", "later", "early", "none"]),
    st.sampled_from(["", "", "", "keep", "die", "die at once"]),
)


@settings(max_examples=8, deadline=None)
@given(steps=st.lists(STEPS, min_size=1, max_size=16), lossy=st.booleans(), kept_only=st.booleans())
def test_any_events_and_deaths_keep_each_covered_snapshot_once(
    steps: list[tuple[int, str, str]], *, lossy: bool, kept_only: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nodes = Nodes(folder, reconstruct="kept" if kept_only else "all")
        with mock.patch.object(series_session, "unix_ns", side_effect=lambda: nodes.now_ns):
            for seq, (step_ms, delivery, what) in enumerate(steps):
                nodes.expose(seq, step_ms, "" if kept_only else delivery)
                if what == "keep":
                    nodes.now_ns += step_ms * MS // 2
                    nodes.sink.keep_event("Ann")
                elif what:
                    nodes.take()
                    nodes.kill(before_saving=lossy, unwritten=what == "die at once")
                if seq % 3:
                    nodes.take()
            nodes.finish()
        assert_kept_once(nodes, folder)
        # A sink that dies shows no more what waits for earlier snapshots.
        if not kept_only and all("die" not in what for _, _, what in steps):
            assert nodes.shown == [
                seq for seq, (_, delivery, _) in enumerate(steps) if delivery != "none"
            ]


@pytest.mark.parametrize("delivery", ["later", "none"])
def test_delivery_and_decision_in_one_step_settle_a_snapshot(tmp_path: Path, delivery: str) -> None:
    nodes = Nodes(tmp_path)
    nodes.expose(0, 10, "")
    nodes.take()
    nodes.expose(1, 50, "late")
    nodes.later.append((0, delivery))
    nodes.deliver_oldest()
    nodes.finish()
    assert assert_kept_once(nodes, tmp_path) == set()


def test_video_from_before_the_event_is_recorded(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    with mock.patch.object(series_session, "unix_ns", side_effect=lambda: nodes.now_ns):
        for seq in range(10):
            nodes.expose(seq, 10, "late")
            nodes.take()
            if seq == 5:
                assert nodes.sink.keep_event("Ann").cause == "kept"
        nodes.finish()
    assert assert_kept_once(nodes, tmp_path) == {2, 3, 4, 5, 6, 7}
    assert nodes.sink.ledger.counts()["reconstructed"] == 6
    journal = (tmp_path / "run-1.journal.jsonl").read_text()
    assert journal.count('"event":"event"') == 1
    assert journal.count('"event":"outcome"') == 0


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_snapshot_kept_at_the_end_without_a_node_is_raw_only(
    tmp_path: Path, *, is_confirmed: bool
) -> None:
    nodes = Nodes(tmp_path, reconstruct="kept", trigger=["brightness > -1"])
    nodes.solves_kept = False
    nodes.expose(0, 10, "")
    while is_confirmed and nodes.unsafe:
        nodes.take()
    nodes.finish()
    assert nodes.sink.ledger.counts()["raw_only"] == 1


# The noise of these small snapshots exceeds a fixed scene's: their blocks change by a hundredth.
@pytest.mark.parametrize(
    "condition",
    [
        "motion > 0.2",
        "brightness > 0.9",
        "saturated > 0.9",
        "chunk_Line > 0",
        "residual > 0.1, at most 1",
    ],
)
def test_condition_on_a_snapshot_triggers(tmp_path: Path, condition: str) -> None:
    nodes = Nodes(tmp_path, trigger=[condition])
    bright = np.full_like(nodes.series.counts(0), 4095)
    for seq in range(9):
        nodes.now_ns += 10 * MS
        nodes.times[seq] = nodes.now_ns
        changes = {"counts": bright, "chunks": {"Line": 1.0}} if seq == 5 else {}
        nodes.send(nodes.series.snapshot(seq, host_time_ns=nodes.now_ns, **changes))
        if seq == 5:
            report = replace(nodes.series.reconstruction(seq).report, residual=0.5)
            times = StageTimes(acquired_ns=nodes.now_ns, finished_ns=nodes.now_ns + MS)
            nodes.send(nodes.series.reconstruction(seq, redelivered=0, report=report, times=times))
        else:
            nodes.send(Dropped("run-1", 1, seq, "queue_full", "raw_only"))
        nodes.take()
    events = nodes.sink.status(0.0).events
    assert events is not None
    assert [(event.time_ns, event.cause.split()[0]) for event in events] == [
        (nodes.times[5], condition.partition(" ")[0])
    ]
    nodes.finish()
    with RecordedSeries(tmp_path / "run-1.h5") as recording:
        assert recording.seqs_of_event(1) == recording.raw.seqs.tolist() == [2, 3, 4, 5, 6, 7]


def test_result_sent_again_is_counted_and_shown_once(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    nodes.expose(0, 10, "late")
    nodes.solve(0)  # still undecided
    nodes.finish()
    nodes.solve(0)  # not kept
    assert nodes.sink.statistics.summary({}, Counter(), {})["by_node"] == {"reconstruct-0": 1}
    assert (nodes.sink.ledger.duplicates, nodes.shown) == (2, [0])


def test_continuous_recording_offers_no_events(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, mode="continuous")
    with pytest.raises(InputError, match="Everything is recorded"):
        nodes.sink.keep_event("Ann")
    nodes.sink.abandon()


def test_block_means_of_a_sensor_that_is_smaller_than_a_block() -> None:
    assert block_means(np.full((40, 70), 7, np.uint16)).shape == (2, 4)
    assert block_means(np.full((8, 9), 7, np.uint16)).tolist() == [[7.0]]
