"""What may be changed on a GenICam camera while it delivers frames."""

from __future__ import annotations

from typing import Any

from drivers.harvesters.nodes import describe
from sci_stream.parameters import Parameter

_OFFERED = ("ExposureTime", "Gain", "AcquisitionFrameRate")
"""By their SFNC names. What changes the image's format is not among them: a series has one."""


def settings(node_map: Any) -> list[Parameter]:
    """Return those of exposure, gain and frame rate that the camera has, and lets be set now."""
    present = [name for name in _OFFERED if node_map.has_node(name)]
    found = []
    for name in present:
        feature = describe(node_map.get_node(name), "")
        value = feature.value
        if feature.access == "RW" and isinstance(value, int | float) and not isinstance(value, bool):
            says = f"{feature.about} ({feature.unit})" if feature.unit else feature.about
            kind = "integer" if feature.kind == "integer" else "number"
            found.append(Parameter(name, kind, value, feature.minimum, feature.maximum, says=says))  # type: ignore[arg-type]
    return found
