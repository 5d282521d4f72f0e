"""``sci-stream window``: the video of a running rig in a window on this machine's screen."""

from __future__ import annotations

from sci_stream.cli.common import RigPath, app, state


@app.command()
def window(rig: RigPath) -> None:
    """Show a running rig's video in a window; `run`, `demo` and `sink` open it with --window."""
    from sci_stream.config import load_rig
    from sci_stream.nodes.logs import set_up_logging
    from sci_stream.nodes.runner import stop_on_signals
    from sci_stream.nodes.window import run_window

    set_up_logging("window", verbose=state["verbose"])
    loaded = load_rig(rig)
    with stop_on_signals() as stop:
        run_window(loaded, stop)
