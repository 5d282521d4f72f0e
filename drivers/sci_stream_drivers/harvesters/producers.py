"""GenTL producers: find their files and check them."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sci_stream.errors import CameraError, ConfigError
from sci_stream_drivers.genicam.library import library, message_of

log = logging.getLogger(__name__)

# Set by the installers of producers: folders, separated by ``os.pathsep`` (GenTL standard, 3.1).
VARIABLE = "GENICAM_GENTL64_PATH"

# Functions that every producer has. The library calls them unchecked, which crashes the process if
# they are missing, so a file without them must be refused before.
_NEEDED = (
    "GCInitLib", "GCCloseLib", "GCGetInfo", "GCGetLastError", "GCReadPort", "GCWritePort",
    "GCRegisterEvent",
    "TLOpen", "TLClose", "TLGetInfo", "TLUpdateInterfaceList", "TLGetNumInterfaces",
    "TLOpenInterface",
    "IFClose", "IFUpdateDeviceList", "IFGetNumDevices", "IFOpenDevice", "DevClose", "DevGetPort",
    "DevOpenDataStream", "DSAnnounceBuffer", "DSQueueBuffer", "DSStartAcquisition",
    "DSGetBufferInfo", "DSClose",
    "EventGetData",
)  # fmt: skip


def producer_files(given: Iterable[Path]) -> list[Path]:
    """Return the files of producers.

    Files, or folders with files, are given; without any, those of the environment are returned.

    Returns
    -------
    Absolute paths, each once, in the order given.

    Raises
    ------
    ConfigError
        If a path does not exist or contains no producer; or if none is given, here or in the
        environment.
    """
    found: list[Path] = []
    for path in given:
        expanded = Path(os.path.expandvars(path)).expanduser()
        if not expanded.exists():
            raise ConfigError(
                f"There is no GenTL producer {expanded}",
                expected="a .cti file, or a folder with .cti files",
                hint="It comes with the SDK of the camera's vendor; give its path in cti, or set "
                "it with --cti.",
            )
        inside = sorted(expanded.glob("*.cti")) if expanded.is_dir() else [expanded]
        if not inside:
            raise ConfigError(
                f"The folder {expanded} contains no .cti file", expected="a GenTL producer"
            )
        found += inside
    if not found:
        # Harvesters does not read the variable, unlike most GenICam programs.
        found = list(_from_environment())
    return list(dict.fromkeys(path.resolve() for path in found))


def _from_environment() -> Iterator[Path]:
    folders = [folder for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]
    files = [file for folder in folders for file in sorted(Path(folder).expanduser().glob("*.cti"))]
    if not files:
        raise ConfigError(
            "No GenTL producer is known",
            expected="paths of .cti files in cti, or folders of them in the environment variable "
            f"{VARIABLE}",
            got=f"{VARIABLE}={os.environ[VARIABLE]}, without any .cti file"
            if folders
            else "neither",
            hint="A producer comes with the SDK of the camera's vendor.",
        )
    yield from files


def check_producer(path: Path) -> None:
    """Check that a file is a GenTL producer for this platform.

    Raises `CameraError` if it cannot be loaded or lacks functions of a producer.
    """
    try:
        # Loading runs the library's initialisers, but nothing of GenTL yet: a wrong file fails here
        # with a reason.
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise CameraError(
            f"The GenTL producer {path} cannot be loaded",
            expected="a shared library for this operating system and processor",
            got=error,
            hint="Check that the vendor's SDK is complete and its libraries are found "
            "(LD_LIBRARY_PATH).",
        ) from None
    lacking = [name for name in _NEEDED if not hasattr(loaded, name)]
    if lacking:
        raise CameraError(
            f"{path} is a library but not a GenTL producer",
            expected=f"the {len(_NEEDED)} required functions of GenTL",
            got=f"none of {', '.join(lacking[:3])}{', …' if len(lacking) > 3 else ''}",
        )


@contextlib.contextmanager
def open_system(path: Path) -> Iterator[Any]:
    """Open a producer directly, because Harvesters hides the reason of a failure.

    Yields
    ------
    Any
        Its `genicam.gentl.System`, open.

    Raises `CameraError` if it is not a producer, is in use in this process, or fails.
    """
    check_producer(path)
    gentl = library().gentl
    with contextlib.ExitStack() as stack:
        producer = gentl.GenTLProducer.create_producer()
        stack.callback(producer.close)
        try:
            producer.open(str(path))
            system = producer.create_system()
            system.open()
        except gentl.ResourceInUseException:
            raise CameraError(
                f"The GenTL producer {path.name} is in use in this process",
                expected="one camera per producer in a process",
                hint="Close the other camera first, or use another process: each acquire node is "
                "a separate one.",
            ) from None
        except gentl.GenericException as error:
            raise CameraError(
                f"The GenTL producer {path} does not start", got=message_of(error)
            ) from None
        stack.callback(system.close)
        yield system


def usable_producers(files: Sequence[Path], name: str | None = None) -> list[Path]:
    """Return the producers that start; one that does not, such as a frame grabber's without its
    card, is skipped.

    With ``name``, only producers of this file name are used.

    Raises `ConfigError` if none has that name; `CameraError` if none starts.
    """
    named = [path for path in files if name is None or name in (path.name, str(path))]
    if not named:
        raise ConfigError(
            "No producer has the name of selector.producer",
            expected=f"one of {', '.join(path.name for path in files)}",
            got=name,
        )
    usable: list[Path] = []
    failed: list[CameraError] = []
    for path in named:
        try:
            # Harvesters swallows the reason why a producer cannot be opened and shows an empty list
            # of cameras.
            with open_system(path):
                usable.append(path)
        except CameraError as error:
            failed.append(error)
    if not usable:
        raise failed[0]
    for problem in failed:
        log.warning("Skipped a GenTL producer: %s", problem)
    return usable
