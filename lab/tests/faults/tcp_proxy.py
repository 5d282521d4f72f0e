"""A TCP proxy between two nodes whose connection can be cut and restored, for `bench faults`."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import Self

_CHUNK = 1 << 16
_POLL_S = 0.02
_STUCK_S = 5.0
"""A connection whose far end accepts no data for this long is closed."""


class TcpProxy:
    """Forward TCP connections to another port of this machine in both directions, unless cut.

    A context manager.

    While it is cut no data pass and no connection is closed, as when a network cable is unplugged.
    Data in flight arrive once it is restored, as TCP would retransmit them.

    Parameters
    ----------
    port
        The port to forward to, on 127.0.0.1.
    """

    def __init__(self, port: int) -> None:
        self._far = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._cut = False
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)
        self._thread.start()

    @property
    def near(self) -> str:
        """The address to connect to instead."""
        return f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Stop forwarding."""
        with self._lock:
            self._cut = True

    def restore(self) -> None:
        """Forward again."""
        self._cut = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._closing.is_set():
                if self._cut:
                    self._closing.wait(_POLL_S)
                    continue
                for key, _ in selector.select(_POLL_S):
                    with self._lock:
                        if not self._cut:
                            self._serve(selector, key.fileobj)
            for end in self._peers:
                end.close()

    def _serve(self, selector: selectors.BaseSelector, ready: object) -> None:
        if ready is self._listener:
            self._connect(selector)
        elif isinstance(ready, socket.socket) and ready in self._peers:
            self._forward(selector, ready)

    def _connect(self, selector: selectors.BaseSelector) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self._far, timeout=1.0)
        except OSError:
            # the node is down: the client sees a closed connection, as it would without the proxy
            near.close()
            return
        for end, other in ((near, far), (far, near)):
            end.settimeout(_STUCK_S)
            self._peers[end] = other
            selector.register(end, selectors.EVENT_READ)

    def _forward(self, selector: selectors.BaseSelector, end: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = end.recv(_CHUNK)
            if data:
                self._peers[end].sendall(data)
                return
        for gone in (end, self._peers[end]):
            selector.unregister(gone)
            del self._peers[gone]
            gone.close()
