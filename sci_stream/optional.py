"""Import optional libraries on demand, with a clear error if one is missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from sci_stream.errors import ConfigError

# Libraries that whole modules are built on, so that a command without them fails at its imports.
_EXTRAS = {"torch": "reconstruct"}


def missing_library(error: ModuleNotFoundError) -> ConfigError | None:
    """Return the error that explains the failed import of an optional library; None for any other module."""
    name = (error.name or "").partition(".")[0]
    if name not in _EXTRAS:
        return None
    return ConfigError(
        f"The library {name} is not installed on this machine: it can acquire, record and export, but not reconstruct",
        hint=f'Install it: pip install "sci-stream[{_EXTRAS[name]}]"',
    )


def require_optional(module: str, extra: str, what: str) -> ModuleType:
    """Import an optional library.

    ``extra`` of this package installs it; ``what`` needs it, and begins the message.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{what} needs the library {module}, which is not installed",
            got=error,
            hint=f'Install it: pip install "sci-stream[{extra}]"',
        ) from None
