"""Commands of other packages: entry points of the group ``sci_stream.commands``, loaded when listed
or called.

An entry point is named after its command, ``masks.advise`` after one of ``sci-stream masks``, and
is a ``typer.Typer`` with one command, or with several below that name.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from sci_stream.errors import ConfigError
from sci_stream.plugin_entries import imported, plugin_entry, plugin_names

GROUP = "sci_stream.commands"
_LAB = "sci-stream-lab"
PACKAGES = {
    "bench": _LAB,
    "compare": _LAB,
    "train": _LAB,
    "weights": _LAB,
    "masks.advise": _LAB,
    "batch": "sci-stream-bridges[batch]",
    "modulate": "sci-stream-modulators",
}
"""The packages of this project that have further commands, by command."""


class PluginGroup(TyperGroup):
    """A group whose own commands come first, followed by those of installed plug-ins."""

    prefix = ""
    """Begin of the entry points' names."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        names = super().list_commands(ctx)
        plugins = (name for name in plugin_names(GROUP) if name.startswith(self.prefix))
        here = {name.removeprefix(self.prefix) for name in plugins}
        return names + sorted(name for name in here - {*names} if "." not in name)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None if no package has it."""
        return super().get_command(ctx, cmd_name) or _plugin_command(self.prefix + cmd_name)


class MaskCommands(PluginGroup):
    """The commands of ``sci-stream masks``."""

    prefix = "masks."


def _plugin_command(name: str) -> Any:
    if (entry := plugin_entry(GROUP, name)) is not None:
        try:
            what = f"the command {name} ({entry.value})"
            command = imported(lambda: get_command(entry.load()), what)
        except ConfigError as error:
            return _failing(name, error)
        command.name = name.rpartition(".")[2]
        return command
    if name not in PACKAGES:
        return None
    hint = f"Install it: pip install '{PACKAGES[name]}', or `make install` in a checkout."
    return _failing(
        name, ConfigError(f"`sci-stream {name.replace('.', ' ')}` is in another package", hint=hint)
    )


def _failing(name: str, error: ConfigError) -> Any:
    """Return a command that raises this error whatever its arguments, and has it as its help."""
    app = typer.Typer(rich_markup_mode=None)

    @app.command(
        name,
        help=str(error),
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def fail() -> None:
        raise error

    return get_command(app)
