"""``sci-stream masks``: make masks, and hold one on the modulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from sci_stream.cli.common import Force, RigPath, app, echo, new_console, start_logging
from sci_stream.cli.plugin_commands import MaskCommands
from sci_stream.errors import ConfigError

if TYPE_CHECKING:
    from sci_stream.web.calibration_page import LiveFrame

masks_app = typer.Typer(cls=MaskCommands, help="Masks by design.", no_args_is_help=True)
app.add_typer(masks_app, name="masks")


@masks_app.command("make")
def masks_make(
    output: Annotated[Path, typer.Argument(help="File or, of png and dlp, folder to write.")],
    masks: Annotated[
        int, typer.Option("-n", "--masks", min=1, max=4096, help="Number of masks B.")
    ] = 8,
    height: Annotated[
        int, typer.Option(min=1, max=8192, help="Height of the modulator, mirrors.")
    ] = 1080,
    width: Annotated[
        int, typer.Option(min=1, max=8192, help="Width of the modulator, mirrors.")
    ] = 1920,
    kind: Annotated[str, typer.Option(help="random, balanced, shifting or one-hot.")] = "random",
    open_share: Annotated[
        float, typer.Option("--open", min=0.01, max=0.99, help="Share of open elements.")
    ] = 0.5,
    block: Annotated[int, typer.Option(min=1, max=512, help="Side of an element, mirrors.")] = 1,
    mirrors_per_pixel: Annotated[
        float, typer.Option(min=0.01, help="Mirrors on a pixel of the sensor.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds make equal masks.")] = 0,
    form: Annotated[
        str, typer.Option("--as", help="npy, png, alp (raw bytes) or dlp (24 masks an image).")
    ] = "npy",
    force: Force = False,
) -> None:
    """Make binary masks for a modulator."""
    from sci_stream.files.mask_files import write_masks
    from sci_stream.modulation.patterns import Kind, make_masks

    if kind not in get_args(Kind):
        kinds = ", ".join(get_args(Kind))
        raise ConfigError("Unknown --kind", expected=f"one of {kinds}", got=repr(kind))
    made = make_masks(
        cast(Kind, kind), masks, (height, width), open_share=open_share, block=block, seed=seed
    )
    write_masks(output, made, form, replace=force)
    blind = float((made.max(axis=0) == 0).mean())
    feature_px = block / mirrors_per_pixel
    typer.echo(
        f"wrote {output}: {masks} masks of {height}×{width}, {made.mean() / 255:.1%} open, "
        f"{blind:.2%} of the mirrors "
        f"never; an element is {block} {'mirror' if block == 1 else 'mirrors'} wide, which is "
        f"{feature_px:.3g} pixels of the sensor; "
        f"[modulator] patterns = {json.dumps(str(output))}"
    )
    if kind in {"balanced", "one-hot"}:
        echo(
            f"{kind} masks add up evenly: the rig cannot see whether they fit or have moved, and "
            "corrects no shift"
        )
    if feature_px < 1:
        echo("elements smaller than a pixel of the sensor lose contrast: use a larger --block")


@masks_app.command("hold")
def masks_hold(
    rig: RigPath,
    pattern: Annotated[
        str, typer.Argument(help="white, dark, the number of a mask, or cycle: all, with pulses.")
    ] = "white",
) -> None:
    """Hold a pattern or run the masks, with white level, focus and contrast here and on a page,
    until Ctrl-C: to align.
    """
    from sci_stream.config import load_rig
    from sci_stream.devices.modulators import make_coded_camera
    from sci_stream.ports import Pattern
    from sci_stream.tools.calibrate import hold
    from sci_stream.web.calibration_page import CalibrationPage

    start_logging("masks")
    if not pattern.isdecimal() and pattern not in {"white", "dark", "cycle"}:
        raise ConfigError(
            "Unknown pattern",
            expected="white, dark, cycle, or the number of a mask",
            got=repr(pattern),
        )
    held = (
        int(pattern)
        if pattern.isdecimal()
        else None
        if pattern == "cycle"
        else cast(Pattern, pattern)
    )
    loaded = load_rig(rig)
    page = CalibrationPage(loaded.preview)
    echo(f"white level, focus and contrast: {page.url}")
    console = new_console(stderr=True)
    try:
        with console.status(page.words) as line:

            def show(frame: LiveFrame) -> None:
                page.show(frame)
                line.update(page.words)

            hold(make_coded_camera(loaded), held, show)
    except KeyboardInterrupt:
        echo(f"{page.words}; stopped: the camera is closed")
    except ValueError as error:
        raise ConfigError("Unknown pattern", got=error) from None
    finally:
        page.close()
