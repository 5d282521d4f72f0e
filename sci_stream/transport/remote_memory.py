"""Payloads by reference: a node of the same supervisor reads them from the sender's memory.

A local socket copies every byte into the kernel and out of it again, in pieces of a few hundred KiB, with both
processes waiting for each other. If the kernel lets one process read another's memory (``process_vm_readv``), a message
contains references instead, and the receiver copies the payloads once (measured with 2 MiB snapshots:
docs/decisions/connections.md).

The process to read from is taken from the kernel (SO_PEERCRED) for the connection, never from the message, so that a
peer can offer only its own memory, and a reference from a network is refused. Access is tested first, on a few bytes
that each side shows the other; without access (another user, another container, a kernel that forbids it), payloads go
through the socket. The data read are verified by the checksum in the message: if the sender has reused the memory, the
message is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import secrets
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, cast

import numpy as np
from isal import isal_zlib

from sci_stream.errors import ConfigError, WireError
from sci_stream.model import Array
from sci_stream.transport.local_sockets import FOLDER_VARIABLE
from sci_stream.transport.sockets import ReceivedMessage
from sci_stream.wire import Hello, Limits, Message, Welcome, decode

LEND_FROM_VARIABLE: Final = "SCI_STREAM_LEND_FROM_BYTES"
"""Environment variable: smallest payload sent by reference, bytes. A huge number disables references."""

# Copying a smaller payload is faster than following a reference to it.
_LEND_FROM_BYTES = 65536
# A payload must be longer than a reference, or `_is_reference` could mistake it for one.
_LEAST_BYTES = 64

LENT, UNREADABLE = "lent", "unreadable"
"""Reasons to refuse a message: a reference that is invalid, or one that the kernel does not let us follow."""

_REFERENCE = struct.Struct("<8sQQ")
_MARK = b"\xb1sci-mem"
_KIND_AND_HEADER = 2
_PROBE_BYTES = 16
# Fits into the second-level cache of current processors, see `_read`.
_PIECE_BYTES = 256 << 10
# EFAULT too: memory that a driver has mapped, as that of videos from a GPU, need not be readable for other processes.
_FORBIDDEN = {errno.EPERM, errno.ENOSYS, errno.EACCES, errno.EFAULT}
# From linux/prctl.h: the letters "Yama".
_PR_SET_PTRACER = 0x59616D61


class BufferPool:
    """Buffers to read into, reused once no array references them.

    The kernel maps and clears fresh memory page by page, which takes longer than filling it. At most ``spare`` unused
    buffers are kept.
    """

    def __init__(self, spare: int) -> None:
        self._spare = spare
        self._buffers: list[Array] = []
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> memoryview:
        """Return a buffer of this size with arbitrary content; it is in use while anything references it."""
        with self._lock:
            free = [index for index in range(len(self._buffers)) if sys.getrefcount(self._buffers[index]) == _UNUSED]
            fitting = [index for index in free if self._buffers[index].nbytes == nbytes]
            taken = self._buffers[fitting[0]] if fitting else np.empty(nbytes, np.uint8)
            kept = [index for index in free if index not in fitting[:1]][: self._spare]
            dropped = set(free) - set(kept)
            self._buffers = [one for index, one in enumerate(self._buffers) if index not in dropped] + [taken]
            return taken.data

    def __len__(self) -> int:
        """Return the number of buffers, in use or spare."""
        return len(self._buffers)


_ONE = [np.empty(0)]
# Reference count of an unused buffer: the pool's reference and the argument of getrefcount. Measured, not assumed: it
# differs between versions of Python.
_UNUSED = sys.getrefcount(_ONE[0])
_pool = BufferPool(8)


class _IoVec(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _load_process_vm_readv() -> Callable[..., int] | None:
    with contextlib.suppress(AttributeError, OSError):
        function = ctypes.CDLL(None, use_errno=True).process_vm_readv
        function.restype = ctypes.c_ssize_t
        function.argtypes = (
            ctypes.c_int,
            ctypes.POINTER(_IoVec), ctypes.c_ulong,
            ctypes.POINTER(_IoVec), ctypes.c_ulong,
            ctypes.c_ulong,
        )  # fmt: skip
        return cast("Callable[..., int]", function)
    return None


_process_vm_readv = _load_process_vm_readv()


def memory_probe() -> str:
    """Return address and content of a few bytes of this process, with which a peer tests its access."""
    # Cached by process: after a fork the child must not show its parent's bytes, which both contain.
    return _probe(os.getpid())[0]


@functools.cache
def _probe(_process: int) -> tuple[str, Array]:
    content = np.frombuffer(bytearray(secrets.token_bytes(_PROBE_BYTES)), np.uint8)
    _permit_siblings_to_read()
    return f"{_address(content.data):x}:{content.tobytes().hex()}", content


def can_read(process: int, probe: str) -> bool:
    """Return whether the bytes of a process's `memory_probe` can be read and have the stated content."""
    if not process or not probe:
        return False
    address, _, content = probe.partition(":")
    try:
        return bytes(_read(process, int(address, 16), _PROBE_BYTES)[0]) == bytes.fromhex(content)
    except (OSError, ValueError):
        return False


def welcome_with_probe(welcome: Welcome, incoming: ReceivedMessage, hello: Hello) -> Welcome:
    """Return the answer to a HELLO; for a peer on this host it includes the test of memory access."""
    process = incoming.process
    return replace(welcome, shows=memory_probe(), reads=can_read(process, hello.shows)) if process else welcome


@functools.cache
def export_from_bytes() -> int:
    """Return the smallest payload to send by reference, bytes.

    Raises
    ------
    ConfigError
        If the environment variable is not a number of bytes.
    """
    value = os.environ.get(LEND_FROM_VARIABLE, "")
    if value and not value.isdecimal():
        raise ConfigError(f"{LEND_FROM_VARIABLE} is not a size", expected="a number of bytes", got=value)
    return max(_LEAST_BYTES, int(value)) if value else _LEND_FROM_BYTES


def export_frames(frames: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Replace large payloads by references, for a peer that can read this process's memory.

    The caller keeps the original frames, and the memory behind them, until the peer acknowledges the message.
    """
    least = export_from_bytes()
    return [
        _reference(frame) if index >= _KIND_AND_HEADER and memoryview(frame).nbytes >= least else frame
        for index, frame in enumerate(frames)
    ]


def fetch_frames(
    incoming: ReceivedMessage, frames: Sequence[memoryview], most_bytes: int
) -> tuple[Sequence[memoryview], dict[int, int]]:
    """Return the frames of a message with references replaced by the data, and checksums of these, by payload index.

    Parameters
    ----------
    incoming
        The received message.
    frames
        Its kind, header and payloads.
    most_bytes
        Largest payload.

    Raises
    ------
    WireError
        ``lent``, if the reference came over a network, is too large, or its memory no longer exists; ``unreadable``,
        if the kernel forbids access.
    """
    found = [index for index in range(_KIND_AND_HEADER, len(frames)) if _is_reference(frames[index])]
    if not found:
        return frames, {}
    process = incoming.process
    if not process:
        raise WireError(LENT, "Memory reference from a remote peer", expected="a local socket")
    out, sums = list(frames), {}
    for index in found:
        _, address, nbytes = _REFERENCE.unpack(frames[index])
        if nbytes > most_bytes:
            raise WireError(LENT, "Memory reference too large", expected=f"≤ {most_bytes} bytes", got=nbytes)
        try:
            out[index], sums[index - _KIND_AND_HEADER] = _read(process, address, nbytes)
        except OSError as error:
            # After the first reason the sender stops sending references; the second concerns this message only.
            if error.errno in _FORBIDDEN:
                raise WireError(UNREADABLE, f"No access to process {process}", got=error.strerror) from None
            raise WireError(LENT, f"Memory of process {process} no longer exists", got=error.strerror) from None
    return out, sums


def read_incoming(incoming: ReceivedMessage, frames: Sequence[memoryview], limits: Limits) -> Message:
    """Decode a received message, with payloads included or by reference.

    Raises
    ------
    WireError
        As `fetch_frames` and `sci_stream.wire.decode`; ``lent`` if the data read do not match the checksum.
    """
    whole, sums = fetch_frames(incoming, frames, limits.max_payload_bytes)
    try:
        return decode(whole, limits, sums)
    except WireError as error:
        if sums and error.reason == "crc":
            raise WireError(LENT, "Referenced memory has changed: its sender no longer keeps the message") from None
        raise


def _is_reference(frame: memoryview) -> bool:
    return frame.nbytes == _REFERENCE.size and frame[: len(_MARK)] == _MARK


def _reference(frame: bytes | memoryview) -> bytes:
    return _REFERENCE.pack(_MARK, _address(frame), memoryview(frame).nbytes)


def _address(buffer: bytes | memoryview) -> int:
    return int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])


def _read(process: int, address: int, nbytes: int) -> tuple[memoryview, int]:
    """Copy a range of another process's memory; return it and its checksum. Raises `OSError`."""
    if _process_vm_readv is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    out = _pool.take(nbytes)
    start, done, crc = _address(out), 0, 0
    while done < nbytes:
        # In pieces, so that each is still in the cache when its checksum is computed. Other threads run meanwhile,
        # because ctypes releases the interpreter lock.
        piece = min(_PIECE_BYTES, nbytes - done)
        mine, its = _IoVec(start + done, piece), _IoVec(address + done, piece)
        got = _process_vm_readv(process, ctypes.byref(mine), 1, ctypes.byref(its), 1, 0)
        # A read of 0 bytes is no error to the kernel and leaves errno unset.
        if got <= 0:
            number = ctypes.get_errno() or errno.EFAULT
            raise OSError(number, os.strerror(number))
        crc = isal_zlib.crc32(out[done : done + got], crc)
        done += got
    return out, crc


def _permit_siblings_to_read() -> None:
    """Allow the other nodes of this supervisor to read this process; Yama by default allows only its ancestors.

    https://docs.kernel.org/admin-guide/LSM/Yama.html: access for the named process and its descendants.
    """
    if os.environ.get(FOLDER_VARIABLE):
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0)
