"""The ledger after a restart of the sink, and when the recording has been moved or deleted."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from sci_stream.config import Rig
from sci_stream.delivery.ledger import Ledger, Outcome
from sci_stream.nodes.sink.ledger_file import LedgerFile, SavedLedger
from sci_stream.nodes.sink.series_session import SeriesSession
from sci_stream.wire.messages import Dropped
from tests.series_fixtures import Series

PATIENCE_S = 60.0


class Sink:
    """The session of one series, which can be restarted as after a crash: nothing is closed."""

    def __init__(self, series: Series, folder: Path, *, record: bool) -> None:
        self._series = series
        self.folder = folder / "recordings"
        section = {"enabled": record, "folder": str(self.folder), "min_free_mib": 0}
        self.rig = Rig.model_validate(
            {"record": section, "policy": {"spool": str(folder / "spool")}}
        )
        self.file = self.folder / f"{series.info.series}.h5"
        self._left: list[SeriesSession] = []
        self.session = self._open()

    def _open(self) -> SeriesSession:
        return SeriesSession.open(
            self._series.info, self._series.calibration, self.rig, file=LedgerFile.of(self.rig, {})
        )

    def restart(self) -> None:
        self._left.append(self.session)
        self.session = self._open()

    def take(self, seqs: Iterable[int]) -> None:
        """Receive reconstructions and acknowledge them."""
        waiting = {
            seq
            for seq in seqs
            if not self.session.receive(b"node", self._series.reconstruction(seq), 0.0)
        }
        deadline_s = time.monotonic() + PATIENCE_S
        while waiting:
            assert time.monotonic() < deadline_s
            waiting -= {
                seq
                for _, accepted in self.session.take_acknowledgements()
                for seq in range(accepted.seq, accepted.seq + accepted.count)
            }
            time.sleep(0.002)

    def end(self, acquired: int) -> tuple[dict[str, object], str]:
        """End the series; return its ledger and why the recording is incomplete."""
        self.session.ledger.end(acquired)
        status = self.session.close()
        for left in self._left:
            left.abandon()
        return self.session.ledger.counts(), status.incomplete_reason

    def wait_until_recording_failed(self) -> str:
        deadline_s = time.monotonic() + PATIENCE_S
        while (status := self.session.recorder.status()).state != "failed":
            assert time.monotonic() < deadline_s, status
            time.sleep(0.01)
        return status.reason


MakeSink = Callable[..., Sink]


@pytest.fixture
def sink(series: Series, tmp_path: Path) -> MakeSink:
    return lambda *, record=True: Sink(series, tmp_path, record=record)


def test_ledger_state_restored_is_the_same() -> None:
    before = Ledger()
    for seq in (0, 1, 2, 5, 7):
        before.settle(seq, Outcome.RECONSTRUCTED)
    before.settle(9, Outcome.DROPPED, "queue_full")
    before.settle(9, Outcome.RAW_ONLY)
    before.announce(20)
    before.unrecorded, before.camera_missed = 2, 3
    after = Ledger(before.state())
    assert after.counts() == before.counts()
    assert [seq for seq in range(12) if after.is_settled(seq)] == [0, 1, 2, 5, 7, 9]


def test_sink_killed_without_recording_keeps_its_ledger(sink: MakeSink) -> None:
    running = sink(record=False)
    running.take(range(5))
    running.restart()
    running.take(range(3, 8))
    ledger, problem = running.end(8)
    assert (ledger["closed"], ledger["reconstructed"], ledger["unrecorded"]) == (True, 8, 8)
    assert ledger["duplicates"] == 2
    assert problem == ""


def test_sink_killed_with_recording_counts_each_once(sink: MakeSink) -> None:
    running = sink()
    running.take(range(5))
    running.restart()
    running.take(range(3, 8))
    ledger, problem = running.end(8)
    assert (ledger["closed"], ledger["reconstructed"], ledger["unrecorded"]) == (True, 8, 0)
    assert problem == ""


def test_recording_switched_off_stays_off_after_restart(sink: MakeSink) -> None:
    running = sink()
    running.take(range(3))
    running.session.switch_recording(False)
    running.take(range(3, 5))
    running.restart()
    assert not running.session.recorder.is_on
    running.take(range(5, 7))
    ledger, problem = running.end(7)
    assert (ledger["closed"], ledger["reconstructed"], ledger["unrecorded"]) == (True, 7, 4)
    assert problem == ""
    assert [path.name for path in running.folder.glob("*.h5")] == [running.file.name]


def test_ledger_of_another_series_is_not_restored(sink: MakeSink) -> None:
    running = sink(record=False)
    running.take(range(3))
    saved = LedgerFile.of(running.rig, {})
    assert saved.read("another") is None
    found = saved.read(running.session.name)
    assert found is not None
    assert found.ledger.outcomes[Outcome.RECONSTRUCTED] == 3
    saved.delete()
    assert saved.read(running.session.name) is None
    running.end(3)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"series": "run-1", "ledger": {"settled": [[3, 1]]}}'),
        '{"series": "run-1", "recording": false, "ledger": {"settled": [[0, 3]], "outcomes": '
        '{"reconstructed": 2}}}',
    ],
)
def test_damaged_ledger_file_is_ignored_with_warning(
    sink: MakeSink, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    running = sink(record=False)
    path = Path(str(running.rig.policy.spool)) / "rig.ledger"
    path.write_text(text)
    assert LedgerFile.of(running.rig, {}).read("run-1") is None
    assert "cannot read the saved ledger" in caplog.text
    running.end(0)


# --- the recording on disk


def _deleted(running: Sink) -> None:
    running.file.unlink()


def _replaced(running: Sink) -> None:
    other = running.file.with_suffix(".other")
    shutil.copy(running.file, other)
    other.replace(running.file)


def _moved(running: Sink) -> None:
    running.folder.rename(running.folder.with_name("elsewhere"))


def _truncated(running: Sink) -> None:
    running.file.write_bytes(b"something else")


@pytest.mark.parametrize("fault", [_deleted, _replaced, _moved, _truncated])
def test_recording_that_vanishes_fails_and_is_named(
    sink: MakeSink, fault: Callable[[Sink], None]
) -> None:
    running = sink()
    running.take(range(4))
    fault(running)
    assert str(running.file) in running.wait_until_recording_failed()
    running.take(range(4, 6))
    ledger, problem = running.end(6)
    assert ledger["closed"]
    assert ledger["reconstructed"] == 4
    assert ledger["dropped"] == {"not_recorded": 2}
    assert str(running.file) in problem
    if fault is not _replaced:  # a copy has the data that were flushed before
        assert "4 of 4 recorded snapshots cannot be read back" in problem


def test_recording_deleted_just_before_the_end_is_named(sink: MakeSink) -> None:
    running = sink()
    running.take(range(4))
    _deleted(running)
    ledger, problem = running.end(4)
    assert ledger["closed"]
    assert f"4 of 4 recorded snapshots cannot be read back: {running.file} is missing" in problem


def test_raw_counts_deleted_just_before_the_end_are_named(sink: MakeSink, series: Series) -> None:
    running = sink()
    running.session.receive(b"acquire", series.snapshot(0), 0.0)
    running.session.receive(b"acquire", Dropped("run-1", 1, 0, "queue_full", "raw_only"), 0.0)
    while not running.session.ledger.is_settled(0):
        running.session.take_acknowledgements()
    _deleted(running)
    assert "1 of 1 recorded snapshots cannot be read back" in running.end(1)[1]


def test_sink_restarted_without_its_folder_does_not_create_it(sink: MakeSink) -> None:
    running = sink()
    running.take(range(4))
    _moved(running)
    running.restart()
    assert not running.folder.exists(), "it may be the mount point of a disk"
    assert "does not exist" in running.wait_until_recording_failed()
    running.take(range(4, 6))
    ledger, problem = running.end(6)
    assert ledger["closed"]
    assert (ledger["reconstructed"], ledger["dropped"]) == (4, {"not_recorded": 2})
    assert "4 of 4 recorded snapshots cannot be read back" in problem


@pytest.mark.parametrize("at", [0.02, 0.3, 0.6, 0.9])
def test_sink_restarted_with_a_damaged_segment_runs_on(sink: MakeSink, at: float) -> None:
    running = sink()
    running.take(range(4))
    running.session.abandon()  # HDF5 shares what two users of this process see of a file
    damaged = bytearray(running.file.read_bytes())
    begin = int(at * len(damaged))
    damaged[begin : begin + 2000] = bytes(2000)
    with running.file.open("r+b") as file:
        file.write(damaged)
    running.restart()
    running.take(range(4, 6))
    ledger, _problem = running.end(6)
    assert ledger["closed"]
    assert ledger["reconstructed"] == 6


def test_rigs_of_one_name_have_ledgers_of_their_own(tmp_path: Path) -> None:
    results = (f"tcp://127.0.0.1:{port}" for port in (5702, 5802))
    one, other = (Rig.model_validate({"network": {"results": address}}) for address in results)
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    ledger = Ledger()
    ledger.announce(3)
    LedgerFile.of(one, environment).write(SavedLedger("series", False, ledger.state()))
    assert LedgerFile.of(one, environment).read("series") is not None
    assert LedgerFile.of(other, environment).read("series") is None
