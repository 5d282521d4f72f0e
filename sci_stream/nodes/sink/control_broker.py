"""Control at the sink: route requests to nodes, collect their answers, and record every change."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING

from sci_stream.clock import unix_ns
from sci_stream.config import PreviewSection
from sci_stream.config.runtime_parameters import declare
from sci_stream.errors import EnvironmentFault, InputError, SciStreamError
from sci_stream.model import JsonObject
from sci_stream.parameters import SET_KEY, Changes, Parameter, Value, checked_changes, declarations
from sci_stream.transport.results_server import ReportingPeer
from sci_stream.wire import Control, ControlResult, Message

if TYPE_CHECKING:
    from sci_stream.web.display import Display

log = logging.getLogger(__name__)

MOST_WAITING = 64
"""Maximum number of pending requests: an operator has one; programs over the limit are refused."""
PATIENCE_S = 60.0
"""Pending requests expire after this time; the caller has timed out long before."""
SINK = "sink"


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A change by an operator: a parameter from ``old`` to ``new`` or, with neither, an action."""

    time_ns: int
    who: str
    node: str
    name: str
    old: Value | None = None
    new: Value | None = None

    def to_json(self) -> JsonObject:
        """Return the change as JSON, for journal, recording and summary."""
        return asdict(self)


@dataclass(slots=True)
class _PendingRequest:
    """One request to one node or to all nodes of a kind; answered once all of them have answered."""

    node: str
    action: str
    parameters: Changes
    who: str
    answer: Future[JsonObject]
    waiting: set[str] = field(default_factory=set)
    values: dict[str, dict[str, Value]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    errors: list[SciStreamError] = field(default_factory=list)


@dataclass(slots=True)
class _Sent:
    """A request sent to one node."""

    pending: _PendingRequest
    identity: bytes
    node: str
    sent_s: float
    before: dict[str, Value]
    """Values before the change, by name."""


class ControlBroker:
    """Route requests from the page's threads (`ask`) to the nodes, one message per node.

    Parameters
    ----------
    peers
        Nodes that report to the sink, by identity.
    send
        Sends a message to one of them; False if it cannot be sent.
    own
        Parameters and actions of the sink itself.
    note
        Receives each `SettingChange`, in the sink's loop.
    wake
        Wakes the sink's loop; thread-safe.
    """

    def __init__(
        self,
        peers: Mapping[bytes, ReportingPeer],
        send: Callable[[bytes, Message], bool],
        own: SinkControls,
        note: Callable[[SettingChange], None],
        wake: Callable[[], None],
    ) -> None:
        self._peers = peers
        self._send = send
        self._own = own
        self._note = note
        self._wake = wake
        self._inbox: SimpleQueue[_PendingRequest] = SimpleQueue()
        self._sent: dict[str, _Sent] = {}

    def ask(self, node: str, action: str, parameters: Changes, who: str) -> Future[JsonObject]:
        """Send a request, from any thread, and wait for the answer.

        Parameters
        ----------
        node
            Name of a node, or ``reconstruct`` for all of that kind.
        action
            ``set``, with ``parameters`` to set, or one that the node lists.
        who
            Name of the operator, logged and recorded.

        Returns
        -------
        Current ``values`` by node and ``text``, or the error.
        """
        pending = _PendingRequest(node, action, parameters, who, Future())
        if self._inbox.qsize() + len(self._sent) >= MOST_WAITING:
            pending.answer.set_exception(
                EnvironmentFault(f"{MOST_WAITING} requests are pending", hint="Try again when they are answered.")
            )
        else:
            self._inbox.put(pending)
            self._wake()
        return pending.answer

    def poll(self, now_s: float) -> None:
        """Forward new requests and expire those that will not be answered. Never blocks."""
        while not self._inbox.empty():
            pending = self._inbox.get()
            if not pending.answer.set_running_or_notify_cancel():
                continue  # the caller has timed out and was notified
            try:
                self._pass_on(pending, now_s)
            except SciStreamError as error:
                pending.errors.append(error)
            self._answer_if_complete(pending)
        for request, sent in list(self._sent.items()):
            peer = self._peers.get(sent.identity)
            if peer is None or peer.lost or now_s - sent.sent_s > PATIENCE_S:
                why = "has not answered" if peer is not None and not peer.lost else "was lost before it answered"
                problem = EnvironmentFault(
                    f"{sent.node} {why}", hint="Check whether it took effect before trying again."
                )
                self._settle(request, problem)

    def take(self, identity: bytes, result: ControlResult) -> bool:
        """Handle a node's answer; return whether it belongs to a pending request."""
        sent = self._sent.get(result.request)
        if sent is None or sent.identity != identity:
            return False
        if not result.ok:
            self._settle(result.request, InputError(result.text or f"{sent.node} refused"))
            return True
        pending, peer = sent.pending, self._peers.get(sent.identity)
        if peer is not None and pending.action == "set":
            self._note_set(pending, sent.node, sent.before, result.values)
            # Requests already sent to this node will find these values, not those of its last report.
            for later in self._sent.values():
                if later.identity == identity:
                    later.before.update(result.values)
            # The next caller sees the new values, not the node's last report.
            peer.status = {**peer.status, **_redeclared(peer, result.values)}
        elif pending.action != "set":
            self._note(SettingChange(unix_ns(), pending.who, sent.node, pending.action))
        if result.values:
            pending.values[sent.node] = dict(result.values)
        if result.text:
            pending.texts.append(result.text)
        self._settle(result.request)
        return True

    def _settle(self, request: str, error: SciStreamError | None = None) -> None:
        pending = self._sent.pop(request).pending
        pending.waiting.discard(request)
        if error is not None:
            pending.errors.append(error)
        self._answer_if_complete(pending)

    @staticmethod
    def _answer_if_complete(pending: _PendingRequest) -> None:
        if pending.waiting:
            return
        if pending.errors:
            pending.answer.set_exception(pending.errors[0])
        else:
            pending.answer.set_result({"values": pending.values, "text": "; ".join(dict.fromkeys(pending.texts))})

    def _pass_on(self, pending: _PendingRequest, now_s: float) -> None:
        if pending.node == SINK:
            pending.values[SINK] = self._apply_to_sink(pending)
            return
        targets = [(identity, peer) for identity, peer in self._peers.items() if _is_meant(peer, pending.node)]
        if not targets:
            names = [peer.hello.node for peer in self._peers.values() if not peer.lost]
            raise InputError(f"Unknown node {pending.node!r}", expected=f"one of {', '.join([*names, SINK])}")
        # All or none, as far as the sink can check.
        checked = [_checked(pending, peer) for _, peer in targets]
        for (identity, peer), changes in zip(targets, checked, strict=True):
            request, node = secrets.token_hex(8), peer.hello.node
            message = Control(request=request, node=node, action=pending.action, parameters=changes, who=pending.who)
            if self._send(identity, message):
                pending.waiting.add(request)
                # Now, because a heartbeat with the new values may arrive before the answer.
                before = {name: parameter.value for name, parameter in _known(peer).items()}
                self._sent[request] = _Sent(pending, identity, node, now_s, before)
            else:
                pending.errors.append(EnvironmentFault(f"{node} accepts no messages", hint="Try again in a moment."))

    def _apply_to_sink(self, pending: _PendingRequest) -> dict[str, Value]:
        if pending.action != "set":
            raise InputError(f"Unknown action {pending.action!r} for the sink", expected="set")
        changes = checked_changes(self._own.parameters(), pending.parameters, SINK)
        self._own.set(changes, pending.who)
        log.info("set by %s: %s", pending.who, changes)
        return changes

    def _note_set(
        self, pending: _PendingRequest, node: str, before: Mapping[str, Value], values: Mapping[str, Value]
    ) -> None:
        for name, value in values.items():
            old = before.get(name)
            if old != value:
                self._note(SettingChange(unix_ns(), pending.who, node, name, old, value))

    # --- parameters and actions

    def describe(self) -> list[JsonObject]:
        """Return parameters and actions by node, as JSON for the page."""
        return [
            {"node": node, "kind": kind, "parameters": [entry.as_dict() for entry in parameters], "actions": actions}
            for node, kind, parameters, actions in self._declared()
            if parameters or actions
        ]

    def values(self) -> dict[tuple[str, str], Value]:
        """Return the current values by node and name."""
        return {(node, entry.name): entry.value for node, _, entries, _ in self._declared() for entry in entries}

    def _declared(self) -> Iterator[tuple[str, str, Sequence[Parameter], list[str]]]:
        for peer in self._peers.values():
            if not peer.lost:
                parameters, actions = declarations(peer.status)
                yield peer.hello.node, peer.hello.kind_of_node, parameters, actions
        yield SINK, SINK, self._own.parameters(), []


def _is_meant(peer: ReportingPeer, node: str) -> bool:
    return not peer.lost and node in {peer.hello.node, peer.hello.kind_of_node}


def _known(peer: ReportingPeer) -> dict[str, Parameter]:
    return {parameter.name: parameter for parameter in declarations(peer.status)[0]}


def _checked(pending: _PendingRequest, peer: ReportingPeer) -> dict[str, Value]:
    """Refuse in advance what the node would refuse, so that nothing is sent to any."""
    parameters, actions = declarations(peer.status)
    node = peer.hello.node
    if pending.action == "set":
        return checked_changes(parameters, pending.parameters, node)
    if pending.action not in actions:
        expected = f"one of {', '.join(actions)}" if actions else "none: it offers no action now"
        raise InputError(f"Action {pending.action!r} is not available at {node} now", expected=expected)
    return {}


def _redeclared(peer: ReportingPeer, values: Mapping[str, Value]) -> dict[str, str]:
    known = _known(peer)
    return {
        f"{SET_KEY}{name}": known[name].changed_to(value).to_text() for name, value in values.items() if name in known
    }


_TONE = ("exposure_ev", "black", "gamma", "white_balance", "false_colour", "demosaic")
_LEAST_GAMMA = 0.1


@dataclass(frozen=True, slots=True)
class SinkControls:
    """The sink's own parameters. Used from its loop.

    Parameters
    ----------
    display
        What the page shows, whose tone is set; None without a page.
    recording
        Returns whether the series is being recorded; None without a series.
    switch
        Starts or stops the recording for an operator and notes it. Raises `SciStreamError` on failure.
    """

    display: Display | None
    recording: Callable[[], bool | None]
    switch: Callable[[bool, str], str]

    def parameters(self) -> list[Parameter]:
        """Declare the parameters with their current values."""
        recording = self.recording()
        found = []
        if recording is not None:
            found.append(Parameter("recording", "flag", recording, description="Whether the series is being recorded."))
        if self.display is not None:
            tone = self.display.tone.as_dict()
            lows = {"gamma": _LEAST_GAMMA}
            found += [declare(PreviewSection, name, tone[name], low=lows.get(name)) for name in _TONE]
        return found

    def set(self, changes: Mapping[str, Value], who: str) -> None:
        """Set parameters, already checked one by one. Raises `SciStreamError` on failure.

        Tone changes are not recorded, because tone never affects the data.
        """
        recording = changes.get("recording")
        if isinstance(recording, bool) and recording != self.recording():
            self.switch(recording, who)
        tone = {name: value for name, value in changes.items() if name in _TONE}
        if tone and self.display is not None:
            self.display.set_tone(tone)
