"""What was found of the calibration in the course of a series, kept by the sink."""

from __future__ import annotations

from typing import Any

from sci_stream.model import CalibrationHealth
from sci_stream.nodes.calibration_findings import findings


class HealthBook:
    """What was found of the calibration in the course of a series: the last word, and the worst."""

    def __init__(self) -> None:
        self._last: CalibrationHealth | None = None
        self._largest_shift_px: float | None = None
        self._least_match: float | None = None
        self._first_brightness: float | None = None
        self._looks = 0
        self._corrected = 0

    def take(self, health: CalibrationHealth) -> None:
        """Add a look."""
        self._last = health
        self._looks += 1
        self._corrected += health.corrected
        if health.shift_px is not None:
            self._largest_shift_px = max(health.shift_px, self._largest_shift_px or 0.0)
        if self._first_brightness is None:
            self._first_brightness = health.brightness
        if health.match is not None:
            self._least_match = min(health.match, 1.0 if self._least_match is None else self._least_match)

    def alerts(self, warn_shift_px: float) -> list[str]:
        """Return what the last look found wrong, a sentence each."""
        return list(findings(self._last, warn_shift_px).values()) if self._last is not None else []

    def figures(self) -> dict[str, Any] | None:
        """Return the figures, None before the first look."""
        last = self._last
        if last is None:
            return None
        figures = {
            "shift_x_px": last.shift_x_px,
            "shift_y_px": last.shift_y_px,
            "largest_shift_px": self._largest_shift_px,
            "match": last.match,
            "least_match": self._least_match,
            "contrast": last.contrast,
            "below_black_fraction": last.below_black_fraction,
            "brightness": last.brightness,
            "brightness_drift": self._brightness_drift,
            "camera_gain": last.gain,
        }
        return {
            "looks": self._looks,
            "shift_px": None if last.shift_px is None else [last.shift_x_px, last.shift_y_px],
            **{name: None if value is None else round(value, 4) for name, value in figures.items()},
            "order": last.order,
            "first_mask": last.first_mask,
            "corrected": last.corrected,
            "corrected_looks": self._corrected,
        }

    @property
    def _brightness_drift(self) -> float | None:
        """Brightness of the last look relative to the first one: 1 if nothing changed, the light or the scene."""
        last = self._last.brightness if self._last is not None else None
        return last / self._first_brightness if last is not None and self._first_brightness else None
