"""A network cable between two nodes that can be pulled and plugged in again, for `bench faults`."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import Self

_CHUNK = 1 << 16
_TURN_S = 0.02
_STUCK_S = 5.0
"""After which a connection is closed whose far end takes nothing."""


class Cable:
    """Hands TCP connections on to another port of this machine, both ways, unless it is pulled. A context manager.

    While it is pulled nothing comes through and nobody is told: connections stay open, as they do when a real cable is
    pulled. What was on its way then comes through when it is plugged in again, as TCP would send it again.

    Parameters
    ----------
    port
        Where to, on 127.0.0.1.
    """

    def __init__(self, port: int) -> None:
        self._far = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pulled = False
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._ways: dict[socket.socket, socket.socket] = {}
        self._thread = threading.Thread(target=self._run, name="cable", daemon=True)
        self._thread.start()

    @property
    def near(self) -> str:
        """The address to connect to instead."""
        return f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    def pull(self) -> None:
        """Let nothing through from here on."""
        with self._lock:
            self._pulled = True

    def plug(self) -> None:
        """Let everything through."""
        self._pulled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._over.is_set():
                if self._pulled:
                    self._over.wait(_TURN_S)
                    continue
                for key, _ in selector.select(_TURN_S):
                    with self._lock:
                        if not self._pulled:
                            self._serve(selector, key.fileobj)
            for end in self._ways:
                end.close()

    def _serve(self, selector: selectors.BaseSelector, ready: object) -> None:
        if ready is self._listener:
            self._connect(selector)
        elif isinstance(ready, socket.socket) and ready in self._ways:
            self._pass_on(selector, ready)

    def _connect(self, selector: selectors.BaseSelector) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self._far, timeout=1.0)
        except OSError:
            near.close()  # the node there is down: who connects finds out as it would without a cable
            return
        for end, other in ((near, far), (far, near)):
            end.settimeout(_STUCK_S)
            self._ways[end] = other
            selector.register(end, selectors.EVENT_READ)

    def _pass_on(self, selector: selectors.BaseSelector, end: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = end.recv(_CHUNK)
            if data:
                self._ways[end].sendall(data)
                return
        for gone in (end, self._ways[end]):
            selector.unregister(gone)
            del self._ways[gone]
            gone.close()
