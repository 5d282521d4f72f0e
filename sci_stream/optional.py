"""Import optional libraries on demand, with a clear error if one is missing."""

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
        What needs it: the beginning of the message.

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
