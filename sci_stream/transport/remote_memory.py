"""Payloads that stay where they are: a node of the same supervisor reads them out of the sender's memory.

Through a local socket every byte is copied into the kernel and out of it again, in pieces of a few hundred KiB, both
processes waiting for each other. Where the kernel lets one process read another's memory (``process_vm_readv``), a
message carries references instead, and the receiver copies the payloads once, when it wants them. Measured with
2 MiB snapshots: see docs/decisions/0034.

The process to read from is taken from the kernel (SO_PEERCRED) for the connection of the reference, never
what a message says, so that a peer can offer nothing but its own memory, and a reference that came over a network
nothing at all. Whether it works is tried out first, on a few bytes that each side shows the other; where it does not
(another user, another container, a kernel that forbids it), payloads go through the socket as ever. What was read is
held against the checksum in the message: a lender that has moved on gives a message that is refused, not a wrong one.
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
"""In the environment: payloads from this size up are lent. A huge number for none."""

# Smaller ones are in the message before a reference would be followed.
_LEND_FROM_BYTES = 65536
_LEAST_BYTES = 64

LENT, UNREADABLE = "lent", "unreadable"
"""Reasons to refuse a message: a reference that cannot be followed, or that the kernel will never let us follow."""

_REFERENCE = struct.Struct("<8sQQ")
_MARK = b"\xb1sci-mem"
_KIND_AND_HEADER = 2
_SHOWN_BYTES = 16
_PIECE_BYTES = 256 << 10
_FORBIDDEN = {errno.EPERM, errno.ENOSYS, errno.EACCES}
_PR_SET_PTRACER = 0x59616D61


class BufferPool:
    """Buffers to read into, used again once no array references them.

    Fresh memory has to be mapped and cleared page by page, which takes longer than filling it. At most ``spare``
    buffers are kept that are unused.
    """

    def __init__(self, spare: int) -> None:
        self._spare = spare
        self._buffers: list[Array] = []
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> memoryview:
        """Return a buffer of this size, with whatever is in it; it is in use as long as anything refers to it."""
        with self._lock:
            free = [index for index in range(len(self._buffers)) if sys.getrefcount(self._buffers[index]) == _UNUSED]
            fitting = [index for index in free if self._buffers[index].nbytes == nbytes]
            taken = self._buffers[fitting[0]] if fitting else np.empty(nbytes, np.uint8)
            kept = [index for index in free if index not in fitting[:1]][: self._spare]
            dropped = set(free) - set(kept)
            self._buffers = [one for index, one in enumerate(self._buffers) if index not in dropped] + [taken]
            return taken.data

    def __len__(self) -> int:
        """Return how many buffers there are, in use or spare."""
        return len(self._buffers)


_ONE = [np.empty(0)]
# References to a buffer that are unused: the pool's, and that of the function that counts them.
_UNUSED = sys.getrefcount(_ONE[0])
_pool = BufferPool(8)


class _Stretch(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _find_reader() -> Callable[..., int] | None:
    with contextlib.suppress(AttributeError, OSError):
        function = ctypes.CDLL(None, use_errno=True).process_vm_readv
        function.restype = ctypes.c_ssize_t
        function.argtypes = (
            ctypes.c_int,
            ctypes.POINTER(_Stretch), ctypes.c_ulong,
            ctypes.POINTER(_Stretch), ctypes.c_ulong,
            ctypes.c_ulong,
        )  # fmt: skip
        return cast("Callable[..., int]", function)
    return None


_read_process = _find_reader()


def show() -> str:
    """Return where a few bytes of this process are and what they hold, for a peer to try whether it can read them."""
    # For each process its own: what a parent had before a fork is found in both.
    return _shown(os.getpid())[0]


@functools.cache
def _shown(_process: int) -> tuple[str, Array]:
    content = np.frombuffer(bytearray(secrets.token_bytes(_SHOWN_BYTES)), np.uint8)
    _let_siblings_read()
    return f"{_address(content.data):x}:{content.tobytes().hex()}", content


def can_read(process: int, shown: str) -> bool:
    """Return whether the bytes that a process has shown can be read there, and are those that it says."""
    if not process or not shown:
        return False
    address, _, content = shown.partition(":")
    try:
        return bytes(_read(process, int(address, 16), _SHOWN_BYTES)[0]) == bytes.fromhex(content)
    except (OSError, ValueError):
        return False


def welcoming(welcome: Welcome, parcel: ReceivedMessage, hello: Hello) -> Welcome:
    """Return the answer to a hello that came in a parcel: to a peer on this host with what it takes to lend."""
    process = parcel.process
    return replace(welcome, shows=show(), reads=can_read(process, hello.shows)) if process else welcome


@functools.cache
def export_from_bytes() -> int:
    """Return the size from which payloads are lent.

    Raises
    ------
    ConfigError
        If the environment says something that is no size.
    """
    said = os.environ.get(LEND_FROM_VARIABLE, "")
    if said and not said.isdecimal():
        raise ConfigError(f"{LEND_FROM_VARIABLE} is not a size", expected="a number of bytes", got=said)
    return max(_LEAST_BYTES, int(said)) if said else _LEND_FROM_BYTES


def export_frames(frames: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return frames to send in place of these to a peer that can read this process's memory.

    The caller keeps these, and what they are views of, until the peer has said that it has the message.
    """
    least = export_from_bytes()
    return [
        _reference(frame) if index >= _KIND_AND_HEADER and memoryview(frame).nbytes >= least else frame
        for index, frame in enumerate(frames)
    ]


def fetch_frames(
    parcel: ReceivedMessage, frames: Sequence[memoryview], most_bytes: int
) -> tuple[Sequence[memoryview], dict[int, int]]:
    """Return frames of a parcel with what their references refer to, and by index the checksums of that.

    Parameters
    ----------
    parcel
        As it came.
    frames
        Its kind, header and payloads.
    most_bytes
        Of a payload.

    Raises
    ------
    WireError
        ``lent``, if it came from where nothing is lent, is too large, or is not there any more; ``unreadable``, if
        the kernel forbids it.
    """
    found = [index for index in range(_KIND_AND_HEADER, len(frames)) if _is_reference(frames[index])]
    if not found:
        return frames, {}
    process = parcel.process
    if not process:
        raise WireError(LENT, "A reference to memory came from where none is lent", expected="a local socket")
    out, sums = list(frames), {}
    for index in found:
        _, address, nbytes = _REFERENCE.unpack(frames[index])
        if nbytes > most_bytes:
            raise WireError(LENT, "What is lent is too large", expected=f"≤ {most_bytes} bytes", got=nbytes)
        try:
            out[index], sums[index] = _read(process, address, nbytes)
        except OSError as error:
            if error.errno in _FORBIDDEN:
                raise WireError(UNREADABLE, f"Process {process} may not be read", got=error.strerror) from None
            raise WireError(LENT, f"What process {process} lent is not there any more", got=error.strerror) from None
    return out, sums


def read_parcel(parcel: ReceivedMessage, frames: Sequence[memoryview], limits: Limits) -> Message:
    """Return the message that a parcel carries in these frames, in whole or by reference.

    Raises
    ------
    WireError
        As `fetch_frames` and `sci_stream.wire.decode`; ``lent`` where what was read is not what had been lent.
    """
    whole, sums = fetch_frames(parcel, frames, limits.max_payload_bytes)
    try:
        return decode(whole, limits, sums)
    except WireError as error:
        if sums and error.reason == "crc":
            raise WireError(LENT, "What was lent has changed: its sender has given the message up") from None
        raise


def _is_reference(frame: memoryview) -> bool:
    return frame.nbytes == _REFERENCE.size and frame[: len(_MARK)] == _MARK


def _reference(frame: bytes | memoryview) -> bytes:
    return _REFERENCE.pack(_MARK, _address(frame), memoryview(frame).nbytes)


def _address(buffer: bytes | memoryview) -> int:
    return int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])


def _read(process: int, address: int, nbytes: int) -> tuple[memoryview, int]:
    """Copy a stretch of another process's memory; return it and its checksum. Raises `OSError`."""
    if _read_process is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    out = _pool.take(nbytes)
    start, done, crc = _address(out), 0, 0
    while done < nbytes:
        # A piece at a time, so that it is still in the cache when its checksum is taken. Other threads go on
        # meanwhile: ctypes lets go of the interpreter.
        piece = min(_PIECE_BYTES, nbytes - done)
        mine, its = _Stretch(start + done, piece), _Stretch(address + done, piece)
        got = _read_process(process, ctypes.byref(mine), 1, ctypes.byref(its), 1, 0)
        if got <= 0:
            number = ctypes.get_errno() or errno.EFAULT
            raise OSError(number, os.strerror(number))
        crc = isal_zlib.crc32(out[done : done + got], crc)
        done += got
    return out, crc


def _let_siblings_read() -> None:
    """Let the nodes of this one's supervisor read it where Yama would only let its parents.

    https://docs.kernel.org/admin-guide/LSM/Yama.html: the process named, and those that descend from it.
    """
    if os.environ.get(FOLDER_VARIABLE):
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0)
