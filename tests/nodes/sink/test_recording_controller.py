"""The operator starts and stops the recording during a series; each start creates a file that is closed cleanly."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sci_stream.config import Rig
from sci_stream.delivery.ledger import DropReason
from sci_stream.errors import InputError
from sci_stream.nodes.sink import node
from sci_stream.nodes.sink.series_session import Receipt, SeriesSession
from sci_stream.storage.recording import Recording
from sci_stream.wire import Dropped
from tests.nodes.sink.test_hostile_peers import Sink
from tests.series_fixtures import Series


def rig(folder: Path, *, enabled: bool) -> Rig:
    return Rig.model_validate({"record": {"enabled": enabled, "folder": str(folder), "min_free_mib": 0}})


@pytest.fixture
def open_series(series: Series, tmp_path: Path) -> Iterator[SeriesSession]:
    opened = SeriesSession.open(series.info, series.calibration, rig(tmp_path, enabled=False))
    yield opened
    opened.abandon()


def take(opened: SeriesSession, series: Series, *seqs: int) -> None:
    for seq in seqs:
        assert opened.receive(b"node", series.reconstruction(seq, redelivered=0), 0.0) is Receipt.DEFERRED
    while not all(opened.ledger.is_settled(seq) for seq in seqs):
        opened.take_acknowledgements()
        time.sleep(0.005)


def wait_until_closed(opened: SeriesSession) -> None:
    while opened.recording.status().state == "closing":
        time.sleep(0.005)


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
    report = open_series.close()

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
        assert recording.ledger is not None
        assert recording.ledger["closed"]
        assert recording.ledger["unrecorded"] == 3
    assert [switch.on for switch in report.switched] == [True, False, True]
    assert open_series.ledger.counts().reconstructed == 6


def test_starting_or_stopping_twice_is_refused(open_series: SeriesSession) -> None:
    with pytest.raises(InputError, match="Not recording"):
        open_series.switch_recording(False)
    open_series.switch_recording(True)
    with pytest.raises(InputError, match="already"):
        open_series.switch_recording(True)


def test_status_follows_the_switch(open_series: SeriesSession, series: Series) -> None:
    assert open_series.status(0.0).recording.to_json() == {"enabled": False}
    open_series.switch_recording(True)
    assert open_series.status(0.0).to_json()["recording"]["state"] == "recording"
    open_series.switch_recording(False)
    wait_until_closed(open_series)
    assert open_series.status(0.0).to_json()["recording"]["state"] == "off"


def test_configured_recording_can_be_stopped(series: Series, tmp_path: Path) -> None:
    opened = SeriesSession.open(series.info, series.calibration, rig(tmp_path, enabled=True))
    take(opened, series, 0)
    opened.switch_recording(False)
    take(opened, series, 1)
    opened.close()
    with Recording(tmp_path / "run-1.h5") as recording:
        assert list(recording.settled_seqs) == [0]
    assert opened.ledger.unrecorded == 1


def test_raw_only_snapshot_while_recording_is_off_is_dropped(open_series: SeriesSession, series: Series) -> None:
    assert open_series.receive(b"acquire", series.snapshot(0), 0.0) is Receipt.DEFERRED
    assert [accepted.of for _, accepted in open_series.take_acknowledgements()] == ["snapshot"]
    dropped = Dropped(series="run-1", epoch=1, seq=0, outcome="raw_only", reason="")
    assert open_series.receive(b"acquire", dropped, 0.0) is Receipt.DEFERRED
    open_series.take_acknowledgements()
    assert open_series.ledger.counts().dropped == {DropReason.RECORDING_OFF: 1}


def test_solver_settings_are_bounded(open_series: SeriesSession) -> None:
    assert open_series.knows_solver(""), "an empty id needs no settings"
    assert not open_series.knows_solver("00")
    for index in range(40):
        open_series.learn_solvers({f"{index:02x}": {"denoiser": "tv"}})
    assert [index for index in range(40) if open_series.knows_solver(f"{index:02x}")] == list(range(8, 40))


def test_duplicate_reconstruction_is_acknowledged_to_all_senders(open_series: SeriesSession, series: Series) -> None:
    message = series.reconstruction(0, redelivered=0)
    assert open_series.receive(b"first", message, 0.0) is Receipt.DEFERRED
    assert open_series.receive(b"second", message, 0.0) is Receipt.DEFERRED
    assert [sender for sender, _ in open_series.take_acknowledgements()] == [b"first", b"second"]
    assert open_series.receive(b"third", message, 0.0) is Receipt.ACKNOWLEDGED
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
    assert [entry["on"] for entry in summary["recording"]["switched"]] == [False]
