"""``sci-stream batch``, which `sci-stream` finds by its entry point."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sci_stream.cli.common import Device, echo, progress_bar, start_logging
from sci_stream.cli.recordings import (
    Iterations,
    JsonLines,
    Solver,
    Weights,
    report_result,
    some_failed,
)

if TYPE_CHECKING:
    from sci_stream.tools.replay.jobs import JobResult

batch_app = typer.Typer()


@batch_app.command()
def batch(
    manifest: Annotated[
        Path,
        typer.Argument(
            metavar="MANIFEST",
            help="A text file: a recording or a pattern (run*.h5) per line.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the new recordings; NAME_replay.h5 next to each if not given."
        ),
    ] = None,
    iterations: Iterations = None,
    solver: Solver = None,
    weights: Weights = None,
    calibration: Annotated[
        Path | None, typer.Option(help="A better calibration than the recorded ones.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="One per GPU if not given, or one without GPU.")
    ] = None,
    threads: Annotated[
        int, typer.Option(min=0, help="Of each worker on a CPU; 0: an equal share.")
    ] = 0,
    scheduler: Annotated[
        str, typer.Option(help="A running Dask scheduler: its address or scheduler file.")
    ] = "",
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Start the workers as Slurm jobs (dask-jobqueue).")
    ] = False,
    dashboard: Annotated[
        str, typer.Option(help="Address of Dask's web page; empty for none.")
    ] = "127.0.0.1:8787",
    as_json: JsonLines = False,
    device: Device = "auto",
) -> None:
    """Replay many recordings on the workers of a Dask cluster; run it again to replay the missing
    ones.
    """
    from sci_stream.tools.replay.jobs import JobState, plan_jobs
    from sci_stream.tools.replay.replay import ReplayPlan
    from sci_stream.tools.replay.solver import SolverChanges
    from sci_stream_bridges.batch import ClusterOptions, connect, run_batch
    from sci_stream_bridges.batch_jobs import read_manifest

    start_logging("batch")
    plan = ReplayPlan(
        solver=SolverChanges(solver, weights, iterations),
        calibration=None if calibration is None else calibration.absolute(),
        device=device,
    )
    # Workers may have another working directory.
    jobs = plan_jobs(
        [source.absolute() for source in read_manifest(manifest)],
        None if out is None else out.absolute(),
        plan,
    )
    options = ClusterOptions(scheduler, slurm, workers, threads, dashboard)
    with progress_bar("batch") as bar, connect(options) as client:
        if dashboard or scheduler or slurm:
            echo(f"progress of every worker: {client.dashboard_link}")
        arrived: list[JobResult] = []

        def report(result: JobResult) -> None:
            arrived.append(result)
            bar(len(arrived), len(jobs))
            report_result(result, as_json=as_json)

        results = run_batch(jobs, client, report)
    counts = {name: sum(result.state is name for result in results) for name in JobState}
    echo(", ".join(f"{count} {name}" for name, count in counts.items() if count))
    if counts[JobState.FAILED]:
        raise some_failed(counts[JobState.FAILED], len(results))
