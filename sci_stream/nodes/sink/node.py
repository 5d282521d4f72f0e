"""The sink node: receives results, keeps the ledger, records, displays, and acknowledges safe
snapshots.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sci_stream.clock import unix_ns
from sci_stream.config import Rig
from sci_stream.delivery.ledger import Ledger
from sci_stream.delivery.reaction import Reaction, Reactions
from sci_stream.devices.analyses import Analyses
from sci_stream.errors import InputError, LedgerError, SciStreamError, StorageError
from sci_stream.model import Json, JsonObject, Reconstruction, SeriesInfo, Snapshot
from sci_stream.nodes.runtime.health_reporter import HealthReporter
from sci_stream.nodes.runtime.logs import log_for_series
from sci_stream.nodes.runtime.network import NodeNetwork
from sci_stream.nodes.runtime.process import (
    PARENT_VARIABLE,
    StopRequest,
    freeze_gc,
    keep_memory,
    new_instance_id,
    versions,
)
from sci_stream.nodes.sink.alarms import Alarms
from sci_stream.nodes.sink.ledger_file import LedgerFile
from sci_stream.nodes.sink.operator_commands import OperatorCommands
from sci_stream.nodes.sink.recorder import RecordingStatus
from sci_stream.nodes.sink.series_session import Callbacks, SeriesSession
from sci_stream.nodes.sink.status import (
    SeriesStatus,
    SinkStatus,
    node_statuses,
    sink_metrics,
    solvers,
)
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import ControlAnswer
from sci_stream.transport.pubsub import TapPublisher
from sci_stream.transport.results_server import ReportingPeer, ResultsServer
from sci_stream.wire.codec import sendable
from sci_stream.wire.messages import (
    Accepted,
    Acknowledged,
    CalibrationRequest,
    ControlResult,
    Dropped,
    Heartbeat,
    Message,
    RawSnapshots,
    SeriesEnd,
    Welcome,
    acknowledgement_of,
)

if TYPE_CHECKING:
    from sci_stream.web.preview import WebPreview

log = logging.getLogger(__name__)

# A person can follow two a second on the page.
_STATUS_S = 0.5
# Of every series but the last, the summary of a run has these.
_ACCOUNT = ("series", "ended", "ledger", "frame_faults", "recording")
# Time for the last acknowledgements: without them the peers would resend until they time out.
_GOODBYE_S = 2.0


class SinkNode:
    """The output side of the instrument.

    A message is acknowledged once it is safe: flushed to the recording or, without a recording,
    displayed and counted. While the recorder's queue is full, nothing more is received:
    backpressure reaches the senders' credit and finally the acquire node's policy.
    """

    def __init__(self, rig: Rig, stop: StopRequest, *, summary: Path | None) -> None:
        self._rig = rig
        self._stop = stop
        self._summary = summary
        # A restarted sink of the same run continues the account of its predecessor.
        self._accounts = (
            read_accounts(summary) if summary is not None and PARENT_VARIABLE in os.environ else {}
        )
        keep_memory()
        self._network = network = NodeNetwork(rig, stop)
        self._server = ResultsServer(
            network.context,
            rig.network.listening["results"],
            Welcome("sink", new_instance_id(), rig.network.heartbeat_s),
            max_payload_bytes=network.max_payload_bytes,
            configure=network.serve,
            known=("acquire", *rig.reconstruct_names),
        )
        self._taps = TapPublisher(network.context, rig.network.listening["taps"], network.serve)
        self._series: SeriesSession | None = None
        self._callbacks = Callbacks(
            wake=network.wakeup.wake,
            show=self._show,
            observe=lambda seconds, stage: self._health.observe("latency_seconds", seconds, stage),
            clock_of=self._server.clock_of,
            solvers=lambda: solvers(self._server.peers.values()),
        )
        self._alarms = Alarms(rig.rig.name, rig.health.webhook)
        self._units = Analyses(rig.reconstruct.analyses).units
        self._operators = OperatorCommands(
            self._server.peers,
            self._server.reply,
            lambda: self._series,
            network.wakeup.wake,
            self._show_status_soon,
            alarms=self._alarms,
        )
        self._reactions = Reactions([])
        self._preview: WebPreview | None = None
        if rig.preview.enabled:
            from sci_stream.web.preview import WebPreview  # noqa: PLC0415 - rigs without a page load no web server

            self._preview = WebPreview(
                rig.preview,
                rig.record.folder,
                self._operators.ask,
                min_free_mib=rig.record.min_free_mib,
                solver=rig.reconstruct.solver,
            )
            self._operators.display = self._preview.display
        page_refused = None if self._preview is None else self._preview.refused
        self._health = HealthReporter(rig, "sink", page_refused=page_refused)
        self._preview_url = ""
        self._ended = deque[str](maxlen=64)
        self._ledger_file = LedgerFile.of(rig)
        for name, account in self._accounts.items():
            counts = cast("dict[str, Json]", account["ledger"])
            if not counts.get("closed") and (saved := self._ledger_file.read(name)) is not None:
                account["ledger"] = cast(Json, Ledger(saved.ledger).counts())
        self._calibration: Calibration | None = None
        self._announced: tuple[bytes, SeriesInfo] | None = None
        self._status_s = float("-inf")
        self._last_status: SeriesStatus | None = None
        self._failure: SciStreamError | None = None

    def run(self) -> None:
        """Run until asked to stop.

        Raises `LedgerError` if the ledger of a series does not close; `StorageError` if a recording
        is incomplete.
        """
        if self._preview is not None:
            self._preview.start()
            # Without the token: log, taps and health status have other readers than the page.
            self._preview_url = self._preview.url
            log.info("live page at %s", self._preview_url)
        freeze_gc()
        stopping_s: float | None = None
        try:
            while stopping_s is None or (
                self._series is not None and time.monotonic() < stopping_s
            ):
                receiving = self._series is None or not self._series.recorder.is_full
                self._network.watch(self._server.socket, receiving=receiving)
                urgent = bool(self._rig.reconstruct.nodes) or self._series is None
                now_s = self._network.wait(urgent=urgent)
                self._step(now_s, receiving=receiving)
                # Also after the series: the last messages are lost if the connection closes before
                # they are read.
                needed = self._stop.gentle and (
                    self._acquire_is_there() or self._acquire_may_return(now_s)
                )
                if self._stop and stopping_s is None and not needed:
                    stopping_s = time.monotonic() + _GOODBYE_S
            # Of a series that did not end here the saved ledger stays: a later run may resume it,
            # and the snapshots that it counts were acknowledged and are in no spool any more.
            if self._series is not None:
                self._end_series("the sink was stopped before the series ended")
            elif self._ended:
                self._ledger_file.delete()
        finally:
            self._close()
        if self._failure is not None:
            raise self._failure

    def _close(self) -> None:
        if self._series is not None:
            self._series.abandon()
        if self._preview is not None:
            self._preview.close()
        self._alarms.close()
        self._server.close()
        self._taps.close()
        self._health.close()
        self._network.close()

    def _step(self, now_s: float, *, receiving: bool) -> None:
        self._operators.poll(now_s)
        if self._series is not None:
            self._acknowledge_safe(self._series)
        if receiving:
            for identity, message in self._server.receive(now_s):
                with self._server.guard(identity):
                    self._handle(identity, message, now_s)
        for peer in self._server.tick(now_s, receiving=receiving):
            self._lost(peer)
        if self._series is not None:
            self._series.show_expired(now_s)
            if self._series.may_end():
                self._end_series(self._series.statistics.end_reason)
        if now_s - self._status_s >= _STATUS_S:
            self._status_s = now_s
            self._publish_status(now_s)

    # --- messages

    def _handle(self, identity: bytes, message: Message, now_s: float) -> None:
        match message:
            case Calibration():
                self._calibration = message
                self._begin_announced()
            case SeriesInfo():
                self._announced = (identity, message)
                if self._calibration is None or message.calibration_hash != self._calibration.hash:
                    # Only on demand: a calibration may be tens of megabytes, and a restarted
                    # acquire node announces the same series again.
                    self._server.reply(identity, CalibrationRequest(hash=message.calibration_hash))
                self._begin_announced()
            case Snapshot() | RawSnapshots() | Reconstruction():
                self._pass_to_series(message.id.series, identity, message, now_s)
            case Dropped() | SeriesEnd():
                self._pass_to_series(message.series, identity, message, now_s)
            case ControlResult() if self._operators.take(identity, message):
                pass
            case _:
                self._server.wire_errors["unexpected_kind"] += 1

    def _pass_to_series(
        self,
        name: str,
        identity: bytes,
        message: Snapshot | RawSnapshots | Reconstruction | Dropped | SeriesEnd,
        now_s: float,
    ) -> None:
        series = self._series
        if name in self._ended:
            self._acknowledge(identity, message)  # unacknowledged, it would be resent without end
        elif series is None or series.name != name:
            return  # not known yet, as after a restart of this node: the sender sends it again
        elif isinstance(message, SeriesEnd):
            if identity in self._server.peers:
                series.update_from_acquire(self._server.peers[identity].status, now_s)
            series.end(identity, message)
        elif not series.expects(message):
            return
        elif mismatch := series.mismatch_reason(message):
            self._server.refuse(identity, "mismatch", f"series {name} has no {mismatch}")
        elif series.receive(identity, message, now_s):
            self._acknowledge(identity, message)
        elif isinstance(message, RawSnapshots) and self._preview is not None:
            self._preview.publish_raw(message, now_s)

    def _acknowledge(self, identity: bytes, message: Acknowledged) -> None:
        self._server.reply(identity, acknowledgement_of(message))

    def _acknowledge_safe(self, series: SeriesSession) -> None:
        """Acknowledge snapshots that the recorder has written since."""
        for identity, accepted in series.take_acknowledgements():
            self._server.reply(identity, accepted)

    def _begin_announced(self) -> None:
        """Begin the series that was announced last, once its calibration is there."""
        if self._announced is None or self._calibration is None:
            return
        identity, info = self._announced
        if info.calibration_hash == self._calibration.hash:
            self._announced = None
            with self._server.guard(identity):
                self._begin(identity, info, self._calibration)

    def _begin(self, identity: bytes, info: SeriesInfo, calibration: Calibration) -> None:
        shape = (info.n_frames, info.height_px, info.width_px)
        if calibration.phi.shape != shape:
            text = (
                f"series {info.series} of (B, H, W) = {shape} with a calibration of "
                f"{calibration.phi.shape}"
            )
            self._server.refuse(identity, "mismatch", text)
            return
        if info.series not in self._ended and (
            self._series is None or self._series.name != info.series
        ):
            if self._series is not None:
                self._end_series(f"another series started: {info.series}")
            info = with_figures(info, self._units)
            self._series = SeriesSession.open(
                info,
                calibration,
                self._rig,
                self._callbacks,
                self._ledger_file,
                is_first=not self._accounts and not self._ended,
            )
            self._write_summary(
                self._series, {}
            )  # a series counts from its start, also if nothing ends it
            self._operators.carry_changes(self._series)
            if self._preview is not None:
                self._preview.series_started(info, calibration)
            log_for_series(info.series)
            log.info("series %s started", info.series)
            texts = self._rig.reconstruct.reactions
            self._reactions = Reactions([Reaction.parse(text) for text in texts])
        self._acknowledge(identity, info)

    def _end_series(self, reason: str) -> None:
        """End the series: close the recording with its ledger, write the summary, confirm to the
        acquire node.
        """
        series = self._series
        self._series = None
        assert series is not None
        series.statistics.end_reason = reason
        recording = series.close()
        self._acknowledge_safe(series)
        self._write_summary(series, recording.to_json())
        try:
            series.ledger.check()
        except LedgerError as error:
            log.error("series %s: %s", series.name, error)
            self._failure = self._failure or error
        if recording.incomplete_reason:
            file = "" if recording.file is None else f" {recording.file}"
            self._failure = self._failure or StorageError(
                f"The recording{file} is not complete",
                got=recording.incomplete_reason,
                hint="The ledger counts the missing snapshots by reason; the rest is readable.",
            )
        # Before the acknowledgement: the acquire node may resend series_end if the answer is lost.
        self._ended.append(series.name)
        self._last_status = series.status(time.monotonic())
        self._publish_status(time.monotonic())
        if series.ended_by is not None:
            self._server.reply(
                series.ended_by, Accepted(series=series.name, seq=0, of="series_end")
            )
        log.info("series %s ended: %s", series.name, series.ledger.counts())

    def _write_summary(self, series: SeriesSession, recording: JsonObject) -> None:
        if self._summary is None:
            return
        summary = series.statistics.summary(versions(), self._wire_errors, recording)
        earlier: list[Json] = [
            account for name, account in self._accounts.items() if name != series.name
        ]
        self._accounts[series.name] = {key: summary[key] for key in _ACCOUNT}
        try:
            write_summary(self._summary, {**summary, "earlier": earlier})
        except (
            StorageError
        ) as error:  # fails the run at its end; a restarted sink would only fail again
            self._failure = self._failure or error

    def _acquire_is_there(self) -> bool:
        return any(
            peer.hello.kind_of_node == "acquire" and not peer.lost
            for peer in self._server.peers.values()
        )

    def _acquire_may_return(self, now_s: float) -> bool:
        """Return whether an acquire node is only silent, as on a busy machine, and not for longer
        than it may drain.
        """
        return any(
            peer.reachable and now_s - peer.heard_s < self._rig.drain.timeout_s
            for peer in self._server.peers.values()
            if peer.hello.kind_of_node == "acquire"
        )

    def _lost(self, peer: ReportingPeer) -> None:
        self._show_status_soon()  # report the change at once
        if peer.hello.kind_of_node == "acquire" and self._series is not None:
            log.warning(
                "acquire node lost; series %s stays open until it returns", self._series.name
            )

    # --- display

    def _show(self, reconstruction: Reconstruction) -> None:
        self._taps.publish(reconstruction)
        if self._preview is not None:
            self._preview.publish(reconstruction)
        self._react(reconstruction)

    def _react(self, reconstruction: Reconstruction) -> None:
        """Ask for the commands that the figures of a video cause."""
        figures = {
            f"chunk_{name}": float(value)
            for name, value in reconstruction.chunks.items()
            if not isinstance(value, str)
        }
        figures["residual"] = reconstruction.report.residual
        for reaction in self._reactions.due(figures, unix_ns()):
            who = f"reaction to {reaction.condition.text}"
            answer = self._operators.ask(reaction.node, reaction.action, reaction.parameters, who)
            answer.add_done_callback(partial(_log_refusal, reaction.text))

    def _show_status_soon(self) -> None:
        self._status_s = float("-inf")

    def _publish_status(self, now_s: float) -> None:
        series = self._series
        for peer in self._server.peers.values():
            is_acquire = peer.hello.kind_of_node == "acquire"
            if series is not None and is_acquire and peer.status.get("series") == series.name:
                series.update_from_acquire(peer.status, now_s)
        if series is not None:
            series.solvers.learn(solvers(self._server.peers.values()))
            series.checkpoint()
            if series.recording_is_long_enough:
                self._operators.switch_recording(False, "[record] stop_after_mib")
        status = SinkStatus(
            state="running" if series is not None else ("ended" if self._ended else "waiting"),
            rig=self._rig.rig.name,
            nodes=node_statuses(self._server.peers.values()),
            series=self._last_status if series is None else series.status(now_s),
            controls=self._operators.describe(),
            changes=tuple(self._operators.recent),
            wire_errors=dict(self._wire_errors),
        )
        self._alarms.update(status, unix_ns())
        status = replace(status, alarms=self._alarms.to_json())
        document = status.to_json()
        if self._preview is not None:
            self._preview.set_status(document, dict(solvers(self._server.peers.values())))
        self._taps.publish(
            Heartbeat(
                node="sink", status={**status.heartbeat_figures(), "preview": self._preview_url}
            )
        )
        if self._health.due(now_s):
            recording = RecordingStatus() if status.series is None else status.series.recording
            self._health.report(
                self._not_ready(status),
                {**document, "preview": self._preview_url},
                sink_metrics(status),
                progress=recording.rows,
                idle=recording.queue_items == 0,
            )

    @property
    def _wire_errors(self) -> Counter[str]:
        """Refused messages by reason, at both addresses."""
        return self._server.wire_errors + self._taps.wire_errors

    def _not_ready(self, status: SinkStatus) -> str:
        """Return why results cannot be received or stored, ``""`` if they can."""
        reason = "" if status.series is None else status.series.recording.stopped_reason
        if reason:
            return f"recording stopped: {reason}"
        return "" if self._acquire_is_there() else "no acquire node connected"


def _log_refusal(reaction: str, answer: Future[ControlAnswer]) -> None:
    if (error := answer.exception()) is not None:
        log.warning("the reaction %r had no effect: %s", reaction, error)


def with_figures(info: SeriesInfo, units: Mapping[str, str]) -> SeriesInfo:
    """Add the figures of analyses, which are recorded like the numbers that a camera adds to its
    frames.

    Raises `InputError` if they are too many together, or share a name.
    """
    if shared := info.chunks.keys() & units.keys():
        raise InputError(
            "Numbers of the camera and figures of an analysis have the same name",
            got=", ".join(sorted(shared)),
            hint="Rename the figure, or leave out the camera's number.",
        )
    return sendable(replace(info, chunks={**info.chunks, **units}))


def read_accounts(path: Path) -> dict[str, JsonObject]:
    """Return the accounts of the series in a summary, by name, in order;
    none if it cannot be read.
    """
    try:
        last = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(one["series"]): {key: one[key] for key in _ACCOUNT}
            for one in (*last["earlier"], last)
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def write_summary(path: Path, summary: JsonObject) -> None:
    """Write the summary of a series, with its folder, which a cleaner of temporary files may have
    removed.

    Raises `StorageError` if it cannot be written; the log has its content then.
    """
    text = json.dumps(summary, indent=2) + "\n"
    new = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A new file: through a symbolic link of this name another one would be overwritten.
        new.unlink(missing_ok=True)
        with new.open("x", encoding="utf-8") as file:
            file.write(text)
        new.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        log.error(
            "cannot write the summary to %s (%s): %s", path, error.strerror, json.dumps(summary)
        )
        raise StorageError(
            f"The summary {path} cannot be written",
            got=error.strerror,
            hint="The sink's log has its content.",
        ) from error
