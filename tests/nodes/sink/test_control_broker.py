"""The control broker routes each request, answers it once, and records every change with its operator."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any

import pytest

from sci_stream.errors import EnvironmentFault, InputError, StorageError
from sci_stream.nodes.runtime.control_handler import MOST_UNDER_WAY, ControlHandler
from sci_stream.nodes.sink.control_broker import MOST_WAITING, PATIENCE_S, ControlBroker, SettingChange, SinkControls
from sci_stream.parameters import Parameter, Value, declared
from sci_stream.transport.results_server import ReportingPeer
from sci_stream.wire import Control, ControlResult, Hello, Message

ITERATIONS = Parameter("iterations", "integer", 12, 1, 100)
PRIOR = Parameter("denoiser", "choice", "tv", choices=("ffdnet-lite", "tv"))


class Bench:
    """A broker with two reconstruct nodes and an acquire node, whose messages the test inspects."""

    def __init__(self) -> None:
        self.mail: deque[tuple[bytes, Control]] = deque()
        self.changes: list[SettingChange] = []
        self.peers: dict[bytes, ReportingPeer] = {}
        self.recording: bool | None = True
        self.takes_mail = True
        for node, kind in (("reconstruct-0", "reconstruct"), ("reconstruct-1", "reconstruct"), ("acquire", "acquire")):
            status: dict[str, Any] = {"acquired": 1, **declared((ITERATIONS, PRIOR))}
            if kind == "acquire":
                status = {**declared((), ("next_series",))}
            self.peers[node.encode()] = ReportingPeer(Hello(node, kind, "00"), 0.0, status=status)  # type: ignore[arg-type]
        own = SinkControls(None, lambda: self.recording, self.switch)
        self.broker = ControlBroker(self.peers, self.send, own, self.changes.append, lambda: None)

    def switch(self, on: bool, _who: str) -> str:
        if self.recording is None:
            raise StorageError("The disk is full")
        self.recording = on
        return "file.h5"

    def send(self, identity: bytes, message: Message) -> bool:
        assert isinstance(message, Control)
        self.mail.append((identity, message))
        return self.takes_mail

    def ask(self, node: str, action: str = "set", **parameters: object) -> Future[dict[str, Any]]:
        answer = self.broker.ask(node, action, parameters, "eva")
        self.broker.poll(0.0)
        return answer

    def answer(self, ok: bool = True, text: str = "", **values: Value) -> None:
        identity, control = self.mail.popleft()
        assert self.broker.take(identity, ControlResult(control.request, ok, text, values or dict(control.parameters)))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def error_of(answer: Future[dict[str, Any]]) -> str:
    error = answer.exception(0)
    assert isinstance(error, InputError | EnvironmentFault)
    return str(error)


def test_request_reaches_node_and_answer_returns(bench: Bench) -> None:
    answer = bench.ask("reconstruct-1", iterations=5)
    identity, control = bench.mail[0]
    assert (identity, control.node, control.parameters, control.who) == (
        *(b"reconstruct-1", "reconstruct-1"),
        *({"iterations": 5}, "eva"),
    )
    assert not answer.done()
    bench.answer()
    assert answer.result(0) == {"values": {"reconstruct-1": {"iterations": 5}}, "text": ""}
    (change,) = bench.changes
    assert (change.who, change.node, change.name, change.old, change.new) == (
        *("eva", "reconstruct-1", "iterations"),
        *(12, 5),
    )


def test_request_to_kind_waits_for_every_node(bench: Bench) -> None:
    answer = bench.ask("reconstruct", iterations=5)
    assert [identity for identity, _ in bench.mail] == [b"reconstruct-0", b"reconstruct-1"]
    bench.answer()
    assert not answer.done()
    bench.answer()
    assert set(answer.result(0)["values"]) == {"reconstruct-0", "reconstruct-1"}
    assert len(bench.changes) == 2


def test_change_reported_early_by_heartbeat_is_recorded(bench: Bench) -> None:
    answers = [bench.ask("reconstruct-0", iterations=value) for value in (5, 7)]
    report = declared((ITERATIONS.changed_to(7), PRIOR))
    bench.peers[b"reconstruct-0"].status = {"acquired": 1, **report}
    for _ in answers:
        bench.answer()
    assert [(change.old, change.new) for change in bench.changes] == [(12, 5), (5, 7)]


def test_second_operator_change_starts_from_first(bench: Bench) -> None:
    one, two = bench.ask("reconstruct-0", iterations=5), bench.ask("reconstruct-0", iterations=7)
    requests = {control.request for _, control in bench.mail}
    assert len(requests) == 2
    bench.answer()
    bench.answer()
    assert one.result(0)["values"]["reconstruct-0"] == {"iterations": 5}
    assert two.result(0)["values"]["reconstruct-0"] == {"iterations": 7}
    assert [(change.old, change.new) for change in bench.changes] == [(12, 5), (5, 7)]
    assert bench.broker.values()["reconstruct-0", "iterations"] == 7


def test_unchanged_value_is_no_change(bench: Bench) -> None:
    answer = bench.ask("reconstruct-0", iterations=12)
    bench.answer()
    assert answer.result(0)["values"]
    assert bench.changes == []


@pytest.mark.parametrize(
    ("node", "action", "parameters", "said"),
    [
        ("reconstruct-9", "set", {"iterations": 5}, "one of reconstruct-0, reconstruct-1, acquire, sink"),
        ("reconstruct", "set", {"iterations": 500}, "an integer from 1 to 100"),
        ("reconstruct", "set", {"colour": 5}, "one of iterations, denoiser"),
        ("reconstruct", "set", {}, "at least one parameter"),
        ("acquire", "set", {"exposure": 5}, "nothing can be set on it now"),
        ("acquire", "reboot", {}, "one of next_series"),
        ("reconstruct-0", "next_series", {}, "it offers no action now"),
        ("sink", "set", {"recording": "on"}, "true or false"),
        ("sink", "next_series", {}, "Unknown action"),
    ],
)
def test_invalid_request_is_refused_without_reaching_a_node(
    bench: Bench, node: str, action: str, parameters: dict[str, object], said: str
) -> None:
    assert said in error_of(bench.ask(node, action, **parameters))
    assert (list(bench.mail), bench.changes) == ([], [])


def test_refusal_of_a_node_is_passed_on(bench: Bench) -> None:
    answer = bench.ask("reconstruct-0", iterations=5)
    bench.answer(ok=False, text="the iterations do not fit together")
    assert "do not fit together" in error_of(answer)
    assert bench.changes == []


def test_loss_of_node_leaves_outcome_unknown(bench: Bench) -> None:
    lost, gone, slow = bench.ask("reconstruct-0", iterations=5), bench.ask("reconstruct-1", iterations=5), None
    bench.peers[b"reconstruct-0"].lost = True
    del bench.peers[b"reconstruct-1"]
    slow = bench.ask("acquire", "next_series")
    assert "lost before it answered" in error_of(lost)
    assert "lost before it answered" in error_of(gone)
    bench.broker.poll(PATIENCE_S + 1)
    assert "has not answered" in error_of(slow)
    assert not bench.broker.take(b"acquire", ControlResult(bench.mail[-1][1].request, True)), (
        "too late: no request is pending"
    )


def test_unreachable_node_is_reported_at_once(bench: Bench) -> None:
    bench.takes_mail = False
    assert "accepts no messages" in error_of(bench.ask("acquire", "next_series"))


def test_pending_requests_are_limited(bench: Bench) -> None:
    answers = [bench.ask("reconstruct-0", iterations=5) for _ in range(MOST_WAITING)]
    assert not any(answer.done() for answer in answers)
    assert "are pending" in error_of(bench.ask("reconstruct-0", iterations=5))


def test_unexpected_answer_is_recognised(bench: Bench) -> None:
    assert not bench.broker.take(b"acquire", ControlResult("ffff", True))
    answer = bench.ask("reconstruct-0", iterations=5)
    assert not bench.broker.take(b"reconstruct-1", ControlResult(bench.mail[-1][1].request, True)), (
        "it received no request"
    )
    assert not answer.done()


def test_sink_sets_its_own_parameters(bench: Bench) -> None:
    assert bench.ask("sink", recording=False).result(0)["values"] == {"sink": {"recording": False}}
    assert bench.recording is False
    bench.recording = None
    assert "nothing can be set" in error_of(bench.ask("sink", recording=True))


def test_parameters_and_actions_are_described(bench: Bench) -> None:
    bench.peers[b"reconstruct-1"].lost = True
    report = {entry["node"]: entry for entry in bench.broker.describe()}
    assert list(report) == ["reconstruct-0", "acquire", "sink"]
    assert [parameter["name"] for parameter in report["reconstruct-0"]["parameters"]] == ["iterations", "denoiser"]
    assert report["acquire"]["actions"] == ["next_series"]


# --- the control handler of a node


class Node:
    """A node with a control handler."""

    def __init__(self) -> None:
        self.said: list[ControlResult] = []
        self.begun: list[tuple[str, dict[str, Value]]] = []
        self.controls = ControlHandler(
            "acquire", self.said.append, lambda request, changes: self.begun.append((request, dict(changes))),
            {"next_series": lambda: "another series follows"},
        )  # fmt: skip

    def ask(self, request: str = "1", node: str = "acquire", action: str = "set", **parameters: Value) -> None:
        control = Control(request, node, action, parameters, "eva")
        self.controls.take(control, (ITERATIONS,), ("next_series",))


def test_node_answers_with_current_values() -> None:
    node = Node()
    node.ask("1", iterations=5)
    node.ask("1", iterations=5)
    assert node.begun == [("1", {"iterations": 5})], "a repeated request is executed once"
    assert node.said == []
    node.controls.done("1", [ITERATIONS.changed_to(5), PRIOR])
    assert node.said == [ControlResult("1", True, "", {"iterations": 5})]


def test_node_refuses_foreign_or_unknown_requests() -> None:
    node = Node()
    node.ask("1", node="reconstruct-0", iterations=5)
    node.ask("2", iterations=101)
    node.ask("3", action="self_destruct")
    node.ask("4", iterations=5)
    node.controls.done("4", [ITERATIONS], InputError("they do not fit together"))
    assert [(result.request, result.ok) for result in node.said] == [(name, False) for name in "1234"]
    for result, said in zip(
        node.said, ("expected acquire", "1 to 100", "set, next_series", "fit together"), strict=True
    ):
        assert said in result.text


def test_node_limits_concurrent_actions() -> None:
    node = Node()
    node.ask("a", action="next_series")
    assert node.said == [ControlResult("a", True, "another series follows")]
    for number in range(MOST_UNDER_WAY + 1):
        node.ask(str(number), iterations=5)
    assert "pending requests" in node.said[-1].text
    assert len(node.begun) == MOST_UNDER_WAY
