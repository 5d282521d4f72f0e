"""``sci-stream bench speed``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sci_stream.cli.benches import bench_app
from sci_stream.cli.common import Device, JsonPath, table_console
from sci_stream.errors import ConfigError


@bench_app.command("speed")
def bench_speed(
    sizes: Annotated[
        str | None,
        typer.Option(help="Rows x columns x frames, by commas: 256x256x8,512x512x22:bayer. '' for none."),
    ] = None,
    denoiser: Annotated[str, typer.Option(help="ffdnet, ffdnet-lite or tv.")] = "ffdnet",
    weights: Annotated[
        Path | None, typer.Option(help="Checkpoint; without one ffdnet has random weights, which are as fast.")
    ] = None,
    precision: Annotated[str, typer.Option(help="auto, float32 or half.")] = "auto",
    iterations: Annotated[int, typer.Option(min=1, help="Iterations of a snapshot.")] = 8,
    against: Annotated[
        Path | None,
        typer.Option(help="Published .mat file on which to time the published loop, and how soon it is matched."),
    ] = None,
    shots: Annotated[int, typer.Option(min=1, help="Shots of that file to take.")] = 1,
    chunks: Annotated[
        bool, typer.Option("--chunks", help="Also try how much goes through the network at once.")
    ] = False,
    most_seconds: Annotated[float, typer.Option(min=0, help="Skip sizes expected to take longer than this.")] = 120.0,
    device: Device = "auto",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: torch's choice.")] = 0,
    json_path: JsonPath = None,
    plot: Annotated[Path | None, typer.Option(help="Draw a picture into this file.")] = None,
) -> None:
    """Measure what an iteration and a snapshot cost, by size, and how soon the published result is reached."""
    import torch

    from sci_stream.bench import reach, speed
    from sci_stream.bench.speed_report import plot_figures, print_figures
    from sci_stream.recon.denoisers.rounding import Precision
    from sci_stream.recon.device import pick_device
    from sci_stream.recon.settings import default_settings

    if precision not in set(Precision):
        raise ConfigError("Unknown --precision", expected="auto, float32 or half", got=repr(precision))
    chosen = speed.SIZES if sizes is None else speed.parse_sizes(sizes) if sizes else ()
    on = pick_device(device)
    if threads:
        torch.set_num_threads(threads)
    network, make = _denoisers(denoiser, weights, on, Precision(precision))
    prior = make(None)
    settings = default_settings(on, denoiser)
    console = Console(stderr=True)

    def progress(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    few = min(settings.min_iterations, iterations)
    timed = dataclasses.replace(settings, iterations=iterations, min_iterations=few)
    figures: dict[str, Any] = speed.bench(
        prior, network, timed, device=on, sizes=chosen, progress=progress, most_seconds=most_seconds
    )
    if chunks and chosen and network is not None:
        figures["chunks"] = speed.time_chunks(make, on, chosen[0], progress)
    if against is not None:
        if network is None or weights is None:
            raise ConfigError("--against needs a trained network", expected="--weights, with ffdnet or ffdnet-lite")
        taken = reach.read_shots(against, shots)
        figures["reach"] = reach.time_to_reach(taken, network, prior, settings, device=on, progress=progress)
    print_figures(figures, table_console(), json_path)
    if plot is not None:
        plot_figures(figures, plot)


def _denoisers(name: str, weights: Path | None, device: Any, precision: Any) -> tuple[Any, Any]:
    """Return the network, None if the prior is none, and a maker of the denoiser by pixels per chunk."""
    from sci_stream.bench.reach import read_weights
    from sci_stream.recon.denoisers import make_denoiser
    from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
    from sci_stream.recon.variants import VARIANTS, shipped_weights, variant_shape
    from sci_stream.recon.weights import load_ffdnet
    from sci_stream.training.learner import initial_weights

    if name not in VARIANTS:
        return None, lambda _pixels: make_denoiser(name, device, weights)
    if weights is not None:
        network = read_weights(weights)
    elif name == "ffdnet-lite":
        network = load_ffdnet(shipped_weights(name))
    else:
        network = initial_weights(variant_shape(name), seed=0)
    return network, lambda pixels: FfdnetDenoiser(network, device, precision, name=name, pixels_per_chunk=pixels)
