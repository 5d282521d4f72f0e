"""The operator starts and stops the recording during a series; each start creates a file that is closed cleanly."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sci_stream.config import Rig
from sci_stream.delivery.ledger import DropReason, Outcome
from sci_stream.errors import InputError
from sci_stream.nodes.sink.series_session import SeriesSession
from sci_stream.storage.recording import Recording
from sci_stream.wire import Dropped
from tests.series_fixtures import Series


def rig(folder: Path, *, enabled: bool) -> Rig:
    return Rig.model_validate({"record": {"enabled": enabled, "folder": str(folder), "min_free_mib": 0}})


@pytest.fixture
def open_series(series: Series, tmp_path: Path) -> Iterator[SeriesSession]:
    opened = SeriesSession(series.info, series.calibration, rig(tmp_path, enabled=False))
    yield opened
    opened.abandon()


def take(opened: SeriesSession, series: Series, *seqs: int) -> None:
    for seq in seqs:
        reconstruction = series.reconstruction(seq, redelivered=0)
        assert opened.record_reconstruction(
            reconstruction, lambda stored, r=reconstruction: opened.settle_reconstruction(r, stored=stored)
        )
    while not all(opened.book.ledger.is_settled(seq) for seq in seqs):
        time.sleep(0.005)


def wait_until_closed(opened: SeriesSession) -> None:
    while opened.recording.status()["state"] == "closing":
        time.sleep(0.005)


def test_what_comes_while_it_is_on_is_in_the_files_and_the_rest_is_counted(
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
    open_series.book.ledger.end(6)
    report = open_series.close()

    assert Path(first) == tmp_path / "run-1.h5"
    assert Path(second) == tmp_path / "run-1_001.h5"
    with Recording(Path(first)) as recording:
        assert list(recording.settled_seqs) == [2, 3]
        assert recording.clean
        assert recording.ledger is not None
        assert not recording.ledger["closed"], "the series went on"
        assert recording.ledger["unrecorded"] == 2
    with Recording(Path(second)) as recording:
        assert list(recording.settled_seqs) == [5]
        assert recording.ledger is not None
        assert recording.ledger["closed"]
        assert recording.ledger["unrecorded"] == 3
    assert [entry["on"] for entry in report["switched"]] == [True, False, True]
    assert open_series.book.ledger.as_dict()["reconstructed"] == 6


def test_it_cannot_be_started_twice_nor_stopped_twice(open_series: SeriesSession) -> None:
    with pytest.raises(InputError, match="Not recording"):
        open_series.switch_recording(False)
    open_series.switch_recording(True)
    with pytest.raises(InputError, match="already"):
        open_series.switch_recording(True)


def test_the_state_is_told_at_every_step(open_series: SeriesSession, series: Series) -> None:
    assert open_series.status(0.0)["recording"] == {"enabled": False}
    open_series.switch_recording(True)
    assert open_series.status(0.0)["recording"]["state"] == "recording"
    open_series.switch_recording(False)
    wait_until_closed(open_series)
    assert open_series.status(0.0)["recording"]["state"] == "off"


def test_a_rig_that_records_can_be_stopped_from_the_page(series: Series, tmp_path: Path) -> None:
    opened = SeriesSession(series.info, series.calibration, rig(tmp_path, enabled=True))
    take(opened, series, 0)
    opened.switch_recording(False)
    take(opened, series, 1)
    opened.close()
    with Recording(tmp_path / "run-1.h5") as recording:
        assert list(recording.settled_seqs) == [0]
    assert opened.book.ledger.unrecorded == 1


def test_a_snapshot_that_was_to_be_recorded_raw_while_it_was_off_is_dropped_for_that_reason(
    open_series: SeriesSession, series: Series
) -> None:
    stored: list[bool] = []
    assert open_series.record_raw(series.snapshot(0), stored.append)
    assert stored == [False]
    outcome = open_series.outcome_of(Dropped(series="run-1", epoch=1, seq=0, outcome="raw_only", reason=""))
    assert outcome == (Outcome.DROPPED, DropReason.RECORDING_OFF)


def test_settings_are_known_by_name_and_only_so_many_kept_as_fit_the_file(open_series: SeriesSession) -> None:
    assert open_series.knows_solver(""), "nothing is to be known of a node that shows none"
    assert not open_series.knows_solver("00")
    for index in range(40):
        open_series.learn_solvers({f"{index:02x}": {"denoiser": "tv"}})
    assert [index for index in range(40) if open_series.knows_solver(f"{index:02x}")] == list(range(8, 40))
