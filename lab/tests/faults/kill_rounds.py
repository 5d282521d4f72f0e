"""Kill all nodes and the supervisor, singly and in pairs, run after run; account for every snapshot
of each run.
"""

from __future__ import annotations

import itertools
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from lab.tests.faults.random_kills import recorded
from sci_stream.errors import EnvironmentFault, SciStreamError
from sci_stream.web.control_client import control
from sci_stream_lab.bench.pipeline.supervised_rig import LedgerFigures, RunSummary
from tests.e2e.kit import RunningRig

RecordingMode = Literal["on", "off", "switched"]
# Policy `record` promises every raw snapshot: it cannot be without a recording.
_WAYS: tuple[tuple[str, RecordingMode], ...] = (
    ("record", "on"),
    ("live", "off"),
    ("record", "switched"),
    ("live", "switched"),
    ("live", "on"),
)
_PATIENCE_S = 400.0
_PAIRS = 0.25
_PAIR_WITHIN_S = 0.05
_MAX_KILLS_A_ROUND = 10
_SUPERVISOR = "supervisor"
# A killed supervisor ends its run: more often, there would be more starts than kills.
_SUPERVISOR_SHARE = 0.1
_SWITCH_SHARE = 0.5
_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class KillRound:
    """One run and what became of it.

    ``kills`` names what was killed at once, ``ledger`` is None without a summary; ``why`` are the
    words of the next run where only that could close the ledger, as nodes were killed with the
    supervisor; ``wrong`` is each violated expectation in words, empty if there is none.
    """

    number: int
    policy: str
    recording: RecordingMode
    kills: tuple[tuple[str, ...], ...]
    ledger: LedgerFigures | None
    status: int | None
    seconds: float
    why: str
    wrong: str

    @property
    def n_kills(self) -> int:
        """Number of killed processes."""
        return sum(map(len, self.kills))

    @property
    def killed(self) -> str:
        """What was killed, in words."""
        counts = Counter("+".join(at_once) for at_once in self.kills)
        return ", ".join(f"{name} {n}" for name, n in sorted(counts.items()))

    @property
    def outcome(self) -> str:
        """What became of the snapshots, in words."""
        if self.wrong:
            return f"WRONG: {self.wrong}"
        assert self.ledger is not None
        dropped = ", ".join(f"{n} {why}" for why, n in self.ledger.dropped.items())
        closed = f"{self.ledger.acquired} acquired, closed" + (
            f"; dropped {dropped}" if dropped else ""
        )
        return f"{closed}; by the next run: {self.why}" if self.why else closed


def bench(
    *,
    kills: int,
    seed: int = 0,
    nodes: int = 2,
    folder: Path | None = None,
    report: Callable[[str], None] = lambda _line: None,
) -> list[KillRound]:
    """Kill processes in rounds until ``kills`` have been killed; see `KillRound`.

    Policies and recording (on, off, switched at the page) take turns; without reconstruct
    ``nodes``, policy ``record`` with its recording on or switched. A quarter of the kills are of
    pairs within 50 ms. The kill of the supervisor ends a round.
    """
    draw = random.Random(seed)
    rounds: list[KillRound] = []
    ways = _WAYS if nodes else _WAYS[::2][:2]
    for number, (policy, recording) in enumerate(itertools.cycle(ways)):
        left = kills - sum(each.n_kills for each in rounds)
        if left <= 0:
            break
        place = Path(tempfile.mkdtemp(prefix="sci-stream-kills-", dir=folder))
        plan = _Plan(number, policy, recording, nodes, min(left, _MAX_KILLS_A_ROUND))
        rounds.append(_run_round(plan, draw, place))
        done = sum(each.n_kills for each in rounds)
        report(
            f"{done}/{kills} {policy}, recording {recording}: {rounds[-1].killed}: "
            f"{rounds[-1].outcome}"
        )
        if not rounds[-1].wrong:  # what went wrong is kept for inspection
            shutil.rmtree(place)
    return rounds


@dataclass(frozen=True, slots=True)
class _Plan:
    number: int
    policy: str
    recording: RecordingMode
    nodes: int
    most_kills: int


def _run_round(plan: _Plan, draw: random.Random, place: Path) -> KillRound:
    tables: dict[str, Any] = {
        "camera": {
            "options": {"width_px": 32, "height_px": 32, "snapshot_rate_hz": 20.0, "truth": False}
        },
        "policy": {
            "mode": plan.policy,
            "queue_snapshots": 10_000,
            "max_wait_s": 3600.0,
            "spool": str(place / "spool"),
        },
        "reconstruct": {"solver": "identity", "iterations": 1, "nodes": plan.nodes},
        "network": {"heartbeat_s": 0.5},
        "record": {"enabled": plan.recording != "off"},
        "preview": {"enabled": plan.recording == "switched"},
    }
    began_s = time.monotonic()
    with RunningRig(place, tables) as rig:
        _wait_for_first(rig)
        killed = list(_kill(rig, draw, plan.most_kills, switched=plan.recording == "switched"))
        if not any(_SUPERVISOR in at_once for at_once in killed):
            _wait_for_first(rig)  # the sink is up: else it might be stopped before it has started
            rig.process.terminate()
        wrong = _wait_for_end(rig)
        status = rig.process.poll()
        ledger, more = _account(rig, place, plan.recording)
        output = rig.output
    wrong += more
    why = ""
    is_cut = any(_SUPERVISOR in at_once for at_once in killed)
    if (ledger is None or not ledger.closed) and is_cut and not wrong:
        ledger, why, wrong = _resume(place, tables, plan.recording)
    if ledger is None or not ledger.closed:
        wrong.append("the ledger is not closed" if ledger else "no summary")
    elif status and not is_cut:
        wrong.append(f"exit status {status}")
    if "Traceback" in output:
        wrong.append("a traceback")
    seconds = round(time.monotonic() - began_s, 1)
    return KillRound(
        *(
            plan.number,
            plan.policy,
            plan.recording,
            tuple(killed),
            ledger,
            status,
            seconds,
            why,
            "; ".join(wrong),
        )
    )


def _wait_for_first(rig: RunningRig) -> None:
    """Wait for a report with an outcome; loading takes minutes on a busy machine."""
    for status in rig.reports(_PATIENCE_S):
        if status.get("ledger.reconstructed", 0) + status.get("ledger.raw_only", 0) >= 1:
            return
    raise EnvironmentFault(
        "The rig does not start",
        got=f"no snapshot with an outcome in {_PATIENCE_S:g} s",
        hint=rig.output[-2000:],
    )


def _kill(
    rig: RunningRig, draw: random.Random, most: int, *, switched: bool
) -> Iterator[tuple[str, ...]]:
    """Kill up to ``most`` processes at random times; yield the names of those killed at once."""
    done = 0
    on = True
    while done < most:
        time.sleep(min(4.0, draw.expovariate(1 / _EVERY_S)))
        if switched and draw.random() < _SWITCH_SHARE:
            on = _switch(rig, not on)
        running = rig.nodes()
        n_at_once = 2 if most - done >= 2 and draw.random() < _PAIRS else 1
        names = draw.sample(sorted(running), min(n_at_once, len(running)))
        if names and draw.random() < _SUPERVISOR_SHARE:
            names[-1] = _SUPERVISOR
        killed = []
        for at, name in enumerate(draw.sample(names, len(names))):
            if at:
                time.sleep(draw.uniform(0, _PAIR_WITHIN_S))
            process = psutil.Process(rig.process.pid) if name == _SUPERVISOR else running[name]
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
            killed.append(name)
        if killed:
            done += len(killed)
            yield tuple(killed)
        if _SUPERVISOR in killed:
            return


def _switch(rig: RunningRig, on: bool) -> bool:
    """Switch the recording at the page; return whether it is on now.

    A sink that is down does not answer.
    """
    try:
        control(f"http://127.0.0.1:{rig.rig.preview.port}").set("sink", recording=on)
    except SciStreamError:
        return not on
    return on


def _wait_for_end(rig: RunningRig) -> list[str]:
    """Wait until supervisor and nodes have ended; return the errors."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while rig.process.poll() is None or rig.nodes():
        if time.monotonic() > deadline_s:
            return [f"still running after {_PATIENCE_S:g} s: {', '.join(rig.nodes())}"]
        time.sleep(0.2)
    return []


def _account(
    rig: RunningRig, place: Path, recording: RecordingMode
) -> tuple[LedgerFigures | None, list[str]]:
    """Return the ledger of the summary, and the errors of it and of the recording."""
    path = place / "summary.json"
    if not path.exists() or not path.stat().st_size:
        return None, []
    summary = RunSummary.read(path)
    ledger = summary.ledger
    videos, raws = recorded(Path(rig.rig.record.folder), summary.series)
    wrong = []
    if twice := sum(count > 1 for count in [*videos.values(), *raws.values()]):
        wrong.append(f"{twice} twice")
    if lost := ledger.dropped.get("acquire_lost"):
        wrong.append(f"{lost} lost with the acquire node, despite its spool")
    if ledger.closed and ledger.lost:
        wrong.append(f"{ledger.lost} lost")
    if recording == "on" and ledger.closed and len(videos) < ledger.reconstructed:
        wrong.append(f"{ledger.reconstructed - len(videos)} videos missing")
    return ledger, wrong


def _resume(
    place: Path, tables: Mapping[str, Any], recording: RecordingMode
) -> tuple[LedgerFigures | None, str, list[str]]:
    """Run the rig of a cut run again; return its ledger, the words in which it resumes, and the
    errors.
    """
    if not list((place / "spool").glob("*.spool")):
        return None, "", ["no spool is left"]
    with RunningRig(place, tables) as rig:
        _wait_for_first(rig)
        rig.process.terminate()
        wrong = _wait_for_end(rig)
        if (
            status := rig.process.poll()
        ):  # also of a resumed series that has ended before the last one began
            wrong.append(f"exit status {status} of the next run")
        ledger, more = _account(rig, place, recording)
        output = rig.output
    lines = re.findall(r"(?:INFO|WARNING|ERROR) +(.*(?:resuming|interrupted).*)", output)
    return (
        ledger,
        lines[0] if lines else "",
        wrong + more + ([] if lines else ["the series is not resumed"]),
    )
