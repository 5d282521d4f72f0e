"""A node's side of control: what the sink asks for is checked, done in its own time, and answered once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from sci_stream.errors import InputError, SciStreamError
from sci_stream.parameters import Parameter, Value, checked_changes
from sci_stream.wire import Control, ControlResult

log = logging.getLogger(__name__)

MOST_UNDER_WAY = 16
"""Requests that a node works on at a time: more are refused, since each may take as long as a snapshot."""


class ControlHandler:
    """Takes `Control` messages and answers each with a `ControlResult`. Used from the node's loop.

    Parameters
    ----------
    node
        Whose requests these are.
    say
        Sends an answer.
    change
        Begins to set parameters, checked one by one against their declarations; `done` follows, now or later.
    actions
        By name, what else can be asked for; each returns what to answer, or raises a `SciStreamError`.
    """

    def __init__(
        self,
        node: str,
        say: Callable[[ControlResult], None],
        change: Callable[[str, Mapping[str, Value]], None],
        actions: Mapping[str, Callable[[], str]] | None = None,
    ) -> None:
        self._node = node
        self._say = say
        self._change = change
        self._actions = dict(actions or {})
        self._under_way: dict[str, tuple[Control, dict[str, Value]]] = {}

    def take(self, control: Control, parameters: Iterable[Parameter], offered: Iterable[str] = ()) -> None:
        """Begin to do what is asked for; ``parameters`` and ``offered`` actions are what the node declares now."""
        try:
            if control.node != self._node:
                raise InputError(f"This is {self._node}", got=f"a request for {control.node}")
            if control.request in self._under_way:
                return  # said twice: the answer to the first is the answer
            if control.action == "set":
                self._begin(control, checked_changes(parameters, control.parameters, self._node))
            else:
                self._act(control, list(offered))
        except SciStreamError as error:
            self._refuse(control, error)

    def _begin(self, control: Control, changes: dict[str, Value]) -> None:
        if len(self._under_way) >= MOST_UNDER_WAY:
            raise InputError(
                f"{self._node} has {len(self._under_way)} requests under way", hint="Wait until they are done."
            )
        self._under_way[control.request] = (control, changes)
        self._change(control.request, changes)

    def _act(self, control: Control, offered: list[str]) -> None:
        if control.action not in offered or control.action not in self._actions:
            expected = f"one of {', '.join(['set', *offered])}"
            raise InputError(f"{self._node} cannot {control.action!r} now", expected=expected)
        log.info("%s: asked for by %s", control.action, control.who or "nobody")
        self._say(ControlResult(request=control.request, ok=True, text=self._actions[control.action]()))

    def done(self, request: str, parameters: Iterable[Parameter] = (), error: SciStreamError | None = None) -> None:
        """Answer: the parameters are set, and are now as declared, or none of them is."""
        control, changes = self._under_way.pop(request)
        if error is not None:
            self._refuse(control, error)
            return
        values = {parameter.name: parameter.value for parameter in parameters if parameter.name in changes}
        log.info("set by %s: %s", control.who or "nobody", values)
        self._say(ControlResult(request=request, ok=True, values=values))

    def _refuse(self, control: Control, error: SciStreamError) -> None:
        log.info("refused to %s %s for %s: %s", control.action, dict(control.parameters), control.who, error)
        self._say(ControlResult(request=control.request, ok=False, text=str(error)))
