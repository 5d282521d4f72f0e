"""The sink node: takes results, keeps the ledger, records, shows, and says so when a snapshot is safe."""

from __future__ import annotations

import dataclasses
import json
import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import zmq

from sci_stream.clock import unix_ns
from sci_stream.config import Rig
from sci_stream.delivery.clock import significant_ns
from sci_stream.errors import InputError, LedgerError, SciStreamError, StorageError
from sci_stream.model import Reconstruction, SeriesInfo, Snapshot
from sci_stream.nodes.control_desk import Change, ControlDesk
from sci_stream.nodes.doors import open_doors
from sci_stream.nodes.logs import log_for_series
from sci_stream.nodes.open_series import OpenSeries
from sci_stream.nodes.outputs import movie_options, preview_options
from sci_stream.nodes.runner import StopRequest, new_incarnation, settle_memory, versions
from sci_stream.nodes.series_book import by_sink_clock, stage_seconds
from sci_stream.nodes.sink_controls import SinkControls
from sci_stream.nodes.sink_status import describe_nodes, flat, solvers
from sci_stream.nodes.watched import Watched, sink_figures
from sci_stream.optics.calibration import Calibration
from sci_stream.sinks.preview import WebPreview
from sci_stream.sinks.recorder import RecorderState
from sci_stream.transport.results import Peer, ResultsServer
from sci_stream.transport.sink_link import key_of
from sci_stream.transport.sockets import Wakeup
from sci_stream.transport.taps import TapPublisher
from sci_stream.wire import (
    Acceptable,
    Accepted,
    CalibrationRequest,
    ControlResult,
    Dropped,
    Heartbeat,
    Limits,
    Message,
    SeriesEnd,
)

log = logging.getLogger(__name__)

_POLL_MS = 20
_STATUS_S = 0.5
_EARLY_AT_MOST = 64
_CALIBRATIONS_KEPT = 4
_LAST_WORDS_S = 2.0


class SinkNode:
    """Everything that comes out of the instrument comes out here.

    A message is confirmed to its sender when it is safe: in the recording and flushed, or, without a recording, shown
    and counted. While the recorder has no room, nothing more is received: the senders' credit, and in the end the
    acquire node's policy, take up the slack.
    """

    def __init__(self, rig: Rig, stop: StopRequest, *, summary: Path | None = None) -> None:
        self._rig = rig
        self._stop = stop
        self._summary = summary
        self._wakeup = Wakeup()
        stop.call_on_stop(self._wakeup.wake)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._doors = open_doors(rig, self._context)
        limits = Limits(max_payload_bytes=rig.network.max_message_mib << 20)
        self._server = ResultsServer(
            self._context,
            rig.network.listening("results"),
            node="sink",
            incarnation=new_incarnation(),
            heartbeat_s=rig.network.heartbeat_s,
            limits=limits,
            dress=self._doors.serve,
        )
        self._taps = TapPublisher(self._context, rig.network.listening("taps"), limits, self._doors.serve)
        self._watched = Watched(rig, "sink", "sink")
        self._preview: WebPreview | None = None
        self._preview_url = ""
        if rig.preview.enabled:
            self._preview = WebPreview(preview_options(rig), operator=self)
        movie_options(rig)  # what is missing for it is better said now than when the series starts
        self._asked: queue.SimpleQueue[tuple[bool, str, Future[str]]] = queue.SimpleQueue()
        own = SinkControls(self._preview, self._is_recording, self._switch_recording)
        self._desk = ControlDesk(self._server.peers, self._server.reply, own, self._note_change, self._wakeup.wake)
        self._in_force: dict[tuple[str, str], Change] = {}
        self._series: OpenSeries | None = None
        self._ended: deque[str] = deque(maxlen=64)
        self._calibrations: dict[str, Calibration] = {}
        self._starting: tuple[bytes, SeriesInfo] | None = None
        self._early: deque[tuple[bytes, Message]] = deque(maxlen=_EARLY_AT_MOST)
        self._parked: deque[Callable[[], bool]] = deque()
        self._durable: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._status_s = float("-inf")
        self._last_status: dict[str, Any] = {}
        self._failure: SciStreamError | None = None

    def run(self) -> None:
        """Run until asked to stop.

        Raises
        ------
        LedgerError
            If a series that ended here does not add up.
        StorageError
            If a recording could not take all of its series.
        """
        if self._preview is not None:
            self._preview_url = self._preview.start()
            log.info("preview at %s", self._preview_url)
        settle_memory()
        poller = zmq.Poller()
        poller.register(self._server.socket, zmq.POLLIN)
        poller.register(self._wakeup.fd, zmq.POLLIN)
        stopping_s: float | None = None
        try:
            while stopping_s is None or (self._series is not None and time.monotonic() < stopping_s):
                if self._parked:
                    poller.unregister(self._server.socket)
                poller.poll(_POLL_MS)
                if self._parked:
                    poller.register(self._server.socket, zmq.POLLIN)
                self._wakeup.clear()
                self._turn(time.monotonic())
                # Also after the series: what is said last is lost if the connection closes before it is read.
                needed = self._stop.gentle and self._acquire_is_there()
                if self._stop and stopping_s is None and not needed:
                    stopping_s = time.monotonic() + _LAST_WORDS_S
            if self._series is not None:
                self._end_series("the sink was stopped before the series ended")
        finally:
            self._close()
        if self._failure is not None:
            raise self._failure

    def _close(self) -> None:
        if self._series is not None:
            self._series.abandon()
        if self._preview is not None:
            self._preview.close()
        self._server.close()
        self._taps.close()
        self._watched.close()
        self._doors.close()
        self._context.destroy(linger=500)
        self._wakeup.close()

    # --- what operators ask for (preview_controls.OperatorControl), from any thread

    def switch_recording(self, on: bool, who: str = "") -> Future[str]:
        """Ask for the recording to be on or off."""
        answer: Future[str] = Future()
        self._asked.put((on, who, answer))
        self._wakeup.wake()
        return answer

    def ask(self, node: str, action: str, parameters: Mapping[str, object], who: str) -> Future[dict[str, Any]]:
        """Ask a node, or all of a kind, for something; see `ControlDesk.ask`."""
        return self._desk.ask(node, action, parameters, who)

    def _answer_operators(self, now_s: float) -> None:
        while not self._asked.empty():
            on, who, answer = self._asked.get()
            if not answer.set_running_or_notify_cancel():
                continue  # who asked has given up, and was told so
            try:
                file = self._switch_recording(on, who)
            except SciStreamError as error:
                answer.set_exception(error)
            else:
                answer.set_result(file)
        self._desk.turn(now_s)

    def _is_recording(self) -> bool | None:
        return None if self._series is None else self._series.recording.is_on

    def _switch_recording(self, on: bool, who: str) -> str:
        self._status_s = float("-inf")  # the page shows it at once
        if self._series is None:
            raise InputError("There is no series to record", hint="Wait for the camera to start.")
        change = Change(unix_ns(), who, "sink", "recording", self._is_recording(), on)
        if change.old and not on:
            self._note_change(change)  # while there is a journal to tell it to
            return self._series.switch_recording(on)
        file = self._series.switch_recording(on)
        self._note_change(change)
        return file

    def _note_change(self, change: Change) -> None:
        old, new = ("", "") if change.new is None else (f" from {change.old}", f" to {change.new}")
        log.warning("%s %s%s%s, by %s", change.node, change.name, old, new, change.who or "nobody who said so")
        if change.new is not None and change.node != "sink":
            self._in_force[change.node, change.name] = change
        if self._series is not None:
            self._series.note_change(change)
        self._status_s = float("-inf")

    def _carry_changes(self, series: OpenSeries) -> None:
        """Tell a series that begins what was changed before it and still holds."""
        values = self._desk.values()
        for key, change in list(self._in_force.items()):
            if values.get(key, change.new) == change.new:
                series.note_change(change)
            else:
                del self._in_force[key]  # the node was started anew since, as the rig file says

    def _turn(self, now_s: float) -> None:
        self._answer_operators(now_s)
        while not self._durable.empty():
            self._durable.get()()
        while self._parked and self._parked[0]():
            self._parked.popleft()
        if not self._parked:
            for identity, message in self._server.receive(now_s):
                self._obey(identity, message, now_s)
        for peer in self._server.tick(now_s):
            self._lost(peer)
        if self._series is not None:
            self._show(self._series, self._series.reorder.expire(now_s))
            if self._series.may_end():
                self._end_series(self._series.book.end_reason)
        if now_s - self._status_s >= _STATUS_S:
            self._status_s = now_s
            self._tell_status(now_s)

    # --- messages

    def _obey(self, identity: bytes, message: Message, now_s: float) -> None:
        match message:
            case Calibration():
                self._calibrations[message.hash] = message
                while len(self._calibrations) > _CALIBRATIONS_KEPT:
                    del self._calibrations[next(iter(self._calibrations))]
                if self._starting is not None and self._starting[1].calibration_hash == message.hash:
                    self._begin(*self._starting, now_s)
            case SeriesInfo():
                self._begin(identity, message, now_s)
            case Snapshot() | Reconstruction():
                self._for_series(message.id.series, identity, message, now_s)
            case Dropped() | SeriesEnd():
                self._for_series(message.series, identity, message, now_s)
            case ControlResult() if self._desk.take(identity, message):
                pass
            case _:
                self._server.wire_errors["unexpected_kind"] += 1

    def _for_series(
        self, name: str, identity: bytes, message: Snapshot | Reconstruction | Dropped | SeriesEnd, now_s: float
    ) -> None:
        series = self._series
        if name in self._ended:
            # It was over already when this came (again): the sender need not keep it.
            self._accept(identity, message)
            return
        if series is None or series.name != name:
            self._early.append((identity, message))
            return
        match message:
            case Reconstruction():
                self._take_reconstruction(series, identity, message, now_s)
            case Snapshot():
                self._take_raw(series, identity, message)
            case Dropped():
                self._take_dropped(series, identity, message, now_s)
            case SeriesEnd():
                series.end(identity, message)

    def _begin(self, identity: bytes, info: SeriesInfo, now_s: float) -> None:
        calibration = self._calibrations.get(info.calibration_hash)
        if calibration is None:
            self._starting = (identity, info)
            self._server.reply(identity, CalibrationRequest(hash=info.calibration_hash))
            return
        self._starting = None
        if info.series not in self._ended and (self._series is None or self._series.name != info.series):
            if self._series is not None:
                self._end_series(f"another series began: {info.series}")
            self._series = OpenSeries(info, calibration, self._rig)
            self._carry_changes(self._series)
            if self._preview is not None:
                self._preview.series_started(info)
            log_for_series(info.series)
            log.info("series %s begins", info.series)
        self._server.reply(identity, Accepted(series=info.series, seq=0, of="series_start"))
        early, self._early = list(self._early), deque(maxlen=_EARLY_AT_MOST)
        for sender, message in early:
            self._obey(sender, message, now_s)

    def _take_reconstruction(
        self, series: OpenSeries, identity: bytes, reconstruction: Reconstruction, now_s: float
    ) -> None:
        seq = reconstruction.id.seq
        if series.expects_already(("reconstruction", seq), identity):
            return
        if series.book.ledger.is_settled(seq):
            series.book.ledger.duplicates += 1
            self._accept(identity, reconstruction)
            return
        series.waiting_for[("reconstruction", seq)] = [identity]
        accepted = dataclasses.replace(
            reconstruction, times=dataclasses.replace(reconstruction.times, accepted_ns=unix_ns())
        )
        times = by_sink_clock(accepted.times, self._clock_of("acquire"), self._clock_of(accepted.node))
        series.book.take(accepted, times, now_s)
        for stage, seconds in stage_seconds(times):
            self._watched.figures.observe("latency_seconds", seconds, stage)
        self._show(series, series.reorder.push(seq, accepted, now_s))

        def safe(stored: bool) -> None:
            series.settle_reconstruction(accepted, stored=stored)
            if stored:
                recorded_s = (unix_ns() - accepted.times.accepted_ns) / 1e9
                self._watched.figures.observe("latency_seconds", recorded_s, "record")
            self._confirm(series, "reconstruction", seq)

        self._try_or_park(lambda: series.record_reconstruction(accepted, self._later(safe)))

    def _take_raw(self, series: OpenSeries, identity: bytes, snapshot: Snapshot) -> None:
        seq = snapshot.id.seq
        if series.expects_already(("snapshot", seq), identity):
            return
        if seq in series.raw_safe:
            self._accept(identity, snapshot)
            return
        series.waiting_for[("snapshot", seq)] = [identity]

        def safe(stored: bool) -> None:
            series.settle_raw(seq, stored=stored)
            self._confirm(series, "snapshot", seq)

        self._try_or_park(lambda: series.record_raw(snapshot, self._later(safe)))

    def _take_dropped(self, series: OpenSeries, identity: bytes, dropped: Dropped, now_s: float) -> None:
        seq = dropped.seq
        if series.expects_already(("dropped", seq), identity):
            return
        if series.book.ledger.is_settled(seq):
            self._accept(identity, dropped)
            return
        series.waiting_for[("dropped", seq)] = [identity]
        self._show(series, series.reorder.skip(seq, now_s))
        outcome, reason = series.outcome_of(dropped)

        def safe(_stored: bool) -> None:
            series.book.ledger.settle(seq, outcome, reason)
            self._confirm(series, "dropped", seq)

        self._try_or_park(lambda: series.record_outcome(seq, outcome, reason, self._later(safe)))

    # --- what is safe

    def _later(self, action: Callable[[bool], None]) -> Callable[[bool], None]:
        """Return a callback for the recorder's thread that has ``action`` done in this one."""

        def from_recorder(stored: bool) -> None:
            self._durable.put(lambda: action(stored))
            self._wakeup.wake()

        return from_recorder

    def _try_or_park(self, submit: Callable[[], bool]) -> None:
        if self._parked or not submit():
            self._parked.append(submit)

    def _accept(self, identity: bytes, message: Snapshot | Reconstruction | Dropped | SeriesEnd) -> None:
        kind, series, seq = key_of(message)
        self._server.reply(identity, Accepted(series=series, seq=seq, of=kind))

    def _confirm(self, series: OpenSeries, kind: Acceptable, seq: int) -> None:
        for identity in series.waiting_for.pop((kind, seq), ()):
            self._server.reply(identity, Accepted(series=series.name, seq=seq, of=kind))

    def _end_series(self, reason: str) -> None:
        """Close the books: the recording with its ledger inside, the summary, and the word to the acquire node."""
        series, self._series = self._series, None
        assert series is not None
        series.book.end_reason = reason
        self._show(series, series.reorder.flush())
        recording = series.close()
        while not self._durable.empty():
            self._durable.get()()
        if self._summary is not None:
            summary = series.book.summary(versions(), self._server.wire_errors, recording)
            self._summary.write_text(json.dumps(summary, indent=2) + "\n")
        try:
            series.book.ledger.check()
        except LedgerError as error:
            log.error("series %s: %s", series.name, error)
            self._failure = self._failure or error
        if recording.get("state") in {RecorderState.STOPPED, RecorderState.FAILED}:
            self._failure = self._failure or StorageError(
                f"The recording {recording['file']} is not complete",
                got=recording["reason"],
                hint="What was flushed before is readable; the ledger counts the rest as not_recorded.",
            )
        self._ended.append(series.name)
        self._last_status = series.status(time.monotonic())
        self._tell_status(time.monotonic())
        if series.ended_by is not None:
            self._server.reply(series.ended_by, Accepted(series=series.name, seq=0, of="series_end"))
        log.info("series %s is over: %s", series.name, series.book.ledger.as_dict())

    def _clock_of(self, node: str) -> int:
        """Return this host's clock less that of a node's host, ns; 0 where it may be the same."""
        status = next((peer.status for peer in self._server.peers.values() if peer.hello.node == node), {})
        return significant_ns(float(status.get("clock_offset_ms", 0.0)), float(status.get("clock_uncertainty_ms", 0.0)))

    def _acquire_is_there(self) -> bool:
        return any(peer.hello.kind_of_node == "acquire" and not peer.lost for peer in self._server.peers.values())

    def _lost(self, peer: Peer) -> None:
        self._status_s = float("-inf")  # whoever watches is told at once
        if peer.hello.kind_of_node == "acquire" and self._series is not None:
            log.warning("the acquire node is silent; series %s stays open until it is back", self._series.name)

    # --- what is shown

    def _show(self, series: OpenSeries, reconstructions: list[Reconstruction]) -> None:
        for reconstruction in reconstructions:
            series.film(reconstruction)
            self._taps.publish(reconstruction)
            if self._preview is not None:
                self._preview.publish(reconstruction)

    def _tell_status(self, now_s: float) -> None:
        series = self._series
        for peer in self._server.peers.values():
            if series is not None and peer.status.get("series") == series.name:
                series.hear(peer.status, now_s)
        if series is not None:
            series.checkpoint(solvers(self._server.peers.values()))
        state = "running" if series is not None else ("ended" if self._ended else "waiting")
        status = {
            "state": state,
            "rig": self._rig.rig.name,
            "nodes": describe_nodes(self._server.peers.values()),
            "controls": self._desk.describe(),
            "wire_errors": dict(self._server.wire_errors),
            **(series.status(now_s) if series is not None else self._last_status),
        }
        if self._preview is not None:
            self._preview.set_status(status)
        self._taps.publish(Heartbeat(node="sink", status={**flat(status), "preview": self._preview_url}))
        if self._watched.due(now_s):
            figures = sink_figures(status, self._server.wire_errors)
            self._watched.tell(
                self._not_ready(status),
                {**status, "preview": self._preview_url},
                figures,
                progress=int(status.get("recording", {}).get("rows", 0)),
                idle=not self._parked and not status.get("recording", {}).get("queue_items", 0),
            )

    def _not_ready(self, status: Mapping[str, Any]) -> str:
        """Return why results cannot be taken or kept, ``""`` if they can."""
        recording = status.get("recording", {})
        if recording.get("state") in {RecorderState.STOPPED, RecorderState.FAILED}:
            return f"nothing more is recorded: {recording['reason']}"
        return "" if self._acquire_is_there() else "no acquire node reports"
