"""``sci-stream masks advise``: the masks that suit a rig."""

from __future__ import annotations

from typing import Annotated

import typer

from sci_stream.cli.common import JsonPath, RigPath, echo, table_console
from sci_stream.errors import ConfigError

advise_app = typer.Typer()


@advise_app.command()
def advise(
    rig: RigPath,
    clip: Annotated[
        list[str] | None, typer.Option("--clip", help="Video file or scene; may be repeated.")
    ] = None,
    masks: Annotated[str, typer.Option(help="Numbers of masks B to compare.")] = "8",
    open_share: Annotated[
        str, typer.Option("--open", help="Open shares to compare.")
    ] = "0.5,0.35,0.25",
    feature: Annotated[
        str, typer.Option(help="Sides of an element to compare, pixels of the sensor.")
    ] = "1",
    exposure: Annotated[
        float, typer.Option(min=0.01, max=10, help="Light; above 1 half-open masks clip.")
    ] = 0.9,
    size: Annotated[
        int, typer.Option(min=32, max=2048, help="Size of the simulation, pixels.")
    ] = 256,
    snapshots: Annotated[int, typer.Option(min=1, help="Snapshots of each clip.")] = 2,
    json_path: JsonPath = None,
) -> None:
    """Compare masks by simulation, with the denoiser of a rig: expected dB and clipped share."""
    from sci_stream.config import load_rig
    from sci_stream_lab.bench.quality.masks import bench
    from sci_stream_lab.bench.result import print_result, write_json

    try:
        shares, features = (
            [float(word) for word in text.split(",")] for text in (open_share, feature)
        )
        choices = [int(word) for word in masks.split(",")], shares, features
    except ValueError as error:
        raise ConfigError(
            "--masks, --open and --feature are lists as in 0.5,0.25", got=error
        ) from None
    clips, loaded = clip or ["fast"], load_rig(rig)
    result = bench(
        loaded, choices, clips, exposure=exposure, size_px=size, snapshots=snapshots, progress=echo
    )
    print_result(result, table_console())
    if json_path is not None:
        write_json(result, json_path)
