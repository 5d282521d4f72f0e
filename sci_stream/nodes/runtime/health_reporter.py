"""Health reporting of acquire, reconstruct and sink nodes: health server, service manager and metrics."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sci_stream.clock import host_s
from sci_stream.config import Rig
from sci_stream.config.fields import expiry_s
from sci_stream.model import JsonObject
from sci_stream.nodes.runtime.process import versions
from sci_stream.nodes.runtime.systemd import SystemdNotifier

if TYPE_CHECKING:
    from sci_stream.health import Health
    from sci_stream.health.metrics import Value
    from sci_stream.health.server import HealthServer

log = logging.getLogger(__name__)

# Reports are cheap, not free: the node's loop turns far more often.
_PERIOD_S = 0.2


class HealthReporter:
    """The health of a node and, if the rig enables it, the server that publishes it.

    Parameters
    ----------
    kind, index
        Identity of the node; the index distinguishes reconstruct nodes.
    page_refused
        Requests refused by the live page, by reason, if this node serves it.
    """

    def __init__(
        self, rig: Rig, kind: str, index: int | None = None, *, page_refused: Counter[str] | None = None
    ) -> None:
        section = rig.health
        self._manager = SystemdNotifier()
        self._health: Health | None = None
        self._server: HealthServer | None = None
        self._next_s = float("-inf")
        self._page_refused = page_refused
        if section.enabled:
            from sci_stream.health import Health, NodeMetrics  # noqa: PLC0415 - rigs without it load no metrics
            from sci_stream.health.server import HealthServer  # noqa: PLC0415 - nor a web server

            port = section.port(kind, index or 0)
            expires_s = expiry_s(section.token_expires)
            self._health = Health(NodeMetrics(kind if index is None else f"{kind}-{index}", kind, versions()))
            self._server = HealthServer(self._health, section.host, port, section.token or None, expires_s)
            if section.token and host_s() >= expires_s:
                log.error("[health] token has expired (token_expires): status and metrics are not accessible")

    @property
    def url(self) -> str:
        """Address of the health server, ``""`` if disabled."""
        return "" if self._server is None else self._server.url

    def due(self, now_s: float) -> bool:
        """Record that the loop is alive; return whether the next `report` is due."""
        if self._health is not None:
            self._health.mark_alive()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + _PERIOD_S
        return True

    def report_soon(self) -> None:
        """Make the next `report` due at once, because something visible changed."""
        self._next_s = float("-inf")

    def observe(self, name: str, value: float, label: str = "") -> None:
        """Add a value to a histogram; see `NodeMetrics.observe`."""
        if self._health is not None:
            self._health.metrics.observe(name, value, label)

    def report(
        self, not_ready: str, status: JsonObject, metrics: Mapping[str, Value], *, progress: int, idle: bool
    ) -> None:
        """Publish the status; see `Health.report` and `SystemdNotifier.report`."""
        if self._health is not None and self._server is not None:
            refused = self._server.refused + (self._page_refused or Counter())
            self._health.report(not_ready, status, {"http_refused": dict(refused), **metrics})
        self._manager.report(not_ready or "ready", progress=progress, idle=idle)

    def close(self) -> None:
        """Stop serving."""
        self._manager.stopping()
        self._manager.close()
        if self._server is not None:
            self._server.close()
