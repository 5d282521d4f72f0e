"""Operator commands at the sink: execute them here or have the nodes execute them, and record every
change.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING

from sci_stream.clock import unix_ns
from sci_stream.config import PreviewSection
from sci_stream.errors import EnvironmentFault, InputError, SciStreamError
from sci_stream.model import JsonObject
from sci_stream.nodes.sink.alarms import Alarms
from sci_stream.nodes.sink.series_session import SeriesSession
from sci_stream.parameters import (
    DEMO,
    SET_KEY,
    Changes,
    ControlAnswer,
    Parameter,
    SettingChange,
    Value,
    checked_changes,
    declare,
)
from sci_stream.transport.results_server import ReportingPeer
from sci_stream.wire.messages import Control, ControlResult, Message

if TYPE_CHECKING:
    from sci_stream.web.display import Display

log = logging.getLogger(__name__)

MAX_WAITING = 64
"""Maximum number of pending requests: an operator has one; programs over the limit are refused."""
PATIENCE_S = 60.0
"""Pending requests expire after this time; the caller has timed out long before."""
MAX_RECENT = 20
SINK = "sink"

_TONE = ("exposure_ev", "black", "gamma", "white_balance", "false_colour", "demosaic")
_AGAIN = ", again after a restart"


@dataclass
class _Request:
    """One request to the sink, to one node or to all nodes of a kind; answered once all of them
    have answered.
    """

    node: str
    action: str
    parameters: Changes
    who: str
    answer: Future[ControlAnswer]
    waiting: set[str] = field(default_factory=set)
    values: dict[str, dict[str, Value]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    errors: list[SciStreamError] = field(default_factory=list)


@dataclass
class _Sent:
    """A request sent to one node."""

    request: _Request
    identity: bytes
    node: str
    sent_s: float
    before: dict[str, Value]
    """Values before the change, by name."""


@dataclass
class OperatorCommands:
    """Take requests from any thread (`ask`), and execute or forward them in the sink's loop
    (`poll`).

    The sink's own parameters are ``recording``, while there is a series, and the tone of the page.
    ``peers`` are the nodes that report to the sink, by identity; ``send`` returns False if a
    message cannot be sent; ``series`` returns the running one; ``wake`` wakes the sink's loop from
    any thread; ``show_soon`` updates the displayed status at once.
    """

    peers: Mapping[bytes, ReportingPeer]
    send: Callable[[bytes, Message], bool]
    series: Callable[[], SeriesSession | None]
    wake: Callable[[], None]
    show_soon: Callable[[], None]
    _: KW_ONLY
    alarms: Alarms
    display: Display | None = None
    """The page's display, for its tone; None without a page."""
    recent: deque[SettingChange] = field(
        default_factory=lambda: deque(maxlen=MAX_RECENT), init=False
    )
    """The last changes, which every page shows."""
    _inbox: SimpleQueue[_Request] = field(default_factory=SimpleQueue, init=False)
    _sent: dict[str, _Sent] = field(default_factory=dict, init=False)
    _in_force: dict[tuple[str, str], SettingChange] = field(default_factory=dict, init=False)
    _known: set[bytes] = field(default_factory=set, init=False)

    def ask(self, node: str, action: str, parameters: Changes, who: str) -> Future[ControlAnswer]:
        """Request, from any thread, that a node sets parameters or performs an action.

        ``node`` is a name, ``reconstruct`` for all of that kind, or ``sink``; ``action`` is
        ``set``, one that the node lists, or at the sink ``acknowledge``, with the number of the
        ``alarm``, or ``keep_event``, which keeps an event of a triggered recording; ``who`` is
        logged and recorded.
        """
        request = _Request(node, action, parameters, who, Future())
        if self._inbox.qsize() + len(self._sent) >= MAX_WAITING:
            request.answer.set_exception(
                EnvironmentFault(
                    f"{MAX_WAITING} requests are pending", hint="Try again when they are answered."
                )
            )
        else:
            self._inbox.put(request)
            self.wake()
        return request.answer

    # --- from the sink's loop

    def poll(self, now_s: float) -> None:
        """Execute or forward new requests and expire those that will not be answered.

        Never blocks.
        """
        while not self._inbox.empty():
            request = self._inbox.get()
            if not request.answer.set_running_or_notify_cancel():
                continue  # the caller has timed out and was notified
            try:
                if request.node == SINK:
                    self._set_own(request)
                else:
                    self._pass_on(request, now_s)
            except SciStreamError as error:
                request.errors.append(error)
            _answer_if_complete(request)
        self._restore_changes(now_s)
        for key, sent in list(self._sent.items()):
            peer = self.peers.get(sent.identity)
            if peer is None or peer.lost or now_s - sent.sent_s > PATIENCE_S:
                why = (
                    "has not answered"
                    if peer is not None and not peer.lost
                    else "was lost before it answered"
                )
                problem = EnvironmentFault(
                    f"{sent.node} {why}", hint="Check whether it took effect before trying again."
                )
                self._settle(key, problem)

    def _restore_changes(self, now_s: float) -> None:
        """Set again, on nodes that have restarted, the values that an operator had set."""
        self._known &= self.peers.keys()
        for identity, peer in list(self.peers.items()):
            if peer.lost or not peer.parameters or identity in self._known:
                continue
            self._known.add(identity)  # once for each process: it may refuse
            values = {parameter.name: parameter.value for parameter in peer.parameters}
            changes = {
                name: change
                for (node, name), change in self._in_force.items()
                if node == peer.hello.node and values.get(name, change.new) != change.new
            }
            if changes:
                text = ", ".join(f"{name} = {change.new}" for name, change in changes.items())
                log.warning(
                    "%s has restarted with the values of the rig file: setting %s again",
                    peer.hello.node,
                    text,
                )
                who = next(iter(changes.values())).who.removesuffix(_AGAIN) + _AGAIN
                again = {name: change.new for name, change in changes.items()}
                self._pass_on(_Request(peer.hello.node, "set", again, who, Future()), now_s)

    def take(self, identity: bytes, result: ControlResult) -> bool:
        """Handle a node's answer; return whether it belongs to a pending request."""
        sent = self._sent.get(result.request)
        if sent is None or sent.identity != identity:
            return False
        if not result.ok:
            self._settle(result.request, InputError(result.text or f"{sent.node} refused"))
            return True
        request = sent.request
        peer = self.peers.get(identity)
        if request.action != "set":
            self._note_change(SettingChange(unix_ns(), request.who, sent.node, request.action))
        elif peer is not None:
            for name, value in result.values.items():
                old = sent.before.get(name)
                if old != value:
                    self._note_change(
                        SettingChange(unix_ns(), request.who, sent.node, name, old, value)
                    )
            # Requests already sent to this node will find these values, not those of its last
            # report.
            for later in self._sent.values():
                if later.identity == identity:
                    later.before.update(result.values)
            # The next caller sees the new values, not the node's last report.
            peer.report({**peer.status, **_redeclared(peer, result.values)})
        if result.values:
            request.values[sent.node] = dict(result.values)
        if result.text:
            request.texts.append(result.text)
        self._settle(result.request)
        return True

    def _settle(self, key: str, error: SciStreamError | None = None) -> None:
        request = self._sent.pop(key).request
        request.waiting.discard(key)
        if error is not None:
            request.errors.append(error)
        _answer_if_complete(request)

    def _pass_on(self, request: _Request, now_s: float) -> None:
        targets = [
            (identity, peer)
            for identity, peer in self.peers.items()
            if _is_meant(peer, request.node)
        ]
        if not targets:
            names = [peer.hello.node for peer in self.peers.values() if not peer.lost]
            raise InputError(
                f"Unknown node {request.node!r}", expected=f"one of {', '.join([*names, SINK])}"
            )
        # All or none, as far as the sink can check.
        checked = [_checked(request, peer) for _, peer in targets]
        for (identity, peer), changes in zip(targets, checked, strict=True):
            key = secrets.token_hex(8)
            node = peer.hello.node
            message = Control(
                request=key, node=node, action=request.action, parameters=changes, who=request.who
            )
            if self.send(identity, message):
                request.waiting.add(key)
                # Now, because a heartbeat with the new values may arrive before the answer.
                before = {parameter.name: parameter.value for parameter in peer.parameters}
                self._sent[key] = _Sent(request, identity, node, now_s, before)
            else:
                request.errors.append(
                    EnvironmentFault(f"{node} accepts no messages", hint="Try again in a moment.")
                )

    # --- the sink's own parameters

    def _own_parameters(self) -> list[Parameter]:
        parameters = []
        if (series := self.series()) is not None:
            text = "Whether the series is being recorded."
            parameters.append(
                Parameter("recording", "flag", series.recorder.is_on, description=text)
            )
        if self.display is not None:
            parameters += [
                declare(PreviewSection, name, getattr(self.display.tone, name)) for name in _TONE
            ]
        return parameters

    def _set_own(self, request: _Request) -> None:
        if request.action == "acknowledge":
            self.alarms.acknowledge(request.parameters.get("alarm"), request.who)
            self.show_soon()
            return
        series = self.series()
        if request.action == "keep_event" and series is not None:
            request.texts.append(f"event {series.keep_event(request.who).number}")
            self.show_soon()
            return
        if request.action != "set":
            expected = "set, acknowledge or keep_event"
            raise InputError(
                f"Action {request.action!r} is not available at the sink now", expected=expected
            )
        changes = checked_changes(self._own_parameters(), request.parameters, SINK)
        if "recording" in changes:
            request.texts.append(self.switch_recording(bool(changes["recording"]), request.who))
        # Changes of tone are not recorded, because tone never affects the data.
        tone = {name: value for name, value in changes.items() if name in _TONE}
        if tone and self.display is not None:
            self.display.set_tone(tone, request.who)
        log.info("set by %s: %s", request.who, changes)
        request.values[SINK] = changes

    def switch_recording(self, on: bool, who: str) -> str:
        """Start or stop the recording of the running series, unless that is done; return the name
        of the file.

        Raises `StorageError` if the file cannot be created.
        """
        series = self.series()
        assert series is not None
        # One that stopped by itself is off, but wanted: it would start again.
        if series.recorder.is_on == on and (on or not series.recorder.is_wanted):
            return series.recorder.status().file or ""
        self.show_soon()
        change = SettingChange(unix_ns(), who, SINK, "recording", not on, on)
        if not on:
            self._note_change(change)  # while the journal is open
        file = series.switch_recording(on)
        if on:
            self._note_change(change)
        return file

    # --- changes

    def _note_change(self, change: SettingChange) -> None:
        level = logging.INFO if change.who.startswith(DEMO) else logging.WARNING
        log.log(level, "%s, by %s", change, change.who or "an unnamed operator")
        self._keep_in_force(change)
        series = self.series()
        if series is not None:
            series.note_change(change)
        self.show_soon()

    def _keep_in_force(self, change: SettingChange) -> None:
        self.recent.append(change)
        if change.new is not None and change.node != SINK:
            self._in_force[change.node, change.name] = change

    def carry_changes(self, series: SeriesSession) -> None:
        """Pass earlier changes that are still in force to a new series; take over those of one that
        continues.
        """
        for change in series.statistics.changes:
            self._keep_in_force(change)
        if series.statistics.changes:
            self._known.clear()  # nodes may have restarted together with the sink
            return
        values = {
            (node, entry.name): entry.value
            for node, _, entries, _ in self._declared()
            for entry in entries
        }
        for key, change in list(self._in_force.items()):
            if values.get(key, change.new) == change.new:
                series.note_change(change)
            else:
                del self._in_force[
                    key
                ]  # the node has restarted since, with the values of the rig file

    def describe(self) -> list[JsonObject]:
        """Return parameters and actions by node, as JSON for the page."""
        return [
            {
                "node": node,
                "kind": kind,
                "parameters": [entry.as_dict() for entry in parameters],
                "actions": actions,
            }
            for node, kind, parameters, actions in self._declared()
            if parameters or actions
        ]

    def _declared(self) -> Iterator[tuple[str, str, Sequence[Parameter], list[str]]]:
        for peer in self.peers.values():
            if not peer.lost:
                yield peer.hello.node, peer.hello.kind_of_node, peer.parameters, peer.actions
        series = self.series()
        actions = ["keep_event"] if series is not None and series.is_triggered else []
        yield SINK, SINK, self._own_parameters(), actions


def _answer_if_complete(request: _Request) -> None:
    if request.waiting:
        return
    if request.errors:
        request.answer.set_exception(request.errors[0])
    else:
        request.answer.set_result(
            ControlAnswer(request.values, "; ".join(dict.fromkeys(request.texts)))
        )


def _is_meant(peer: ReportingPeer, node: str) -> bool:
    return not peer.lost and node in {peer.hello.node, peer.hello.kind_of_node}


def _checked(request: _Request, peer: ReportingPeer) -> dict[str, Value]:
    """Refuse settings that the node would refuse, so that no node receives any."""
    node = peer.hello.node
    if request.action == "set":
        return checked_changes(peer.parameters, request.parameters, node)
    if request.action not in peer.actions:
        expected = (
            f"one of {', '.join(peer.actions)}" if peer.actions else "none: it offers no action now"
        )
        raise InputError(
            f"Action {request.action!r} is not available at {node} now", expected=expected
        )
    return {}


def _redeclared(peer: ReportingPeer, values: Mapping[str, Value]) -> dict[str, str]:
    known = {parameter.name: parameter for parameter in peer.parameters}
    return {
        f"{SET_KEY}{name}": replace(known[name], value=value).to_text()
        for name, value in values.items()
        if name in known
    }
