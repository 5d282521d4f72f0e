"""Reactions: a figure of a video sets a parameter, or asks for an action, of a node."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from sci_stream.delivery.trigger_ring import Condition
from sci_stream.parameters import Value

_COMMAND = re.compile(r"(acquire|sink|reconstruct(?:-\d+)?) +(\w+)(?: *= *(\S+))?", re.ASCII)
# Without a hold-off, a figure that flickers around its threshold would send a command each time.
_MIN_HOLD_OFF_NS = 1_000_000_000


@dataclass(frozen=True)
class Reaction:
    """A condition on a video, and the command that follows: ``chunk_objects > 3, hold-off 5 s, at
    most 20: acquire exposure_us = 500``.

    The figure is ``residual``, or the number of an analysis or of the camera, ``chunk_NAME``. The
    command sets a parameter of a node, or names one of its actions, such as ``sink keep_event``.
    """

    text: str
    condition: Condition
    node: str
    action: str
    parameters: Mapping[str, Value]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the reaction of a text. Raises ValueError if it is none."""
        before, colon, after = text.rpartition(":")
        command = _COMMAND.fullmatch(after.strip())
        if not colon or command is None:
            raise ValueError(
                f'{text!r} is no reaction: expected a condition, ":", then a node (acquire, '
                "reconstruct or sink) with PARAMETER = VALUE or an action"
            )
        condition = Condition.parse(before)
        if condition.figure != "residual" and not condition.figure.startswith("chunk_"):
            raise ValueError(
                f"{text!r}: {condition.figure} is no figure of a video: expected residual or "
                "chunk_NAME"
            )
        node, name, value = command.groups()
        if value is None:
            return cls(text, condition, node, name, {})
        return cls(text, condition, node, "set", {name: _value(value)})


class Reactions:
    """Judges the figures of videos, in order; pure, with the time of each video.

    A command follows when its condition begins to hold, and again while it holds, each time after
    the hold-off, which is 1 s at least.
    """

    def __init__(self, reactions: Sequence[Reaction]) -> None:
        self._reactions = reactions
        self._times: dict[str, list[int]] = {reaction.text: [] for reaction in reactions}

    def due(self, figures: Mapping[str, float], time_ns: int) -> list[Reaction]:
        """Return the reactions to a video, exposed at a time of a clock that is never set back."""
        return [
            reaction for reaction in self._reactions if self._is_due(reaction, figures, time_ns)
        ]

    def _is_due(self, reaction: Reaction, figures: Mapping[str, float], time_ns: int) -> bool:
        condition = reaction.condition
        times = self._times[reaction.text]
        value = figures.get(condition.figure)
        if value is None or not condition.holds(value):
            return False
        if condition.max_events is not None and len(times) >= condition.max_events:
            return False
        if times and time_ns < times[-1] + max(condition.hold_off_ns, _MIN_HOLD_OFF_NS):
            return False
        times.append(time_ns)
        return True


def _value(text: str) -> Value:
    if text in {"true", "false"}:
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
