"""``sci-stream bench faults``: inject faults into a running rig one at a time and report the
outcome.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from lab.tests.faults import fault_injection, kill_rounds, random_kills
from lab.tests.faults.fault_injection import PATIENCE_S, PatchedRig
from lab.tests.faults.kill_rounds import KillRound
from lab.tests.faults.patched_node import FaultControl
from lab.tests.faults.tcp_proxy import TcpProxy
from sci_stream.config import load_rig
from sci_stream.errors import ConfigError, SciStreamError
from sci_stream_lab.bench.environment import environment
from sci_stream_lab.bench.pipeline.supervised_rig import (
    LedgerFigures,
    RigTables,
    RunSummary,
    small_rig,
    supervised,
)
from sci_stream_lab.bench.result import BenchResult, ResultColumn, ResultTable

_SIZE_PX = 32
_LONGEST_MS = PATIENCE_S * 1e3
# Clock offsets are estimated from heartbeats, on a busy machine to within a few tens of
# milliseconds. A missed step of the clock would show in full: an hour.
_CLOCK_ERROR_MS = 500.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and the expected behaviour of a rig that suffers it.

    ``done`` describes the fault; ``inject`` causes it during the run and returns the outcome in
    words. ``tables`` overrides tables of the rig, ``rate_hz`` and ``size_px`` belong to its camera;
    ``snapshots`` ends the run, 0 runs it until it is stopped. ``status`` is the expected exit
    status, ``may_drop`` the permitted drop reasons. It ``solves`` if it concerns a reconstruct
    node. With ``masks`` the calibration is in a file;
    with ``repair``, called with the folder, the fault ends the run, which is then started again.
    """

    done: str
    inject: Callable[[PatchedRig], str]
    tables: RigTables = field(default_factory=dict)
    rate_hz: float = 20.0
    size_px: int = _SIZE_PX
    snapshots: int = 0
    status: int = 0
    may_drop: frozenset[str] = frozenset()
    proxied: bool = False
    solves: bool = False
    masks: bool = False
    repair: Callable[[Path], None] | None = None


def _camera(**faults: float) -> RigTables:
    return {"camera": {"options": {"faults": faults}}}


FAULTS: Final[Mapping[str, Fault]] = {
    **{
        f"{node} killed": Fault(
            f"SIGKILL to {process}",
            partial(fault_injection.kill, node=process),
            solves=node == "reconstruct",
        )
        for node, process in (
            ("acquire", "acquire"),
            ("reconstruct", "reconstruct-0"),
            ("sink", "sink"),
        )
    },
    **{
        f"{node} frozen": Fault(
            f"SIGSTOP to {process}, SIGCONT",
            partial(fault_injection.freeze, node=process),
            solves=node == "reconstruct",
        )
        for node, process in (
            ("acquire", "acquire"),
            ("reconstruct", "reconstruct-0"),
            ("sink", "sink"),
        )
    },
    "network cut": Fault(
        "connections of the reconstruct nodes cut", fault_injection.cut, proxied=True, solves=True
    ),
    "sink slow": Fault(
        "the sink runs a tenth of the time", partial(fault_injection.slow_down, node="sink")
    ),
    "disk slow": Fault("each flush takes a second longer", fault_injection.slow_disk),
    "disk full": Fault(
        "no file can grow",
        fault_injection.fill_disk,
        status=3,
        may_drop=frozenset({"not_recorded"}),
    ),
    "out of memory": Fault(
        "a reconstruct node gets no more memory",
        fault_injection.take_memory,
        {
            "reconstruct": {"solver": "tv", "nodes": 1},
            "camera": {"options": {"n_frames": 24, "loop_snapshots": 2}},
        },
        rate_hz=2.0,
        size_px=640,
        solves=True,
    ),
    "camera stalls": Fault(
        "it stops for a second, repeatedly",
        fault_injection.wait_for_end,
        _camera(stall_every=15, stall_s=1.0),
        snapshots=50,
    ),
    "camera unplugged": Fault(
        "it disconnects and returns, twice",
        fault_injection.wait_for_end,
        _camera(disconnect_after=12, disconnects=2, return_after_s=0.5),
        snapshots=50,
    ),
    "camera repeats": Fault(
        "a third of the frames are duplicated",
        fault_injection.wait_for_end,
        _camera(duplicate_probability=0.3),
        snapshots=50,
    ),
    "camera skips": Fault(
        "a third of the frames are missing",
        fault_injection.wait_for_end,
        _camera(drop_probability=0.3),
        snapshots=50,
    ),
    "clock set back": Fault(
        "by an hour, during the run",
        fault_injection.set_clock_back,
        {"reconstruct": {"nodes": 1}},
        solves=True,
    ),
    "calibration broken": Fault(
        "its file truncated, read again",
        fault_injection.break_masks,
        masks=True,
        solves=True,
        repair=fault_injection.restore_masks,
    ),
    "broken messages": Fault("1000 to each address", fault_injection.send_broken_messages),
}
"""The faults that `bench` injects, by name, besides ``random kills``. docs/operation.md lists
them."""

RANDOM_KILLS = "random kills"
KILL_ROUNDS = "kill rounds"
"""Not among those that `bench` tries by default: it takes hours."""


@dataclass(frozen=True, slots=True)
class FaultOutcome:
    """What became of a rig under a fault.

    ``done`` and ``happened`` are words; ``ledger`` is None if the rig left no summary. ``twice``
    and ``missing`` are counts of snapshots in the recording, ``latency_ms`` the smallest and the
    largest median of a stage, ``wrong`` each violated expectation in words, empty if there is none.
    """

    fault: str
    done: str
    happened: str
    restarts: int
    wrong: str
    ledger: LedgerFigures | None = None
    twice: int | None = None
    missing: int | None = None
    latency_ms: tuple[float, float] | None = None
    status: int | None = None

    @property
    def redelivered(self) -> str:
        """Number of snapshots sent more than once; ? if unknown."""
        return "?" if self.ledger is None else str(self.ledger.redelivered)

    @property
    def lost(self) -> str:
        """Number of snapshots without an outcome; ? if unknown."""
        return "?" if self.ledger is None else str(self.ledger.lost)

    @property
    def doubled(self) -> str:
        """Number of snapshots that the recording has twice; ? if unknown."""
        return "?" if self.twice is None else str(self.twice)

    @property
    def dropped(self) -> str:
        """Snapshots dropped by reason; 0 if none."""
        reasons = {} if self.ledger is None else self.ledger.dropped
        return ", ".join(f"{count} {why}" for why, count in reasons.items()) or "0"

    @property
    def ledger_state(self) -> str:
        """Whether the ledger is closed, in words."""
        return "NOT CLOSED" if self.ledger is None else self.ledger.state


@dataclass(frozen=True)
class FaultsResult(BenchResult):
    """The outcome of each fault; and of the random kills and the kill rounds in detail, if there
    were any.
    """

    faults: tuple[FaultOutcome, ...] = ()
    kills: random_kills.KillsOutcome | None = None
    rounds: tuple[KillRound, ...] = ()

    @property
    def wrong(self) -> dict[str, str]:
        """The violated expectations by fault."""
        rounds = {
            f"{KILL_ROUNDS}, round {each.number}": each.wrong for each in self.rounds if each.wrong
        }
        return {row.fault: row.wrong for row in self.faults if row.wrong} | rounds


_COLUMNS = (
    ResultColumn("fault", "fault", left=True),
    ResultColumn("done", "done", left=True, wraps=True),
    ResultColumn("happened", "what happened", left=True, wraps=True),
    ResultColumn("restarts", "restarts", wraps=True),
    ResultColumn("redelivered", "redelivered", wraps=True),
    ResultColumn("lost", "lost", wraps=True),
    ResultColumn("doubled", "twice", wraps=True),
    ResultColumn("dropped", "dropped", left=True, wraps=True),
    ResultColumn("ledger_state", "ledger", left=True, wraps=True),
)


_ROUND_COLUMNS = (
    ResultColumn("number", "round"),
    ResultColumn("policy", "policy", left=True),
    ResultColumn("recording", "recording", left=True),
    ResultColumn("n_kills", "kills"),
    ResultColumn("killed", "killed", left=True, wraps=True),
    ResultColumn("outcome", "outcome", left=True, wraps=True),
)


def bench(
    names: Sequence[str] = (),
    *,
    n_kills: int = 20,
    seed: int = 0,
    policy: str = "record",
    freeze: float = 0.0,
    nodes: int = 2,
    folder: Path | None = None,
    report: Callable[[str], None] = lambda _line: None,
) -> FaultsResult:
    """Inject each fault into a rig of its own.

    Parameters
    ----------
    names
        Names from `FAULTS`, ``random kills``, or ``kill rounds``; all but the last if empty, and
        without nodes those of nodes.
    n_kills, seed, policy, freeze
        Number of random kills, the seed of their nodes and times, the rig's policy, and the
        fraction that is stopped and continued instead.
    nodes
        Number of reconstruct nodes, 0 to record raw snapshots alone.
    folder
        Where to record; a temporary folder if None. The recordings are deleted afterwards.
    report
        Called with a line of progress before each fault and for each random kill.

    Raises
    ------
    ConfigError
        If a name is unknown.
    """
    every = [*(name for name, fault in FAULTS.items() if nodes or not fault.solves), RANDOM_KILLS]
    for name in names:
        if name not in [*every, KILL_ROUNDS]:
            raise ConfigError(
                "Unknown fault",
                expected=f"one of {', '.join([*every, KILL_ROUNDS])}",
                got=repr(name),
            )
    rows: list[FaultOutcome] = []
    kills: random_kills.KillsOutcome | None = None
    rounds: list[KillRound] = []
    for name in names or every:
        report(f"{name} …")
        if name == KILL_ROUNDS:
            rounds = kill_rounds.bench(
                kills=n_kills, seed=seed, nodes=nodes, folder=folder, report=report
            )
            continue
        if name != RANDOM_KILLS:
            rows.append(run_fault(name, folder, nodes=nodes))
            continue
        try:
            kills = random_kills.bench(
                kills=n_kills,
                seed=seed,
                policy=policy,
                pause_s=1.0,
                freeze=freeze,
                nodes=nodes,
                folder=folder,
                report=report,
            )
            rows.append(_kills_row(kills))
        except SciStreamError as error:
            rows.append(
                FaultOutcome(name, f"{n_kills} nodes killed at random moments", "", 0, str(error))
            )
    return faults_result(rows, kills, rounds, seed=seed)


def faults_result(
    rows: Sequence[FaultOutcome],
    kills: random_kills.KillsOutcome | None = None,
    rounds: Sequence[KillRound] = (),
    *,
    seed: int = 0,
) -> FaultsResult:
    """Return the result of these outcomes; its notes state the errors, and which nodes were killed
    how often.
    """
    here = environment()
    notes = [f"WRONG: {row.fault}: {row.wrong}" for row in rows if row.wrong]
    if kills is not None:
        counts = [
            f"{what} {node} {n}"
            for what, by in (("killed", kills.kills), ("frozen", kills.freezes))
            for node, n in by.items()
        ]
        notes.append(
            f"{RANDOM_KILLS}: {', '.join(counts)}; {kills.ledger.acquired} snapshots in "
            f"{kills.seconds:g} s"
        )
    table = ResultTable(
        f"faults and their outcome ({here.machine})",
        _COLUMNS,
        tuple(rows),
        wrong=frozenset(number for number, row in enumerate(rows) if row.wrong),
    )
    tables: list[ResultTable[Any]] = [table] if rows or not rounds else []
    if rounds:
        wrong = frozenset(at for at, each in enumerate(rounds) if each.wrong)
        title = f"kills of all nodes and the supervisor ({here.machine})"
        tables.append(ResultTable(title, _ROUND_COLUMNS, tuple(rounds), wrong=wrong))
        notes.append(_rounds_note(rounds))
    return FaultsResult(
        "faults",
        here,
        tuple(tables),
        tuple(notes),
        {"seed": seed},
        tuple(rows),
        kills,
        tuple(rounds),
    )


def _rounds_note(rounds: Sequence[KillRound]) -> str:
    closed = sum(each.ledger is not None and each.ledger.closed for each in rounds)
    at_once = [names for each in rounds for names in each.kills]
    pairs = sum(len(names) == 2 for names in at_once)
    return (
        f"{KILL_ROUNDS}: {sum(map(len, at_once))} processes killed in {len(rounds)} runs, {pairs} "
        "times two at once; "
        f"{closed} ledgers closed, {sum(bool(each.why) for each in rounds)} of them by the next "
        "run, "
        f"{sum(bool(each.wrong) for each in rounds)} wrong"
    )


def _kills_row(outcome: random_kills.KillsOutcome) -> FaultOutcome:
    n_kills = sum(outcome.kills.values()) + sum(outcome.freezes.values())
    return FaultOutcome(
        fault=RANDOM_KILLS,
        done=f"{n_kills} nodes killed at random moments",
        happened="restarted",
        restarts=outcome.restarts,
        wrong=outcome.wrong,
        ledger=outcome.ledger,
        twice=outcome.twice,
        missing=outcome.missing_raw + outcome.missing_video,
        status=outcome.status,
    )


def run_fault(name: str, folder: Path | None = None, *, nodes: int = 2) -> FaultOutcome:
    """Run a rig, inject a fault, and check its summary and its recording."""
    fault = FAULTS[name]
    with contextlib.ExitStack() as stack:
        place = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="sci-stream-faults-", dir=folder)
            )
        )
        control = stack.enter_context(FaultControl(place / "control"))
        path = _write_rig(fault, place, nodes)
        program = (sys.executable, "-m", "lab.tests.faults.patched_node", str(control.path))
        happened = ""
        problem = ""
        summary: RunSummary | None = None
        restarts = 0
        # A fault that ends the run is followed by a second run without it.
        for inject in (fault.inject, None) if fault.repair else (fault.inject,):
            proxies = _insert_proxies(stack, path, control) if fault.proxied else ()
            rig = stack.enter_context(supervised(path, snapshots=fault.snapshots, program=program))
            target = PatchedRig(rig, control, proxies, place)
            try:
                rig.wait_for_more(2, PATIENCE_S)
                happened = inject(target) if inject else happened
                if inject and fault.repair:
                    fault.repair(place)
                else:
                    summary = rig.finish(PATIENCE_S * 2)
            except SciStreamError as error:
                problem = str(error)
                break
            finally:
                restarts += rig.supervisor.restarts
        if summary is None:
            return FaultOutcome(
                name, fault.done, happened, restarts, problem or "no summary", status=rig.status
            )
        outcome = account(name, summary, place / "recordings", rig.status)
        return dataclasses.replace(outcome, happened=happened, restarts=restarts)


def _write_rig(fault: Fault, place: Path, nodes: int) -> Path:
    tables: RigTables = {
        "policy": {"mode": "record", "queue_snapshots": 10_000, "spool": str(place / "spool")},
        "reconstruct": {
            "adapt_budget": False,
            **fault.tables.get("reconstruct", {}),
            "nodes": min(nodes, fault.tables.get("reconstruct", {}).get("nodes", nodes)),
        },
        "network": {"heartbeat_s": fault_injection.HEARTBEAT_S},
    }
    options = fault.tables.get("camera", {}).get("options", {})
    path = small_rig(
        place, rate_hz=fault.rate_hz, size_px=fault.size_px, tables=tables, camera=options
    )
    if fault.masks:
        fault_injection.make_masks(path)
        path.write_text(f'{path.read_text()}\n[calibration]\nfile = "{fault_injection.MASKS}"\n')
    return path


def _insert_proxies(
    stack: contextlib.ExitStack, path: Path, control: FaultControl
) -> tuple[TcpProxy, ...]:
    network = load_rig(path, overrides={}).network
    ports = [int(address.rpartition(":")[2]) for address in (network.dispatch, network.results)]
    proxies = tuple(stack.enter_context(TcpProxy(port)) for port in ports)
    control.detour = (proxies[0].near, proxies[1].near)
    return proxies


def account(name: str, summary: RunSummary, recordings: Path, status: int | None) -> FaultOutcome:
    """Return the outcome of a fault from a run's summary and recordings, with the violated
    expectations.
    """
    fault, ledger = FAULTS[name], summary.ledger
    videos, raws = random_kills.recorded(recordings, summary.series)
    twice = sum(count > 1 for count in [*videos.values(), *raws.values()])
    unrecorded = max(0, ledger.acquired - ledger.n_dropped - len(raws))
    missing = unrecorded + max(0, ledger.reconstructed - len(videos))
    medians = [stage["p50"] for stage in summary.latency_ms.values()]
    fastest_ms, slowest_ms = min(medians, default=0.0), max(medians, default=0.0)
    counts = {"lost": ledger.lost, "twice": twice, "missing": missing}
    wrong = [f"{count} {what}" for what, count in counts.items() if count]
    wrong += [] if ledger.closed else ["the ledger is not closed"]
    wrong += [] if status == fault.status else [f"exit status {status}, not {fault.status}"]
    wrong += [
        f"{count} dropped: {why}"
        for why, count in ledger.dropped.items()
        if why not in fault.may_drop
    ]
    if fastest_ms < -_CLOCK_ERROR_MS or slowest_ms > _LONGEST_MS:
        wrong.append(f"latencies from {fastest_ms:g} to {slowest_ms:g} ms")
    return FaultOutcome(
        fault=name,
        done=fault.done,
        happened="",
        restarts=0,
        wrong="; ".join(wrong),
        ledger=ledger,
        twice=twice,
        missing=missing,
        latency_ms=(fastest_ms, slowest_ms),
        status=status,
    )
