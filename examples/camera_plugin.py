"""A camera driver: random masks in front of a grey gradient.

Register a driver in the pyproject.toml of its package, then select it with ``[camera] driver =
"gradient"``::

    [project.entry-points."sci_stream.cameras"]
    gradient = "my_camera:GradientCamera"
"""

from __future__ import annotations

import time

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from sci_stream.errors import CameraError, CameraLost
from sci_stream.plugins import Calibration, CameraCapabilities, CameraFrame, FrameIds
from sci_stream_testing.cameras import CameraContract


class Library:
    """Stands for the maker's library: fills the same memory with each frame, and is silent once the
    camera is gone.
    """

    def __init__(self, image: np.ndarray, period_s: float) -> None:
        self._image, self._period_s = image, period_s
        self._memory = np.empty_like(image)
        self.plugged_in = True

    def begin(self) -> None:
        """Start exposures, with frame id 0."""
        self._id, self._next_s = -1, time.monotonic() + self._period_s

    def wait(self, timeout_s: float) -> tuple[memoryview, int, int] | None:
        """Return memory, frame id (16 bit) and time (µs, 32 bit) of the next frame; None after the
        timeout.
        """
        wait_s = self._next_s - time.monotonic()
        time.sleep(max(0.0, min(wait_s, timeout_s)))
        if wait_s > timeout_s or not self.plugged_in:
            return None
        self._next_s += self._period_s
        self._id = (self._id + 1) % 2**16
        np.copyto(self._memory, self._image)
        return memoryview(self._memory).cast("B"), self._id, time.monotonic_ns() // 1000 % 2**32


class GradientCamera:
    """Satisfies `sci_stream.ports.Camera`."""

    class Options(BaseModel):
        """``[camera.options]`` of the rig."""

        model_config = ConfigDict(extra="forbid")
        size_px: int = Field(64, ge=2, description="Height and width.")
        n_frames: int = Field(4, ge=1, description="Number of masks B.")
        period_s: float = Field(0.1, gt=0, description="Time from exposure to exposure.")

    def __init__(self, options: Options) -> None:
        shape = (options.n_frames, options.size_px, options.size_px)
        self._phi = np.random.default_rng(0).integers(0, 2, shape).astype(np.float32)
        self._options = options
        self._library: Library | None = None  # while open
        self._running = False
        self._delivered = self._time_us = 0
        self.exhausted = False  # only a finite camera ends

    def open(self) -> CameraCapabilities:
        """Connect to the camera and configure it: once, if it is called again."""
        size = self._options.size_px
        if self._library is None:
            scene = np.linspace(0, 1, size, dtype=np.float32)
            image = (self._phi.sum(0) * scene * (4000 / len(self._phi))).astype(np.uint16)
            self._library = Library(image, self._options.period_s)
            self._delivered = self._time_us = 0
        return CameraCapabilities(
            model="gradient", serial="1", height_px=size, width_px=size, pixel_format="Mono12",
            bit_depth=12,
            n_frames=self._options.n_frames, frame_ids=FrameIds(first=0, last=65535),
            clock="camera",
        )  # fmt: skip

    def calibration(self) -> Calibration | None:
        """Return the masks.

        A real camera knows none and returns None: ``sci-stream calibrate`` measures them.
        """
        if self._library is None:
            raise RuntimeError("calibration() before open()")
        return Calibration(
            self._phi, np.zeros_like(self._phi[0]), full_scale_dn=4000 / len(self._phi)
        )

    def start(self) -> None:
        """Start at frame id 0, unless it delivers already."""
        if self._library is None:
            raise RuntimeError("start() before open()")
        if not self._running:
            self._library.begin()
            self._running, self._heard_s = True, time.monotonic()

    def read(self, timeout_s: float) -> CameraFrame | None:
        """Return the next frame; None if there is none within the timeout."""
        if self._library is None or not self._running:
            raise RuntimeError("read() before start()")
        received = self._library.wait(timeout_s)
        if received is None:
            if time.monotonic() - self._heard_s > 1 + 5 * self._options.period_s:
                raise CameraLost(
                    "The camera gradient delivers no frames", hint="Check its cable and power."
                )
            return None
        host_time_ns = time.time_ns()  # Unix time of receipt
        memory, frame_id, time_us = received
        size = self._options.size_px
        if len(memory) != 2 * size * size:
            raise CameraError(
                "A frame has another size", expected=f"{2 * size * size} bytes", got=len(memory)
            )
        self._heard_s = time.monotonic()
        self._time_us += (
            time_us - self._time_us
        ) % 2**32  # goes on where the camera's 32 bits begin again
        self._delivered += 1
        return CameraFrame(
            # the library uses its memory again
            counts=np.frombuffer(memory, np.uint16).reshape(size, size).copy(),
            frame_id=frame_id, camera_time_ns=self._time_us * 1000, host_time_ns=host_time_ns,
        )  # fmt: skip

    def counters(self) -> dict[str, int]:
        """Return the counters since open(), also after close(); this camera loses nothing."""
        return {"delivered": self._delivered}

    def stop(self) -> None:
        """Stop; the next start begins at frame id 0 again."""
        self._running = False

    def close(self) -> None:
        """Stop, and release the camera."""
        self.stop()
        self._library = None


class TestGradientCamera(CameraContract):
    """``pytest my_camera.py`` runs the suite that every camera must pass."""

    def make(self) -> GradientCamera:
        """Return a camera that need not be waited for."""
        return GradientCamera(GradientCamera.Options(period_s=0.001))

    def unplug(self, camera: GradientCamera) -> None:
        """Let the camera go: with a real one, switch off its power."""
        camera._library.plugged_in = False
