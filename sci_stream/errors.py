"""The exception tree: user errors, environment faults, malformed messages and ledger errors.

::

    SciStreamError                exit status
    ├── InputError            2   invalid user input: correct it and start again
    │   ├── ConfigError           the rig file, an option, an environment override
    │   ├── CalibrationError      a mask stack that is unusable or does not fit
    │   ├── FileFormatError       a file whose content does not fit its name or use
    │   ├── DataError         7   snapshots or masks with a defect
    │   └── WeightsError          a denoiser checkpoint of an unknown or broken layout
    ├── EnvironmentFault      3   a fault of the environment: camera, disk, device, network
    │   ├── CameraError           the camera cannot be opened, configured or read
    │   │   └── CameraLost            the connection was lost; reopening may work
    │   ├── DeviceError           the compute device is missing or out of memory
    │   │   ├── DeviceMemoryError     out of memory; less work at a time may fit
    │   │   ├── CaptureError          a CUDA graph could not be captured; the process has to end
    │   │   └── DeviceLostError   6   the device fails everything; another process may work
    │   ├── StorageError          the disk is full, gone or not writable
    │   └── TransportError        an address is in use, unreachable or not allowed
    ├── WireError                 a message that cannot be trusted; counted by ``reason``
    └── LedgerError           4   the ledger of a run does not balance

Programming errors are none of these: they remain ``ValueError`` or ``TypeError``, with a traceback.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


class SciStreamError(Exception):
    """Base of all errors that this project raises deliberately.

    Parameters
    ----------
    what
        One sentence that names the problem and the file, field or address.
    expected, got
        Expected and given value, if applicable.
    hint
        How to solve the problem.
    """

    exit_status = 1

    def __init__(
        self, what: str, *, expected: object = None, got: object = None, hint: str | None = None
    ) -> None:
        self.what = what
        self.expected = expected
        self.got = got
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        parts = [self.what.rstrip(".")]
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        if self.got is not None:
            parts.append(f"got {self.got}")
        text = "; ".join(parts).removesuffix(".")
        if not text.endswith("?"):
            text += "."
        return f"{text} {self.hint}" if self.hint else text


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return a hint that names the most similar known word; None if none is similar."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"Did you mean {near[0]}?" if near else None


class InputError(SciStreamError):
    """Invalid user input."""

    exit_status = 2


class ConfigError(InputError):
    """The rig file, a command line option or an environment override is invalid."""


class CalibrationError(InputError):
    """A calibration is unusable or does not fit the data."""


class FileFormatError(InputError):
    """The content of a file does not fit its name or use."""


class DataError(InputError):
    """Snapshots and masks are readable, but not those of an SCI camera as it should be."""

    exit_status = 7


class WeightsError(InputError):
    """A denoiser checkpoint is of an unknown or broken layout."""


class EnvironmentFault(SciStreamError):
    """The environment lacks something that is needed."""

    exit_status = 3


class CameraError(EnvironmentFault):
    """The camera cannot be opened, configured or read."""


class CameraLost(CameraError):
    """The connection to the camera was lost; reopening may work."""


class DeviceError(EnvironmentFault):
    """The compute device is missing or out of memory."""


class DeviceMemoryError(DeviceError):
    """The compute device is out of memory; less work at a time, or a later attempt, may fit."""


class CaptureError(DeviceError):
    """A CUDA graph could not be captured: this process can no longer use the device, and another
    one may, without.
    """


class DeviceLostError(DeviceError):
    """The solver is lost to this process: its device fails everything, or it hangs.

    A new process may work.
    """

    exit_status = 6  # not that of a missing device, which a restart would not change


class StorageError(EnvironmentFault):
    """The disk is full, gone or not writable."""


class TransportError(EnvironmentFault):
    """A network address is in use, unreachable or not allowed."""


class WireError(SciStreamError):
    """An invalid message.

    Parameters
    ----------
    reason
        A short machine-readable word (``"truncated"``, ``"version"``, ``"crc"``, …) under which
        nodes count it.
    """

    def __init__(
        self,
        reason: str,
        what: str,
        *,
        expected: object = None,
        got: object = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what, expected=expected, got=got, hint=hint)
        self.reason = reason


class LedgerError(SciStreamError):
    """The ledger of a run does not balance."""

    exit_status = 4


def missing_library(error: ModuleNotFoundError) -> ConfigError | None:
    """Return the error that explains the failed import of torch, on which whole modules depend;
    None for any other.
    """
    if (error.name or "").partition(".")[0] != "torch":
        return None
    return ConfigError(
        "The library torch is not installed on this machine: it can acquire, record and export, "
        "but not reconstruct",
        hint='Install it: pip install "sci-stream[reconstruct]"',
    )


def require_optional(module: str, extra: str, what: str, package: str = "sci-stream") -> ModuleType:
    """Import an optional library.

    ``extra`` of ``package``, ``""`` for none, installs it; ``what`` needs it, and begins the
    message.

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
            hint=f'Install it: pip install "{package}{extra and f"[{extra}]"}"',
        ) from None
