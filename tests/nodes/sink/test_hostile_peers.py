"""Valid messages with impossible content: the sink refuses them, and neither ends nor loses
confirmed data.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import zmq

from sci_stream.config import Rig
from sci_stream.delivery.ledger import MAX_REASONS
from sci_stream.errors import LedgerError, StorageError
from sci_stream.model import Reconstruction, SnapshotId
from sci_stream.nodes.launcher.run import complete_summary
from sci_stream.nodes.runtime.process import PARENT_VARIABLE, StopRequest
from sci_stream.nodes.sink import node
from sci_stream.recording.reader import Recording
from sci_stream.transport.client_connection import identity_of
from sci_stream.transport.pubsub import subscribe_status
from sci_stream.wire.codec import decode, encode
from sci_stream.wire.messages import (
    Accepted,
    CalibrationRequest,
    Dropped,
    Heartbeat,
    Hello,
    Message,
    SeriesEnd,
)
from tests import plain_http
from tests.e2e.kit import PATIENCE_S
from tests.hostile_messages import with_header
from tests.ports import free_ports
from tests.series_fixtures import Series

_ACQUIRE = Hello("acquire", "acquire", "a")


class Sink:
    """A sink node in a thread, and a peer that can send any message."""

    def __init__(self, folder: Path, changes: dict[str, dict[str, object]] | None = None) -> None:
        results, self.taps = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
        rig = Rig.model_validate(
            {
                "network": {"results": results, "taps": self.taps, "heartbeat_s": 60.0},
                "record": {"folder": str(folder), "min_free_mib": 0},
                "preview": {"enabled": False},
                "health": {"enabled": False},
                "policy": {"spool": str(folder / "spool")},
                **(changes or {}),
            }
        )
        self.stop = StopRequest()
        self.node = node.SinkNode(rig, self.stop, summary=folder / "summary.json")
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.peer: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self.peer.setsockopt(zmq.IDENTITY, identity_of(_ACQUIRE))
        self.peer.connect(results)

    def _run(self) -> None:
        try:
            self.node.run()
        except BaseException as error:  # read by the test
            self.failure = error

    def say(self, *messages: Message) -> None:
        for message in messages:
            self.peer.send_multipart([bytes(frame) for frame in encode(message)])

    def hear(self, wanted: Callable[[Message], object]) -> Message:
        """Return the first answer of a kind; skip others."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            assert self._thread.is_alive(), f"the sink has ended: {self.failure!r}"
            while self.peer.poll(100):
                message = decode(self.peer.recv_multipart())
                if wanted(message):
                    return message
        raise AssertionError("not answered")

    def begin(self, series: Series) -> None:
        self.say(_ACQUIRE, series.calibration, series.info)
        self.hear(lambda message: isinstance(message, Accepted) and message.of == "series_start")

    def record(self, series: Series, seq: int) -> None:
        """Have a reconstruction recorded and confirmed."""
        self.say(series.reconstruction(seq))
        self.hear(lambda message: message == Accepted(series.info.series, seq, "reconstruction"))

    def end(self, series: Series, acquired: int) -> None:
        self.say(SeriesEnd(series.info.series, acquired, "finished"))
        self.hear(lambda message: isinstance(message, Accepted) and message.of == "series_end")

    def close(self) -> None:
        self.stop.set()
        self._thread.join(PATIENCE_S)
        self.peer.close(linger=0)
        self._context.term()
        assert not self._thread.is_alive()


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    monkeypatch.setattr(node, "_STATUS_S", 0.0)  # heartbeats are evaluated in each turn of the loop
    made = Sink(tmp_path)
    with contextlib.closing(made):
        yield made


def test_stopped_sink_leaves_its_ledger_to_the_next(tmp_path: Path, series: Series) -> None:
    # As after a kill of supervisor and acquire node: acknowledged snapshots are in no spool any
    # more.
    changes = {"record": {"enabled": False}, "policy": {"spool": str(tmp_path / "spool")}}
    with contextlib.closing(Sink(tmp_path, changes)) as stopped:
        stopped.begin(series)
        stopped.record(series, 0)
    assert isinstance(stopped.failure, LedgerError) or stopped.failure is None
    Sink(
        tmp_path, changes
    ).close()  # restarted after a crash, and stopped before the acquire node is back
    with contextlib.closing(Sink(tmp_path, changes)) as resumed:
        resumed.begin(series)
        resumed.say(Dropped(series.info.series, 1, 0, "acquire_lost"))
        resumed.record(series, 1)
        resumed.end(series, 2)
    assert resumed.failure is None
    ledger = json.loads((tmp_path / "summary.json").read_text())["ledger"]
    assert (ledger["reconstructed"], ledger["dropped"], ledger["closed"]) == (2, {}, True)
    assert not list((tmp_path / "spool").glob("*.ledger"))


def test_series_that_a_killed_sink_left_open_fails_the_run(
    tmp_path: Path, series: Series, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acquire node cannot resume it either, and begins another one."""
    monkeypatch.setenv(PARENT_VARIABLE, str(os.getppid()))
    summary, saved = tmp_path / "summary.json", tmp_path / "spool" / "rig.ledger"
    with contextlib.closing(Sink(tmp_path)) as killed:
        killed.begin(series)
        killed.record(series, 0)
        left = {path: path.read_bytes() for path in (summary, saved)}
    for path, content in left.items():
        path.write_bytes(content)
    other = replace(series, info=replace(series.info, series="another"))
    with contextlib.closing(Sink(tmp_path)) as restarted:
        restarted.begin(other)
        restarted.record(other, 0)
        restarted.end(other, 1)
    assert restarted.failure is None
    lines, status = complete_summary(summary, 1)
    assert status == LedgerError.exit_status
    assert lines[:2] == [
        f"series {series.info.series}: 1 acquired = 1 reconstructed: THE LEDGER DOES NOT CLOSE: "
        "the series was not ended",
        "1 acquired = 1 reconstructed: the ledger closes",
    ]


def test_incomplete_recording_fails_a_run_of_a_restarted_sink(
    tmp_path: Path, series: Series, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink that knew of the loss is gone: the summary of the run has it."""
    monkeypatch.setenv(PARENT_VARIABLE, str(os.getppid()))
    with contextlib.closing(Sink(tmp_path)) as killed:
        killed.begin(series)
        with monkeypatch.context() as patched:
            patched.setattr("sci_stream.recording.segments.free_bytes", lambda _path: 0)
            killed.record(series, 0)
        killed.end(series, 1)
    other = replace(series, info=replace(series.info, series="another"))
    with contextlib.closing(Sink(tmp_path)) as restarted:
        restarted.begin(other)
        restarted.record(other, 0)
        restarted.end(other, 1)
    assert restarted.failure is None
    lines, status = complete_summary(tmp_path / "summary.json", 1)
    assert status == StorageError.exit_status
    assert lines[1].startswith("THE RECORDING IS NOT COMPLETE: 1 snapshots were not recorded")


def assert_intact(sink: Sink, series: Series, folder: Path) -> None:
    """See that the sink still records, and that confirmed snapshots can be read."""
    sink.record(series, 1)
    sink.end(series, 2)
    sink.close()
    assert sink.failure is None
    with Recording(folder / f"{series.info.series}.h5") as recording:
        assert recording.video_seqs == [0, 1]
        assert recording.ledger is not None
        assert recording.ledger["closed"]
        assert len(recording.rows["state"]) < 10_000


def test_sink_does_not_record_snapshots_that_cannot_exist(
    sink: Sink, series: Series, tmp_path: Path
) -> None:
    sink.begin(series)
    sink.record(series, 0)
    for seq in (10**9, 2**31, 2**48 - 1):
        dropped = Dropped(series.info.series, 1, seq, "queue_full")
        sink.say(dropped, series.reconstruction(seq), series.snapshot(seq))
    assert_intact(sink, series, tmp_path)


_IMPOSSIBLE_STATUS: list[dict[str, int | float | str]] = [
    {"acquired": "many"},
    {"acquired": 0.5},
    {"acquired": 1e300},
    {"acquired": -3},
    {"acquired": 2**63 - 1},
    {"acquired": True},
    {"camera_missed": "many"},
    {"camera_missed": 1e300},
    {"clock_offset_ms": 1e308, "clock_uncertainty_ms": 0.0},
    {"clock_offset_ms": -1e300, "clock_uncertainty_ms": 1e300},
    {"clock_offset_ms": True, "clock_uncertainty_ms": False},
    {"solver.id": "ab", **{f"solver.{n}": "x" * 1000 for n in range(100)}},
    {"solver.id": 5, "solver.denoiser": "tv"},
    {"solver.id": "a/b\n"},
    {"set.iterations": "{" * 1000, "actions": "x " * 500},
    {"set.iterations": "[" * 1000, "phase": "running"},
]


def test_sink_survives_heartbeats_with_impossible_values(
    sink: Sink, series: Series, tmp_path: Path
) -> None:
    sink.begin(series)
    sink.record(series, 0)
    for status in _IMPOSSIBLE_STATUS:
        sink.say(Heartbeat("acquire", {"series": series.info.series, **status}))
        sink.record(series, 0)  # a duplicate, answered after the heartbeat was evaluated
    assert_intact(sink, series, tmp_path)


_IMPOSSIBLE_SERIES: list[dict[str, object]] = [
    {"height_px": 65536, "width_px": 65536},
    {"n_frames": 65535},
    {"chunks": {"Gain\0": "dB"}},
    {"chunks": {"a/b": ""}},
    {"chunks": {"Gain": "d\0B"}},
    {"camera_model": "\0"},
    {"rig_toml": "\0"},
    {"pixel_format": "Mono\0"},
    {"calibration_hash": "0" * 32},
    {"versions": {"a\0": "b"}},
]


def test_sink_survives_impossible_series_starts(sink: Sink, series: Series, tmp_path: Path) -> None:
    frames = [bytes(frame) for frame in encode(series.info)]
    sink.say(_ACQUIRE, series.calibration)
    for number, changes in enumerate(_IMPOSSIBLE_SERIES):
        change = {"series": f"other-{number}", **changes}
        sink.peer.send_multipart(
            with_header(frames, lambda header, change=change: header.update(change))
        )
    sink.begin(series)
    sink.record(series, 0)
    assert_intact(sink, series, tmp_path)


def _impossible_reconstructions(series: Series) -> list[Reconstruction]:
    good = series.reconstruction(0)
    report = good.report
    return [
        replace(good, dropped_before=2**63 - 1),
        replace(good, report=replace(report, residual=1e300)),
        replace(good, report=replace(report, psnr_db=-1e300)),
        replace(good, times=replace(good.times, acquired_ns=2**63 - 1, finished_ns=2**63 - 1)),
        replace(good, camera_time_ns=2**63 - 1, camera_frame_id=2**63 - 1),
        replace(good, report=replace(report, solve_ns=2**63 - 1, iterations=2**31 - 1)),
        replace(good, chunks={"Gain": 2**63 - 1, "Other": 1e300, "Text": "x" * 1000}),
    ]


def test_recording_continues_after_numbers_beyond_its_columns(
    sink: Sink, series: Series, tmp_path: Path
) -> None:
    sink.begin(series)
    impossible = _impossible_reconstructions(series)
    for seq, message in enumerate(impossible):
        sink.say(replace(message, id=replace(message.id, seq=seq)))
        sink.hear(
            lambda answer, seq=seq: answer == Accepted(series.info.series, seq, "reconstruction")
        )
    last = len(impossible)
    sink.record(series, last)
    sink.end(series, last + 1)
    sink.close()
    assert sink.failure is None
    with Recording(tmp_path / f"{series.info.series}.h5") as recording:
        assert recording.video_seqs == list(range(last + 1))
        for seq in range(last):
            assert np.array_equal(recording.video(seq), series.video(0))
        assert np.array_equal(recording.video(last), series.video(last))


def test_sink_refuses_arrays_of_another_size(sink: Sink, series: Series, tmp_path: Path) -> None:
    sink.begin(series)
    sink.record(series, 0)
    wide = np.zeros((3, 16, 26), np.float16)
    sink.say(
        series.reconstruction(1, video=wide, counts=None),
        series.snapshot(1, counts=np.zeros((2, 2), np.uint16)),
    )
    assert_intact(sink, series, tmp_path)


def test_ledger_with_many_drop_reasons_and_notes_fits(
    sink: Sink, series: Series, tmp_path: Path
) -> None:
    sink.begin(series)
    name, count = series.info.series, 4 * MAX_REASONS
    status = {f"solver.{n}": "µ" * 1000 for n in range(60)}
    for solver in range(40):
        sink.say(Heartbeat("acquire", {**status, "solver.id": f"{solver:x}"}))
    for seq in range(count):
        sink.say(Dropped(name, 0, seq, f"reason_{seq}_" + "x" * 40))
        sink.hear(lambda message, seq=seq: message == Accepted(name, seq, "dropped"))
    sink.record(series, count)
    sink.end(series, count + 1)
    sink.close()
    assert sink.failure is None
    with Recording(tmp_path / f"{name}.h5") as recording:
        assert recording.ledger is not None
        assert recording.ledger["closed"]
        assert recording.ledger["dropped"]["other"] == count - MAX_REASONS
        assert recording.video_seqs == [count]


def test_reconstructions_of_unknown_series_take_bounded_memory(
    sink: Sink, series: Series, tmp_path: Path
) -> None:
    sink.begin(series)
    sink.record(series, 0)
    before = psutil.Process().memory_info().rss
    large = np.zeros((16, 1024, 1024), np.float16)
    for seq in range(10):  # 320 MiB
        unknown = series.reconstruction(
            seq, id=SnapshotId("unknown", 0, seq), video=large, counts=None, bayer=None
        )
        sink.peer.send_multipart([bytes(frame) for frame in encode(unknown)], copy=False)
    sink.say(CalibrationRequest("0" * 32))
    sink.record(series, 0)  # a duplicate, answered after everything before it was read
    assert psutil.Process().memory_info().rss < before + (250 << 20)
    assert_intact(sink, series, tmp_path)


def test_page_token_is_in_no_output(
    tmp_path: Path, series: Series, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    page, health = free_ports(2)
    changes: dict[str, dict[str, object]] = {
        "preview": {"enabled": True, "port": page, "token": "the-secret-token"},
        "health": {"enabled": True, "sink_port": health},
    }
    with contextlib.closing(Sink(tmp_path, changes)) as sink:
        sink.begin(series)
        (status,) = itertools.islice(subscribe_status(sink.taps, timeout_s=PATIENCE_S), 1)
        assert status.status["preview"] == f"http://127.0.0.1:{page}/"
        document = plain_http.get(f"http://127.0.0.1:{health}/status").text
        assert f"http://127.0.0.1:{page}/" in document
        assert plain_http.get(f"http://127.0.0.1:{page}/?token=the-secret-token").status_code == 303
        assert plain_http.get(f"http://127.0.0.1:{page}/?token=wrong").status_code == 403
        sink.end(series, 0)
    log = "\n".join(
        record.getMessage() for record in caplog.records if not record.name.startswith("http")
    )
    assert "live page at" in log
    for text in (str(status), document, log, (tmp_path / "summary.json").read_text()):
        assert "the-secret-token" not in text
