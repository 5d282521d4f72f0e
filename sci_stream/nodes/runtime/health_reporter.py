"""Health reporting of acquire, reconstruct and sink nodes: health server, service manager and
metrics.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sci_stream.config import Rig
from sci_stream.health import Health, NodeMetrics
from sci_stream.model import Json
from sci_stream.nodes.runtime.process import versions

if TYPE_CHECKING:
    from sci_stream.health.metrics import Value
    from sci_stream.health.server import HealthServer

log = logging.getLogger(__name__)

# Reports are cheap, not free: the node's loop turns far more often.
_PERIOD_S = 0.2


class HealthReporter:
    """The health of a node and, if the rig enables it, the server that publishes it.

    ``index`` distinguishes reconstruct nodes; ``page_refused`` counts the requests that the live
    page refused, by reason, if this node serves it.
    """

    def __init__(
        self,
        rig: Rig,
        kind: str,
        index: int | None = None,
        *,
        page_refused: Counter[str] | None = None,
    ) -> None:
        section = rig.health
        self._manager = SystemdNotifier()
        self._health = Health(
            NodeMetrics(kind if index is None else f"{kind}-{index}", kind, versions())
        )
        self._server: HealthServer | None = None
        self._next_s = float("-inf")
        self._page_refused = Counter() if page_refused is None else page_refused
        self.observe = self._health.metrics.observe
        self.url = ""
        """Address of the health server, ``""`` if disabled."""
        if section.enabled:
            from sci_stream.health.server import HealthServer  # noqa: PLC0415 - rigs without it load no web server

            port = section.port(kind, index or 0)
            self._server = HealthServer(self._health, section.host, port, section.token or None)
            self.url = self._server.url

    def due(self, now_s: float) -> bool:
        """Record that the loop is alive; return whether the next `report` is due."""
        self._health.mark_alive()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + _PERIOD_S
        return True

    def report_soon(self) -> None:
        """Make the next `report` due at once, because something visible changed."""
        self._next_s = float("-inf")

    def report(
        self,
        not_ready: str,
        status: Mapping[str, Json],
        metrics: Mapping[str, Value],
        *,
        progress: int,
        idle: bool,
    ) -> None:
        """Publish the status; see `Health.report` and `SystemdNotifier.report`."""
        refused = (
            self._page_refused
            if self._server is None
            else self._page_refused + self._server.refused
        )
        self._health.report(not_ready, status, {"http_refused": dict(refused), **metrics})
        self._manager.report(not_ready or "ready", progress=progress, idle=idle)

    def close(self) -> None:
        """Stop serving."""
        self._manager.close()
        if self._server is not None:
            self._server.close()


class SystemdNotifier:
    """Client of the service manager's notification socket, sd_notify(3); does nothing without
    ``NOTIFY_SOCKET``.

    The watchdog is fed by progress, not by a timer: systemd restarts a node that hangs with work
    pending, but not an idle one.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # A leading @ denotes an abstract socket name.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None
        self._reported: str | None = None
        self._progress: int | None = None

    def report(self, words: str, *, progress: int, idle: bool) -> None:
        """Send the text for ``systemctl status``; feed the watchdog if ``progress`` has grown, or
        if it is not due.
        """
        lines = []
        if self._reported is None:
            lines.append("READY=1")
        if words != self._reported:
            self._reported = words
            lines.append("STATUS=" + words.replace("\n", " "))
        if idle or progress != self._progress:
            self._progress = progress
            lines.append("WATCHDOG=1")
        self._send(lines)

    def _send(self, lines: list[str]) -> None:
        if self._socket is None or not lines:
            return
        # A node must not fail because the manager does not listen.
        with contextlib.suppress(OSError):
            self._socket.sendto("\n".join(lines).encode(), self._address)

    def close(self) -> None:
        """Announce the end, and close the socket."""
        self._send(["STOPPING=1"])
        if self._socket is not None:
            self._socket.close()
            self._socket = None
