"""Payloads are read from the memory of the peer of a local socket and of no other process."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from sci_stream.delivery.dispatch_queue import DispatchQueue
from sci_stream.errors import ConfigError, WireError
from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.transport import remote_memory as lending
from sci_stream.transport.client_connection import ClientConnection
from sci_stream.transport.dispatcher import Dispatcher
from sci_stream.transport.local_sockets import FOLDER_VARIABLE
from sci_stream.transport.remote_memory import BufferPool, can_read, export_frames, memory_probe, read_incoming
from sci_stream.transport.results_server import ResultsServer
from sci_stream.transport.sink_client import SinkClient
from sci_stream.transport.sockets import ReceivedMessage, receive
from sci_stream.wire import Done, Limits, Welcome, encode
from tests.ports import free_ports
from tests.transport.peers import HEARTBEAT_S, hello, snapshot, until

SIDE_PX = 256
LARGE = dataclasses.replace(
    snapshot(0), counts=np.random.default_rng(3).integers(0, 4096, (SIDE_PX, SIDE_PX), dtype=np.uint16)
)

LENDER = """
import sys
import numpy as np, zmq
from sci_stream.transport.remote_memory import export_frames, memory_probe
from sci_stream.wire import encode
from tests.transport.test_remote_memory import LARGE
import dataclasses
counts = LARGE.counts.copy()
frames = encode(dataclasses.replace(LARGE, counts=counts))
socket = zmq.Context().socket(zmq.DEALER)
socket.connect(sys.argv[1])
socket.send_multipart([*export_frames(frames), memory_probe().encode()])
print("sent", flush=True)
for line in sys.stdin:
    if line.strip() == "change":
        counts += 1
        print("changed", flush=True)
"""
"""Another process: lends a snapshot, shows its memory, and changes what it has lent when given to."""


_VIDEO = """
import sys, zlib, torch
video = torch.arange(2**18, dtype=torch.float32)
array = (video.pin_memory() if sys.argv[1] else video).numpy()
print(array.__array_interface__["data"][0], array.nbytes, zlib.crc32(array), flush=True)
sys.stdin.read()
"""

_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/proc/driver/nvidia/version").exists(), reason="no CUDA device"),
]


@contextlib.contextmanager
def lender(endpoint: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", LENDER, endpoint]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "sent\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def router(tmp_path: Path) -> Iterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(f"ipc://{tmp_path}/s")
    yield socket
    context.destroy(linger=0)


def came(socket: zmq.Socket[bytes]) -> ReceivedMessage:
    assert socket.poll(20_000)
    incoming = receive(socket)
    assert incoming is not None
    return incoming


def read(incoming: ReceivedMessage, limits: Limits | None = None) -> Snapshot:
    message = read_incoming(incoming, incoming.frames[1:-1], limits or Limits())
    assert isinstance(message, Snapshot)
    return message


def refused(incoming: ReceivedMessage, limits: Limits | None = None) -> WireError:
    with pytest.raises(WireError) as refusal:
        read(incoming, limits)
    return refusal.value


def test_payload_is_read_from_the_senders_memory(router: zmq.Socket[bytes], tmp_path: Path) -> None:
    with lender(f"ipc://{tmp_path}/s") as process:
        incoming = came(router)
        assert max(frame.nbytes for frame in incoming.frames) < 1000, "its data did not pass through the socket"
        assert incoming.process == process.pid
        found = read(incoming)
        np.testing.assert_array_equal(found.counts, LARGE.counts)
        assert not found.counts.flags.writeable
        assert can_read(incoming.process, bytes(incoming.frames[-1]).decode())


@pytest.mark.parametrize("page_locked", [False, pytest.param(True, marks=_GPU)])
def test_video_of_another_process_can_be_read(page_locked: bool) -> None:
    """A GPU's videos arrive in page-locked memory, which its driver maps."""
    pytest.importorskip("torch")
    command = [sys.executable, "-c", _VIDEO, "page-locked" * page_locked]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address, nbytes, checksum = map(int, process.stdout.readline().split())
        assert lending._read(process.pid, address, nbytes)[1] == checksum


def test_changed_or_vanished_memory_is_refused(router: zmq.Socket[bytes], tmp_path: Path) -> None:
    with lender(f"ipc://{tmp_path}/s") as process:
        incoming = came(router)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("change\n")
        process.stdin.flush()
        assert process.stdout.readline() == "changed\n"
        error = refused(incoming)
        assert error.reason == "lent"
        assert "no longer keeps the message" in str(error)
    gone = refused(incoming)
    assert gone.reason == "lent"
    assert "no longer exists" in str(gone)
    assert not can_read(incoming.process, bytes(incoming.frames[-1]).decode())


def test_reference_from_a_network_is_refused(router: zmq.Socket[bytes]) -> None:
    port = router.bind_to_random_port("tcp://127.0.0.1")
    with lender(f"tcp://127.0.0.1:{port}"):
        incoming = came(router)
        assert incoming.process == 0
        error = refused(incoming)
    assert error.reason == "lent"
    assert "expected a local socket" in str(error)


def test_oversized_reference_is_refused_unread(router: zmq.Socket[bytes], tmp_path: Path) -> None:
    with lender(f"ipc://{tmp_path}/s"):
        error = refused(came(router), Limits(max_payload_bytes=LARGE.counts.nbytes - 1))
    assert error.reason == "lent"
    assert "131071 bytes" in str(error)


def test_small_payloads_and_headers_are_not_referenced() -> None:
    frames = encode(snapshot(1))
    assert export_frames(frames) == list(frames)
    lent = export_frames(encode(LARGE))
    assert lent[:2] == encode(LARGE)[:2]
    assert len(lent[2]) < 64


@pytest.mark.parametrize("shown", ["", ":", "0:00", "zz:11", f"{1:x}:{16 * '00'}", "7fff:" + 16 * "ab"])
def test_unreadable_proof_of_access_is_refused(shown: str) -> None:
    assert not can_read(os.getpid(), shown)


def test_wrong_proof_of_access_is_refused() -> None:
    address = memory_probe().partition(":")[0]
    assert can_read(os.getpid(), memory_probe())
    assert not can_read(os.getpid(), f"{address}:{16 * 'ab'}")
    assert not can_read(0, memory_probe())


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_process_of_other_user_is_not_read() -> None:
    child = os.fork()
    if child == 0:
        shown, parent = memory_probe(), os.getppid()
        os.setgid(65534)
        os.setuid(65534)
        with contextlib.suppress(BaseException):
            os._exit(int(can_read(parent, shown)))
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_buffers_are_reused_once_unreferenced() -> None:
    pool = BufferPool(spare=2)
    first = pool.take(1000)
    array = np.frombuffer(first, np.uint8)[10:20]
    assert np.shares_memory(array, np.frombuffer(first, np.uint8))
    del first
    second = pool.take(1000)
    assert not np.shares_memory(array, np.frombuffer(second, np.uint8)), "a view still references it"
    address = array.__array_interface__["data"][0] - 10
    del array
    again = np.frombuffer(pool.take(1000), np.uint8)
    assert again.__array_interface__["data"][0] == address
    held = [pool.take(500) for _ in range(8)]
    assert len(pool) == 10
    del held
    pool.take(700)
    assert len(pool) <= 2 + 2 + 1, "those in use, the spare ones and the new one"


class Rig:
    """A dispatcher, a reconstruct node's two connections and a sink, at local sockets, turned by the test's thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        dispatch, results = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
        queue: DispatchQueue[Snapshot] = DispatchQueue(capacity=8, block=4)
        limits = Limits()
        self.dispatcher = Dispatcher(context, dispatch, Welcome("acquire", "d", HEARTBEAT_S), queue, limits=limits)
        self.sink = ResultsServer(context, results, Welcome("sink", "s", HEARTBEAT_S), limits=limits)
        self.node = ClientConnection(context, dispatch, hello(), heartbeat_s=HEARTBEAT_S, limits=limits)
        self.link = SinkClient(ClientConnection(context, results, hello(), heartbeat_s=HEARTBEAT_S, limits=limits))
        self.came: list[object] = []
        self.settled: list[object] = []
        self.safe: list[object] = []
        self.now_s = 0.0

    def poll(self) -> None:
        self.now_s += 0.01
        self.settled += self.dispatcher.poll(self.now_s)
        messages, _ = self.node.receive(self.now_s)
        self.node.tick(self.now_s)
        self.came += [message for message in messages if not isinstance(message, Calibration)]
        self.came += [message for _, message in self.sink.receive(self.now_s)]
        self.sink.tick(self.now_s)
        self.safe += self.link.poll(self.now_s).safe
        self.link.send_due()

    def close(self) -> None:
        for one in (self.link, self.node, self.dispatcher, self.sink):
            one.close()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made = Rig(context)
    yield made
    made.close()
    context.destroy(linger=0)


@pytest.fixture
def borrowed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what was read out of memory, but for what is read to try it out."""
    sizes: list[int] = []
    original = lending._read

    def noting(process: int, address: int, nbytes: int) -> tuple[memoryview, int]:
        if nbytes > 16:
            sizes.append(nbytes)
        return original(process, address, nbytes)

    monkeypatch.setattr(lending, "_read", noting)
    return sizes


def test_nodes_of_one_supervisor_share_memory_both_ways(rig: Rig, borrowed: list[int]) -> None:
    until(lambda: rig.node.connected and rig.link.connection.connected, rig.poll)
    rig.node.handshake(hello(credit=2))
    until(lambda: rig.dispatcher.ready_nodes, rig.poll)
    rig.dispatcher.offer(LARGE)
    until(lambda: rig.came, rig.poll)
    (got,) = rig.came
    assert isinstance(got, Snapshot)
    np.testing.assert_array_equal(got.counts, LARGE.counts)
    assert borrowed == [LARGE.counts.nbytes]

    rig.link.post(dataclasses.replace(LARGE, counts=got.counts), rig.now_s)
    until(lambda: len(rig.came) == 2, rig.poll)
    assert borrowed == 2 * [LARGE.counts.nbytes]
    rig.node.send(Done(series=LARGE.id.series, seq=0, ok=True))
    until(lambda: rig.settled, rig.poll)
    assert not rig.dispatcher._exported, "it may be released"
    for errors in (rig.dispatcher.wire_errors, rig.sink.wire_errors, rig.node.wire_errors):
        assert not errors


@pytest.mark.parametrize("why", [errno.EPERM, errno.EFAULT])
def test_unreadable_memory_falls_back_to_the_socket(
    rig: Rig, borrowed: list[int], monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    until(lambda: rig.node.connected and rig.link.connection.connected, rig.poll)
    rig.node.handshake(hello(credit=2))
    until(lambda: rig.dispatcher.ready_nodes, rig.poll)

    original = lending._read

    def forbidden(process: int, address: int, nbytes: int) -> tuple[memoryview, int]:
        # Not what is read to try it out: either side may do that again at any time.
        if nbytes > 16:
            raise OSError(why, os.strerror(why))
        return original(process, address, nbytes)

    monkeypatch.setattr(lending, "_read", forbidden)
    rig.dispatcher.offer(LARGE)
    until(lambda: rig.came, rig.poll)
    assert rig.node.wire_errors == {"unreadable": 1}
    rig.link.post(LARGE, rig.now_s)
    # Sent again once nothing has been confirmed for a while, or the sink's refusal was heard.
    until(lambda: len(rig.came) == 2, rig.poll)
    assert rig.sink.wire_errors["unreadable"] >= 1
    # A successful test is not accepted again: no reference is sent to this node, however often it sends HELLO.
    rig.node.send(Done(series=LARGE.id.series, seq=0, ok=True))
    rig.node.handshake(hello(credit=2))
    until(lambda: rig.settled, rig.poll)
    rig.dispatcher.offer(dataclasses.replace(LARGE, id=dataclasses.replace(LARGE.id, seq=1)))
    until(lambda: len(rig.came) == 3, rig.poll)
    assert rig.node.wire_errors == {"unreadable": 1}
    for got in rig.came:
        assert isinstance(got, Snapshot)
        np.testing.assert_array_equal(got.counts, LARGE.counts)
    assert borrowed == []


def test_nodes_without_supervisor_share_no_memory(
    tmp_path: Path, borrowed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    rig = Rig(context)
    try:
        until(lambda: rig.node.connected, rig.poll)
        rig.node.handshake(hello(credit=2))
        until(lambda: rig.dispatcher.ready_nodes, rig.poll)
        rig.dispatcher.offer(LARGE)
        until(lambda: rig.came, rig.poll)
        assert borrowed == []
        assert not rig.dispatcher._exported
    finally:
        rig.close()
        context.destroy(linger=0)


def test_smallest_referenced_payload_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = np.zeros((8, 8), np.uint16)
    frames = encode(dataclasses.replace(snapshot(1), counts=counts))
    for value, lent in (("128", True), ("129", False), ("", False), ("1", True)):
        monkeypatch.setenv(lending.LEND_FROM_VARIABLE, value)
        lending.export_from_bytes.cache_clear()
        assert (export_frames(frames)[2] != frames[2]) is lent
    monkeypatch.setenv(lending.LEND_FROM_VARIABLE, "lots")
    lending.export_from_bytes.cache_clear()
    with pytest.raises(ConfigError, match="expected a number of bytes; got lots"):
        export_frames(frames)
    monkeypatch.undo()
    lending.export_from_bytes.cache_clear()
