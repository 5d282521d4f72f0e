"""``sci-stream bench scale``: throughput gained by a second reconstruct node, and its time to
contribute.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sci_stream.clock import unix_ns
from sci_stream.errors import EnvironmentFault, TransportError
from sci_stream.recording.reader import Recording
from sci_stream.transport.pubsub import subscribe
from sci_stream_lab.bench.environment import environment
from sci_stream_lab.bench.pipeline.scale_node import SLEEPING
from sci_stream_lab.bench.pipeline.supervised_rig import (
    LedgerFigures,
    RigTables,
    SupervisedRig,
    small_rig,
    supervised,
)
from sci_stream_lab.bench.result import BenchResult, Progress, ResultColumn, ResultTable

_SIZE_PX = 32
_CREDIT = 2
_PATIENCE_S = 120.0

Result = tuple[int, str]
"""Time of a reconstruction (Unix time, ns) and the node that made it."""


@dataclass(frozen=True, slots=True)
class ScalePhase:
    """Figures of a number of nodes: rate, its ratio to one node's, and the part of the snapshots
    that each solved.

    ``first_result_s`` is the time from the request to join to the node's first result.
    """

    nodes: int
    per_s: float
    ratio: float
    share: dict[str, float]
    first_result_s: float

    @property
    def shares(self) -> str:
        """The parts, in the order of the nodes."""
        return " ".join(f"{part:.0%}" for part in self.share.values())


@dataclass(frozen=True)
class ScaleResult(BenchResult):
    """Every phase and the account of the whole run: how many snapshots the recording has twice, or
    lacks.

    ``out_of_order`` counts results that the taps gave after a later one; ``status`` is the rig's
    exit status.
    """

    snapshots: int = 0
    phases: tuple[ScalePhase, ...] = ()
    ledger: LedgerFigures | None = None
    twice: int = 0
    missing: int = 0
    out_of_order: int = 0
    status: int | None = None

    @property
    def adds_up(self) -> bool:
        """Whether every snapshot has one outcome, in order."""
        closed = self.ledger is not None and self.ledger.closed
        return closed and not (self.twice or self.missing or self.out_of_order)


_COLUMNS = (
    ResultColumn("nodes", "nodes"),
    ResultColumn("per_s", "snapshots/s", ".1f", "1/s"),
    ResultColumn("ratio", "ratio to one node", ".2f"),
    ResultColumn("shares", "share of each"),
    ResultColumn("first_result_s", "joining to first result, s", ".2f", "s"),
)


def bench(
    *,
    nodes: int = 2,
    snapshots: int = 200,
    solve_s: float = 0.1,
    folder: Path | None = None,
    progress: Progress = lambda _line: None,
) -> ScaleResult:
    """Run a rig whose reconstruct nodes join one after the other, and evaluate its recording.

    Reconstruction is the bottleneck: the camera delivers more than all nodes together can solve,
    into a queue that drops nothing.

    Parameters
    ----------
    nodes
        Number of nodes; the first one joins before the run.
    snapshots
        Approximate number that each node reconstructs before the next one joins.
    solve_s
        Time that the denoiser sleeps for each snapshot, s.
    folder
        Where to record; a temporary folder if None, deleted afterwards.

    Raises
    ------
    EnvironmentFault
        If the rig or a node stops making progress.
    """
    total = snapshots * nodes * (nodes + 1) // 2
    with tempfile.TemporaryDirectory(prefix="sci-stream-scale-", dir=folder) as scratch:
        path = _rig(Path(scratch), total, rate_hz=2 * nodes / solve_s)
        with (
            _waiting_nodes(path, nodes, solve_s) as waiting,
            supervised(path, snapshots=total) as rig,
        ):
            joined_ns, seen = _run(rig, waiting, snapshots, progress)
            summary = rig.join(_PATIENCE_S + 2 * total * solve_s)
        with Recording(next((Path(scratch) / "recordings").glob("*.h5"))) as recording:
            seqs = recording.video_seqs
            rows = recording.rows
            results = sorted(
                (int(rows["finished_ns"][seq]), str(bytes(rows["node"][seq]).decode("ascii")))
                for seq in seqs
            )
    ledger, distinct = summary.ledger, len(set(seqs))
    twice, missing = len(seqs) - distinct, total - distinct
    out_of_order = sum(later <= earlier for earlier, later in itertools.pairwise(seen))
    here, phases = environment(), tuple(_phases(results, joined_ns))
    return ScaleResult(
        name="scale",
        environment=here,
        tables=(
            ResultTable(
                f"nodes that take {1000 * solve_s:g} ms a snapshot, joining one by one "
                f"({here.machine})",
                _COLUMNS,
                phases,
            ),
        ),
        notes=(
            f"{ledger.reconstructed} of {ledger.acquired} reconstructed, ledger {ledger.state}; "
            f"twice {twice}, missing {missing}, out of order {out_of_order}",
        ),
        settings={"solve_s": solve_s},
        snapshots=total,
        phases=phases,
        ledger=ledger,
        twice=twice,
        missing=missing,
        out_of_order=out_of_order,
        status=rig.status,
    )


def _rig(folder: Path, total: int, *, rate_hz: float) -> Path:
    tables: RigTables = {
        "policy": {
            "mode": "live",
            "queue_snapshots": total,
            "max_wait_s": 3600.0,
            "wait_for_nodes_s": 0.0,
        },
        "reconstruct": {
            "nodes": 0,
            "solver": SLEEPING,
            "devices": ["cpu"],
            "iterations": 1,
            "threads": 1,
            "credit": _CREDIT,
            "warm_start": False,
            "adapt_budget": False,
        },
        "calibration": {"health_every": 0},
        "record": {"folder": "recordings", "raw": False, "min_free_mib": 0},
    }
    return small_rig(folder, rate_hz=rate_hz, size_px=_SIZE_PX, tables=tables)


@contextlib.contextmanager
def _waiting_nodes(path: Path, nodes: int, solve_s: float) -> Iterator[list[subprocess.Popen[str]]]:
    """Start nodes that load and wait for the request to join; end all of them on exit."""
    command = [sys.executable, "-P", "-m", "sci_stream_lab.bench.pipeline.scale_node", str(path)]
    processes = [
        subprocess.Popen(
            [*command, str(index), str(solve_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        for index in range(nodes)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "loaded\n":
                raise EnvironmentFault(
                    "A reconstruct node did not start", hint="Its log lines are above."
                )
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10.0)
            process.kill()
            process.wait()
            for end in (process.stdin, process.stdout):
                if end is not None:
                    end.close()


def _run(
    rig: SupervisedRig, waiting: Sequence[subprocess.Popen[str]], snapshots: int, progress: Progress
) -> tuple[list[int], list[int]]:
    """Let nodes join one after the other; return the times, and the seqs in the order in which the
    taps gave them.
    """
    seen: list[int] = []
    listener = threading.Thread(target=_listen, args=(rig, seen), daemon=True)
    listener.start()
    joined_ns: list[int] = []
    for index, process in enumerate(waiting):
        done = snapshots * index * (index + 1) // 2
        if done:
            rig.wait_for("ledger.reconstructed", done, _PATIENCE_S)
        assert process.stdin is not None
        joined_ns.append(unix_ns())
        process.stdin.write("join\n")
        process.stdin.flush()
        progress(f"node {index} joins after {done} snapshots")
    listener.join()
    return joined_ns, seen


def _listen(rig: SupervisedRig, seen: list[int]) -> None:
    """Note the order in which results are published until the run ends."""
    while rig.running:
        with contextlib.suppress(TransportError):
            results = subscribe(rig.rig.network.taps, timeout_s=1.0, every=True)
            seen.extend(reconstruction.id.seq for reconstruction in results)


def _phases(results: Sequence[Result], joined_ns: Sequence[int]) -> list[ScalePhase]:
    """Return the figures of each phase: from the first result of a new node until the next one
    joins.
    """
    times = np.array([finished_ns for finished_ns, _ in results], np.int64)
    # At the end of the run, nodes idle while others finish their last snapshots.
    last_ns = int(times[max(0, len(times) - 1 - _CREDIT * len(joined_ns))])
    ends_ns = [*joined_ns[1:], last_ns]
    phases: list[ScalePhase] = []
    for index, (begin_ns, end_ns) in enumerate(zip(joined_ns, ends_ns, strict=True)):
        first_ns = next((at_ns for at_ns, node in results if node == f"reconstruct-{index}"), None)
        if first_ns is None:
            raise EnvironmentFault(
                f"Node {index} reconstructed nothing", hint="Use more --snapshots in each phase."
            )
        within = [node for at_ns, node in results if first_ns < at_ns <= end_ns]
        counts = Counter(within)
        per_s = len(within) / max((end_ns - first_ns) / 1e9, 1e-9)
        phases.append(
            ScalePhase(
                nodes=index + 1,
                per_s=round(per_s, 2),
                ratio=round(per_s / phases[0].per_s, 3) if phases and phases[0].per_s else 1.0,
                share={
                    node: round(count / len(within), 3) for node, count in sorted(counts.items())
                },
                first_result_s=round((first_ns - begin_ns) / 1e9, 3),
            )
        )
    return phases
