"""What can be done to a rig while it runs, for `bench faults`: each harm does it and says in words what came of it."""

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

from sci_stream.bench.supervised_rig import SupervisedRig
from sci_stream.config import load_rig
from sci_stream.errors import EnvironmentFault, WireError
from sci_stream.nodes.runtime.camera_drivers import make_camera
from sci_stream.storage.calibration_file import save_calibration
from sci_stream.transport.sockets import make_socket
from sci_stream.wire import Accepted, Done, Dropped, Heartbeat, SeriesEnd, decode, encode
from tests.chaos.patched_node import Control
from tests.chaos.tcp_proxy import Cable

PATIENCE_S = 90.0
HEARTBEAT_S = 0.3
MASKS = "masks.h5"
_HOUR_S = 3600.0


@dataclass(slots=True)
class Victim:
    """A rig that runs and is to be harmed, and the means of doing so."""

    rig: SupervisedRig
    control: Control
    cables: tuple[Cable, ...]
    folder: Path
    draw: random.Random = field(default_factory=lambda: random.Random(0))

    def count(self, name: str) -> float:
        """Return what the sink reported last of something."""
        return float(self.rig.latest.get(name, 0))

    def get_on(self, snapshots: int = 3) -> None:
        """Wait until so many more have been reconstructed."""
        self.rig.wait_for("ledger.reconstructed", self.count("ledger.reconstructed") + snapshots, PATIENCE_S)

    def pid(self, node: str) -> int:
        """Return a node's process number, waiting until it runs."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (pid := self.rig.supervisor.processes.get(node)) is None:
            if not self.rig.running or time.monotonic() > deadline_s:
                raise EnvironmentFault(f"{node} does not run", hint="It said last: " + " | ".join(self.rig.lines))
            time.sleep(0.02)
        return pid


def kill(victim: Victim, node: str) -> str:
    """End a node as a crash does, and wait until it has been started again."""
    pid = victim.pid(node)
    os.kill(pid, signal.SIGKILL)
    restarts = victim.rig.supervisor.restarts
    while victim.rig.running and victim.rig.supervisor.restarts == restarts:
        time.sleep(0.02)
    victim.get_on()
    return "started again"


def freeze(victim: Victim, node: str) -> str:
    """Have a node stand still for longer than it takes to be given up, and go on."""
    with _standing_still(victim.pid(node)):
        time.sleep(6 * HEARTBEAT_S)
    victim.get_on()
    if node.startswith("reconstruct"):
        _expect(victim, "is gone", f"that {node} stood still")
    return "noticed, taken back"


def slow_down(victim: Victim, node: str) -> str:
    """Let a node work for a tenth of the time only."""
    pid = victim.pid(node)
    for _ in range(15):
        with _standing_still(pid):
            time.sleep(0.2)
        time.sleep(0.02)
    victim.get_on()
    return "caught up"


@contextlib.contextmanager
def _standing_still(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def cut(victim: Victim) -> str:
    """Pull the cables of all reconstruct nodes for longer than it takes to give them up."""
    for cable in victim.cables:
        cable.pull()
    time.sleep(6 * HEARTBEAT_S)
    for cable in victim.cables:
        cable.plug()
    victim.get_on()
    _expect(victim, "is gone", "that nodes were cut off")
    return "given up, found each other again"


def slow_disk(victim: Victim) -> str:
    """Have each flush take a second longer, for as long as ten of them take."""
    before = victim.count("ledger.acquired")
    victim.control.disk_s = 1.0
    victim.rig.wait_for("ledger.acquired", before + 60, PATIENCE_S)
    waiting = victim.count("ledger.in_flight")
    victim.control.disk_s = 0.0
    victim.get_on(int(waiting) + 3)
    return f"{waiting:.0f} waited, then caught up"


def fill_disk(victim: Victim) -> str:
    """Let no file of the sink's grow any more."""
    size = max(path.stat().st_size for path in (victim.folder / "recordings").glob("*.h5"))
    resource.prlimit(victim.pid("sink"), resource.RLIMIT_FSIZE, (size, size))
    victim.rig.wait_for("ledger.dropped", 3, PATIENCE_S)
    return "the recording ended, said so"


def take_memory(victim: Victim, node: str = "reconstruct-0") -> str:
    """Let a node have no more memory than it has between two solves, until it has noticed; then give it back."""
    pid = victim.pid(node)
    sizes = []
    for _ in range(100):
        sizes.append(_virtual_bytes(pid))
        time.sleep(0.01)
    resource.prlimit(pid, resource.RLIMIT_AS, (min(sizes), resource.RLIM_INFINITY))
    deadline_s = time.monotonic() + PATIENCE_S
    while not (noticed := [line for line in victim.rig.lines if "out of memory" in line]) and victim.pid(node) == pid:
        if time.monotonic() > deadline_s:
            raise EnvironmentFault(f"{node} did not run out of memory", hint="Take larger frames.")
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    victim.get_on()
    return "took less at once" if noticed and victim.pid(node) == pid else "started again"


def _expect(victim: Victim, words: str, what: str) -> None:
    if not any(words in line for line in victim.rig.lines):
        raise EnvironmentFault(
            f"Nobody said {what}", expected=repr(words), hint="They said: " + " | ".join(victim.rig.lines)
        )


def _virtual_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()


def set_clock_back(victim: Victim) -> str:
    """Set the clock of the whole host back by an hour, then start a node anew that knows only the new time."""
    victim.control.clock_s = -_HOUR_S
    victim.get_on()
    kill(victim, "reconstruct-0")
    return "nobody minded"


def wait_for_end(victim: Victim) -> str:
    """Do nothing: the camera does it."""
    while victim.rig.running:
        time.sleep(0.05)
    return "noticed, counted"


def break_masks(victim: Victim) -> str:
    """Cut the calibration's file in half, and have it read again."""
    path = victim.folder / MASKS
    content = path.read_bytes()
    path.with_suffix(".whole").write_bytes(content)
    path.write_bytes(content[: len(content) // 2])
    os.kill(victim.pid("acquire"), signal.SIGKILL)
    while victim.rig.running:
        time.sleep(0.05)
    _expect(victim, MASKS, "which file is broken")
    return f"ended with status {victim.rig.status}, named the file; mended, went on"


def make_masks(rig: Path) -> None:
    """Write the masks that a rig's own camera knows to a file beside the rig's."""
    camera = make_camera(load_rig(rig, overrides={}))
    camera.open()
    calibration = camera.calibration()
    camera.close()
    assert calibration is not None
    save_calibration(rig.with_name(MASKS), calibration)


def mend_masks(folder: Path) -> None:
    """Put the calibration's file back."""
    (folder / MASKS).with_suffix(".whole").rename(folder / MASKS)


def besiege(victim: Victim, messages: int = 1000) -> str:
    """Send broken messages to the addresses of the acquire node and of the sink."""
    network = victim.rig.rig.network
    sent = sum(_send_broken(victim.draw, address, messages) for address in (network.dispatch, network.results))
    victim.get_on()
    return f"{sent} refused"


def _send_broken(draw: random.Random, address: str, messages: int) -> int:
    good = [
        encode(message)
        for message in (
            Heartbeat(node="stranger", status={"n": 1}),
            Done(series="s", seq=1, ok=True, reason=""),
            Dropped("s", 0, 1, "why", "dropped"),
            Accepted(series="s", seq=1, of="snapshot"),
            SeriesEnd(series="s", acquired=1, reason="", camera_dropped=0),
        )
    ]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = make_socket(
        context, zmq.DEALER, max_message_bytes=1 << 20, heartbeat_s=5.0, send_queue=100, receive_queue=1000
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
                continue  # it is a good one all the same
            socket.poll(int(PATIENCE_S * 1000), zmq.POLLOUT)
            socket.send_multipart([bytes(frame) for frame in frames])
            sent += 1
            while socket.poll(0):
                socket.recv_multipart()
    finally:
        socket.close(linger=10_000)
        context.term()
    return sent
