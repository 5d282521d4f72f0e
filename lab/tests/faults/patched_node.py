"""A node whose clock can be stepped and whose disk can be slowed while it runs, for `bench faults`.

``python -m lab.tests.faults.patched_node CONTROL ARGUMENTS…`` runs ``python -m sci_stream
ARGUMENTS…`` with three patches, each at the outermost layer: Python's view of the host clock, the
flushes of HDF5 and of the journal, and the addresses that a reconstruct node connects to. A small
memory-mapped file, shared by all nodes, controls them.
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
from sci_stream.transport.sockets import FOLDER_VARIABLE

_CONTROL = struct.Struct(
    "<dd100s100s"
)  # clock off by, s; disk slow by, s; addresses of dispatch and results


class FaultControl:
    """The faults that are active now, shared between processes. A context manager.

    Parameters
    ----------
    path
        The shared file; created if absent.
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

    def _read(self) -> tuple[float, float, bytes, bytes]:
        clock_s, disk_s, dispatch, results = _CONTROL.unpack(self._map[:])
        return clock_s, disk_s, dispatch, results

    def _write(self, *values: float | bytes) -> None:
        self._map[:] = _CONTROL.pack(*values)

    @property
    def clock_s(self) -> float:
        """Offset of the host clock, s."""
        return self._read()[0]

    @clock_s.setter
    def clock_s(self, value: float) -> None:
        self._write(value, *self._read()[1:])

    @property
    def disk_s(self) -> float:
        """Delay added to each flush to the disk, s."""
        return self._read()[1]

    @disk_s.setter
    def disk_s(self, value: float) -> None:
        clock_s, _, *addresses = self._read()
        self._write(clock_s, value, *addresses)

    @property
    def detour(self) -> tuple[str, str]:
        """Addresses at which reconstruct nodes reach acquire node and sink; ``""`` for those of the
        rig.
        """
        dispatch, results = (address.rstrip(b"\0").decode() for address in self._read()[2:])
        return dispatch, results

    @detour.setter
    def detour(self, addresses: tuple[str, str]) -> None:
        self._write(*self._read()[:2], *(address.encode() for address in addresses))


def _patch_clock(control: FaultControl) -> None:
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() + control.clock_s
    time.time_ns = lambda: nanoseconds() + int(control.clock_s * 1e9)
    read_again()  # as in a process that starts with the clock as it is now


def _patch_disk(control: FaultControl) -> None:
    import h5py  # noqa: PLC0415 - only the sink needs it

    def delayed(flush: Any) -> Any:
        def delayed_flush(*args: Any) -> Any:
            time.sleep(control.disk_s)
            return flush(*args)

        return delayed_flush

    h5py.Dataset.flush = delayed(h5py.Dataset.flush)
    os.fsync = delayed(os.fsync)


def _patch_addresses(control: FaultControl) -> None:
    for name, address in zip(("DISPATCH", "RESULTS"), control.detour, strict=True):
        if address:
            os.environ[f"SCI_STREAM_RIG__NETWORK__{name}"] = address
            os.environ.pop(FOLDER_VARIABLE, None)  # a local socket would bypass the proxy


def main(arguments: list[str]) -> None:
    """Run a node under the control file named by the first argument."""
    path, *rest = arguments
    control = FaultControl(Path(path))
    _patch_clock(control)
    if "sink" in rest:
        _patch_disk(control)
    if "reconstruct" in rest:
        _patch_addresses(control)
    sys.argv[1:] = rest
    runpy.run_module("sci_stream", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
