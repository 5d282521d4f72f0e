"""A TCP proxy between a socket and an address that a test can cut silently or throttle."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from dataclasses import dataclass, field


@dataclass(eq=False)
class _Lane:
    """One connection: ``near`` to the client, ``far`` to the address."""

    near: socket.socket
    far: socket.socket
    dead: bool = False
    waiting: bytearray = field(default_factory=bytearray)


class Cable:
    """Forwards connections from `endpoint` to an address in a separate thread.

    ``allowance`` is how many bytes may still come back from the address, None for any number.
    """

    def __init__(self, to: str) -> None:
        host, _, port = to.removeprefix("tcp://").rpartition(":")
        self._to = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lanes: list[_Lane] = []
        self._closing = False
        self.allowance: int | None = None
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        """Number of connections made so far."""
        return len(self._lanes)

    def cut(self) -> None:
        """Stop forwarding on existing connections; they stay open, and neither end is notified."""
        for lane in self._lanes:
            lane.dead = True

    def close(self) -> None:
        """Close all connections."""
        self._closing = True
        self._thread.join()
        self._listener.close()
        for lane in self._lanes:
            lane.near.close()
            lane.far.close()

    def _carry(self) -> None:
        while not self._closing:
            alive = {
                end: lane for lane in self._lanes if not lane.dead for end in (lane.near, lane.far)
            }
            ready, _, _ = select.select([self._listener, *alive], [], [], 0.01)
            for end in ready:
                if end is self._listener:
                    self._connect(self._listener.accept()[0])
                else:
                    self._take(alive[end], end)
            for lane in self._lanes:
                if not lane.dead and lane.waiting:
                    self._give_back(lane)

    def _connect(self, near: socket.socket) -> None:
        try:
            self._lanes.append(_Lane(near, socket.create_connection(self._to)))
        except OSError:  # nothing listens there any more: the client finds its connection closed
            near.close()

    def _take(self, lane: _Lane, end: socket.socket) -> None:
        try:
            data = end.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            lane.dead = True
            lane.near.close()
            lane.far.close()
        elif end is lane.far:
            lane.waiting += data
        else:
            with contextlib.suppress(OSError):
                lane.far.sendall(data)

    def _give_back(self, lane: _Lane) -> None:
        n = len(lane.waiting) if self.allowance is None else min(len(lane.waiting), self.allowance)
        if self.allowance is not None:
            self.allowance -= n
        with contextlib.suppress(OSError):
            lane.near.sendall(lane.waiting[:n])
        del lane.waiting[:n]
