"""Import optional libraries on demand, with a clear error if one is missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from sci_stream.errors import ConfigError


def missing_library(error: ModuleNotFoundError) -> ConfigError | None:
    """Return the error that explains the failed import of torch, on which whole modules depend; None for any other."""
    if (error.name or "").partition(".")[0] != "torch":
        return None
    return ConfigError(
        "The library torch is not installed on this machine: it can acquire, record and export, but not reconstruct",
        hint='Install it: pip install "sci-stream[reconstruct]"',
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
