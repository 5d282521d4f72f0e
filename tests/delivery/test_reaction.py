"""Reactions: figures of videos cause commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from sci_stream.delivery.reaction import Reaction, Reactions
from sci_stream.parameters import Value

SECOND = 10**9


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("residual > 0.2: acquire next_series", ("acquire", "next_series", {})),
        ("chunk_a < -1: reconstruct iterations = 4", ("reconstruct", "set", {"iterations": 4})),
        ("residual > 1e-3, hold-off 5 s: sink keep_event", ("sink", "keep_event", {})),
        ("chunk_a > 3: acquire gain_db=1.5", ("acquire", "set", {"gain_db": 1.5})),
        ("chunk_a > 3: sink recording = true", ("sink", "set", {"recording": True})),
        ("chunk_a > 3: reconstruct-1 denoiser = tv", ("reconstruct-1", "set", {"denoiser": "tv"})),
    ],
)
def test_reaction_names_a_node_and_its_command(
    text: str, command: tuple[str, str, Mapping[str, Value]]
) -> None:
    reaction = Reaction.parse(text)
    assert (reaction.node, reaction.action, reaction.parameters) == command


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("residual > 0.2", "is no reaction"),
        ("residual > 0.2: camera exposure_us = 5", "is no reaction"),
        ("residual is high: acquire next_series", "is no condition"),
        ("motion > 0.1: acquire next_series", "motion is no figure of a video"),
    ],
)
def test_text_that_is_no_reaction_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Reaction.parse(text)


def times_of(text: str, values: Sequence[float]) -> list[int]:
    """Return the indices of the values, one per second, that cause a command."""
    reactions = Reactions([Reaction.parse(text)])
    return [n for n, value in enumerate(values) if reactions.due({"residual": value}, n * SECOND)]


def test_command_follows_again_after_the_hold_off() -> None:
    values = [0, 1, 1, 1, 1, 1, 0, 1]
    assert times_of("residual > 0.5, hold-off 3 s: sink keep_event", values) == [1, 4, 7]


def test_commands_end_at_their_limit() -> None:
    assert times_of("residual > 0.5, at most 2: sink keep_event", [1, 0, 1, 1]) == [0, 2]


def test_command_follows_at_most_once_a_second() -> None:
    reactions = Reactions([Reaction.parse("residual > 0.5: sink keep_event")])
    due = [reactions.due({"residual": 1.0}, n * SECOND // 10) for n in range(25)]
    assert [n for n, one in enumerate(due) if one] == [0, 10, 20]


def test_video_without_the_figure_causes_nothing() -> None:
    reactions = Reactions([Reaction.parse("chunk_a > 0: sink keep_event")])
    assert reactions.due({"residual": 1.0}, 0) == []
