"""Receive the messages of a series: deduplicate, record, and acknowledge once they are safe."""

from __future__ import annotations

import dataclasses
import queue
from collections import deque
from collections.abc import Callable

from sci_stream.clock import unix_ns
from sci_stream.model import Reconstruction, Snapshot
from sci_stream.nodes.runtime.health_reporter import HealthReporter
from sci_stream.nodes.sink.series_session import SeriesSession
from sci_stream.nodes.sink.statistics import stage_seconds
from sci_stream.nodes.sink.status import solvers
from sci_stream.transport.results_server import ResultsServer
from sci_stream.transport.sink_client import key_of
from sci_stream.wire import Acceptable, Accepted, Dropped, SeriesEnd

Show = Callable[[SeriesSession, list[Reconstruction]], None]


class Intake:
    """Receive messages into the session of their series. Used from the sink's loop.

    Parameters
    ----------
    server
        Sends the acknowledgements.
    watched
        Receives the latencies.
    wake
        Wakes the sink's loop; called from the recorder's thread.
    show
        Displays reconstructions, in order.
    """

    def __init__(self, server: ResultsServer, watched: HealthReporter, wake: Callable[[], None], show: Show) -> None:
        self._server = server
        self._watched = watched
        self._wake = wake
        self._show = show
        self._parked: deque[Callable[[], bool]] = deque()
        self._durable: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    @property
    def full(self) -> bool:
        """Whether the recorder's queue is full: receive nothing more until it has room."""
        return bool(self._parked)

    def turn(self) -> None:
        """Acknowledge what has become safe, and submit deferred items to the recorder."""
        self.settle()
        while self._parked and self._parked[0]():
            self._parked.popleft()

    def settle(self) -> None:
        """Acknowledge what has become safe."""
        while not self._durable.empty():
            self._durable.get()()

    def accept(self, identity: bytes, message: Snapshot | Reconstruction | Dropped | SeriesEnd) -> None:
        """Acknowledge a message to its sender."""
        kind, series, seq = key_of(message)
        self._server.reply(identity, Accepted(series=series, seq=seq, of=kind))

    def take_reconstruction(
        self, series: SeriesSession, identity: bytes, reconstruction: Reconstruction, now_s: float
    ) -> None:
        """Receive a reconstruction: display it, record it, settle it in the ledger."""
        seq = reconstruction.id.seq
        if series.expects_already(("reconstruction", seq), identity):
            return
        if series.book.ledger.is_settled(seq):
            series.book.ledger.duplicates += 1
            self.accept(identity, reconstruction)
            return
        series.waiting_for[("reconstruction", seq)] = [identity]
        if not series.knows_solver(reconstruction.report.solver):
            series.learn_solvers(solvers(self._server.peers.values()))
        accepted = dataclasses.replace(
            reconstruction, times=dataclasses.replace(reconstruction.times, accepted_ns=unix_ns())
        )
        clocks = self._server.clock_of("acquire"), self._server.clock_of(accepted.node)
        stages = stage_seconds(accepted.times, *clocks)
        series.book.take(accepted, stages, now_s)
        for stage, seconds in stages.items():
            self._watched.figures.observe("latency_seconds", seconds, stage)
        self._show(series, series.reorder.push(seq, accepted, now_s))

        def safe(stored: bool) -> None:
            series.settle_reconstruction(accepted, stored=stored)
            if stored:
                recorded_s = (unix_ns() - accepted.times.accepted_ns) / 1e9
                self._watched.figures.observe("latency_seconds", recorded_s, "record")
            self._confirm(series, "reconstruction", seq)

        self._try_or_park(lambda: series.record_reconstruction(accepted, self._later(safe)))

    def take_raw(self, series: SeriesSession, identity: bytes, snapshot: Snapshot) -> None:
        """Receive raw counts to be recorded."""
        seq = snapshot.id.seq
        if series.expects_already(("snapshot", seq), identity):
            return
        if seq in series.raw_safe:
            self.accept(identity, snapshot)
            return
        series.waiting_for[("snapshot", seq)] = [identity]

        def safe(stored: bool) -> None:
            series.settle_raw(seq, stored=stored)
            self._confirm(series, "snapshot", seq)

        self._try_or_park(lambda: series.record_raw(snapshot, self._later(safe)))

    def take_dropped(self, series: SeriesSession, identity: bytes, dropped: Dropped, now_s: float) -> None:
        """Receive the notice that a snapshot was not reconstructed."""
        seq = dropped.seq
        if series.expects_already(("dropped", seq), identity):
            return
        if series.book.ledger.is_settled(seq):
            self.accept(identity, dropped)
            return
        series.waiting_for[("dropped", seq)] = [identity]
        self._show(series, series.reorder.skip(seq, now_s))
        outcome, reason = series.outcome_of(dropped)

        def safe(_stored: bool) -> None:
            series.book.ledger.settle(seq, outcome, reason)
            self._confirm(series, "dropped", seq)

        self._try_or_park(lambda: series.record_outcome(seq, outcome, reason, self._later(safe)))

    def _later(self, action: Callable[[bool], None]) -> Callable[[bool], None]:
        """Return a callback for the recorder's thread that runs ``action`` in the sink's loop."""

        def from_recorder(stored: bool) -> None:
            self._durable.put(lambda: action(stored))
            self._wake()

        return from_recorder

    def _try_or_park(self, submit: Callable[[], bool]) -> None:
        if self._parked or not submit():
            self._parked.append(submit)

    def _confirm(self, series: SeriesSession, kind: Acceptable, seq: int) -> None:
        for identity in series.waiting_for.pop((kind, seq), ()):
            self._server.reply(identity, Accepted(series=series.name, seq=seq, of=kind))
