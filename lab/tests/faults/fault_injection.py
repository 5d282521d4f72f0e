"""Faults for `bench faults`: each function injects one into a running rig and returns the outcome
in words.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from lab.tests.faults.patched_node import FaultControl
from lab.tests.faults.tcp_proxy import TcpProxy
from sci_stream.config import load_rig
from sci_stream.devices.camera_drivers import make_camera
from sci_stream.errors import EnvironmentFault, WireError
from sci_stream.recording.calibration_file import save_calibration
from sci_stream.transport.sockets import make_socket
from sci_stream.wire.codec import decode, encode
from sci_stream.wire.messages import Accepted, Done, Dropped, Heartbeat, SeriesEnd
from sci_stream_lab.bench.pipeline.supervised_rig import SupervisedRig

PATIENCE_S = 90.0
HEARTBEAT_S = 0.3
MASKS = "masks.h5"
_HOUR_S = 3600.0


@dataclass(slots=True)
class PatchedRig:
    """A running rig and the means to inject faults into it."""

    rig: SupervisedRig
    control: FaultControl
    proxies: tuple[TcpProxy, ...]
    folder: Path
    draw: random.Random = field(default_factory=lambda: random.Random(0))

    def count(self, name: str) -> float:
        """Return the value of a figure in the sink's last report."""
        return float(self.rig.latest.get(name, 0))

    def wait_for_progress(self, snapshots: int = 3) -> None:
        """Wait until this many more snapshots are reconstructed, or recorded alone."""
        self.rig.wait_for_more(snapshots, PATIENCE_S)

    def pid(self, node: str) -> int:
        """Return the process id of a node; wait until it runs."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (pid := self.rig.supervisor.processes.get(node)) is None:
            if not self.rig.running or time.monotonic() > deadline_s:
                raise EnvironmentFault(
                    f"{node} does not run", hint="Last log lines: " + " | ".join(self.rig.lines)
                )
            time.sleep(0.02)
        return pid


def kill(target: PatchedRig, node: str) -> str:
    """Kill a node and wait until the supervisor has restarted it."""
    pid = target.pid(node)
    os.kill(pid, signal.SIGKILL)
    restarts = target.rig.supervisor.restarts
    while target.rig.running and target.rig.supervisor.restarts == restarts:
        time.sleep(0.02)
    target.wait_for_progress()
    return "restarted"


def freeze(target: PatchedRig, node: str) -> str:
    """Stop a node for longer than the heartbeat timeout, then let it continue."""
    with _stopped(target.pid(node)):
        time.sleep(6 * HEARTBEAT_S)
    target.wait_for_progress()
    if node.startswith("reconstruct"):
        _expect(target, "lost: ", f"the pause of {node}")
    return "detected, resumed"


def slow_down(target: PatchedRig, node: str) -> str:
    """Let a node run for a tenth of the time only."""
    pid = target.pid(node)
    for _ in range(15):
        with _stopped(pid):
            time.sleep(0.2)
        time.sleep(0.02)
    target.wait_for_progress()
    return "caught up"


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def cut(target: PatchedRig) -> str:
    """Cut the connections of all reconstruct nodes for longer than the heartbeat timeout."""
    for proxy in target.proxies:
        proxy.cut()
    time.sleep(6 * HEARTBEAT_S)
    for proxy in target.proxies:
        proxy.restore()
    target.wait_for_progress()
    _expect(target, "lost: ", "the lost connection")
    return "timed out, reconnected"


def slow_disk(target: PatchedRig) -> str:
    """Delay each flush by one second until 60 more snapshots are acquired."""
    before = target.count("ledger.acquired")
    target.control.disk_s = 1.0
    target.rig.wait_for("ledger.acquired", before + 60, PATIENCE_S)
    waiting = target.count("ledger.in_flight")
    target.control.disk_s = 0.0
    target.wait_for_progress(int(waiting) + 3)
    return f"backlog of {waiting:.0f}, then caught up"


def fill_disk(target: PatchedRig) -> str:
    """Stop every file of the sink from growing."""
    size = max(path.stat().st_size for path in (target.folder / "recordings").glob("*.h5"))
    resource.prlimit(target.pid("sink"), resource.RLIMIT_FSIZE, (size, size))
    target.rig.wait_for("ledger.dropped", 3, PATIENCE_S)
    return "the recording stopped, with an error in the log"


def take_memory(target: PatchedRig, node: str = "reconstruct-0") -> str:
    """Limit a node to the memory it holds between two solves until it reports it; then lift the
    limit.
    """
    pid = target.pid(node)
    sizes = []
    for _ in range(100):
        sizes.append(_virtual_bytes(pid))
        time.sleep(0.01)
    resource.prlimit(pid, resource.RLIMIT_AS, (min(sizes), resource.RLIM_INFINITY))
    deadline_s = time.monotonic() + PATIENCE_S
    while (
        not (noticed := [line for line in target.rig.lines if "out of memory" in line])
        and target.pid(node) == pid
    ):
        if time.monotonic() > deadline_s:
            raise EnvironmentFault(f"{node} did not run out of memory", hint="Take larger frames.")
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    target.wait_for_progress()
    return "solved in smaller chunks" if noticed and target.pid(node) == pid else "restarted"


def _expect(target: PatchedRig, words: str, what: str) -> None:
    if not any(words in line for line in target.rig.lines):
        raise EnvironmentFault(
            f"No log line reports {what}",
            expected=repr(words),
            hint="Last log lines: " + " | ".join(target.rig.lines),
        )


def _virtual_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()


def set_clock_back(target: PatchedRig) -> str:
    """Set the host clock back by an hour, then restart a node, which sees only the new time."""
    target.control.clock_s = -_HOUR_S
    target.wait_for_progress()
    kill(target, "reconstruct-0")
    return "no effect"


def wait_for_end(target: PatchedRig) -> str:
    """Wait for the end of the run: the simulated camera injects the fault."""
    while target.rig.running:
        time.sleep(0.05)
    return "detected, counted"


def break_masks(target: PatchedRig) -> str:
    """Truncate the calibration file to half and make the acquire node read it again."""
    path = target.folder / MASKS
    content = path.read_bytes()
    path.with_suffix(".whole").write_bytes(content)
    path.write_bytes(content[: len(content) // 2])
    os.kill(target.pid("acquire"), signal.SIGKILL)
    while target.rig.running:
        time.sleep(0.05)
    _expect(target, MASKS, "the broken file")
    return f"ended with status {target.rig.status}, named the file; ran again once repaired"


def make_masks(rig: Path) -> None:
    """Write the calibration of a rig's simulated camera to a file next to the rig file."""
    camera = make_camera(load_rig(rig, overrides={}))
    camera.open()
    calibration = camera.calibration()
    camera.close()
    assert calibration is not None
    save_calibration(rig.with_name(MASKS), calibration)


def restore_masks(folder: Path) -> None:
    """Restore the calibration file."""
    (folder / MASKS).with_suffix(".whole").rename(folder / MASKS)


def send_broken_messages(target: PatchedRig, messages: int = 1000) -> str:
    """Send broken messages to the addresses of the acquire node and the sink."""
    network = target.rig.rig.network
    sent = sum(
        _send_broken(target.draw, address, messages)
        for address in (network.dispatch, network.results)
    )
    target.wait_for_progress()
    return f"{sent} refused"


def _send_broken(draw: random.Random, address: str, messages: int) -> int:
    good = [
        encode(message)
        for message in (
            Heartbeat(node="unknown", status={"n": 1}),
            Done(series="s", seq=1, ok=True, reason=""),
            Dropped("s", 0, 1, "why", "dropped"),
            Accepted(series="s", seq=1, of="snapshot"),
            SeriesEnd(series="s", acquired=1, reason="", camera_dropped=0),
        )
    ]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = make_socket(
        context,
        zmq.DEALER,
        max_message_bytes=1 << 20,
        heartbeat_s=5.0,
        send_queue=100,
        receive_queue=1000,
    )
    socket.connect(address)
    sent = 0
    try:
        while sent < messages:
            frames = [bytearray(frame) for frame in draw.choice(good)]
            part = draw.choice(frames)
            if draw.random() < 0.5 and part:
                part[draw.randrange(len(part))] ^= 1 << draw.randrange(8)
            else:
                del part[draw.randrange(len(part) + 1) :]
            with contextlib.suppress(WireError):
                decode([bytes(frame) for frame in frames])
                continue  # the mutation left a valid message
            socket.poll(int(PATIENCE_S * 1000), zmq.POLLOUT)
            socket.send_multipart([bytes(frame) for frame in frames])
            sent += 1
            while socket.poll(0):
                socket.recv_multipart()
    finally:
        socket.close(linger=10_000)
        context.term()
    return sent
