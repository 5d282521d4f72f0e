"""Health reporting of acquire, reconstruct and sink nodes: health server, service manager and metrics."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sci_stream.clock import host_s
from sci_stream.config import Rig
from sci_stream.config.fields import expiry_s
from sci_stream.health import Health, NodeMetrics
from sci_stream.health.metrics import Value
from sci_stream.model import JsonObject
from sci_stream.nodes.runtime.process import versions
from sci_stream.nodes.runtime.systemd import SystemdNotifier

if TYPE_CHECKING:
    from sci_stream.health.server import HealthServer

log = logging.getLogger(__name__)

# Reports are cheap, not free: the node's loop turns far more often.
_PERIOD_S = 0.2


class HealthReporter:
    """The health of a node and, if the rig enables it, the server that publishes it.

    Parameters
    ----------
    node, kind_of_node, index
        Identity of the node; the index distinguishes reconstruct nodes.
    page_refused
        Requests refused by the live page, by reason, if this node serves it.
    """

    def __init__(
        self, rig: Rig, node: str, kind_of_node: str, index: int = 0, *, page_refused: Counter[str] | None = None
    ) -> None:
        section = rig.health
        self.figures = NodeMetrics(node, kind_of_node, versions())
        self._health = Health(self.figures)
        self._manager = SystemdNotifier()
        self._server: HealthServer | None = None
        self._next_s = float("-inf")
        self._page_refused = page_refused
        if section.enabled:
            from sci_stream.health.server import HealthServer  # noqa: PLC0415 - rigs without it load no web server

            port = section.port(kind_of_node, index)
            expires_s = expiry_s(section.token_expires)
            self._server = HealthServer(self._health, section.host, port, section.token or None, expires_s)
            if section.token and host_s() >= expires_s:
                log.error("[health] token has expired (token_expires): status and metrics are not accessible")

    @property
    def url(self) -> str:
        """Address of the health server, ``""`` if disabled."""
        return "" if self._server is None else self._server.url

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
        self, not_ready: str, status: JsonObject, figures: Mapping[str, Value], *, progress: int, idle: bool
    ) -> None:
        """Publish the status; see `Health.report` and `SystemdNotifier.report`."""
        refused = Counter({} if self._server is None else self._server.refused)
        refused.update(Counter({} if self._page_refused is None else self._page_refused))
        self._health.report(not_ready, status, {"http_refused": dict(refused), **figures})
        self._manager.report(not_ready or "ready", progress=progress, idle=idle)

    def close(self) -> None:
        """Stop serving."""
        self._manager.stopping()
        self._manager.close()
        if self._server is not None:
            self._server.close()
