"""The seams of the instrument on one screen: what a camera, a denoiser and a sink must do to take part.

They are satisfied structurally: nothing has to be imported from here to be a camera, so a vendor's driver package
depends on ``sci_stream`` only for the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

    from sci_stream.model import CameraCapabilities, CameraFrame, Reconstruction, SeriesInfo, Snapshot
    from sci_stream.optics.calibration import Calibration


@runtime_checkable
class Camera(Protocol):
    """A source of coded frames, used from one thread: ``open → (start → read… → stop)* → close``."""

    def open(self) -> CameraCapabilities:
        """Connect and configure; say what will be delivered. Raises `CameraError` or an `InputError`."""
        ...

    def calibration(self) -> Calibration | None:
        """Return the calibration the camera itself knows (simulated, replay), else None. Only while open."""
        ...

    def start(self) -> None:
        """Begin delivering frames."""
        ...

    def read(self, timeout_s: float) -> CameraFrame | None:
        """Return the next frame, or None if none came within the time. Raises `CameraLost`."""
        ...

    @property
    def exhausted(self) -> bool:
        """True once a finite camera has delivered its last frame: `read` will return None for ever."""
        ...

    def counters(self) -> Mapping[str, int]:
        """Return the driver's own counts since `open`, by name (``incomplete``, ``timeouts``, …)."""
        ...

    def stop(self) -> None:
        """Stop delivering; `start` may follow. Does not raise if the camera is lost."""
        ...

    def close(self) -> None:
        """Let go of everything; `open` may follow. May be called again; does not raise if the camera is lost."""
        ...


class CameraDriver(Protocol):
    """What an entry point of the group ``sci_stream.cameras`` names: a class with an options model."""

    Options: type[BaseModel]
    """Validates ``[camera.options]`` of the rig; must forbid unknown keys."""

    def __call__(self, options: Any, /) -> Camera:
        """Make a camera, not yet open, from validated options."""
        ...


@runtime_checkable
class Denoiser(Protocol):
    """D_σ of the paper's Eq. (14): removes white Gaussian noise of a known level from a batch of frames."""

    name: str

    def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        """Denoise.

        Parameters
        ----------
        x
            (N, H, W) on the denoiser's device and in its dtype, nominally 0–1. Not modified.
        sigma
            Noise standard deviation on the 0–1 scale, > 0.

        Returns
        -------
        (N, H, W), same device and dtype; never aliases ``x``.
        """
        ...


class Sink(Protocol):
    """Where results go: a recording, a preview, another program. Called from one thread, in this order."""

    def series_started(self, info: SeriesInfo, calibration: Calibration) -> None:
        """Begin a series."""
        ...

    def raw(self, snapshot: Snapshot) -> None:
        """Take a raw snapshot (``record`` policy: it comes before, and whether or not, it is reconstructed)."""
        ...

    def reconstructed(self, reconstruction: Reconstruction) -> None:
        """Take a reconstruction; each comes once, not necessarily in order of seq."""
        ...

    def series_ended(self, ledger: Mapping[str, Any]) -> None:
        """End the series; ``ledger`` is its closed account (docs/wire.md)."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...
