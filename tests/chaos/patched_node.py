"""A node of a rig whose host's clock can be stepped and whose disk can be slowed while it runs, for `bench faults`.

``python -m tests.chaos.patched_node CONTROL ARGUMENTS…`` is ``python -m sci_stream ARGUMENTS…`` with three seams, each
at the outermost layer there is: what Python calls the host's clock, the flushes of HDF5 and of the journal, and the
addresses that a reconstruct node goes to. What is said there lies in a small file, the same for all nodes.
"""

from __future__ import annotations

import mmap
import os
import runpy
import struct
import sys
import time
from pathlib import Path
from typing import Any, Self

from sci_stream.clock import read_again
from sci_stream.transport.local_sockets import FOLDER_VARIABLE

_CONTROL = struct.Struct("<dd100s100s")  # clock off by, s; disk slow by, s; addresses of dispatch and results


class Control:
    """What nodes are to be harmed by now. A context manager.

    Parameters
    ----------
    path
        The file; made if there is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        new = not path.exists()
        with path.open("w+b" if new else "r+b") as file:
            if new:
                file.write(bytes(_CONTROL.size))
                file.flush()
            self._map = mmap.mmap(file.fileno(), _CONTROL.size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()

    def _told(self) -> tuple[float, float, bytes, bytes]:
        clock_s, disk_s, dispatch, results = _CONTROL.unpack(self._map[:])
        return clock_s, disk_s, dispatch, results

    def _tell(self, *told: float | bytes) -> None:
        self._map[:] = _CONTROL.pack(*told)

    @property
    def clock_s(self) -> float:
        """By how much the host's clock is off, s."""
        return self._told()[0]

    @clock_s.setter
    def clock_s(self, value: float) -> None:
        self._tell(value, *self._told()[1:])

    @property
    def disk_s(self) -> float:
        """How much longer each flush to the disk takes, s."""
        return self._told()[1]

    @disk_s.setter
    def disk_s(self, value: float) -> None:
        clock_s, _, *ways = self._told()
        self._tell(clock_s, value, *ways)

    @property
    def detour(self) -> tuple[str, str]:
        """Where reconstruct nodes look for the acquire node and the sink, ``""`` for where the rig says."""
        dispatch, results = (way.rstrip(b"\0").decode() for way in self._told()[2:])
        return dispatch, results

    @detour.setter
    def detour(self, ways: tuple[str, str]) -> None:
        self._tell(*self._told()[:2], *(way.encode() for way in ways))


def _step_the_clock(control: Control) -> None:
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() + control.clock_s
    time.time_ns = lambda: nanoseconds() + int(control.clock_s * 1e9)
    read_again()  # as a process does that is started with the clock as it is now


def _slow_the_disk(control: Control) -> None:
    import h5py  # noqa: PLC0415 - only the sink needs it

    def slow(flush: Any) -> Any:
        def slowly(*args: Any) -> Any:
            time.sleep(control.disk_s)
            return flush(*args)

        return slowly

    h5py.Dataset.flush = slow(h5py.Dataset.flush)
    os.fsync = slow(os.fsync)


def _take_the_detour(control: Control) -> None:
    for name, way in zip(("DISPATCH", "RESULTS"), control.detour, strict=True):
        if way:
            os.environ[f"SCI_STREAM_RIG__NETWORK__{name}"] = way
            os.environ.pop(FOLDER_VARIABLE, None)  # else they would meet at a local socket, past the cable


def main(arguments: list[str]) -> None:
    """Run a node that is harmed as the file says that is named first."""
    path, *rest = arguments
    control = Control(Path(path))
    _step_the_clock(control)
    if "sink" in rest:
        _slow_the_disk(control)
    if "reconstruct" in rest:
        _take_the_detour(control)
    sys.argv[1:] = rest
    runpy.run_module("sci_stream", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
