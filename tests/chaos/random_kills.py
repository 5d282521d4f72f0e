"""Kill nodes of a running rig at random times and account for every snapshot."""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sci_stream.bench.environment import environment
from sci_stream.bench.supervised_rig import SupervisedRig, small_rig, supervised
from sci_stream.errors import EnvironmentFault
from sci_stream.storage.recording import Recording

_SIZE_PX = 32
_PATIENCE_S = 90.0
_LONGEST_FREEZE_S = 2.0
_HEARTBEAT_S = 0.3


def bench(
    *,
    kills: int,
    seed: int = 0,
    policy: str = "record",
    rate_hz: float = 20.0,
    nodes: int = 2,
    pause_s: float = 2.0,
    freeze: float = 0.0,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> dict[str, Any]:
    """Run a rig, kill its nodes at random times, and check its recording.

    Parameters
    ----------
    kills, seed
        Number of kills, and the seed of their times and nodes.
    policy, rate_hz, nodes
        The rig's policy, snapshot rate and number of reconstruct nodes.
    pause_s
        Mean time between two kills; drawn from an exponential distribution.
    freeze
        Fraction that is not killed but stopped (SIGSTOP) for up to two seconds and continued.
    folder
        Where to record; a temporary folder if None, deleted afterwards.
    say
        Called with a line for each kill.

    Returns
    -------
    ``kills`` and ``freezes`` by node, ``restarts``, the ``ledger`` as in the summary, ``lost`` snapshots without an
    outcome, ``twice`` those that the recording holds more than once, ``missing_raw`` those whose raw counts are missing
    from the recording, the exit ``status``.

    Raises
    ------
    EnvironmentFault
        If the rig does not recover by itself.
    """
    with tempfile.TemporaryDirectory(prefix="sci-stream-faults-", dir=folder) as scratch:
        tables: dict[str, dict[str, Any]] = {
            "policy": {"mode": policy, "queue_snapshots": 10_000},
            "reconstruct": {"nodes": nodes, "adapt_budget": False},
            "network": {"heartbeat_s": _HEARTBEAT_S},
        }
        path = small_rig(Path(scratch), rate_hz=rate_hz, size_px=_SIZE_PX, tables=tables)
        began_s = time.monotonic()
        with supervised(path) as rig:
            rig.wait_for("ledger.reconstructed", 1, _PATIENCE_S)
            killed, frozen = _inject(rig, random.Random(seed), kills=kills, pause_s=pause_s, freeze=freeze, say=say)
            rig.wait_for("ledger.reconstructed", rig.latest.get("ledger.reconstructed", 0) + 1, _PATIENCE_S)
            summary = rig.finish(_PATIENCE_S * 2)
        videos, raws = recorded(Path(scratch) / "recordings", summary["series"])
        ledger = summary["ledger"]
        recorded_raw = policy == "record"
        return {
            **environment(),
            "seed": seed,
            "policy": policy,
            "seconds": round(time.monotonic() - began_s, 1),
            "kills": dict(sorted(killed.items())),
            "freezes": dict(sorted(frozen.items())),
            "restarts": rig.supervisor.restarts,
            "ledger": ledger,
            "lost": ledger["acquired"] - ledger["reconstructed"] - ledger["raw_only"] - sum(ledger["dropped"].values()),
            "twice": sum(count > 1 for count in videos.values()) + sum(count > 1 for count in raws.values()),
            "missing_raw": len(set(range(ledger["acquired"])) - set(raws)) if recorded_raw else 0,
            "missing_video": ledger["reconstructed"] - len(videos),
            "status": rig.status,
        }


def _inject(
    rig: SupervisedRig, draw: random.Random, *, kills: int, pause_s: float, freeze: float, say: Callable[[str], None]
) -> tuple[Counter[str], Counter[str]]:
    """Kill and freeze nodes; return the counts by node. If the drawn node is down, draw again."""
    killed: Counter[str] = Counter()
    frozen: Counter[str] = Counter()
    while killed.total() + frozen.total() < kills:
        time.sleep(draw.expovariate(1 / pause_s))
        if not rig.running:
            raise EnvironmentFault(
                "The rig stopped", got=f"exit status {rig.status}", hint="Last log lines: " + " | ".join(rig.lines)
            )
        running = sorted(rig.supervisor.processes.items())
        if not running:
            continue
        node, pid = draw.choice(running)
        if draw.random() < freeze:
            if _signal(pid, signal.SIGSTOP):
                time.sleep(draw.uniform(0, _LONGEST_FREEZE_S))
                _signal(pid, signal.SIGCONT)
                frozen[node] += 1
        elif _signal(pid, signal.SIGKILL):
            killed[node] += 1
            say(f"{killed.total() + frozen.total()}/{kills} {node}: {rig.latest.get('ledger.acquired', 0)} acquired")
    return killed, frozen


def _signal(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False if the process has ended already."""
    try:
        # A zombie still accepts signals and would be counted twice.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state in "ZX":
            return False
        os.kill(pid, number)
    except (ProcessLookupError, FileNotFoundError):
        return False
    return True


def recorded(folder: Path, series: str) -> tuple[Counter[int], Counter[int]]:
    """Count in how many segments the video and the raw counts of each snapshot are."""
    videos: Counter[int] = Counter()
    raws: Counter[int] = Counter()
    for path in folder.glob(f"{series}*.h5"):
        with Recording(path) as recording:
            videos.update(recording.video_seqs)
            raws.update(recording.raw_seqs)
    return videos, raws


def print_figures(figures: dict[str, Any], console: Console, json_path: Path | None) -> None:
    """Print a table; write the figures as JSON if asked to."""
    ledger = figures["ledger"]
    table = Table(title=f"nodes killed at random times ({figures['machine']}, seed {figures['seed']})")
    table.add_column("what", no_wrap=True)
    table.add_column("count", justify="right", no_wrap=True)
    rows: list[tuple[str, object]] = [
        *((f"killed: {node}", count) for node, count in figures["kills"].items()),
        *((f"frozen: {node}", count) for node, count in figures["freezes"].items()),
        ("node restarts", figures["restarts"]),
        ("snapshots acquired", ledger["acquired"]),
        ("reconstructed", ledger["reconstructed"]),
        ("raw only", ledger["raw_only"]),
        *((f"dropped: {reason}", count) for reason, count in ledger["dropped"].items()),
        ("redelivered", ledger["redelivered"]),
        ("duplicates, recognised", ledger["duplicates"]),
        ("without an outcome", figures["lost"]),
        ("twice in the recording", figures["twice"]),
        ("missing in the recording", figures["missing_raw"] + figures["missing_video"]),
        ("ledger", "closed" if ledger["closed"] else "NOT CLOSED"),
        ("exit status", figures["status"]),
    ]
    for what, count in rows:
        table.add_row(what, str(count))
    console.print(table)
    if json_path is not None:
        json_path.write_text(json.dumps(figures, indent=2) + "\n")
