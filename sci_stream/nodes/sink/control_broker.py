"""The sink's side of control: requests go to the nodes, answers come back, and who changed what is kept."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from queue import SimpleQueue
from typing import Any

from sci_stream.clock import unix_ns
from sci_stream.config import PreviewSection
from sci_stream.config.runtime_parameters import declare
from sci_stream.errors import EnvironmentFault, InputError, SciStreamError
from sci_stream.parameters import SET_KEY, Parameter, Value, checked_changes, declarations
from sci_stream.transport.results_server import Peer
from sci_stream.web.preview import WebPreview
from sci_stream.wire import Control, ControlResult, Message

log = logging.getLogger(__name__)

MOST_WAITING = 64
"""Requests that may be under way: an operator has one, a program that asks for more than this is refused."""
PATIENCE_S = 60.0
"""After so long without an answer a request is given up: who asked was told long before that it is late."""
SINK = "sink"


@dataclass(frozen=True, slots=True)
class SettingChange:
    """What an operator changed: a parameter from ``old`` to ``new``, or, with neither, something that was done."""

    time_ns: int
    who: str
    node: str
    name: str
    old: Value | None = None
    new: Value | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, for the journal, the recording and the summary."""
        return asdict(self)


@dataclass(slots=True)
class _Asked:
    """One request: for one node, or for all of a kind; its answer is there when all of them have answered."""

    node: str
    action: str
    parameters: Mapping[str, object]
    who: str
    answer: Future[dict[str, Any]]
    waiting: set[str] = field(default_factory=set)
    values: dict[str, dict[str, Value]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    errors: list[SciStreamError] = field(default_factory=list)


@dataclass(slots=True)
class _Sent:
    """What was asked of one node."""

    asked: _Asked
    identity: bytes
    node: str
    sent_s: float
    before: dict[str, Value]
    """What will have been in force before it is done, by name."""


class ControlBroker:
    """Between the page's threads, which `ask`, and the nodes, which are asked one message each.

    Parameters
    ----------
    peers
        Nodes that report to the sink, by identity.
    send
        Sends a message to one of them; False if it cannot go.
    own
        What the sink itself does.
    note
        Takes each `SettingChange`, in the sink's loop.
    wake
        Makes the sink's loop turn; from any thread.
    """

    def __init__(
        self,
        peers: Mapping[bytes, Peer],
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
        self._inbox: SimpleQueue[_Asked] = SimpleQueue()
        self._sent: dict[str, _Sent] = {}

    def ask(self, node: str, action: str, parameters: Mapping[str, object], who: str) -> Future[dict[str, Any]]:
        """Ask for something, from any thread.

        Parameters
        ----------
        node
            Name of a node, or ``reconstruct`` for all of that kind.
        action
            ``set``, with ``parameters`` to set, or one that the node lists.
        who
            Whoever asks, as it will be logged and recorded.

        Returns
        -------
        ``values`` as they are now, by node, and ``text``; or the error why not.
        """
        asked = _Asked(node, action, parameters, who, Future())
        if self._inbox.qsize() + len(self._sent) >= MOST_WAITING:
            asked.answer.set_exception(
                EnvironmentFault(f"{MOST_WAITING} requests are under way", hint="Ask again when they are answered.")
            )
        else:
            self._inbox.put(asked)
            self._wake()
        return asked.answer

    def turn(self, now_s: float) -> None:
        """Pass on what was asked for, and give up what will not be answered. Never blocks."""
        while not self._inbox.empty():
            asked = self._inbox.get()
            if not asked.answer.set_running_or_notify_cancel():
                continue  # who asked has given up, and was told so
            try:
                self._pass_on(asked, now_s)
            except SciStreamError as error:
                asked.errors.append(error)
            self._answer_if_complete(asked)
        for request, sent in list(self._sent.items()):
            peer = self._peers.get(sent.identity)
            if peer is None or peer.lost or now_s - sent.sent_s > PATIENCE_S:
                why = "has not answered" if peer is not None and not peer.lost else "was lost before it answered"
                problem = EnvironmentFault(f"{sent.node} {why}", hint="Look whether it was done before asking again.")
                self._settle(request, problem)

    def take(self, identity: bytes, result: ControlResult) -> bool:
        """Take a node's answer; return whether it belongs to a request that this node was asked."""
        sent = self._sent.get(result.request)
        if sent is None or sent.identity != identity:
            return False
        if not result.ok:
            self._settle(result.request, InputError(result.text or f"{sent.node} refused"))
            return True
        asked, peer = sent.asked, self._peers.get(sent.identity)
        if peer is not None and asked.action == "set":
            self._note_set(asked, sent.node, sent.before, result.values)
            for later in self._sent.values():
                if later.identity == identity:
                    later.before.update(result.values)
            # Who asks next is told what is in force now, not what the node last said.
            peer.status = {**peer.status, **_redeclared(peer, result.values)}
        elif asked.action != "set":
            self._note(SettingChange(unix_ns(), asked.who, sent.node, asked.action))
        if result.values:
            asked.values[sent.node] = dict(result.values)
        if result.text:
            asked.texts.append(result.text)
        self._settle(result.request)
        return True

    def _settle(self, request: str, error: SciStreamError | None = None) -> None:
        asked = self._sent.pop(request).asked
        asked.waiting.discard(request)
        if error is not None:
            asked.errors.append(error)
        self._answer_if_complete(asked)

    @staticmethod
    def _answer_if_complete(asked: _Asked) -> None:
        if asked.waiting:
            return
        if asked.errors:
            asked.answer.set_exception(asked.errors[0])
        else:
            asked.answer.set_result({"values": asked.values, "text": "; ".join(dict.fromkeys(asked.texts))})

    def _pass_on(self, asked: _Asked, now_s: float) -> None:
        if asked.node == SINK:
            asked.values[SINK] = self._do_myself(asked)
            return
        targets = [(identity, peer) for identity, peer in self._peers.items() if _is_meant(peer, asked.node)]
        if not targets:
            names = [peer.hello.node for peer in self._peers.values() if not peer.lost]
            raise InputError(f"No node is called {asked.node!r}", expected=f"one of {', '.join([*names, SINK])}")
        # All of them or none, as far as can be told from here.
        checked = [_checked(asked, peer) for _, peer in targets]
        for (identity, peer), changes in zip(targets, checked, strict=True):
            request, node = secrets.token_hex(8), peer.hello.node
            message = Control(request=request, node=node, action=asked.action, parameters=changes, who=asked.who)
            if self._send(identity, message):
                asked.waiting.add(request)
                # By now: a heartbeat that tells of it may be heard before the answer.
                before = {name: parameter.value for name, parameter in _known(peer).items()}
                self._sent[request] = _Sent(asked, identity, node, now_s, before)
            else:
                asked.errors.append(EnvironmentFault(f"{node} does not take messages", hint="Try again in a moment."))

    def _do_myself(self, asked: _Asked) -> dict[str, Value]:
        if asked.action != "set":
            raise InputError(f"The sink cannot {asked.action!r}", expected="set")
        changes = checked_changes(self._own.parameters(), asked.parameters, SINK)
        self._own.set(changes, asked.who)
        log.info("set by %s: %s", asked.who, changes)
        return changes

    def _note_set(self, asked: _Asked, node: str, before: Mapping[str, Value], values: Mapping[str, Value]) -> None:
        for name, value in values.items():
            old = before.get(name)
            if old != value:
                self._note(SettingChange(unix_ns(), asked.who, node, name, old, value))

    # --- what can be asked for

    def describe(self) -> list[dict[str, Any]]:
        """Return what may be set and done, by node, as plain values."""
        return [
            {"node": node, "kind": kind, "parameters": [entry.as_dict() for entry in parameters], "actions": actions}
            for node, kind, parameters, actions in self._declared()
            if parameters or actions
        ]

    def values(self) -> dict[tuple[str, str], Value]:
        """Return what is in force, by node and name."""
        return {(node, entry.name): entry.value for node, _, entries, _ in self._declared() for entry in entries}

    def _declared(self) -> Iterator[tuple[str, str, Sequence[Parameter], list[str]]]:
        for peer in self._peers.values():
            if not peer.lost:
                parameters, actions = declarations(peer.status)
                yield peer.hello.node, peer.hello.kind_of_node, parameters, actions
        yield SINK, SINK, self._own.parameters(), []


def _is_meant(peer: Peer, node: str) -> bool:
    return not peer.lost and node in {peer.hello.node, peer.hello.kind_of_node}


def _known(peer: Peer) -> dict[str, Parameter]:
    return {parameter.name: parameter for parameter in declarations(peer.status)[0]}


def _checked(asked: _Asked, peer: Peer) -> dict[str, Value]:
    """Refuse early what the node would refuse: then nothing has been sent to any."""
    parameters, actions = declarations(peer.status)
    node = peer.hello.node
    if asked.action == "set":
        return checked_changes(parameters, asked.parameters, node)
    if asked.action not in actions:
        expected = f"one of {', '.join(actions)}" if actions else "nothing: there is nothing it can be asked to do now"
        raise InputError(f"{node} cannot {asked.action!r} now", expected=expected)
    return {}


def _redeclared(peer: Peer, values: Mapping[str, Value]) -> dict[str, str]:
    known = _known(peer)
    return {
        f"{SET_KEY}{name}": known[name].changed_to(value).to_text() for name, value in values.items() if name in known
    }


_TONE = ("exposure_ev", "black", "gamma", "white_balance", "false_colour", "demosaic")
_LEAST_GAMMA = 0.1


class SinkControls:
    """The sink's own parameters. Used from its loop.

    Parameters
    ----------
    preview
        Whose tone is set; None where there is no page.
    recording
        Whether the series is being recorded now; None while there is none.
    switch
        Starts or stops the recording on behalf of somebody, and notes it. Raises a `SciStreamError` if it cannot.
    """

    def __init__(
        self, preview: WebPreview | None, recording: Callable[[], bool | None], switch: Callable[[bool, str], str]
    ) -> None:
        self._preview = preview
        self._recording = recording
        self._switch = switch

    def parameters(self) -> list[Parameter]:
        """Declare them, with their values now."""
        recording = self._recording()
        found = []
        if recording is not None:
            found.append(Parameter("recording", "flag", recording, says="Whether the series is being recorded."))
        if self._preview is not None:
            tone = self._preview.tone.as_dict()
            lows = {"gamma": _LEAST_GAMMA}
            found += [declare(PreviewSection, name, tone[name], low=lows.get(name)) for name in _TONE]
        return found

    def set(self, changes: Mapping[str, Value], who: str) -> None:
        """Set some of them, checked one by one. Raises a `SciStreamError` if it cannot be.

        That the tone was changed is not recorded: it is never in the data.
        """
        recording = changes.get("recording")
        if isinstance(recording, bool) and recording != self._recording():
            self._switch(recording, who)
        tone = {name: value for name, value in changes.items() if name in _TONE}
        if tone and self._preview is not None:
            self._preview.set_tone(tone)
