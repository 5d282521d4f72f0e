"""``sci-stream bench faults``, ``soak``, ``scale``: a rig that is harmed, that runs for long, that gets more nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sci_stream.cli.benches import bench_app
from sci_stream.cli.common import JsonPath, table_console
from sci_stream.errors import ConfigError, LedgerError
from sci_stream.model import Policy

Folder = Annotated[Path | None, typer.Option(help="Where to record meanwhile; a temporary folder if not given.")]


@bench_app.command("faults")
def bench_faults(
    only: Annotated[
        list[str] | None, typer.Argument(help="Which faults, as the table calls them; all of them.")
    ] = None,
    kills: Annotated[int, typer.Option(min=1, help="How many nodes to kill at random moments.")] = 20,
    seed: Annotated[int, typer.Option(help="From which nodes and moments are drawn.")] = 0,
    folder: Folder = None,
    json_path: JsonPath = None,
) -> None:
    """Have a running rig befallen by one fault after the other; say what became of every snapshot."""
    from sci_stream.bench.faults import bench, print_figures

    _check(folder)
    console = Console(stderr=True)
    figures = bench(
        only or (),
        n_kills=kills,
        seed=seed,
        folder=folder,
        say=lambda line: console.print(line, highlight=False, markup=False),
    )
    print_figures(figures, table_console(), json_path)
    wrong = {name: row["wrong"] for name, row in figures["faults"].items() if row["wrong"]}
    if wrong:
        raise LedgerError("Not everything is as it should be after these faults", got=wrong)


@bench_app.command("kills")
def bench_kills(
    kills: Annotated[int, typer.Option(min=1, help="How many nodes to kill, one after the other.")] = 20,
    seed: Annotated[int, typer.Option(help="From which nodes and moments are drawn.")] = 0,
    policy: Annotated[Policy, typer.Option(help="live or record.")] = Policy.RECORD,
    rate: Annotated[float, typer.Option(min=0.1, help="Snapshots a second.")] = 20.0,
    nodes: Annotated[int, typer.Option(min=1, max=16, help="Reconstruct nodes.")] = 2,
    pause: Annotated[float, typer.Option(min=0.01, help="Mean time between two kills, s.")] = 2.0,
    freeze: Annotated[float, typer.Option(min=0.0, max=1.0, help="Fraction to stop and continue, not kill.")] = 0.0,
    folder: Folder = None,
    json_path: JsonPath = None,
) -> None:
    """Kill nodes of a running rig at random moments; say what became of every snapshot."""
    from sci_stream.bench.kills import bench, print_figures

    _check(folder)
    console = Console(stderr=True)
    figures = bench(
        kills=kills,
        seed=seed,
        policy=policy.value,
        rate_hz=rate,
        nodes=nodes,
        pause_s=pause,
        freeze=freeze,
        folder=folder,
        say=lambda line: console.print(line, highlight=False, markup=False),
    )
    print_figures(figures, table_console(), json_path)
    wrong = {name: figures[name] for name in ("lost", "twice", "missing_raw", "missing_video") if figures[name]}
    if wrong or not figures["ledger"]["closed"]:
        raise LedgerError("Snapshots do not add up after the kills", got=wrong or "a ledger that is not closed")


@bench_app.command("soak")
def bench_soak(
    snapshots: Annotated[int, typer.Option(min=100, help="How many snapshots.")] = 50_000,
    rate: Annotated[
        float | None,
        typer.Option(min=1.0, help="Snapshots a second; else what this machine keeps up with."),
    ] = None,
    denoiser: Annotated[str, typer.Option(help="identity, or tv (one iteration).")] = "identity",
    record: Annotated[bool, typer.Option(help="Record meanwhile.")] = True,
    folder: Folder = None,
    plot_path: Annotated[Path | None, typer.Option("--plot", help="Draw it into this file (.png, .svg, .pdf).")] = None,
    json_path: JsonPath = None,
) -> None:
    """Run a rig with small frames for long; say whether memory, threads, handles and latency stay flat."""
    from sci_stream.bench.soak import bench, plot, print_figures
    from sci_stream.files.extras import need

    _check(folder)
    if plot_path is not None:
        need("matplotlib", "plot", "--plot")  # rather now than after the run
    console = Console(stderr=True)
    figures = bench(
        snapshots=snapshots,
        rate_hz=rate,
        denoiser=denoiser,
        record=record,
        folder=folder,
        say=lambda line: console.print(line, highlight=False, markup=False),
    )
    print_figures(figures, table_console(), json_path)
    if plot_path is not None:
        plot(figures, plot_path)
    if not figures["ledger"]["closed"]:
        raise LedgerError("Snapshots do not add up", got=figures["ledger"])


@bench_app.command("scale")
def bench_scale(
    nodes: Annotated[int, typer.Option(min=1, max=16, help="Reconstruct nodes; they join one after the other.")] = 2,
    snapshots: Annotated[int, typer.Option(min=20, help="For each node, before the next one joins.")] = 200,
    solve_ms: Annotated[float, typer.Option(min=1.0, help="What a snapshot takes a node, ms: it sleeps.")] = 100.0,
    folder: Folder = None,
    json_path: JsonPath = None,
) -> None:
    """Let reconstruct nodes join a running rig; say what each more is worth and how soon it takes its share."""
    from sci_stream.bench.scale import bench, print_figures

    _check(folder)
    console = Console(stderr=True)
    figures = bench(
        nodes=nodes,
        snapshots=snapshots,
        solve_s=solve_ms / 1000,
        folder=folder,
        say=lambda line: console.print(line, highlight=False, markup=False),
    )
    print_figures(figures, table_console(), json_path)
    wrong = {name: figures[name] for name in ("twice", "missing", "out_of_order") if figures[name]}
    if wrong or not figures["ledger"]["closed"]:
        raise LedgerError("Snapshots do not add up", got=wrong or "a ledger that is not closed")


def _check(folder: Path | None) -> None:
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"--folder {folder} is not a folder", expected="a folder on the disk to record to")
