"""A camera driver in 40 lines: random masks in front of a grey gradient.

Register a driver in the pyproject.toml of its package, then select it with ``[camera] driver = "gradient"``::

    [project.entry-points."sci_stream.cameras"]
    gradient = "my_package:GradientCamera"
"""

from __future__ import annotations

import time

import numpy as np
from pydantic import BaseModel, ConfigDict

from sci_stream.model import CameraCapabilities, CameraFrame
from sci_stream.optics.calibration import Calibration
from sci_stream.testing.cameras import CameraContract


class GradientCamera:
    """Satisfies `sci_stream.ports.Camera`."""

    class Options(BaseModel):
        """``[camera.options]`` of the rig."""

        model_config = ConfigDict(extra="forbid")
        size_px: int = 64
        n_frames: int = 4
        period_s: float = 0.1

    def __init__(self, options: Options) -> None:
        shape = (options.n_frames, options.size_px, options.size_px)
        self._phi = np.random.default_rng(0).integers(0, 2, shape).astype(np.float32)
        self._options = options
        self._frame_id = 0
        self._running = False
        self.exhausted = False

    def open(self) -> CameraCapabilities:
        """Return the capabilities of the camera."""
        size = self._options.size_px
        return CameraCapabilities("gradient", "1", size, size, "Mono12", 12, n_frames=self._options.n_frames)

    def calibration(self) -> Calibration:
        """Return the masks; a real camera has them measured by ``sci-stream calibrate``."""
        dark = np.zeros(self._phi.shape[1:], np.float32)
        return Calibration(self._phi, dark, full_scale_dn=4000.0 / len(self._phi))

    def start(self) -> None:
        """Start at frame id 0, unless it delivers already."""
        if not self._running:
            self._running, self._frame_id = True, 0

    def read(self, timeout_s: float) -> CameraFrame | None:
        """Wait for the next exposure."""
        time.sleep(min(self._options.period_s, timeout_s))
        scene = np.linspace(0, 1, self._options.size_px, dtype=np.float32)
        counts = (self._phi.sum(0) * scene * (4000.0 / len(self._phi))).astype(np.uint16)
        self._frame_id += 1
        return CameraFrame(counts, self._frame_id - 1, None, time.time_ns())

    def counters(self) -> dict[str, int]:
        """Return driver counters; this camera loses nothing."""
        return {}

    def stop(self) -> None:
        """Stop; the next start begins at frame id 0 again."""
        self._running = False

    def close(self) -> None:
        """Stop; there is nothing to release."""
        self.stop()


class TestGradientCamera(CameraContract):
    """``pytest my_package.py`` runs the suite that every camera must pass."""

    def make(self) -> GradientCamera:
        """Return a camera that need not be waited for."""
        return GradientCamera(GradientCamera.Options(period_s=0.001))
