"""Find cameras, and select exactly one: producers, their interfaces and attached cameras."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from sci_stream.errors import CameraError
from sci_stream.plugins import FoundCamera, FoundInterface, FoundProducer
from sci_stream_drivers.genicam.library import attribute, library, message_of
from sci_stream_drivers.harvesters.producers import open_system, producer_files

_TIMEOUT_MS = 1000
# Producers of GigE cameras wait a second for each network interface.
_SEARCH_S = 30.0
_ACCESS = {1: "free", 2: "read only", 3: "no access", 4: "in use", 5: "open", 6: "open, read only"}


def find_cameras(places: Sequence[Path]) -> list[FoundProducer]:
    """Find cameras through every producer; one that fails is included in the result, with its
    problem.

    The places are files or folders of producers; without any, those of the environment.

    Raises `ConfigError` if there is no producer, or the required packages are not installed.
    """
    library()
    # Each in a process of its own: a producer that crashes or hangs must not hide the others.
    context = multiprocessing.get_context("spawn")
    searches = []
    for path in producer_files(places):
        answer, end = context.Pipe(duplex=False)
        process = context.Process(target=_search_into, args=(path, end), daemon=True)
        process.start()
        end.close()
        searches.append((path, process, answer))
    deadline_s = time.monotonic() + _SEARCH_S
    return [_answer_of(*search, deadline_s) for search in searches]


def _answer_of(
    path: Path, process: BaseProcess, answer: Connection, deadline_s: float
) -> FoundProducer:
    """Return the result of a search in another process, or its failure."""
    try:
        if answer.poll(max(0.0, deadline_s - time.monotonic())):
            found: FoundProducer = answer.recv()
            return found
        problem = f"the producer does not answer within {_SEARCH_S:g} s"
    except EOFError:
        process.join(1.0)
        problem = f"the producer crashes (exit status {process.exitcode})"
    finally:
        answer.close()
        process.kill()
        process.join()
    return FoundProducer(str(path), "", "", "", (), problem)


def _search_into(path: Path, end: Connection) -> None:
    """Search with one producer and send the result."""
    end.send(_search(path))


def _search(path: Path) -> FoundProducer:
    try:
        with open_system(path) as system:
            named = {key: str(attribute(system, key, "")) for key in ("vendor", "version")}
            name = str(attribute(system, "display_name") or attribute(system, "model", ""))
            try:
                interfaces = tuple(_interfaces(system, path))
                problem = ""
            except library().gentl.GenericException as error:
                interfaces = ()
                problem = message_of(error)
            return FoundProducer(
                str(path), name, named["vendor"], named["version"], interfaces, problem
            )
    except CameraError as error:
        return FoundProducer(str(path), "", "", "", (), str(error))


def _interfaces(system: Any, path: Path) -> Iterable[FoundInterface]:
    system.update_interface_info_list(_TIMEOUT_MS)
    for info in system.interface_info_list:
        interface = info.create_interface()
        interface.open()
        try:
            interface.update_device_info_list(_TIMEOUT_MS)
            cameras = tuple(found_camera(device, path) for device in interface.device_info_list)
        finally:
            interface.close()
        name = str(attribute(info, "display_name") or info.id_)
        yield FoundInterface(str(info.id_), name, str(attribute(info, "tl_type", "")), cameras)


def found_camera(info: Any, path: Path) -> FoundCamera:
    """Return the description of a camera by GenTL, through the producer at ``path``; missing texts
    are empty.
    """
    names = ("id_", "vendor", "model", "serial_number", "user_defined_name")
    id_, vendor, model, serial, named = (str(attribute(info, name) or "") for name in names)
    access = _ACCESS.get(attribute(info, "access_status", 0), "unknown")
    return FoundCamera(
        id_, vendor, model, serial, named, access, {"cti": [str(path)], "selector": {"id": id_}}
    )
