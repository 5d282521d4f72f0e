"""Health of a node: liveness, readiness, status and metrics, served over HTTP."""

from sci_stream.health.metrics import CATALOGUE, NodeMetrics
from sci_stream.health.report import Health

__all__ = ["CATALOGUE", "Health", "NodeMetrics"]
