"""Control of a running rig from the command line and from Python, concurrently, and the record of
every change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sci_stream as package
from sci_stream.errors import InputError, TransportError
from sci_stream.recording.reader import Recording
from tests.e2e.conftest import CommandHere
from tests.e2e.kit import assert_accounted_for, wait_for
from tests.journals import read_journal
from tests.rig_in_process import RigInProcess

Command = Callable[..., tuple[int, str]]

CONTROLLED = {
    "preview": {"enabled": True, "token": "s3cret"},
    "camera": {"options": {"truth": False}},
}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RigInProcess]:
    with RigInProcess(tmp_path_factory.mktemp("control"), CONTROLLED) as rig:
        rig.reconstruct(3)
        yield rig


def client(rig: RigInProcess, who: str = "eva") -> Any:
    return package.control(f"http://127.0.0.1:{rig.rig.preview.port}", token="s3cret", who=who)


@pytest.fixture
def command(rig: RigInProcess, command_here: CommandHere) -> Command:
    """Return ``sci-stream control`` of the running rig."""

    def run(*words: str) -> tuple[int, str]:
        ended = command_here("control", rig.path, *words, cwd=rig.folder)
        return ended.status, ended.output

    return run


def solved_with(rig: RigInProcess, iterations: int) -> None:
    rig.reconstruct()
    assert rig.series is not None
    last = rig.series.statistics.last
    assert last is not None
    assert last.report.iterations == iterations


def test_control_set_iterations_takes_effect(rig: RigInProcess, command: Command) -> None:
    assert command("set", "reconstruct.iterations", "3") == (0, "reconstruct-0.iterations = 3\n")
    solved_with(rig, 3)


def test_control_set_denoiser_sets_default_iterations(rig: RigInProcess) -> None:
    running = client(rig)
    assert running.set("reconstruct-0", solver="ffdnet-lite") == {
        "reconstruct-0": {"solver": "ffdnet-lite"}
    }
    wait_for(
        lambda: parameter(running, "reconstruct-0", "iterations") == 20,
        "the defaults of the denoiser are declared",
    )
    running.set("reconstruct", solver="tv", iterations=5)
    solved_with(rig, 5)


def actions(running: Any, node: str) -> tuple[str, ...]:
    found = running.nodes().get(node)
    return () if found is None else found.actions


def parameter(running: Any, node: str, name: str) -> Any:
    return running.nodes()[node].parameters[name].value


def test_control_rejects_invalid_setting_with_message(rig: RigInProcess, command: Command) -> None:
    for words, said in {
        ("set", "reconstruct.iterations", "0"): "expected an integer from 1 to 10000; got 0.",
        ("set", "reconstruct.iterations"): "set NODE.NAME VALUE",
    }.items():
        status, output = command(*words)
        assert status == 2, words
        assert output.startswith("error: ")
        assert said in output
        assert output.count("\n") == 1
    with pytest.raises(
        InputError, match=r"min_iterations \(5000\) is more than iterations \(\d+\)"
    ):
        client(rig).set("reconstruct", min_iterations=5000)
    with pytest.raises(InputError, match="one of next_series, stop_series"):
        client(rig).do("acquire", "start_series")
    with pytest.raises(InputError, match="one of solver, iterations, min_iterations, adapt_budget"):
        client(rig).set("reconstruct", iteration=5)
    with pytest.raises(InputError, match=r"exposure.*expected a number from 0\.01 to 10; got 50\."):
        client(rig).set("acquire", exposure=50.0)
    for token in (None, "wrong"):
        with pytest.raises(TransportError, match=r"Access to the live page at .* denied"):
            package.control(f"http://127.0.0.1:{rig.rig.preview.port}", token=token).nodes()


def test_concurrent_control_requests_are_both_answered(rig: RigInProcess) -> None:
    wrong: list[object] = []

    def insist(who: str, value: int) -> None:
        running = client(rig, who)
        for _ in range(10):
            answer = running.set("reconstruct-0", iterations=value)
            if answer != {"reconstruct-0": {"iterations": value}}:
                wrong.append(answer)

    threads = [threading.Thread(target=insist, args=pair) for pair in (("adam", 4), ("eva", 6))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert parameter(client(rig), "reconstruct-0", "iterations") in {4, 6}


def test_series_control_and_changes_are_recorded(rig: RigInProcess, command: Command) -> None:
    running = client(rig)
    running.set("reconstruct", iterations=7)
    solved_with(rig, 7)
    running.set("acquire", exposure=0.45)
    first = running.status()["series"]
    assert command("do", "acquire", "next_series")[0] == 0
    another_series(rig, first)
    wait_for(lambda: "acquire" in running.nodes(), "the acquire node declares its parameters")
    assert parameter(running, "acquire", "exposure") == 0.45, "the camera settings are kept"
    second = running.status()["series"]
    running.do("acquire", "stop_series")
    wait_for(lambda: "start_series" in actions(running, "acquire"), "the node waits for a request")
    assert all(node.running for node in rig.nodes.values()), "the rig keeps running"
    running.do("acquire", "start_series")
    another_series(rig, first, second)
    summary = rig.finish()
    assert_accounted_for(summary)

    in_force = {(change["node"], change["name"]): change["new"] for change in summary["changes"]}
    assert in_force["reconstruct-0", "iterations"] == 7
    assert in_force["acquire", "exposure"] == 0.45
    assert len(rig.segments()) == 3
    one = next(path for path in rig.segments() if first in path.name)
    journal = [
        line
        for line in read_journal(one.with_suffix(".journal.jsonl"))
        if line["event"] == "changed"
    ]
    result = next(line for line in journal if line["name"] == "exposure")
    assert (result["node"], result["who"], result["old"], result["new"]) == (
        "acquire",
        "eva from 127.0.0.1",
        0.9,
        0.45,
    )
    assert journal[-1]["name"] == "next_series"
    with Recording(one) as recording:
        times = {line["time_ns"] for line in journal}
        changes = recording.notes["changes"]
        assert {change["time_ns"] for change in changes} == times
        plain = [{key: value for key, value in line.items() if key != "event"} for line in journal]
        assert changes[-1] in plain
    with package.open(one) as opened:
        assert set(opened.table["iterations"]) > {7}, "the initial settings, and the changed ones"
        names = {name.decode() for name in opened.table["solver"].tolist()} - {""}
        assert len(names) >= 2
        assert names <= set(opened.notes["solvers"]), "the complete settings are recorded"


def another_series(rig: RigInProcess, *before: str) -> None:
    """Wait for another series and let it reconstruct."""
    rig.wait_for(lambda: rig.series is not None and rig.series.name not in before, "another series")
    rig.reconstruct(3)


def test_control_without_page_or_rig_reports_error(
    tmp_path: Path, command_here: CommandHere
) -> None:
    path = tmp_path / "rig.toml"
    path.write_text("[preview]\nenabled = false\n")
    ended = command_here("control", path, "list", cwd=tmp_path)
    assert ended.status == 2
    assert "no live page, which control needs; expected [preview] enabled = true" in ended.output
    path.write_text("[preview]\nport = 1\n")
    ended = command_here("control", path, cwd=tmp_path)
    assert ended.status == 3
    assert "The live page at http://127.0.0.1:1/ does not answer" in ended.output
