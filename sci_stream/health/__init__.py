"""Health of a node: liveness, readiness, status and metrics, served over HTTP."""

from sci_stream.health.metrics import CATALOGUE, Figure, Figures, Kind
from sci_stream.health.report import Health
from sci_stream.health.server import HealthServer

__all__ = ["CATALOGUE", "Figure", "Figures", "Health", "HealthServer", "Kind"]
