"""Operator commands at the sink: execute or refuse requests from the page, and record every change."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from sci_stream.clock import unix_ns
from sci_stream.config import Rig
from sci_stream.errors import InputError, SciStreamError
from sci_stream.model import JsonObject
from sci_stream.nodes.sink.control_broker import ControlBroker, SettingChange, SinkControls
from sci_stream.nodes.sink.options import tone_settings
from sci_stream.nodes.sink.series_session import SeriesSession
from sci_stream.parameters import Changes
from sci_stream.transport.results_server import ResultsServer
from sci_stream.wire import ControlResult

if TYPE_CHECKING:
    from sci_stream.web.preview import WebPreview

log = logging.getLogger(__name__)


class OperatorCommands:
    """The live page and its commands (`sci_stream.web.controls.OperatorControl`). Used from the sink's loop.

    `switch_recording` and `ask` may be called from any thread.

    Parameters
    ----------
    server
        Server whose peers receive the requests.
    rig
        The rig; without a page there are no commands.
    series
        Returns the running series.
    wake
        Wakes the sink's loop.
    show_soon
        Updates the displayed status at once.
    """

    def __init__(
        self,
        server: ResultsServer,
        rig: Rig,
        series: Callable[[], SeriesSession | None],
        wake: Callable[[], None],
        show_soon: Callable[[], None],
    ) -> None:
        self._series = series
        self._wake = wake
        self._show_soon = show_soon
        self._switches: queue.SimpleQueue[tuple[bool, str, Future[str]]] = queue.SimpleQueue()
        self._in_force: dict[tuple[str, str], SettingChange] = {}
        self.preview: WebPreview | None = None
        if rig.preview.enabled:
            from sci_stream.web.preview import WebPreview  # noqa: PLC0415 - rigs without a page load no web server

            self.preview = WebPreview(rig.preview, rig.record.folder, tone_settings(rig.preview), operator=self)
        display = None if self.preview is None else self.preview.display
        own = SinkControls(display, self._is_recording, self._switch_recording)
        self._broker = ControlBroker(server.peers, server.reply, own, self._note_change, wake)

    # --- from any thread

    def switch_recording(self, on: bool, who: str = "") -> Future[str]:
        """Switch the recording on or off."""
        answer: Future[str] = Future()
        self._switches.put((on, who, answer))
        self._wake()
        return answer

    def ask(self, node: str, action: str, parameters: Changes, who: str) -> Future[JsonObject]:
        """Send a request to a node or to all nodes of a kind; see `ControlBroker.ask`."""
        return self._broker.ask(node, action, parameters, who)

    # --- from the sink's loop

    def answer(self, now_s: float) -> None:
        """Execute pending commands."""
        while not self._switches.empty():
            on, who, answer = self._switches.get()
            if not answer.set_running_or_notify_cancel():
                continue  # the caller has timed out and was notified
            try:
                file = self._switch_recording(on, who)
            except SciStreamError as error:
                answer.set_exception(error)
            else:
                answer.set_result(file)
        self._broker.poll(now_s)

    def end_recording(self, who: str) -> None:
        """Switch the recording off on behalf of a setting."""
        self._switch_recording(False, who)

    def take(self, identity: bytes, result: ControlResult) -> bool:
        """Handle a node's answer; return whether it was expected."""
        return self._broker.take(identity, result)

    def describe(self) -> list[JsonObject]:
        """Return parameters and actions."""
        return self._broker.describe()

    def carry_changes(self, series: SeriesSession) -> None:
        """Pass earlier changes that are still in force to a new series."""
        values = self._broker.values()
        for key, change in list(self._in_force.items()):
            if values.get(key, change.new) == change.new:
                series.note_change(change)
            else:
                del self._in_force[key]  # the node has restarted since, with the values of the rig file

    def _is_recording(self) -> bool | None:
        series = self._series()
        return None if series is None else series.recording.is_on

    def _switch_recording(self, on: bool, who: str) -> str:
        self._show_soon()
        series = self._series()
        if series is None:
            raise InputError("No series to record", hint="Wait for the camera to start.")
        change = SettingChange(unix_ns(), who, "sink", "recording", self._is_recording(), on)
        if change.old and not on:
            self._note_change(change)  # while the journal is open
            return series.switch_recording(on)
        file = series.switch_recording(on)
        self._note_change(change)
        return file

    def _note_change(self, change: SettingChange) -> None:
        old, new = ("", "") if change.new is None else (f" from {change.old}", f" to {change.new}")
        log.warning("%s %s%s%s, by %s", change.node, change.name, old, new, change.who or "an unnamed operator")
        if change.new is not None and change.node != "sink":
            self._in_force[change.node, change.name] = change
        series = self._series()
        if series is not None:
            series.note_change(change)
        self._show_soon()
