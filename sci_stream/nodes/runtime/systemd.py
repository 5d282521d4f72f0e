"""Notifications to systemd: ready, status text and watchdog."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping


class SystemdNotifier:
    """Client of the service manager's notification socket; does nothing without one.

    The watchdog is fed by progress, not by a timer: systemd restarts a node that hangs with work pending, but not an
    idle one.

    Parameters
    ----------
    environment
        Environment with ``NOTIFY_SOCKET``. See sd_notify(3).
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # A leading @ denotes an abstract socket name.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None
        self._ready = False
        self._reported = ""
        self._progress: int | None = None

    def report(self, words: str, *, progress: int, idle: bool) -> None:
        """Send the status.

        Parameters
        ----------
        words
            Text shown by ``systemctl status``.
        progress
            Counter that grows with every step of a frame.
        idle
            Whether there is no work.
        """
        if self._socket is None:
            return
        lines = []
        if not self._ready:
            self._ready = True
            lines.append("READY=1")
        if words != self._reported:
            self._reported = words
            lines.append("STATUS=" + words.replace("\n", " "))
        if idle or progress != self._progress:
            self._progress = progress
            lines.append("WATCHDOG=1")
        self._send(lines)

    def stopping(self) -> None:
        """Announce the stop, which may take as long as draining."""
        self._send(["STOPPING=1"])

    def _send(self, lines: list[str]) -> None:
        if self._socket is None or not lines:
            return
        # A node must not fail because the manager does not listen.
        with contextlib.suppress(OSError):
            self._socket.sendto("\n".join(lines).encode(), self._address)

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
