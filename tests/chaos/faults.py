"""``sci-stream bench faults``: what a running rig makes of each thing that can befall it, and what it cost."""

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

from sci_stream.bench.environment import circumstances
from sci_stream.bench.supervised_rig import small_rig, supervised
from sci_stream.config import load_rig
from sci_stream.errors import ConfigError, SciStreamError
from tests.chaos import fault_injection, random_kills
from tests.chaos.fault_injection import PATIENCE_S, Victim
from tests.chaos.patched_node import Control
from tests.chaos.tcp_proxy import Cable

Tables = Mapping[str, Mapping[str, Any]]

_SIZE_PX = 32
_LONGEST_MS = PATIENCE_S * 1e3
_FROM_LEDGER = ("acquired", "redelivered", "duplicates", "dropped", "camera_missed")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that befalls a rig.

    ``done`` says it in words; ``harm`` does it in mid-run and returns what came of it. ``tables`` is what is special
    about the rig, ``rate_hz`` and ``size_px`` of its camera; ``snapshots`` ends the run, 0 if it is to be stopped.
    ``status`` is the exit status that is due, ``may_drop`` why snapshots may be dropped. With ``masks`` the calibration
    is in a file; with ``mend``, called with the folder, the run has ended, and goes on afterwards.
    """

    done: str
    harm: Callable[[Victim], str]
    tables: Tables = field(default_factory=dict)
    rate_hz: float = 20.0
    size_px: int = _SIZE_PX
    snapshots: int = 0
    status: int = 0
    may_drop: frozenset[str] = frozenset()
    cabled: bool = False
    masks: bool = False
    mend: Callable[[Path], None] | None = None


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
    "network cut": Fault("cables of the reconstruct nodes pulled", fault_injection.cut, cabled=True),
    "sink slow": Fault("the sink runs a tenth of the time", partial(fault_injection.slow_down, node="sink")),
    "disk slow": Fault("each flush takes a second longer", fault_injection.slow_disk),
    "disk full": Fault(
        "no file may grow any more", fault_injection.fill_disk, status=3, may_drop=frozenset({"not_recorded"})
    ),
    "out of memory": Fault(
        "a reconstruct node gets none any more",
        fault_injection.take_memory,
        {"reconstruct": {"denoiser": "tv", "nodes": 1}, "camera": {"options": {"n_frames": 24, "loop_snapshots": 2}}},
        rate_hz=2.0,
        size_px=640,
    ),
    "camera stalls": Fault(
        "it halts for a second, again and again",
        fault_injection.wait_for_end,
        _camera(stall_every=15, stall_s=1.0),
        snapshots=50,
    ),
    "camera unplugged": Fault(
        "it is gone twice, and returns",
        fault_injection.wait_for_end,
        _camera(disconnect_after=12, disconnects=2, return_after_s=0.5),
        snapshots=50,
    ),
    "camera repeats": Fault(
        "a third of the frames come twice",
        fault_injection.wait_for_end,
        _camera(duplicate_probability=0.3),
        snapshots=50,
    ),
    "camera skips": Fault(
        "a third of the frames do not come", fault_injection.wait_for_end, _camera(drop_probability=0.3), snapshots=50
    ),
    "clock set back": Fault("by an hour, in mid-run", fault_injection.set_clock_back, {"reconstruct": {"nodes": 1}}),
    "calibration broken": Fault(
        "its file cut in half, read again", fault_injection.break_masks, masks=True, mend=fault_injection.mend_masks
    ),
    "broken messages": Fault("1000 to each address", fault_injection.besiege),
}
"""Everything that `bench` does to a rig, by name; ``random kills`` comes on top. Listed in docs/operation.md."""

RANDOM_KILLS = "random kills"


def bench(
    names: Sequence[str] = (),
    *,
    n_kills: int = 20,
    seed: int = 0,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> dict[str, Any]:
    """Have one rig after the other befallen by a fault each.

    Parameters
    ----------
    names
        Which of `FAULTS` and ``random kills``; all if empty.
    n_kills, seed
        For the random kills: how many, and from which seed nodes and moments are drawn.
    folder
        Where to record; a temporary folder if None. What is recorded is gone afterwards.
    say
        Told what comes next.

    Returns
    -------
    ``faults``: a row each, as `suffer` returns it, by name; and the circumstances.

    Raises
    ------
    ConfigError
        If there is no fault of a name.
    """
    every = [*FAULTS, RANDOM_KILLS]
    for name in names:
        if name not in every:
            raise ConfigError("There is no such fault", expected=f"one of {', '.join(every)}", got=repr(name))
    rows: dict[str, dict[str, Any]] = {}
    for name in names or every:
        say(f"{name} …")
        if name == RANDOM_KILLS:
            rows[name] = _random_kills(n_kills, seed, folder)
        else:
            rows[name] = suffer(FAULTS[name], folder)
    return {**circumstances(), "seed": seed, "faults": rows}


def suffer(fault: Fault, folder: Path | None = None) -> dict[str, Any]:
    """Run a rig, do something to it, and go through what it says and what it recorded.

    Returns
    -------
    ``done`` and ``happened`` in words; ``restarts``; ``redelivered``, ``duplicates``, ``lost`` (without an outcome),
    ``dropped`` by reason; ``twice`` and ``missing`` in the recording; ``latency_ms``, the least and the largest median
    of a stage; ``closed``; ``status``; and ``wrong``: what ought not to be, in words, empty if all is well.
    """
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sci-stream-faults-", dir=folder)))
        control = stack.enter_context(Control(place / "control"))
        path = _write_rig(fault, place)
        program = (sys.executable, "-m", "tests.chaos.patched_node", str(control.path))
        happened = ""
        problem = ""
        summary: dict[str, Any] | None = None
        restarts = 0
        # Twice, if it is to end by what befalls it.
        for harm in (fault.harm, None) if fault.mend else (fault.harm,):
            cables = _lay_cables(stack, path, control) if fault.cabled else ()
            rig = stack.enter_context(supervised(path, snapshots=fault.snapshots, program=program))
            victim = Victim(rig, control, cables, place)
            try:
                rig.wait_for("ledger.reconstructed", 2, PATIENCE_S)
                happened = harm(victim) if harm else happened
                if harm and fault.mend:
                    fault.mend(place)
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


def _lay_cables(stack: contextlib.ExitStack, path: Path, control: Control) -> tuple[Cable, ...]:
    network = load_rig(path, overrides={}).network
    ports = [int(address.rpartition(":")[2]) for address in (network.dispatch, network.results)]
    cables = tuple(stack.enter_context(Cable(port)) for port in ports)
    control.detour = (cables[0].near, cables[1].near)
    return cables


def account(fault: Fault, summary: Mapping[str, Any], recordings: Path, status: int | None) -> dict[str, Any]:
    """Return the figures of a row from a run's summary and its recordings, and what is wrong with them."""
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
        told = random_kills.bench(kills=n_kills, seed=seed, pause_s=1.0, folder=folder)
    except SciStreamError as error:
        return {**row, "restarts": 0, "closed": False, "status": None, "wrong": str(error)}
    ledger = told["ledger"]
    wrong = {name: told[name] for name in ("lost", "twice", "missing_raw", "missing_video", "status") if told[name]}
    killed = Counter[str]()
    for node, count in told["kills"].items():
        killed[node.partition("-")[0]] += count
    row["happened"] = "started again"
    return {
        **row,
        "restarts": told["restarts"],
        "killed": dict(killed),
        **{name: ledger[name] for name in _FROM_LEDGER},
        "closed": ledger["closed"],
        "lost": told["lost"],
        "twice": told["twice"],
        "missing": told["missing_raw"] + told["missing_video"],
        "status": told["status"],
        "wrong": str(wrong) if wrong else "",
    }


def print_figures(figures: Mapping[str, Any], console: Console, json_path: Path | None) -> None:
    """Print a row for each fault; write the figures as JSON if asked to."""
    table = Table(title=f"what befell a rig, and what it cost ({figures['machine']})")
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
