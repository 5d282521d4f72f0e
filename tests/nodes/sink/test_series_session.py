"""The session of a series at the sink: it receives, shows, records, acknowledges and counts."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sci_stream.config import Rig
from sci_stream.delivery.ledger import DropReason, Ledger
from sci_stream.errors import InputError
from sci_stream.nodes.sink import node, series_session
from sci_stream.nodes.sink.ledger_file import LedgerFile
from sci_stream.nodes.sink.recorder import RecordingStatus
from sci_stream.nodes.sink.series_recording import Item, RecorderState, SeriesRecording
from sci_stream.nodes.sink.series_session import Callbacks, SeriesSession
from sci_stream.recording.reader import Recording
from sci_stream.recording.series import RecordedSeries
from sci_stream.recording.writer import RecordingWriter
from sci_stream.wire.messages import Accepted, Dropped, SeriesEnd
from tests.nodes.sink.test_hostile_peers import Sink
from tests.series_fixtures import Series


def rig(folder: Path, *, enabled: bool) -> Rig:
    return Rig.model_validate(
        {"record": {"enabled": enabled, "folder": str(folder), "min_free_mib": 0}}
    )


@pytest.fixture
def open_series(series: Series, tmp_path: Path) -> Iterator[SeriesSession]:
    opened = SeriesSession.open(series.info, series.calibration, rig(tmp_path, enabled=False))
    yield opened
    opened.abandon()


def take(opened: SeriesSession, series: Series, *seqs: int) -> None:
    for seq in seqs:
        assert not opened.receive(b"node", series.reconstruction(seq, redelivered=0), 0.0)
    while not all(opened.ledger.is_settled(seq) for seq in seqs):
        opened.take_acknowledgements()
        time.sleep(0.005)


def acknowledged_seqs(opened: SeriesSession) -> list[int]:
    """Return the numbers that are acknowledged now."""
    return [
        seq
        for _, accepted in opened.take_acknowledgements()
        for seq in range(accepted.seq, accepted.seq + accepted.count)
    ]


def wait_until_closed(opened: SeriesSession) -> None:
    while opened.recorder.status().state == "closing":
        time.sleep(0.005)


def test_constructor_touches_no_file_and_open_does(series: Series, tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    rig_on = rig(folder, enabled=True)
    ledger_file = LedgerFile(tmp_path / "rig.ledger")
    SeriesSession(
        series.info,
        series.calibration,
        rig_on,
        callbacks=Callbacks(),
        file=ledger_file,
        ledger=Ledger(),
    )
    assert list(tmp_path.iterdir()) == []
    opened = SeriesSession.open(series.info, series.calibration, rig_on, file=ledger_file)
    opened.abandon()
    assert (folder / "run-1.h5").is_file()
    saved = ledger_file.read("run-1")
    assert saved is not None
    assert saved.recording


def test_reconstructions_are_shown_in_order_late_ones_in_time(
    series: Series, tmp_path: Path
) -> None:
    shown: list[int] = []
    callbacks = Callbacks(show=lambda reconstruction: shown.append(reconstruction.id.seq))
    opened = SeriesSession.open(
        series.info, series.calibration, rig(tmp_path, enabled=False), callbacks
    )
    for seq in (1, 0, 3):
        opened.receive(b"node", series.reconstruction(seq), 0.0)
    assert shown == [0, 1], "before anything is acknowledged"
    opened.show_expired(1.0)
    assert shown == [0, 1]
    opened.show_expired(10.0)
    assert shown == [0, 1, 3], "snapshot 2 is not waited for any longer"
    opened.receive(b"acquire", Dropped("run-1", 1, 4, "queue_full"), 10.0)
    opened.receive(b"node", series.reconstruction(5), 10.0)
    assert shown == [0, 1, 3, 5], "snapshot 4 does not come"
    opened.abandon()


def test_run_of_drops_is_accounted_for_and_recorded(series: Series, tmp_path: Path) -> None:
    woken = threading.Event()
    opened = SeriesSession.open(
        series.info, series.calibration, rig(tmp_path, enabled=True), Callbacks(wake=woken.set)
    )
    dropped = Dropped("run-1", 1, 2, "queue_full", count=5)
    assert not opened.receive(b"acquire", dropped, 0.0)
    assert woken.wait(60)
    assert opened.take_acknowledgements() == [(b"acquire", Accepted("run-1", 2, "dropped"))]
    assert opened.receive(b"acquire", dropped, 0.0)
    assert opened.ledger.counts()["dropped"] == {"queue_full": 5}
    assert not opened.expects(Dropped("run-1", 1, 2**39, "queue_full", count=65536))
    opened.abandon()
    with Recording(tmp_path / "run-1.h5") as recording:
        assert list(recording.rows["reason"][2:7]) == [b"queue_full"] * 5


def test_message_of_another_size_or_far_ahead_is_recognised(
    open_series: SeriesSession, series: Series
) -> None:
    assert open_series.mismatch_reason(series.snapshot(0)) == ""
    assert "counts of (2, 2)" in open_series.mismatch_reason(
        series.snapshot(0, counts=np.zeros((2, 2), np.uint16))
    )
    wide = series.reconstruction(0, video=np.zeros((3, 16, 26), np.float16))
    assert "(3, 16, 26)" in open_series.mismatch_reason(wide)
    assert open_series.expects(series.snapshot(1000))
    assert not open_series.expects(series.snapshot(2**40))
    open_series.update_from_acquire({"acquired": 2**40, "camera_missed": 3}, 0.0)
    assert open_series.expects(Dropped("run-1", 1, 2**40, "queue_full"))
    assert open_series.ledger.camera_missed == 3


def test_raw_snapshot_is_acknowledged_once_it_is_written(series: Series, tmp_path: Path) -> None:
    woken = threading.Event()
    opened = SeriesSession.open(
        series.info, series.calibration, rig(tmp_path, enabled=True), Callbacks(wake=woken.set)
    )
    assert not opened.receive(b"acquire", series.snapshot(0), 0.0)
    assert woken.wait(60)
    assert opened.take_acknowledgements() == [(b"acquire", Accepted("run-1", 0, "snapshot"))]
    assert opened.receive(b"acquire", series.snapshot(0), 0.0)
    with Recording(tmp_path / "run-1.h5") as recording:
        np.testing.assert_array_equal(recording.raw(0), series.counts(0))
    opened.abandon()


def test_full_recorder_stops_reception_and_keeps_the_order(
    series: Series, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = threading.Event()
    write = SeriesRecording.write

    def hold(recording: SeriesRecording, batch: list[Item]) -> None:
        may_write.wait(60)
        write(recording, batch)

    monkeypatch.setattr(SeriesRecording, "write", hold)
    monkeypatch.setattr(
        series_session,
        "Recorder",
        functools.partial(series_session.Recorder, max_queue_bytes=1, batch_items=1),
    )
    opened = SeriesSession.open(series.info, series.calibration, rig(tmp_path, enabled=True))
    for seq in range(6):
        opened.receive(b"node", series.reconstruction(seq), 0.0)
    assert opened.recorder.is_full
    may_write.set()
    acknowledged: list[int] = []
    while len(acknowledged) < 6:
        acknowledged += acknowledged_seqs(opened)
        time.sleep(0.002)
    assert acknowledged == list(range(6))
    assert not opened.recorder.is_full
    opened.abandon()


def test_series_may_end_once_nothing_is_pending(open_series: SeriesSession, series: Series) -> None:
    open_series.receive(b"node", series.reconstruction(0), 0.0)
    open_series.end(b"acquire", SeriesEnd("run-1", 1, "finished", camera_dropped=2))
    assert not open_series.may_end()
    open_series.take_acknowledgements()
    assert open_series.may_end()
    assert open_series.ended_by == b"acquire"
    assert open_series.statistics.end_reason == "finished"
    open_series.ledger.check()


def test_snapshots_received_while_recording_is_off_are_counted(
    open_series: SeriesSession, series: Series, tmp_path: Path
) -> None:
    take(open_series, series, 0, 1)
    first = open_series.switch_recording(True)
    take(open_series, series, 2, 3)
    assert open_series.switch_recording(False) == first
    take(open_series, series, 4)
    wait_until_closed(open_series)
    second = open_series.switch_recording(True)
    take(open_series, series, 5)
    open_series.ledger.end(6)
    open_series.close()

    assert Path(first) == tmp_path / "run-1.h5"
    assert Path(second) == tmp_path / "run-1_001.h5"
    with Recording(Path(first)) as recording:
        assert list(recording.settled_seqs) == [2, 3]
        assert recording.clean
        assert recording.ledger is not None
        assert not recording.ledger["closed"], "the series continued"
        assert recording.ledger["unrecorded"] == 2
    with Recording(Path(second)) as recording:
        assert list(recording.settled_seqs) == [5]
        assert recording.first_seq == 5, "no row for the one that came while recording was off"
        assert recording.ledger is not None
        assert recording.ledger["closed"]
        assert recording.ledger["unrecorded"] == 3
    assert open_series.ledger.counts()["reconstructed"] == 6


def test_starting_or_stopping_twice_is_refused(open_series: SeriesSession) -> None:
    with pytest.raises(InputError, match="Not recording"):
        open_series.switch_recording(False)
    open_series.switch_recording(True)
    with pytest.raises(InputError, match="already"):
        open_series.switch_recording(True)


def test_status_follows_the_switch(open_series: SeriesSession, series: Series) -> None:
    assert open_series.status(0.0).recording.to_json() == {"enabled": False, "incomplete": ""}
    open_series.switch_recording(True)
    assert open_series.status(0.0).to_json()["recording"]["state"] == "recording"
    open_series.switch_recording(False)
    wait_until_closed(open_series)
    assert open_series.status(0.0).to_json()["recording"]["state"] == "off"


def disk_error(*_: object) -> None:
    raise OSError(5, "Input/output error")


def recorded_around_a_gap(
    series: Series, folder: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> RecordingStatus:
    """Record snapshots 0 to 2, the second one while a part of the writer fails."""
    opened = SeriesSession.open(series.info, series.calibration, rig(folder, enabled=True))
    take(opened, series, 0)
    with monkeypatch.context() as patched:
        patched.setattr(broken, disk_error)
        take(opened, series, 1)
    opened.recorder.try_again(opened.ledger.settled_below, time.monotonic() + 60)
    take(opened, series, 2)
    opened.end(b"acquire", SeriesEnd("run-1", 3, "finished"))
    return opened.close()


@pytest.mark.parametrize(
    "call", ["RecordingWriter._write_frames", "RowTable.flush", "require_space"]
)
def test_recording_returns_after_a_disk_error_and_counts(
    series: Series, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    broken = f"sci_stream.recording.writer.{call}"
    status = recorded_around_a_gap(series, tmp_path, monkeypatch, broken)
    assert status.lost == 1
    assert status.stopped_reason == ""
    assert status.incomplete_reason == "1 snapshots were not recorded"
    with RecordedSeries(tmp_path / "run-1.h5") as recording:
        assert recording.video.seqs.tolist() == [0, 2]
        assert recording.finished, "the segment from before the gap is finished, too"


def test_full_ring_under_a_recording_is_a_loss(series: Series, tmp_path: Path) -> None:
    for enabled in (True, False):
        folder = tmp_path / str(enabled)
        opened = SeriesSession.open(series.info, series.calibration, rig(folder, enabled=enabled))
        opened.receive(b"acquire", Dropped("run-1", 0, 0, DropReason.RING_FULL), 0.0)
        while not opened.ledger.is_settled(0):
            opened.take_acknowledgements()
        opened.end(b"acquire", SeriesEnd("run-1", 1, "finished"))
        assert opened.close().lost == int(enabled)


def test_later_series_begins_on_a_failed_disk_and_records_then(
    series: Series, tmp_path: Path
) -> None:
    folder = tmp_path / "disk"
    opened = SeriesSession.open(
        series.info, series.calibration, rig(folder, enabled=True), is_first=False
    )
    take(opened, series, 0)
    folder.mkdir()
    opened.recorder.try_again(opened.ledger.settled_below, time.monotonic())
    take(opened, series, 1)
    opened.end(b"acquire", SeriesEnd("run-1", 2, "finished"))
    assert opened.close().lost == 1
    with RecordedSeries(folder / "run-1.h5") as recording:
        assert recording.video.seqs.tolist() == [1]


def test_configured_recording_can_be_stopped(series: Series, tmp_path: Path) -> None:
    opened = SeriesSession.open(series.info, series.calibration, rig(tmp_path, enabled=True))
    take(opened, series, 0)
    opened.switch_recording(False)
    take(opened, series, 1)
    opened.close()
    with Recording(tmp_path / "run-1.h5") as recording:
        assert list(recording.settled_seqs) == [0]
    assert opened.ledger.unrecorded == 1


def test_raw_only_snapshots_have_their_outcome_once_written(series: Series, tmp_path: Path) -> None:
    opened = SeriesSession.open(series.info, series.calibration, rig(tmp_path, enabled=True))
    for seq in range(5):
        snapshot = series.raw_snapshots(seq)
        assert not opened.receive(b"acquire", snapshot, 0.0)
    acknowledged: list[int] = []
    while len(acknowledged) < 5:
        acknowledged += acknowledged_seqs(opened)
        assert opened.ledger.counts()["raw_only"] == len(acknowledged)
    assert acknowledged == list(range(5))
    assert opened.receive(b"acquire", snapshot, 0.0), "sent again after a lost acknowledgement"
    opened.end(b"acquire", SeriesEnd("run-1", 5, "finished"))
    assert opened.close().incomplete_reason == ""
    with Recording(tmp_path / "run-1.h5") as recording:
        assert recording.seqs_with_outcome("raw_only") == [0, 1, 2, 3, 4]
        np.testing.assert_array_equal(recording.raw(4), series.counts(4))


def test_raw_only_snapshot_that_cannot_be_written_is_dropped(
    series: Series, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = SeriesSession.open(series.info, series.calibration, rig(tmp_path, enabled=True))
    monkeypatch.setattr("sci_stream.recording.writer.RecordingWriter._write_frames", disk_error)
    snapshot = series.raw_snapshots(0)
    opened.receive(b"acquire", snapshot, 0.0)
    while not acknowledged_seqs(opened):
        time.sleep(0.002)
    assert opened.ledger.counts()["dropped"] == {DropReason.NOT_RECORDED: 1}
    assert opened.receive(b"acquire", snapshot, 0.0), "its outcome stands"
    opened.abandon()


def settled(session: SeriesSession, count: int) -> list[Accepted]:
    """Wait until so many snapshots are acknowledged; return the acknowledgements."""
    accepted: list[Accepted] = []
    while sum(one.count for one in accepted) < count:
        accepted += [one for _, one in session.take_acknowledgements()]
        time.sleep(0.002)
    return accepted


def test_raw_snapshots_are_acknowledged_together(series: Series, tmp_path: Path) -> None:
    opened = SeriesSession.open(series.info, series.calibration, rig(tmp_path, enabled=True))
    assert not opened.receive(b"acquire", series.raw_snapshots(0, 6), 0.0)
    assert settled(opened, 6) == [Accepted("run-1", 0, "snapshot", count=6)]
    # A sender that has crashed joins them differently.
    assert opened.receive(b"acquire", series.raw_snapshots(2, 4), 0.0), "all are safe"
    assert not opened.receive(b"acquire", series.raw_snapshots(4, 5), 0.0), "three are new"
    assert settled(opened, 5) == [Accepted("run-1", 4, "snapshot", count=5)]
    assert opened.ledger.counts()["raw_only"] == 9
    opened.end(b"acquire", SeriesEnd("run-1", 9, "finished"))
    assert opened.close().incomplete_reason == ""
    with Recording(tmp_path / "run-1.h5") as recording:
        assert recording.seqs_with_outcome("raw_only") == list(range(9))
        for seq in range(9):
            np.testing.assert_array_equal(recording.raw(seq), series.counts(seq))


def test_raw_snapshot_that_does_not_fit_spoils_no_other(series: Series, tmp_path: Path) -> None:
    opened = SeriesSession.open(series.info, series.calibration, rig(tmp_path, enabled=True))
    raw = series.raw_snapshots(0, 4)
    # Counts that the recording cannot hold without loss.
    raw.counts[2] = np.full(raw.counts[2].shape, 0.5, np.float32)
    opened.receive(b"acquire", raw, 0.0)
    assert settled(opened, 4) == [Accepted("run-1", 0, "snapshot", count=4)]
    counts = opened.ledger.counts()
    assert (counts["raw_only"], counts["dropped"]) == (3, {DropReason.NOT_RECORDED: 1})
    opened.end(b"acquire", SeriesEnd("run-1", 4, "finished"))
    opened.close()
    with Recording(tmp_path / "run-1.h5") as recording:
        assert recording.seqs_with_outcome("raw_only") == [0, 1, 3]
        assert recording.outcome(2) == ("dropped", "not_recorded")


def test_disk_that_fails_between_raw_snapshots_loses_the_rest(
    series: Series, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = SeriesSession.open(series.info, series.calibration, rig(tmp_path, enabled=True))
    write = RecordingWriter._write_frames

    def until_third(self: RecordingWriter, name: str, row: int, data: np.ndarray) -> None:
        if row >= 2:
            disk_error()
        write(self, name, row, data)

    monkeypatch.setattr(RecordingWriter, "_write_frames", until_third)
    opened.receive(b"acquire", series.raw_snapshots(0, 5), 0.0)
    settled(opened, 5)
    counts = opened.ledger.counts()
    assert counts["raw_only"] + counts["dropped"][DropReason.NOT_RECORDED] == 5
    opened.abandon()
    with Recording(tmp_path / "run-1.h5") as recording:
        assert len(recording.seqs_with_outcome("raw_only")) >= counts["raw_only"]


def test_raw_only_outcome_survives_a_restart_without_ledger_file(
    series: Series, tmp_path: Path
) -> None:
    opened = SeriesSession.open(series.info, series.calibration, rig(tmp_path, enabled=True))
    opened.receive(b"acquire", series.raw_snapshots(0), 0.0)
    while not acknowledged_seqs(opened):
        time.sleep(0.002)
    opened.abandon()
    again = SeriesSession.open(series.info, series.calibration, rig(tmp_path, enabled=True))
    assert again.ledger.counts()["raw_only"] == 1
    again.abandon()


def test_raw_only_snapshot_while_recording_is_off_is_dropped(
    open_series: SeriesSession, series: Series
) -> None:
    snapshot = series.raw_snapshots(0)
    assert not open_series.receive(b"acquire", snapshot, 0.0)
    open_series.take_acknowledgements()
    assert open_series.ledger.counts()["dropped"] == {DropReason.RECORDING_OFF: 1}


def test_acknowledgements_name_runs_of_snapshots(
    open_series: SeriesSession, series: Series
) -> None:
    for seq in (0, 1, 2, 4):
        open_series.receive(b"acquire", series.snapshot(seq), 0.0)
    open_series.receive(b"other", series.snapshot(5), 0.0)
    assert open_series.take_acknowledgements() == [
        (b"acquire", Accepted("run-1", 0, "snapshot", count=3)),
        (b"acquire", Accepted("run-1", 4, "snapshot")),
        (b"other", Accepted("run-1", 5, "snapshot")),
    ]


def test_raw_only_report_while_recording_is_off_is_dropped(
    open_series: SeriesSession, series: Series
) -> None:
    assert not open_series.receive(b"acquire", series.snapshot(0), 0.0)
    assert [accepted.of for _, accepted in open_series.take_acknowledgements()] == ["snapshot"]
    dropped = Dropped(series="run-1", epoch=1, seq=0, outcome="raw_only", reason="")
    assert not open_series.receive(b"acquire", dropped, 0.0)
    open_series.take_acknowledgements()
    assert open_series.ledger.counts()["dropped"] == {DropReason.RECORDING_OFF: 1}


def test_raw_counts_lost_behind_a_full_disk_are_not_raw_only(
    series: Series, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = threading.Event()
    write = SeriesRecording.write
    monkeypatch.setattr(
        SeriesRecording, "write", lambda *given: (may_write.wait(60), write(*given))[1]
    )
    opened = SeriesSession.open(series.info, series.calibration, rig(tmp_path, enabled=True))
    assert opened.recorder._recording is not None
    for seq, state in enumerate((opened.recorder._recording.state, RecorderState.STOPPED)):
        opened.receive(b"acquire", series.snapshot(seq), 0.0)
        opened.recorder._recording.state = (
            state  # before and after the report, which waits for the snapshot
        )
        opened.receive(b"acquire", Dropped("run-1", 1, seq, "queue_full", "raw_only"), 0.0)
    may_write.set()
    while not opened.ledger.is_settled(0) or not opened.ledger.is_settled(1):
        opened.take_acknowledgements()
    assert opened.ledger.counts()["dropped"] == {DropReason.NOT_RECORDED: 2}
    opened.abandon()


def test_solver_settings_are_bounded(open_series: SeriesSession) -> None:
    assert open_series.solvers.knows(""), "an empty id needs no settings"
    assert not open_series.solvers.knows("00")
    for index in range(40):
        open_series.solvers.learn({f"{index:02x}": {"denoiser": "tv"}})
    assert [index for index in range(40) if open_series.solvers.knows(f"{index:02x}")] == list(
        range(8, 40)
    )


def test_duplicate_reconstruction_is_acknowledged_to_all_senders(
    open_series: SeriesSession, series: Series
) -> None:
    message = series.reconstruction(0, redelivered=0)
    assert not open_series.receive(b"first", message, 0.0)
    assert not open_series.receive(b"second", message, 0.0)
    assert [sender for sender, _ in open_series.take_acknowledgements()] == [b"first", b"second"]
    assert open_series.receive(b"third", message, 0.0)
    assert open_series.ledger.duplicates == 2


def test_recording_over_its_limit_ends_and_series_continues(
    series: Series, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_STATUS_S", 0.05)  # how often its size is looked at
    record = {"folder": str(tmp_path), "min_free_mib": 0, "stop_after_mib": 1}
    size = series.counts(0).nbytes + series.video(0).nbytes
    count = 2 * (1 << 20) // size
    with contextlib.closing(Sink(tmp_path, {"record": record})) as sink:
        sink.begin(series)
        for seq in range(count):
            sink.record(series, seq)
        sink.end(series, count)
    assert sink.failure is None
    with Recording(tmp_path / "run-1.h5") as recording:
        recorded = len(recording.raw_seqs)
    assert recorded * size >= 1 << 20
    assert recorded < count
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["ledger"]["reconstructed"] == count
    assert summary["ledger"]["unrecorded"] == count - recorded
    (change,) = summary["changes"]
    assert (change["node"], change["name"], change["new"]) == ("sink", "recording", False)
