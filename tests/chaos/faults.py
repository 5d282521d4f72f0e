"""``sci-stream bench faults``: inject faults into a running rig one at a time and report the outcome."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from sci_stream.bench.environment import environment
from sci_stream.bench.supervised_rig import small_rig, supervised
from sci_stream.config import load_rig
from sci_stream.errors import ConfigError, SciStreamError
from tests.chaos import fault_injection, random_kills
from tests.chaos.fault_injection import PATIENCE_S, PatchedRig
from tests.chaos.patched_node import FaultControl
from tests.chaos.tcp_proxy import TcpProxy

Tables = Mapping[str, Mapping[str, Any]]

_SIZE_PX = 32
_LONGEST_MS = PATIENCE_S * 1e3
_FROM_LEDGER = ("acquired", "redelivered", "duplicates", "dropped", "camera_missed")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and what is expected of a rig that suffers it.

    ``done`` describes the fault; ``inject`` causes it during the run and returns the outcome in words. ``tables``
    overrides tables of the rig, ``rate_hz`` and ``size_px`` belong to its camera; ``snapshots`` ends the run, 0 runs it
    until it is stopped. ``status`` is the expected exit status, ``may_drop`` the permitted drop reasons. With ``masks``
    the calibration is in a file; with ``repair``, called with the folder, the fault ends the run, which is then started
    again.
    """

    done: str
    inject: Callable[[PatchedRig], str]
    tables: Tables = field(default_factory=dict)
    rate_hz: float = 20.0
    size_px: int = _SIZE_PX
    snapshots: int = 0
    status: int = 0
    may_drop: frozenset[str] = frozenset()
    proxied: bool = False
    masks: bool = False
    repair: Callable[[Path], None] | None = None


def _camera(**faults: float) -> Tables:
    return {"camera": {"options": {"faults": faults}}}


FAULTS: Final[Mapping[str, Fault]] = {
    **{
        f"{node} killed": Fault(f"SIGKILL to {process}", partial(fault_injection.kill, node=process))
        for node, process in (("acquire", "acquire"), ("reconstruct", "reconstruct-0"), ("sink", "sink"))
    },
    **{
        f"{node} frozen": Fault(f"SIGSTOP to {process}, SIGCONT", partial(fault_injection.freeze, node=process))
        for node, process in (("acquire", "acquire"), ("reconstruct", "reconstruct-0"), ("sink", "sink"))
    },
    "network cut": Fault("connections of the reconstruct nodes cut", fault_injection.cut, proxied=True),
    "sink slow": Fault("the sink runs a tenth of the time", partial(fault_injection.slow_down, node="sink")),
    "disk slow": Fault("each flush takes a second longer", fault_injection.slow_disk),
    "disk full": Fault("no file can grow", fault_injection.fill_disk, status=3, may_drop=frozenset({"not_recorded"})),
    "out of memory": Fault(
        "a reconstruct node gets no more memory",
        fault_injection.take_memory,
        {"reconstruct": {"denoiser": "tv", "nodes": 1}, "camera": {"options": {"n_frames": 24, "loop_snapshots": 2}}},
        rate_hz=2.0,
        size_px=640,
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
        "a third of the frames are missing", fault_injection.wait_for_end, _camera(drop_probability=0.3), snapshots=50
    ),
    "clock set back": Fault(
        "by an hour, during the run", fault_injection.set_clock_back, {"reconstruct": {"nodes": 1}}
    ),
    "calibration broken": Fault(
        "its file truncated, read again",
        fault_injection.break_masks,
        masks=True,
        repair=fault_injection.restore_masks,
    ),
    "broken messages": Fault("1000 to each address", fault_injection.send_broken_messages),
}
"""The faults that `bench` injects, by name, besides ``random kills``. docs/operation.md lists them."""

RANDOM_KILLS = "random kills"


def bench(
    names: Sequence[str] = (),
    *,
    n_kills: int = 20,
    seed: int = 0,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> dict[str, Any]:
    """Inject each fault into a rig of its own.

    Parameters
    ----------
    names
        Names from `FAULTS`, or ``random kills``; all if empty.
    n_kills, seed
        Number of random kills, and the seed of their nodes and times.
    folder
        Where to record; a temporary folder if None. The recordings are deleted afterwards.
    say
        Called with a line of progress before each fault.

    Returns
    -------
    ``faults``: the row of each fault by name, as `run_fault` returns it; and the environment.

    Raises
    ------
    ConfigError
        If a name is unknown.
    """
    every = [*FAULTS, RANDOM_KILLS]
    for name in names:
        if name not in every:
            raise ConfigError("Unknown fault", expected=f"one of {', '.join(every)}", got=repr(name))
    rows: dict[str, dict[str, Any]] = {}
    for name in names or every:
        say(f"{name} …")
        if name == RANDOM_KILLS:
            rows[name] = _random_kills(n_kills, seed, folder)
        else:
            rows[name] = run_fault(FAULTS[name], folder)
    return {**environment(), "seed": seed, "faults": rows}


def run_fault(fault: Fault, folder: Path | None = None) -> dict[str, Any]:
    """Run a rig, inject a fault, and check its summary and its recording.

    Returns
    -------
    ``done`` and ``happened`` in words; ``restarts``; ``redelivered``, ``duplicates``, ``lost`` (without an outcome),
    ``dropped`` by reason; ``twice`` and ``missing`` in the recording; ``latency_ms``, the smallest and largest median
    of a stage; ``closed``; ``status``; and ``wrong``: each violated expectation in words, empty if there is none.
    """
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sci-stream-faults-", dir=folder)))
        control = stack.enter_context(FaultControl(place / "control"))
        path = _write_rig(fault, place)
        program = (sys.executable, "-m", "tests.chaos.patched_node", str(control.path))
        happened = ""
        problem = ""
        summary: dict[str, Any] | None = None
        restarts = 0
        # A fault that ends the run is followed by a second run without it.
        for inject in (fault.inject, None) if fault.repair else (fault.inject,):
            proxies = _insert_proxies(stack, path, control) if fault.proxied else ()
            rig = stack.enter_context(supervised(path, snapshots=fault.snapshots, program=program))
            target = PatchedRig(rig, control, proxies, place)
            try:
                rig.wait_for("ledger.reconstructed", 2, PATIENCE_S)
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
        row = {"done": fault.done, "happened": happened, "restarts": restarts}
        if summary is None:
            return {**row, "closed": False, "status": rig.status, "wrong": problem or "no summary"}
        return {**row, **account(fault, summary, place / "recordings", rig.status)}


def _write_rig(fault: Fault, place: Path) -> Path:
    tables: dict[str, dict[str, Any]] = {
        "policy": {"mode": "record", "queue_snapshots": 10_000, "spool": str(place / "spool")},
        "reconstruct": {"nodes": 2, "adapt_budget": False, **fault.tables.get("reconstruct", {})},
        "network": {"heartbeat_s": fault_injection.HEARTBEAT_S},
    }
    options = fault.tables.get("camera", {}).get("options", {})
    path = small_rig(place, rate_hz=fault.rate_hz, size_px=fault.size_px, tables=tables, camera=options)
    if fault.masks:
        fault_injection.make_masks(path)
        path.write_text(f'{path.read_text()}\n[calibration]\nfile = "{fault_injection.MASKS}"\n')
    return path


def _insert_proxies(stack: contextlib.ExitStack, path: Path, control: FaultControl) -> tuple[TcpProxy, ...]:
    network = load_rig(path, overrides={}).network
    ports = [int(address.rpartition(":")[2]) for address in (network.dispatch, network.results)]
    proxies = tuple(stack.enter_context(TcpProxy(port)) for port in ports)
    control.detour = (proxies[0].near, proxies[1].near)
    return proxies


def account(fault: Fault, summary: Mapping[str, Any], recordings: Path, status: int | None) -> dict[str, Any]:
    """Return the figures of a row from a run's summary and recordings, and the violated expectations."""
    ledger = summary["ledger"]
    videos, raws = random_kills.recorded(recordings, summary["series"])
    dropped = sum(ledger["dropped"].values())
    medians = [stage["p50"] for stage in summary["latency_ms"].values()]
    figures = {
        **{name: ledger[name] for name in _FROM_LEDGER},
        "lost": ledger["acquired"] - ledger["reconstructed"] - ledger["raw_only"] - dropped,
        "twice": sum(count > 1 for count in [*videos.values(), *raws.values()]),
        "missing": max(0, ledger["acquired"] - dropped - len(raws)) + max(0, ledger["reconstructed"] - len(videos)),
        "latency_ms": [min(medians, default=0.0), max(medians, default=0.0)],
        "closed": ledger["closed"],
        "status": status,
    }
    wrong = [f"{figures[name]} {name}" for name in ("lost", "twice", "missing") if figures[name]]
    wrong += [] if ledger["closed"] else ["the ledger is not closed"]
    wrong += [] if status == fault.status else [f"exit status {status}, not {fault.status}"]
    wrong += [f"{count} dropped: {why}" for why, count in ledger["dropped"].items() if why not in fault.may_drop]
    if figures["latency_ms"][0] < 0 or figures["latency_ms"][1] > _LONGEST_MS:
        wrong.append(f"latencies from {figures['latency_ms'][0]:g} to {figures['latency_ms'][1]:g} ms")
    return {**figures, "wrong": "; ".join(wrong)}


def _random_kills(n_kills: int, seed: int, folder: Path | None) -> dict[str, Any]:
    row: dict[str, Any] = {"done": f"{n_kills} nodes killed at random moments", "happened": ""}
    try:
        result = random_kills.bench(kills=n_kills, seed=seed, pause_s=1.0, folder=folder)
    except SciStreamError as error:
        return {**row, "restarts": 0, "closed": False, "status": None, "wrong": str(error)}
    ledger = result["ledger"]
    wrong = {name: result[name] for name in ("lost", "twice", "missing_raw", "missing_video", "status") if result[name]}
    killed = Counter[str]()
    for node, count in result["kills"].items():
        killed[node.partition("-")[0]] += count
    row["happened"] = "restarted"
    return {
        **row,
        "restarts": result["restarts"],
        "killed": dict(killed),
        **{name: ledger[name] for name in _FROM_LEDGER},
        "closed": ledger["closed"],
        "lost": result["lost"],
        "twice": result["twice"],
        "missing": result["missing_raw"] + result["missing_video"],
        "status": result["status"],
        "wrong": str(wrong) if wrong else "",
    }


def print_figures(figures: Mapping[str, Any], console: Console, json_path: Path | None) -> None:
    """Print a row for each fault; write the figures as JSON if asked to."""
    table = Table(title=f"faults and their outcome ({figures['machine']})")
    for column in ("fault", "done", "what happened", "restarts", "redelivered", "lost", "twice", "dropped", "ledger"):
        words = column in {"fault", "done", "what happened", "ledger", "dropped"}
        table.add_column(column, justify="left" if words else "right", no_wrap=column == "fault")
    for name, row in figures["faults"].items():
        dropped = ", ".join(f"{count} {why}" for why, count in row.get("dropped", {}).items()) or "0"
        ledger = "closed" if row["closed"] else "NOT CLOSED"
        cells = [name, row["done"], row["happened"], *(row.get(key, "?") for key in ("restarts", "redelivered"))]
        cells += [row.get("lost", "?"), row.get("twice", "?"), dropped, ledger]
        table.add_row(*map(str, cells), style="bold red" if row["wrong"] else "")
        if row["wrong"]:
            table.add_row("", "", f"WRONG: {row['wrong']}", style="bold red")
    console.print(table)
    if json_path is not None:
        json_path.write_text(json.dumps(figures, indent=2) + "\n")
