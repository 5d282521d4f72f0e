"""Libraries that not everybody needs: imported when they are asked for, and their absence said in words."""

from __future__ import annotations

import importlib
from types import ModuleType

from sci_stream.errors import ConfigError


def require_optional(module: str, extra: str, what: str) -> ModuleType:
    """Import an optional library.

    Parameters
    ----------
    module
        Its name.
    extra
        The extra of this package that installs it.
    what
        What it is needed for, to begin the message with.

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
