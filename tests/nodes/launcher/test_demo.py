"""The rig that the demo writes for a machine: its choices, and the reasons that it prints."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sci_stream.cli import common
from sci_stream.config import load_rig
from sci_stream.nodes.launcher import demo
from sci_stream.parameters import Parameter
from sci_stream.web.control_client import Controllable


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the time in which a machine denoises 256×256 frames with the small network."""

    def set_speed(seconds: float) -> None:
        def timed(_device: object, _prior: str, size: int, _report: object) -> float:
            return seconds * (size / 256) ** 2

        monkeypatch.setattr(demo, "_seconds_per_iteration", timed)

    return set_speed


@pytest.mark.parametrize(
    ("seconds", "iterations", "size_px"),
    [
        (0.001, 6, 512),
        (0.03, 4, 512),
        (0.04, 6, 384),
        (0.09, 6, 256),
        (0.15, 4, 256),
        (0.2, 4, 192),
        (0.35, 6, 128),
        (5.0, 4, 128),
    ],
)
def test_slower_machine_gets_smaller_pictures(machine, seconds, iterations, size_px) -> None:
    machine(seconds)
    plan = demo._plan(torch.device("cpu"), demo._SIZES_PX, lambda _: None)
    assert (plan.iterations, plan.size_px) == (iterations, size_px)


def test_demo_rig_is_bounded_and_found_by_name(
    machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(0.001)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.chdir(tmp_path)
    path, why = demo.demo_rig(
        scene="", size=0, device="cpu", record=True, open_browser=False, report=lambda _: None
    )
    rig = load_rig(path, overrides={})
    assert rig.reconstruct.iterations == 12, "six fit, and more are spent in time to spare"
    health = rig.health
    ports = [rig.preview.port, health.acquire_port, health.sink_port, health.reconstruct_port]
    assert 0 not in ports
    assert len({*ports, rig.network.dispatch, rig.network.results, rig.network.taps}) == 7
    assert 0 < rig.record.stop_after_mib <= 4096
    assert f"recording up to 2 GiB to {tmp_path}/recordings" in why
    assert "ffdnet-lite, 6 iterations" in why
    found = common.named_rig(Path("demo"))
    assert load_rig(found, overrides={}).network == rig.network


def test_demo_of_a_network_names_its_file_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def net(y, Phi, Phi_s):\n    return Phi\n")
    path, why = demo.demo_rig(
        scene="",
        size=0,
        device="cpu",
        record=False,
        open_browser=False,
        report=lambda _: None,
        solver="mine.py:net",
    )
    section = load_rig(path, overrides={}).reconstruct
    assert (section.solver, section.iterations) == (f"{tmp_path}/mine.py:net", None)
    assert "mine.py:net at 256×256" in why


def test_measuring_reports_prior_and_size() -> None:
    lines: list[str] = []
    demo._seconds_per_iteration(torch.device("cpu"), "ffdnet-lite", 64, lines.append)
    assert lines == ["measuring ffdnet-lite at 64×64"]


def status(*, solved: int, solve_s: float, in_flight: int = 0, iterations: int = 12) -> dict:
    ledger = {"reconstructed": solved, "in_flight": in_flight}
    return {"ledger": ledger, "solve_ms": 1000 * solve_s, "iterations": iterations}


def test_pace_of_slow_solves_falls_at_once_without_floor() -> None:
    pace = demo.Pace(0.62, 12, now_s=0.0)
    assert pace.follow(status(solved=1, solve_s=5.0), 1.0) == 0.1
    assert pace.follow(status(solved=2, solve_s=30.0), 2.0) == 0.017


def test_pace_counts_a_solve_that_goes_on() -> None:
    pace = demo.Pace(0.62, 12, now_s=0.0)
    pace.follow(status(solved=1, solve_s=0.5), 1.0)
    assert pace.follow(status(solved=1, solve_s=0.5, in_flight=1), 11.0) == 0.05


def test_pace_scales_solves_that_were_cut_short() -> None:
    pace = demo.Pace(0.62, 12, now_s=0.0)
    assert pace.follow(status(solved=1, solve_s=1.0, iterations=4), 1.0) == 0.17


def test_pace_leaves_time_to_spare_to_the_node() -> None:
    pace = demo.Pace(2.4, 6, now_s=0.0)
    assert pace.follow(status(solved=1, solve_s=0.35, iterations=10), 1.0) == 2.4


def test_pace_rises_slowly_and_rests_when_right() -> None:
    pace = demo.Pace(1.0, 12, now_s=0.0)
    rates = [pace.follow(status(solved=n, solve_s=0.25), float(n)) for n in range(1, 40)]
    assert rates[0] == 1.0
    assert sorted(set(rates)) == [1.0, 1.2, 1.5]
    assert rates[-10:] == [1.5] * 10


def test_demo_camera_follows_machine_until_rate_is_set(
    machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(0.02)
    monkeypatch.chdir(tmp_path)
    path, _ = demo.demo_rig(
        scene="", size=0, device="cpu", record=False, open_browser=False, report=lambda _: None
    )
    seen = []
    rate = Parameter("snapshot_rate_hz", "number", 1.0)

    class FakeControl:
        def __init__(self, url: str, who: str) -> None:
            assert (url.startswith("http://127.0.0.1:"), who) == (True, "the demo")

        def status(self) -> dict[str, object]:
            return status(solved=1, solve_s=2.0)

        def nodes(self) -> dict[str, Controllable]:
            return {"acquire": Controllable("acquire", "acquire", {"snapshot_rate_hz": rate}, ())}

        def set(self, node: str, *, snapshot_rate_hz: float) -> None:
            nonlocal rate
            rate = replace(rate, value=snapshot_rate_hz)
            seen.append((node, snapshot_rate_hz))

    times = itertools.count(1)

    def wait(_seconds: float) -> None:
        nonlocal rate
        at = next(times)
        rate = replace(rate, value=7.0) if at == 60 else rate
        assert at <= 60, "an operator's rate is left alone"

    monkeypatch.setattr(demo, "RigControl", FakeControl)
    demo.pace_camera(path, wait)
    assert seen == [("acquire", 0.5)], "six iterations fit into half of the time"
