"""Kill nodes of a running rig at random times and account for every snapshot."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sci_stream.errors import EnvironmentFault
from sci_stream.recording.reader import Recording
from sci_stream_lab.bench.pipeline.supervised_rig import (
    LedgerFigures,
    RigTables,
    SupervisedRig,
    small_rig,
    supervised,
)

_SIZE_PX = 32
_PATIENCE_S = 90.0
_LONGEST_FREEZE_S = 2.0
_HEARTBEAT_S = 0.3


@dataclass(frozen=True, slots=True)
class KillsOutcome:
    """What became of a rig whose nodes were killed.

    ``kills`` and ``freezes`` are by node; ``twice`` counts snapshots that the recording holds more
    than once, ``missing_raw`` and ``missing_video`` those that it lacks; ``status`` is the exit
    status.
    """

    policy: str
    seconds: float
    kills: dict[str, int]
    freezes: dict[str, int]
    restarts: int
    ledger: LedgerFigures
    twice: int
    missing_raw: int
    missing_video: int
    status: int | None

    @property
    def wrong(self) -> str:
        """Each violated expectation in words; empty if there is none."""
        counts = {
            "lost": self.ledger.lost,
            "twice": self.twice,
            "raw missing": self.missing_raw,
            "videos missing": self.missing_video,
        }
        wrong = [f"{count} {name}" for name, count in counts.items() if count]
        wrong += [] if self.ledger.closed else ["the ledger is not closed"]
        wrong += [f"exit status {self.status}"] if self.status else []
        return "; ".join(wrong)


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
    report: Callable[[str], None] = lambda _line: None,
) -> KillsOutcome:
    """Run a rig, kill its nodes at random times, and check its recording.

    Parameters
    ----------
    kills, seed
        Number of kills, and the seed of their times and nodes.
    policy, rate_hz, nodes
        The rig's policy, snapshot rate and number of reconstruct nodes, 0 to record alone.
    pause_s
        Mean time between two kills; drawn from an exponential distribution.
    freeze
        Fraction that is not killed but stopped (SIGSTOP) for up to two seconds and continued.
    folder
        Where to record; a temporary folder if None, deleted afterwards.
    report
        Called with a line for each kill.

    Raises
    ------
    EnvironmentFault
        If the rig does not recover by itself.
    """
    with tempfile.TemporaryDirectory(prefix="sci-stream-faults-", dir=folder) as scratch:
        tables: RigTables = {
            "policy": {"mode": policy, "queue_snapshots": 10_000, "max_wait_s": 3600.0},
            "reconstruct": {"nodes": nodes, "adapt_budget": False},
            "network": {"heartbeat_s": _HEARTBEAT_S},
        }
        path = small_rig(Path(scratch), rate_hz=rate_hz, size_px=_SIZE_PX, tables=tables)
        began_s = time.monotonic()
        with supervised(path) as rig:
            rig.wait_for_more(1, _PATIENCE_S)
            killed, frozen = _inject(
                rig, random.Random(seed), kills=kills, pause_s=pause_s, freeze=freeze, report=report
            )
            rig.wait_for_more(1, _PATIENCE_S)
            summary = rig.finish(_PATIENCE_S * 2)
        videos, raws = recorded(Path(scratch) / "recordings", summary.series)
        ledger = summary.ledger
        return KillsOutcome(
            policy=policy,
            seconds=round(time.monotonic() - began_s, 1),
            kills=dict(sorted(killed.items())),
            freezes=dict(sorted(frozen.items())),
            restarts=rig.supervisor.restarts,
            ledger=ledger,
            twice=sum(count > 1 for count in [*videos.values(), *raws.values()]),
            missing_raw=len(set(range(ledger.acquired)) - set(raws)) if policy == "record" else 0,
            missing_video=ledger.reconstructed - len(videos),
            status=rig.status,
        )


def _inject(
    rig: SupervisedRig,
    draw: random.Random,
    *,
    kills: int,
    pause_s: float,
    freeze: float,
    report: Callable[[str], None],
) -> tuple[Counter[str], Counter[str]]:
    """Kill and freeze nodes; return the counts by node. If the drawn node is down, draw again."""
    killed: Counter[str] = Counter()
    frozen: Counter[str] = Counter()
    while killed.total() + frozen.total() < kills:
        time.sleep(draw.expovariate(1 / pause_s))
        if not rig.running:
            raise EnvironmentFault(
                "The rig stopped",
                got=f"exit status {rig.status}",
                hint="Last log lines: " + " | ".join(rig.lines),
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
            report(
                f"{killed.total() + frozen.total()}/{kills} {node}: "
                f"{rig.latest.get('ledger.acquired', 0)} acquired"
            )
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
