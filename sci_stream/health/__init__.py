"""What a node says of itself to whoever watches it: alive, ready, status, figures."""

from sci_stream.health.metrics import CATALOGUE, Figure, Figures, Kind
from sci_stream.health.report import Health
from sci_stream.health.server import HealthServer

__all__ = ["CATALOGUE", "Figure", "Figures", "Health", "HealthServer", "Kind"]
