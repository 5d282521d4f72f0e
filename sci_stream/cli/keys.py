"""``sci-stream keys``: the CURVE keys of a rig's hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sci_stream.cli.common import app, echo

keys_app = typer.Typer(help="CURVE keys of a rig's hosts.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")

KeyFile = Annotated[
    Path | None, typer.Option("--file", help="This host's key file; \\[security] key of the rig.")
]


def _key_file(given: Path | None) -> Path:
    from sci_stream.config.sections import SecuritySection

    return (given or SecuritySection().key).expanduser()


@keys_app.command("new")
def new(file: KeyFile = None) -> None:
    """Create this host's key pair and print the public key."""
    from sci_stream.security.keys import make_key_pair

    path = _key_file(file)
    public = make_key_pair(path)
    echo(f"secret key: {path}, readable by this user only. Public key, for the other hosts:")
    typer.echo(public)


@keys_app.command("show")
def show(file: KeyFile = None) -> None:
    """Print this host's public key."""
    from sci_stream.security.keys import read_key_pair

    typer.echo(read_key_pair(_key_file(file)).public.decode())


@keys_app.command(
    "allow", context_settings={"ignore_unknown_options": True}
)  # a key may begin with "-"
def allow(
    key: Annotated[
        str, typer.Argument(help="Public key of another host, as printed by its `keys show`.")
    ],
    name: Annotated[str, typer.Argument(help="Name of the host, as a comment.")],
    allowed: Annotated[
        Path | None,
        typer.Option("--list", help="The list of allowed keys; \\[security] allowed of the rig."),
    ] = None,
) -> None:
    """Allow the nodes of another host to connect. Takes effect immediately, without a restart."""
    from sci_stream.config.sections import SecuritySection
    from sci_stream.security.keys import allow_key

    path = (allowed or SecuritySection().allowed).expanduser()
    words = "may connect" if allow_key(path, key, name) else "was already on the list"
    echo(f"{name} {words}: {path}")
