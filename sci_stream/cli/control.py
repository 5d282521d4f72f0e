"""``sci-stream control``: list and change the parameters of a running rig."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sci_stream.cli.common import app, named_rig, new_console, table_console
from sci_stream.errors import ConfigError, InputError

if TYPE_CHECKING:
    from sci_stream.config import Rig
    from sci_stream.parameters import Value
    from sci_stream.web.control_client import Controllable

_COMMANDS = ("list", "set", "do")
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RIG.toml] [list | set NODE.NAME VALUE | do NODE ACTION]",
        help="The rig file, `demo`, or nothing for the rig that runs here; then the command, "
        "`list` by default.",
    ),
]
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@app.command()
def control(
    words: Words = None,
    url: Annotated[
        str, typer.Option(help="Address of the live page, if different from the rig file.")
    ] = "",
    who: Annotated[
        str, typer.Option(help="Operator name for the log and the recording; by default this user.")
    ] = "",
) -> None:
    """List and change parameters of a running rig: iterations, solver, exposure, recording, the
    next series.

    NODE is a node name, or a kind such as reconstruct for all its nodes. Requests go through the
    live page.
    """
    from sci_stream.config import load_rig
    from sci_stream.web.control_client import RigControl

    words = words or []
    named = bool(words) and words[0] not in _COMMANDS
    loaded = load_rig(named_rig(Path(words.pop(0))) if named else _running_rig())
    running = RigControl(
        url or page_address(loaded), token=loaded.preview.token or None, who=who or None
    )
    match words or ["list"]:
        case ["list"]:
            _print_nodes(running.nodes(), table_console())
        case ["set", target, text]:
            node, name, value = parse_target(running.nodes(), target, text)
            for changed, values in running.set(node, **{name: value}).items():
                for key, now in values.items():
                    new_console().print(
                        f"{escape(changed)}.{escape(key)} = {_shown(now)}", highlight=False
                    )
        case ["do", node, action]:
            new_console().print(escape(running.do(node, action) or "done"), highlight=False)
        case others:
            expected = "list, set NODE.NAME VALUE, or do NODE ACTION"
            raise InputError("Unknown control command", expected=expected, got=" ".join(others))


def _running_rig() -> Path:
    """Return the rig file of the only run of this user on this machine.

    Raises `ConfigError` if there is none, or several.
    """
    from sci_stream.nodes.runtime.runtime_folder import running_rigs

    rigs = running_rigs()
    if len(rigs) != 1:
        raise ConfigError(
            "Several rigs run" if rigs else "No rig of this user runs on this machine",
            expected="one run, or the rig file as first argument",
            got=", ".join(map(str, rigs)) or "none",
            hint="" if rigs else "Start one: sci-stream demo, or sci-stream run RIG.toml.",
        )
    return rigs[0]


def page_address(rig: Rig) -> str:
    """Return the address of a rig's live page, through which it is controlled.

    Raises `ConfigError` if it has none, or its address is not in the rig file.
    """
    from sci_stream.config.fields import network_location

    section = rig.preview
    if not section.enabled:
        raise ConfigError(
            "The rig has no live page, which control needs",
            expected="[preview] enabled = true",
            got="false",
            hint="kill -USR1 of the run still starts the next series.",
        )
    if not section.port:
        raise ConfigError(
            "The rig file has no address of the live page: [preview] port is 0",
            hint="Use --url with the address that the sink prints, or set a port.",
        )
    host = _EVERYWHERE.get(section.host, section.host)
    return f"http://{network_location(host, section.port)}/"


def parse_target(
    nodes: Mapping[str, Controllable], target: str, text: str
) -> tuple[str, str, Value]:
    """Return node, name and value to set, with the value in the declared type.

    Raises `InputError` if the name is unknown or the value invalid.
    """
    node, _, name = target.partition(".")
    meant = [entry for entry in nodes.values() if node in {entry.node, entry.kind}]
    if not name or not meant:
        raise InputError(
            f"Unknown parameter {target}",
            expected="NODE.NAME, with one of the nodes " + ", ".join(nodes),
            hint="sci-stream control RIG.toml list shows all.",
        )
    known = meant[0].parameters
    if name not in known:
        expected = f"one of {', '.join(known)}" if known else "none: it offers no parameters now"
        raise InputError(f"{node} has no parameter {name!r}", expected=expected)
    return node, name, known[name].parsed(text)


def _print_nodes(nodes: Mapping[str, Controllable], console: Console) -> None:
    table = Table("set NODE.NAME", "now", "may be", "what", box=None, pad_edge=False)
    for entry in nodes.values():
        for name, parameter in entry.parameters.items():
            target = f"{entry.node}.{name}"
            table.add_row(
                target, _shown(parameter.value), parameter.range, escape(parameter.description)
            )
    console.print(table)
    for entry in nodes.values():
        for action in entry.actions:
            console.print(f"do {escape(entry.node)} {escape(action)}", highlight=False)


def _shown(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.10g}" if isinstance(value, float) else escape(str(value))
