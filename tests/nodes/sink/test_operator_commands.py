"""Operator commands: each request is routed, answered once, and every change is recorded with its
operator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sci_stream.config import Rig
from sci_stream.errors import EnvironmentFault, InputError
from sci_stream.imaging.tone import ToneSettings
from sci_stream.nodes.sink.alarms import Alarms
from sci_stream.nodes.sink.ledger_file import LedgerFile
from sci_stream.nodes.sink.operator_commands import MAX_WAITING, PATIENCE_S, OperatorCommands
from sci_stream.nodes.sink.series_recording import RecorderState
from sci_stream.nodes.sink.series_session import SeriesSession
from sci_stream.parameters import ControlAnswer, Parameter, SettingChange, Value, declared
from sci_stream.transport.results_server import ReportingPeer
from sci_stream.web.display import Display
from sci_stream.wire.messages import Control, ControlResult, Hello, Message
from tests.journals import read_journal
from tests.series_fixtures import Series

ITERATIONS = Parameter("iterations", "integer", 12, 1, 100)
PRIOR = Parameter("denoiser", "choice", "tv", choices=("ffdnet-lite", "tv"))


class Bench:
    """Operator commands with two reconstruct nodes and an acquire node, whose messages the test
    inspects.
    """

    def __init__(self, series: SeriesSession) -> None:
        self.mail: deque[tuple[bytes, Control]] = deque()
        self.peers: dict[bytes, ReportingPeer] = {}
        self.series: SeriesSession | None = series
        self.takes_mail = True
        for node, kind in (
            ("reconstruct-0", "reconstruct"),
            ("reconstruct-1", "reconstruct"),
            ("acquire", "acquire"),
        ):
            status: dict[str, Any] = {"acquired": 1, **declared((ITERATIONS, PRIOR))}
            if kind == "acquire":
                status = {**declared((), ("next_series",))}
            peer = self.peers[node.encode()] = ReportingPeer(Hello(node, kind, "00"), 0.0)  # type: ignore[arg-type]
            peer.report(status)
        self.commands = OperatorCommands(
            self.peers,
            self.send,
            lambda: self.series,
            lambda: None,
            lambda: None,
            alarms=Alarms("rig"),
        )

    @property
    def changes(self) -> list[SettingChange]:
        assert self.series is not None
        return self.series.statistics.changes

    def send(self, identity: bytes, message: Message) -> bool:
        assert isinstance(message, Control)
        self.mail.append((identity, message))
        return self.takes_mail

    def ask(self, node: str, action: str = "set", **parameters: object) -> Future[ControlAnswer]:
        answer = self.commands.ask(node, action, parameters, "eva")
        self.commands.poll(0.0)
        return answer

    def answer(self, ok: bool = True, text: str = "", **values: Value) -> None:
        identity, control = self.mail.popleft()
        assert self.commands.take(
            identity, ControlResult(control.request, ok, text, values or dict(control.parameters))
        )


def rig(folder: Path, *, min_free_mib: int = 0) -> Rig:
    return Rig.model_validate(
        {"record": {"enabled": False, "folder": str(folder), "min_free_mib": min_free_mib}}
    )


@pytest.fixture
def bench(series: Series, tmp_path: Path) -> Iterator[Bench]:
    session = SeriesSession.open(series.info, series.calibration, rig(tmp_path))
    yield Bench(session)
    session.abandon()


def error_of(answer: Future[ControlAnswer]) -> str:
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
    assert answer.result(0) == ControlAnswer({"reconstruct-1": {"iterations": 5}}, "")
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
    assert set(answer.result(0).values) == {"reconstruct-0", "reconstruct-1"}
    assert len(bench.changes) == 2


def test_change_reported_early_by_heartbeat_is_recorded(bench: Bench) -> None:
    answers = [bench.ask("reconstruct-0", iterations=value) for value in (5, 7)]
    report = declared((replace(ITERATIONS, value=7), PRIOR))
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
    assert one.result(0).values["reconstruct-0"] == {"iterations": 5}
    assert two.result(0).values["reconstruct-0"] == {"iterations": 7}
    assert [(change.old, change.new) for change in bench.changes] == [(12, 5), (5, 7)]
    report = {entry["node"]: entry["parameters"] for entry in bench.commands.describe()}
    assert report["reconstruct-0"][0]["value"] == 7


def test_unchanged_value_is_no_change(bench: Bench) -> None:
    answer = bench.ask("reconstruct-0", iterations=12)
    bench.answer()
    assert answer.result(0).values
    assert bench.changes == []


@pytest.mark.parametrize(
    ("node", "action", "parameters", "said"),
    [
        (
            "reconstruct-9",
            "set",
            {"iterations": 5},
            "one of reconstruct-0, reconstruct-1, acquire, sink",
        ),
        ("reconstruct", "set", {"iterations": 500}, "an integer from 1 to 100"),
        ("reconstruct", "set", {"colour": 5}, "one of iterations, denoiser"),
        ("reconstruct", "set", {}, "at least one parameter"),
        ("acquire", "set", {"exposure": 5}, "nothing can be set on it now"),
        ("acquire", "reboot", {}, "one of next_series"),
        ("reconstruct-0", "next_series", {}, "it offers no action now"),
        ("sink", "set", {"recording": "on"}, "true or false"),
        ("sink", "next_series", {}, "not available at the sink"),
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
    lost, gone, slow = (
        bench.ask("reconstruct-0", iterations=5),
        bench.ask("reconstruct-1", iterations=5),
        None,
    )
    bench.peers[b"reconstruct-0"].lost = True
    del bench.peers[b"reconstruct-1"]
    slow = bench.ask("acquire", "next_series")
    assert "lost before it answered" in error_of(lost)
    assert "lost before it answered" in error_of(gone)
    bench.commands.poll(PATIENCE_S + 1)
    assert "has not answered" in error_of(slow)
    assert not bench.commands.take(b"acquire", ControlResult(bench.mail[-1][1].request, True)), (
        "too late: no request is pending"
    )


def test_unreachable_node_is_reported_at_once(bench: Bench) -> None:
    bench.takes_mail = False
    assert "accepts no messages" in error_of(bench.ask("acquire", "next_series"))


def test_pending_requests_are_limited(bench: Bench) -> None:
    answers = [bench.ask("reconstruct-0", iterations=5) for _ in range(MAX_WAITING)]
    assert not any(answer.done() for answer in answers)
    assert "are pending" in error_of(bench.ask("reconstruct-0", iterations=5))


def test_unexpected_answer_is_recognised(bench: Bench) -> None:
    assert not bench.commands.take(b"acquire", ControlResult("ffff", True))
    answer = bench.ask("reconstruct-0", iterations=5)
    assert not bench.commands.take(
        b"reconstruct-1", ControlResult(bench.mail[-1][1].request, True)
    ), "it received no request"
    assert not answer.done()


def test_recording_is_set_as_every_parameter(bench: Bench, tmp_path: Path) -> None:
    answer = bench.ask("sink", recording=True).result(0)
    assert answer == ControlAnswer({"sink": {"recording": True}}, str(tmp_path / "run-1.h5"))
    assert bench.series.recorder.is_on
    assert bench.ask("sink", recording=True).result(0) == answer, "it is on already"
    bench.ask("sink", recording=False).result(0)
    assert not bench.series.recorder.is_on
    assert [(change.node, change.name, change.old, change.new) for change in bench.changes] == [
        ("sink", "recording", False, True),
        ("sink", "recording", True, False),
    ]
    bench.series.close()
    journal = read_journal(tmp_path / "run-1.journal.jsonl")
    assert [line["new"] for line in journal if line["event"] == "changed"] == [True, False], (
        "while it was open"
    )


def test_recording_that_cannot_start_is_no_change(
    bench: Bench, series: Series, tmp_path: Path
) -> None:
    bench.series = SeriesSession.open(
        series.info, series.calibration, rig(tmp_path, min_free_mib=10**9)
    )
    assert "free" in error_of(bench.ask("sink", recording=True))
    assert bench.changes == []


@pytest.mark.parametrize("begins", [True, False])
def test_recording_that_stopped_by_itself_can_be_switched_off(
    bench: Bench, tmp_path: Path, *, begins: bool
) -> None:
    recorder = bench.series.recorder
    if begins:
        bench.ask("sink", recording=True)
        recorder._recording.state, recorder._recording.free_bytes = RecorderState.STOPPED, 0
    else:
        tmp_path.rmdir()
        recorder.resume(0)
    assert bench.ask("sink", recording=False).result(0).values == {"sink": {"recording": False}}
    recorder.try_again(0, 100.0)
    assert not recorder.is_on
    assert not recorder.is_wanted


def test_recording_without_a_series_is_refused(bench: Bench) -> None:
    bench.series = None
    assert "nothing can be set" in error_of(bench.ask("sink", recording=True))


def test_tone_is_set_on_the_page_and_is_no_change(bench: Bench, tmp_path: Path) -> None:
    bench.commands.display = display = Display(ToneSettings(), lambda: False)
    assert (
        bench.ask("sink", exposure_ev=1.5, false_colour="turbo")
        .result(0)
        .values["sink"]["exposure_ev"]
        == 1.5
    )
    assert (display.tone.exposure_ev, display.tone.false_colour) == (1.5, "turbo")
    assert bench.changes == []


def test_change_in_force_is_carried_to_the_next_series(
    bench: Bench, series: Series, tmp_path: Path
) -> None:
    bench.ask("reconstruct", iterations=5)
    bench.answer()
    bench.answer()
    bench.ask("acquire", "next_series")
    bench.answer(text="another series follows")
    restarted = bench.peers[b"reconstruct-1"]
    restarted.report({"acquired": 1, **declared((ITERATIONS, PRIOR))})
    following = SeriesSession.open(
        replace(series.info, series="run-2"), series.calibration, rig(tmp_path)
    )
    bench.commands.carry_changes(following)
    assert [(change.node, change.name, change.new) for change in following.statistics.changes] == [
        ("reconstruct-0", "iterations", 5)
    ]


def test_value_is_set_again_on_a_node_that_restarts(bench: Bench) -> None:
    bench.ask("reconstruct-0", iterations=5)
    bench.answer(iterations=5)
    bench.peers.pop(b"reconstruct-0")
    restarted = bench.peers[b"again"] = ReportingPeer(
        Hello("reconstruct-0", "reconstruct", "01"), 0.0
    )
    bench.commands.poll(0.0)
    assert not bench.mail, "it has not declared its parameters yet"
    restarted.report({**declared((ITERATIONS, PRIOR))})
    bench.commands.poll(0.0)
    bench.commands.poll(0.0)
    ((identity, control),) = bench.mail
    assert identity == b"again"
    assert control.parameters == {"iterations": 5}
    assert control.who == "eva, again after a restart"


def test_value_is_set_again_on_a_node_restarted_with_the_sink(
    series: Series, tmp_path: Path
) -> None:
    def restart() -> Bench:
        session = SeriesSession.open(
            series.info, series.calibration, rig(tmp_path), file=LedgerFile(tmp_path / "x")
        )
        bench = Bench(session)
        bench.commands.poll(0.0)
        bench.commands.carry_changes(session)
        bench.commands.poll(0.0)
        return bench

    first = restart()
    first.ask("reconstruct-0", iterations=5)
    first.answer(iterations=5)
    again = restart()
    assert again.changes == first.changes
    ((identity, control),) = again.mail
    assert (identity, dict(control.parameters)) == (b"reconstruct-0", {"iterations": 5})


def test_parameters_and_actions_are_described(bench: Bench) -> None:
    bench.peers[b"reconstruct-1"].lost = True
    report = {entry["node"]: entry for entry in bench.commands.describe()}
    assert list(report) == ["reconstruct-0", "acquire", "sink"]
    assert [parameter["name"] for parameter in report["reconstruct-0"]["parameters"]] == [
        "iterations",
        "denoiser",
    ]
    assert report["acquire"]["actions"] == ["next_series"]
