"""``sci-stream train`` and ``sci-stream weights …``: train denoisers, export and import weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sci_stream.cli.common import Device, Force, echo, new_console, start_logging

train_app = typer.Typer()
weights_app = typer.Typer(help="Denoiser weights.", no_args_is_help=True)

Minutes = Annotated[
    float | None, typer.Option(help="Minutes of this session; without --steps they set the steps.")
]
HeldOut = Annotated[
    int | None,
    typer.Option(help="Photographs, or clips, held out for validation; 8 or 2 if unset."),
]


@train_app.command()
def train(
    data: Annotated[Path, typer.Argument(help="Folder of photographs.", show_default=False)],
    run: Annotated[
        Path,
        typer.Argument(
            help="Folder of the training run: checkpoint and curve.", show_default=False
        ),
    ],
    steps: Annotated[int | None, typer.Option(help="Total number of steps.")] = None,
    minutes: Minutes = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in the folder.")] = False,
    start_from: Annotated[
        Path | None, typer.Option(help="Weights that a new run starts from.")
    ] = None,
    variant: Annotated[
        str,
        typer.Option(help="ffdnet, ffdnet-lite, either with -mosaic for colour, or unrolled."),
    ] = "ffdnet-lite",
    clips: Annotated[
        Path | None,
        typer.Option(help="Folder of clips; networks of frames then learn in the loop."),
    ] = None,
    masks: Annotated[list[Path], typer.Option(help="Measured masks, for solves; repeatable.")] = [],  # noqa: B006  # typer copies it
    stages: Annotated[int, typer.Option(help="Stages of unrolled.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    batch: Annotated[
        int | None, typer.Option(help="Patches per step; 16, or 32 of unrolled, if unset.")
    ] = None,
    patch: Annotated[int, typer.Option(help="Height and width of a patch in pixels, even.")] = 64,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate of Adam; by variant if unset.")
    ] = None,
    kernel_rate: Annotated[
        float | None, typer.Option(help="Rate of Muon, for the inner kernels, likewise.")
    ] = None,
    decay: Annotated[
        float, typer.Option(help="Share of the steps over which the rates fall.")
    ] = 0.3,
    clip_size: Annotated[
        int, typer.Option(help="Height and width of the videos of unrolled, in pixels.")
    ] = 128,
    taught_share: Annotated[
        float,
        typer.Option(
            help="Of unrolled: share of the draws that 40 iterations with ffdnet teach too."
        ),
    ] = 0.3,
    validate_every: Annotated[
        int, typer.Option(help="Steps between checkpoints and points of the curve.")
    ] = 1000,
    held_out: HeldOut = None,
    memory_mib: Annotated[
        int, typer.Option(min=1, help="Memory limit for decoded photographs, and for clips, MiB.")
    ] = 4096,
    device: Device = "auto",
) -> None:
    """Train a denoiser on photographs, or on clips and photographs; Ctrl-C keeps a checkpoint to
    resume from.
    """
    from sci_stream.nodes.runtime.process import stop_on_signals
    from sci_stream.recon.backend.device import pick_device
    from sci_stream_lab.training.settings import Until, settings_for
    from sci_stream_lab.training.train import train as train_network

    start_logging("train")
    settings = settings_for(
        variant,
        seed=seed,
        batch=batch,
        patch_px=patch,
        learning_rate=learning_rate,
        kernel_rate=kernel_rate,
        decay_share=decay,
        clip_px=clip_size,
        taught_share=taught_share,
        stages=stages,
        validate_every=validate_every,
    )
    with stop_on_signals() as stop:
        result = train_network(
            data,
            run,
            settings,
            Until(steps, minutes),
            device=pick_device(device),
            clips=clips,
            masks=masks,
            resume=resume,
            start_from=start_from,
            held_out=held_out,
            memory_mib=memory_mib,
            stop=lambda: bool(stop),
            console=new_console(stderr=True),
        )
    skipped = f"; {n} files skipped" if (n := result.unreadable + result.too_small) else ""
    next_step = "sci-stream weights export" if result.finished else "continue with --resume"
    echo(f"{result.step} steps{skipped}; next: {next_step}")


@weights_app.command("export")
def weights_export(
    run: Annotated[Path, typer.Argument(help="Folder of the training run.", show_default=False)],
    path: Annotated[
        Path, typer.Argument(metavar="OUT.safetensors", help="Output file.", show_default=False)
    ],
    photographs: Annotated[
        list[str], typer.Option(help="Source and licence of the photographs; repeatable.")
    ] = [],  # noqa: B006  # typer copies it
    clips: Annotated[
        list[str], typer.Option(help="Source and licence of the clips; repeatable.")
    ] = [],  # noqa: B006  # typer copies it
    licence: Annotated[str, typer.Option(help="Licence of the weights.")] = "not stated",
    mixed_with: Annotated[
        Path | None, typer.Option(help="Weights that the run began with, to mix with its own.")
    ] = None,
    share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the run's own in a mixture.")
    ] = 0.5,
    test_on: Annotated[
        list[Path], typer.Option(help="Folder of test images for the card; repeatable.")
    ] = [],  # noqa: B006  # typer copies it
    beside: Annotated[
        list[Path], typer.Option(help="Checkpoint to compare with on the card; repeatable.")
    ] = [],  # noqa: B006  # typer copies it
    device: Device = "auto",
) -> None:
    """Write a run's weights as safetensors, with their model card next to them."""
    from sci_stream.recon.backend.device import pick_device
    from sci_stream_lab.training.export import TestPlan, export_weights

    plan = TestPlan(test_on, beside, pick_device(device))
    export_weights(
        run,
        path,
        data=photographs,
        clip_data=clips,
        licence=licence,
        mixed_with=mixed_with,
        share=share,
        plan=plan,
        progress=echo,
    )
    typer.echo(f"wrote {path} and {path.with_suffix('.md')}")


@weights_app.command("import")
def weights_import(
    source: Annotated[
        Path, typer.Argument(help="KAIR or IPOL .pth, MatConvNet .mat.", show_default=False)
    ],
    path: Annotated[
        Path, typer.Argument(metavar="OUT.safetensors", help="Output file.", show_default=False)
    ],
    licence: Annotated[
        str, typer.Option(help="Licence of the weights, stored in the file.")
    ] = "not stated",
    force: Force = False,
) -> None:
    """Convert a published checkpoint to safetensors: verified, normalisation folded, without
    running its code.
    """
    from sci_stream_lab.training.convert import import_weights

    _print_weights(import_weights(source, path, licence=licence, force=force).rows())


@weights_app.command("onnx")
def weights_onnx(
    source: Annotated[
        str, typer.Argument(help="ffdnet, ffdnet-lite, or a checkpoint.", show_default=False)
    ],
    path: Annotated[
        Path, typer.Argument(metavar="OUT.onnx", help="Output file.", show_default=False)
    ],
    force: Force = False,
) -> None:
    """Write a network as an ONNX model for other runtimes; needs the package onnx."""
    from sci_stream_lab.training.onnx_export import export_onnx

    export_onnx(source, path, force=force)
    typer.echo(f"wrote {path}")


@weights_app.command("show")
def weights_show(
    path: Annotated[Path, typer.Argument(help="Checkpoint of any layout.", show_default=False)],
) -> None:
    """Describe a checkpoint."""
    from sci_stream_lab.training.convert import describe_weights

    _print_weights(describe_weights(path).rows())


def _print_weights(rows: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        typer.echo(f"{name:<{width}}  {value}")
