"""The control handler of a node executes each request once and answers it once."""

from __future__ import annotations

import dataclasses

from sci_stream.errors import InputError
from sci_stream.nodes.runtime.control_handler import MAX_UNDER_WAY, ControlHandler
from sci_stream.parameters import Parameter, Value
from sci_stream.wire.messages import Control, ControlResult

ITERATIONS = Parameter("iterations", "integer", 12, 1, 100)
PRIOR = Parameter("denoiser", "choice", "tv", choices=("ffdnet-lite", "tv"))


class Node:
    """A node with a control handler."""

    def __init__(self) -> None:
        self.said: list[ControlResult] = []
        self.begun: list[tuple[str, dict[str, Value]]] = []
        self.controls = ControlHandler(
            "acquire", self.said.append, lambda request, changes: self.begun.append((request,
            dict(changes))),
            {"next_series": lambda: "another series follows"},
        )  # fmt: skip

    def ask(
        self, request: str = "1", node: str = "acquire", action: str = "set", **parameters: Value
    ) -> None:
        control = Control(request, node, action, parameters, "eva")
        self.controls.take(control, (ITERATIONS,), ("next_series",))


def test_node_answers_with_current_values() -> None:
    node = Node()
    node.ask("1", iterations=5)
    node.ask("1", iterations=5)
    assert node.begun == [("1", {"iterations": 5})], "a repeated request is executed once"
    assert node.said == []
    node.controls.done("1", [dataclasses.replace(ITERATIONS, value=5), PRIOR])
    assert node.said == [ControlResult("1", True, "", {"iterations": 5})]


def test_node_refuses_foreign_or_unknown_requests() -> None:
    node = Node()
    node.ask("1", node="reconstruct-0", iterations=5)
    node.ask("2", iterations=101)
    node.ask("3", action="self_destruct")
    node.ask("4", iterations=5)
    node.controls.done("4", [ITERATIONS], InputError("they do not fit together"))
    assert [(result.request, result.ok) for result in node.said] == [
        (name, False) for name in "1234"
    ]
    for result, said in zip(
        node.said, ("expected acquire", "1 to 100", "set, next_series", "fit together"), strict=True
    ):
        assert said in result.text


def test_node_limits_concurrent_actions() -> None:
    node = Node()
    node.ask("a", action="next_series")
    assert node.said == [ControlResult("a", True, "another series follows")]
    for number in range(MAX_UNDER_WAY + 1):
        node.ask(str(number), iterations=5)
    assert "pending requests" in node.said[-1].text
    assert len(node.begun) == MAX_UNDER_WAY
