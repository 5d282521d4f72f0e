"""``sci-stream control``: what may be set on a running rig, and setting it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sci_stream.cli.common import RigPath, app, table_console
from sci_stream.errors import ConfigError, InputError

if TYPE_CHECKING:
    from sci_stream.config import Rig
    from sci_stream.control_client import Controllable
    from sci_stream.parameters import Value

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[list | set NODE.NAME VALUE | do NODE ACTION]", help="What to do; list, if nothing is said."
    ),
]
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@app.command()
def control(
    rig: RigPath,
    words: Words = None,
    url: Annotated[str, typer.Option(help="Address of the live page, if it is not where the rig file says.")] = "",
    who: Annotated[str, typer.Option(help="Who asks, for the log and the recording; else this user.")] = "",
) -> None:
    """See and change what may be set on a running rig: iterations, denoiser, exposure, recording, the next series.

    NODE is a name, or a kind such as reconstruct for all nodes of it. It goes by way of the live page.
    """
    from sci_stream.config import load_rig
    from sci_stream.control_client import RigControl

    loaded = load_rig(rig)
    running = RigControl(url or page_address(loaded), token=loaded.preview.token or None, who=who or None)
    match words or ["list"]:
        case ["list"]:
            _print_nodes(running.nodes(), table_console())
        case ["set", target, text]:
            node, name, value = wanted(running.nodes(), target, text)
            for changed, values in running.set(node, **{name: value}).items():
                for key, now in values.items():
                    Console().print(f"{escape(changed)}.{escape(key)} = {_shown(now)}", highlight=False)
        case ["do", node, action]:
            Console().print(escape(running.do(node, action) or "done"), highlight=False)
        case others:
            expected = "list, set NODE.NAME VALUE, or do NODE ACTION"
            raise InputError("This is nothing to control a rig by", expected=expected, got=" ".join(others))


def page_address(rig: Rig) -> str:
    """Return the address of a rig's live page, through which it is controlled.

    Raises
    ------
    ConfigError
        If it has none, or one that the rig file does not tell.
    """
    section = rig.preview
    if not section.enabled:
        raise ConfigError(
            "The rig has no live page, and is controlled through it",
            expected="[preview] enabled = true",
            got="false",
            hint="kill -USR1 of the run still begins another series.",
        )
    if not section.port:
        raise ConfigError(
            "The rig file does not say where the live page is: [preview] port is 0",
            hint="Give --url as the sink prints it, or set a port.",
        )
    host = _EVERYWHERE.get(section.host, section.host)
    return f"http://[{host}]:{section.port}/" if ":" in host else f"http://{host}:{section.port}/"


def wanted(nodes: Mapping[str, Controllable], target: str, text: str) -> tuple[str, str, Value]:
    """Return node, name and value of what is to be set, the value as the declared type.

    Raises
    ------
    InputError
        If there is nothing of this name, or the value is none for it.
    """
    node, _, name = target.partition(".")
    meant = [entry for entry in nodes.values() if node in {entry.node, entry.kind}]
    if not name or not meant:
        raise InputError(
            f"There is nothing called {target} to be set",
            expected="NODE.NAME, with one of the nodes " + ", ".join(nodes),
            hint="sci-stream control RIG.toml list shows all.",
        )
    known = meant[0].parameters
    if name not in known:
        expected = f"one of {', '.join(known)}" if known else "no parameter: nothing can be set on it now"
        raise InputError(f"{node} has no parameter {name!r}", expected=expected)
    return node, name, known[name].parsed(text)


def _print_nodes(nodes: Mapping[str, Controllable], console: Console) -> None:
    table = Table("set NODE.NAME", "now", "may be", "what", box=None, pad_edge=False)
    for entry in nodes.values():
        for name, parameter in entry.parameters.items():
            target = f"{entry.node}.{name}"
            table.add_row(target, _shown(parameter.value), parameter.range, escape(parameter.says))
    console.print(table)
    for entry in nodes.values():
        for action in entry.actions:
            console.print(f"do {escape(entry.node)} {escape(action)}", highlight=False)


def _shown(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.10g}" if isinstance(value, float) else escape(str(value))
