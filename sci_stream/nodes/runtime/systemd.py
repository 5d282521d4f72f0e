"""What a node tells the service manager that started it (systemd): ready, how it goes, that frames make progress."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping


class SystemdNotifier:
    """The manager's socket, if there is one; without it, nothing is told.

    The watchdog is fed by progress, not by a timer: a node that hangs with work before it is started again, one that
    has nothing to do is left alone.

    Parameters
    ----------
    environment
        Where ``NOTIFY_SOCKET`` is. See sd_notify(3).
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # An @ stands for the null byte of an abstract name.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None
        self._ready = False
        self._told = ""
        self._progress: int | None = None

    def tell(self, words: str, *, progress: int, idle: bool) -> None:
        """Say how it goes.

        Parameters
        ----------
        words
            For people: ``systemctl status`` shows them.
        progress
            Grows whenever a frame comes on its way.
        idle
            Whether there is nothing to make progress with.
        """
        if self._socket is None:
            return
        lines = []
        if not self._ready:
            self._ready = True
            lines.append("READY=1")
        if words != self._told:
            self._told = words
            lines.append("STATUS=" + words.replace("\n", " "))
        if idle or progress != self._progress:
            self._progress = progress
            lines.append("WATCHDOG=1")
        self._send(lines)

    def stopping(self) -> None:
        """Say that the end has begun: it may take as long as draining does."""
        self._send(["STOPPING=1"])

    def _send(self, lines: list[str]) -> None:
        if self._socket is None or not lines:
            return
        # A manager that does not listen is no reason for a node to fail.
        with contextlib.suppress(OSError):
            self._socket.sendto("\n".join(lines).encode(), self._address)

    def close(self) -> None:
        """Let go of the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
