"""GenTL producers: where their files are, and whether they are what they should be."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sci_stream.errors import CameraError, ConfigError
from sci_stream_drivers.harvesters.library import library, words

VARIABLE = "GENICAM_GENTL64_PATH"
"""Where producers' installers say that they are: folders with ``os.pathsep`` between them (GenTL standard, 3.1)."""

_NEEDED = (
    "GCInitLib", "GCCloseLib", "GCGetInfo", "GCGetLastError", "GCReadPort", "GCWritePort", "GCRegisterEvent",
    "TLOpen", "TLClose", "TLGetInfo", "TLUpdateInterfaceList", "TLGetNumInterfaces", "TLOpenInterface",
    "IFClose", "IFUpdateDeviceList", "IFGetNumDevices", "IFOpenDevice", "DevClose", "DevGetPort",
    "DevOpenDataStream", "DSAnnounceBuffer", "DSQueueBuffer", "DSStartAcquisition", "DSGetBufferInfo", "DSClose",
    "EventGetData",
)  # fmt: skip
"""Functions that every producer has. The library calls them without looking whether they are there, which ends the
process: a file without them must not come that far."""


def producer_files(given: Iterable[Path]) -> list[Path]:
    """Return the producers' files.

    Parameters
    ----------
    given
        Files, or folders of files; empty for those that the environment names.

    Returns
    -------
    Absolute paths, each once, in the order given.

    Raises
    ------
    ConfigError
        If what is given is not there, or holds no producer; or if nothing is given, there or in the environment.
    """
    found: list[Path] = []
    for path in given:
        expanded = Path(os.path.expandvars(path)).expanduser()
        if not expanded.exists():
            raise ConfigError(
                f"There is no GenTL producer {expanded}",
                expected="a .cti file, or a folder with .cti files",
                hint="It comes with the SDK of the camera's maker; give its path in cti, or set it with --cti.",
            )
        inside = sorted(expanded.glob("*.cti")) if expanded.is_dir() else [expanded]
        if not inside:
            raise ConfigError(f"There is no .cti file in the folder {expanded}", expected="a GenTL producer")
        found += inside
    if not found:
        found = list(_from_environment())
    return list(dict.fromkeys(path.resolve() for path in found))


def _from_environment() -> Iterator[Path]:
    folders = [folder for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]
    files = [file for folder in folders for file in sorted(Path(folder).expanduser().glob("*.cti"))]
    if not files:
        raise ConfigError(
            "No GenTL producer is known",
            expected=f"paths of .cti files in cti, or folders of them in the environment variable {VARIABLE}",
            got=f"{VARIABLE}={os.environ[VARIABLE]}, without any .cti file" if folders else "neither",
            hint="A producer comes with the SDK of the camera's maker.",
        )
    yield from files


def check_producer(path: Path) -> None:
    """Make sure that a file is a GenTL producer of this machine's kind.

    Raises
    ------
    CameraError
        If it cannot be loaded or lacks what a producer must have.
    """
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise CameraError(
            f"The GenTL producer {path} cannot be loaded",
            expected="a shared library for this operating system and processor",
            got=error,
            hint="Is the maker's SDK complete? Its libraries must be found too (LD_LIBRARY_PATH).",
        ) from None
    lacking = [name for name in _NEEDED if not hasattr(loaded, name)]
    if lacking:
        raise CameraError(
            f"{path} is a library but no GenTL producer",
            expected=f"the functions of GenTL, {len(_NEEDED)} of which are needed",
            got=f"none of {', '.join(lacking[:3])}{', …' if len(lacking) > 3 else ''}",
        )


@contextmanager
def open_system(path: Path) -> Iterator[Any]:
    """Open a producer by itself, without Harvesters, which swallows why one cannot be opened.

    Yields
    ------
    Any
        Its `genicam.gentl.System`, open.

    Raises
    ------
    CameraError
        If it is no producer, is in use in this process, or fails.
    """
    check_producer(path)
    lib = library()
    producer = lib.gentl.GenTLProducer.create_producer()
    try:
        producer.open(str(path))
    except lib.gentl.ResourceInUseException:
        raise CameraError(
            f"The GenTL producer {path.name} is in use in this process",
            expected="one camera of a producer in a process",
            hint="Close the other camera first; each acquire node is a process of its own.",
        ) from None
    except lib.gentl.GenericException as error:
        raise CameraError(f"The GenTL producer {path} cannot be opened", got=words(error)) from None
    try:
        system = producer.create_system()
        try:
            system.open()
        except lib.gentl.GenericException as error:
            raise CameraError(f"The GenTL producer {path} does not start", got=words(error)) from None
        try:
            yield system
        finally:
            system.close()
    finally:
        producer.close()
