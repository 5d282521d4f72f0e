"""A camera driver in 60 lines: random masks in front of a grey gradient.

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
        self._is_open = self._running = False
        self._frame_id = self._delivered = 0
        self.exhausted = False  # a camera that ends by itself says so here

    def open(self) -> CameraCapabilities:
        """Connect to the camera and configure it: once, if it is called again."""
        if not self._is_open:
            self._is_open, self._delivered = True, 0
        size = self._options.size_px
        return CameraCapabilities("gradient", "1", size, size, "Mono12", 12, n_frames=self._options.n_frames)

    def calibration(self) -> Calibration | None:
        """Return the masks. A real camera knows none and returns None: ``sci-stream calibrate`` measures them."""
        if not self._is_open:
            raise RuntimeError("calibration() before open()")
        dark = np.zeros(self._phi.shape[1:], np.float32)
        return Calibration(self._phi, dark, full_scale_dn=4000.0 / len(self._phi))

    def start(self) -> None:
        """Start at frame id 0, unless it delivers already."""
        if not self._is_open:
            raise RuntimeError("start() before open()")
        if not self._running:
            self._running, self._frame_id = True, 0

    def read(self, timeout_s: float) -> CameraFrame | None:
        """Wait for the next exposure; None if it does not end within the timeout."""
        if not self._running:
            raise RuntimeError("read() before start()")
        time.sleep(min(self._options.period_s, timeout_s))
        if timeout_s < self._options.period_s:
            return None
        scene = np.linspace(0, 1, self._options.size_px, dtype=np.float32)
        counts = (self._phi.sum(0) * scene * (4000.0 / len(self._phi))).astype(np.uint16)
        self._frame_id += 1
        self._delivered += 1
        return CameraFrame(counts, self._frame_id - 1, None, time.time_ns())

    def counters(self) -> dict[str, int]:
        """Return the counters since open(); this camera loses nothing."""
        return {"delivered": self._delivered}

    def stop(self) -> None:
        """Stop; the next start begins at frame id 0 again."""
        self._running = False

    def close(self) -> None:
        """Stop; there is nothing else to release."""
        self.stop()
        self._is_open = False


class TestGradientCamera(CameraContract):
    """``pytest my_package.py`` runs the suite that every camera must pass."""

    def make(self) -> GradientCamera:
        """Return a camera that need not be waited for."""
        return GradientCamera(GradientCamera.Options(period_s=0.001))
