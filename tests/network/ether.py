"""Virtual hosts: network namespaces on a switch whose links can be slow, lossy, delayed or cut.

Small virtual machines often lack netem, so a thread forwards Ethernet frames between TAP devices,
one in each namespace: TCP meets real loss, real delay and links that are cut without notice.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_MAX_FRAME = 65_536
_BUFFER_BYTES = 1 << 16
"""Queue of a link that is slower than its traffic, as in a switch; the rest is dropped."""


def missing() -> str:
    """Return what this machine lacks for virtual hosts, ``""`` if nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need iproute2's ip"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "there is no /dev/net/tun"
    name = f"sci-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"cannot create a network namespace: {made.stderr.strip()}"
    try:
        os.close(_in_namespace(name, lambda: _open_tap("try0")))
    except OSError as error:
        return f"no TAP device can be made: {error}"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


def _in_namespace(name: str, do: Callable[[], T]) -> T:
    """Call a function in a thread inside a namespace: its sockets belong there."""
    results: list[T] = []
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            with Path("/run/netns", name).open("rb") as namespace:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(namespace.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
            results.append(do())
        except BaseException as error:  # re-raised in the caller
            errors.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _open_tap(device: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TAP | _IFF_NO_PI))
    except OSError:
        os.close(fd)
        raise
    return fd


@dataclass
class Cable:
    """Link from a host to the switch, symmetric. All values may change at any time.

    ``delay_s`` each way; ``loss``, the fraction of frames that vanish; ``bytes_per_s``, 0 for no
    limit; ``cut``: nothing passes, and neither end is notified.
    """

    delay_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float = 0.0
    cut: bool = False


class Host:
    """A namespace with an address, linked to the switch."""

    def __init__(self, namespace: str, address: str) -> None:
        self.namespace = namespace
        self.address = address
        self.cable = Cable()
        self._ip_netns("add", namespace)
        try:
            self.tap = self.call(lambda: _open_tap("eth0"))
            self.ip("link", "set", "lo", "up")
            self.ip("addr", "add", f"{address}/24", "dev", "eth0")
            self.ip("link", "set", "eth0", "up")
        except BaseException:
            self._ip_netns("del", namespace)
            raise

    @staticmethod
    def _ip_netns(*arguments: str) -> None:
        subprocess.run(["ip", "netns", *arguments], check=True)

    def ip(self, *arguments: str) -> None:
        """Run iproute2's ``ip`` on this host."""
        subprocess.run(["ip", "-n", self.namespace, *arguments], check=True)

    def readdress(self, address: str) -> None:
        """Give this host another address instead of the one it has."""
        self.ip("addr", "flush", "dev", "eth0")
        self.ip("addr", "add", f"{address}/24", "dev", "eth0")
        self.address = address

    def call(self, do: Callable[[], T]) -> T:
        """Call a function on this host: its connections start here."""
        return _in_namespace(self.namespace, do)

    @property
    def prefix(self) -> list[str]:
        """Command prefix that runs a command on this host."""
        return ["ip", "netns", "exec", self.namespace]

    def close(self) -> None:
        """Remove the host."""
        os.close(self.tap)
        self._ip_netns("del", self.namespace)


class Ether:
    """The switch: forwards frames between hosts until it is closed."""

    def __init__(self, hosts: list[Host], seed: int = 0) -> None:
        self._hosts = {host.tap: host for host in hosts}
        self._draw = random.Random(seed)
        self._where: dict[bytes, Host] = {}
        self._due: list[tuple[float, int, Host, bool, bytes]] = []
        self._numbers = itertools.count()
        self._free_s: dict[tuple[str, bool], float] = {}
        self._closing = False
        self.carried = 0
        self.lost = 0
        self._thread = threading.Thread(target=self._carry, name="ether", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop forwarding."""
        self._closing = True
        self._thread.join()

    def _carry(self) -> None:
        while not self._closing:
            wait_s = (
                0.1 if not self._due else min(0.1, max(0.0, self._due[0][0] - time.monotonic()))
            )
            ready, _, _ = select.select(list(self._hosts), [], [], wait_s)
            for tap in ready:
                with contextlib.suppress(OSError):  # no frame, or the device is down
                    for _ in range(64):
                        self._onto(self._hosts[tap], os.read(tap, _MAX_FRAME), up=True)
            now_s = time.monotonic()
            while self._due and self._due[0][0] <= now_s:
                _, _, host, up, frame = heapq.heappop(self._due)
                if up:
                    self._switch(host, frame)
                elif not host.cable.cut:
                    with contextlib.suppress(OSError):  # the device is down
                        os.write(host.tap, frame)
                        self.carried += 1

    def _onto(self, host: Host, frame: bytes, *, up: bool) -> None:
        """Put a frame on a host's link, up to the switch or down to the host."""
        cable = host.cable
        if cable.cut or (cable.loss and self._draw.random() < cable.loss):
            self.lost += 1
            return
        due_s = time.monotonic()
        if cable.bytes_per_s:
            free_s = max(due_s, self._free_s.get((host.namespace, up), 0.0))
            if (free_s - due_s) * cable.bytes_per_s > _BUFFER_BYTES:
                self.lost += 1
                return
            due_s = self._free_s[host.namespace, up] = free_s + len(frame) / cable.bytes_per_s
        heapq.heappush(self._due, (due_s + cable.delay_s, next(self._numbers), host, up, frame))

    def _switch(self, source: Host, frame: bytes) -> None:
        self._where[frame[6:12]] = source
        target = self._where.get(frame[:6])
        for host in [target] if target is not None else self._hosts.values():
            if host is not source:
                self._onto(host, frame, up=False)


@contextlib.contextmanager
def hosts(**addresses: str) -> Iterator[dict[str, Host]]:
    """Create hosts by name and address on one switch; remove all on exit."""
    with contextlib.ExitStack() as stack:
        made: dict[str, Host] = {}
        for name, address in addresses.items():
            made[name] = Host(f"sci-{os.getpid()}-{name}", address)
            stack.callback(made[name].close)
        ether = Ether(list(made.values()))
        stack.callback(ether.close)
        yield made
