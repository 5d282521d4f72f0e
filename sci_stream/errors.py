"""The exception tree. User errors are apart from environment faults and from malformed messages.

::

    SciStreamError
    ├── InputError            what the user gave is wrong: correct it and start again       (exit status 2)
    │   ├── ConfigError           the rig file, an option, an environment override
    │   ├── CalibrationError      a mask stack that is unusable or does not fit
    │   ├── FileFormatError       a file that is not what its name or use says
    │   └── WeightsError          a denoiser checkpoint of an unknown or broken layout
    ├── EnvironmentFault      the world is not as needed: camera, disk, device, network  (exit status 3)
    │   ├── CameraError           the camera cannot be opened, configured or read
    │   │   └── CameraLost            it was there and went away; opening it again may work
    │   ├── DeviceError           the compute device is missing or out of memory
    │   │   └── DeviceMemoryError     it has too little memory now; with less to do at once it may work
    │   ├── StorageError          the disk is full, gone or not writable
    │   └── TransportError        an address is in use, unreachable or not allowed
    ├── WireError             a message that cannot be trusted; counted by ``reason``, never fatal to a node
    └── LedgerError           a run whose snapshots do not add up                        (exit status 4)

A programmer's mistake is none of these: it stays a ``ValueError`` or ``TypeError`` with its traceback.
"""

from __future__ import annotations


class SciStreamError(Exception):
    """Base of every error this project raises on purpose.

    Parameters
    ----------
    what
        One sentence: what went wrong, naming the file, field or address.
    expected, got
        What was expected there and what came instead, where that applies.
    hint
        What the reader can do about it.
    """

    exit_status = 1

    def __init__(self, what: str, *, expected: object = None, got: object = None, hint: str | None = None) -> None:
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
        text = "; ".join(parts) + "."
        return f"{text} {self.hint}" if self.hint else text


class InputError(SciStreamError):
    """What the user gave is wrong."""

    exit_status = 2


class ConfigError(InputError):
    """The rig file, a command line option or an environment override is wrong."""


class CalibrationError(InputError):
    """A calibration is unusable or does not fit what it is used with."""


class FileFormatError(InputError):
    """A file is not what its name or use says."""


class WeightsError(InputError):
    """A denoiser checkpoint is of an unknown or broken layout."""


class EnvironmentFault(SciStreamError):
    """The world is not as needed."""

    exit_status = 3


class CameraError(EnvironmentFault):
    """The camera cannot be opened, configured or read."""


class CameraLost(CameraError):
    """The camera was there and went away; opening it again may work."""


class DeviceError(EnvironmentFault):
    """The compute device is missing or out of memory."""


class DeviceMemoryError(DeviceError):
    """The compute device has too little memory now; with less to do at once, or later, it may work."""


class StorageError(EnvironmentFault):
    """The disk is full, gone or not writable."""


class TransportError(EnvironmentFault):
    """A network address is in use, unreachable or not allowed."""


class WireError(SciStreamError):
    """A message that cannot be trusted.

    Parameters
    ----------
    reason
        A short machine-readable word (``"truncated"``, ``"version"``, ``"crc"``, …) under which nodes count it.
    """

    def __init__(
        self, reason: str, what: str, *, expected: object = None, got: object = None, hint: str | None = None
    ) -> None:
        super().__init__(what, expected=expected, got=got, hint=hint)
        self.reason = reason


class LedgerError(SciStreamError):
    """A run whose snapshots do not add up."""

    exit_status = 4
