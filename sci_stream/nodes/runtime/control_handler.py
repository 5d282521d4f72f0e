"""Control requests at a node: check each request from the sink, execute it and answer once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from sci_stream.errors import InputError, SciStreamError
from sci_stream.parameters import Parameter, Value, checked_changes
from sci_stream.wire.messages import Control, ControlResult

log = logging.getLogger(__name__)

MAX_UNDER_WAY = 16
"""Maximum number of concurrent requests: each may take as long as a snapshot."""


class ControlHandler:
    """Execute `Control` messages and answer each with a `ControlResult`. Used from the node's loop.

    ``change`` starts to set parameters, already checked one by one against their declarations;
    `done` follows, now or later. Other ``actions`` return the answer or raise a `SciStreamError`.
    """

    def __init__(
        self,
        node: str,
        send_result: Callable[[ControlResult], None],
        change: Callable[[str, Mapping[str, Value]], None],
        actions: Mapping[str, Callable[[], str]] | None = None,
    ) -> None:
        self._node = node
        self._send_result = send_result
        self._change = change
        self._actions = dict(actions or {})
        self._under_way: dict[str, tuple[Control, dict[str, Value]]] = {}

    def take(
        self, control: Control, parameters: Iterable[Parameter], offered: Iterable[str] = ()
    ) -> None:
        """Start a request; ``parameters`` and ``offered`` actions are those that the node declares
        now.
        """
        try:
            if control.node != self._node:
                raise InputError(
                    f"Control request for the wrong node {control.node}", expected=self._node
                )
            if control.request in self._under_way:
                return  # duplicate request: the answer to the first one counts
            if control.action == "set":
                self._begin(control, checked_changes(parameters, control.parameters, self._node))
            else:
                self._act(control, list(offered))
        except SciStreamError as error:
            self._refuse(control, error)

    def _begin(self, control: Control, changes: dict[str, Value]) -> None:
        if len(self._under_way) >= MAX_UNDER_WAY:
            raise InputError(
                f"{self._node} has {len(self._under_way)} pending requests",
                hint="Wait until they are finished.",
            )
        self._under_way[control.request] = (control, changes)
        self._change(control.request, changes)

    def _act(self, control: Control, offered: list[str]) -> None:
        if control.action not in offered or control.action not in self._actions:
            expected = f"one of {', '.join(['set', *offered])}"
            raise InputError(
                f"Action {control.action!r} is not available at {self._node} now", expected=expected
            )
        log.info("%s: requested by %s", control.action, control.who or "unknown operator")
        self._send_result(
            ControlResult(request=control.request, ok=True, text=self._actions[control.action]())
        )

    def done(
        self,
        request: str,
        parameters: Iterable[Parameter] = (),
        error: SciStreamError | None = None,
    ) -> None:
        """Answer a request: all parameters are set and redeclared, or none is."""
        control, changes = self._under_way.pop(request)
        if error is not None:
            self._refuse(control, error)
            return
        values = {
            parameter.name: parameter.value for parameter in parameters if parameter.name in changes
        }
        log.info("set by %s: %s", control.who or "unknown operator", values)
        self._send_result(ControlResult(request=request, ok=True, values=values))

    def _refuse(self, control: Control, error: SciStreamError) -> None:
        log.info("control request refused (%s, from %s): %s", control.action, control.who, error)
        self._send_result(ControlResult(request=control.request, ok=False, text=str(error)))
