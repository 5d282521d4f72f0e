"""The seams of the instrument on one screen: what a camera, a denoiser and a sink must do to take part.

They are satisfied structurally: nothing has to be imported from here to be a camera, so a vendor's driver package
depends on ``sci_stream`` only for the vocabulary.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

    from sci_stream.model import (
        CameraCapabilities,
        CameraFrame,
        FoundProducer,
        Inspection,
        Reconstruction,
        SeriesInfo,
        Snapshot,
    )
    from sci_stream.optics.calibration import Calibration
    from sci_stream.parameters import Parameter, Value


Pattern = int | Literal["dark", "white"]
"""What a mask modulator holds for calibration: pattern 0 to B − 1, no light at all, or every element open."""


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


@runtime_checkable
class PatternCamera(Camera, Protocol):
    """A camera that commands its mask modulator, and can so be calibrated without anyone's help. Optional."""

    @property
    def field_brightness(self) -> float:
        """Brightness of the even field behind the patterns, as a fraction of what the scene's white is to be."""
        ...

    def show(self, pattern: Pattern | None) -> None:
        """Hold one pattern throughout every exposure from the next frame on; None: go through the sequence again.

        Only while open. Raises `CameraError` if the modulator does not obey, ValueError if there is no such pattern.
        """
        ...


@runtime_checkable
class AdjustableCamera(Camera, Protocol):
    """A camera some of whose settings can be changed while it delivers frames. Optional."""

    def settings(self) -> Sequence[Parameter]:
        """Return what can be set now, with its range and value. Only while open."""
        ...

    def set(self, name: str, value: Value) -> CameraCapabilities:
        """Set one of `settings` from the next exposure on; return what is delivered from then on.

        Only while open; the image format must not change. What was set is lost with `close`. Raises an `InputError` if
        the camera does not take the value, `CameraError` if it does not obey.
        """
        ...


class CameraDriver(Protocol):
    """What an entry point of the group ``sci_stream.cameras`` names: a class with an options model."""

    Options: type[BaseModel]
    """Validates ``[camera.options]`` of the rig; must forbid unknown keys."""

    def __call__(self, options: Any, /) -> Camera:
        """Make a camera, not yet open, from validated options."""
        ...


@runtime_checkable
class CameraFinder(Protocol):
    """What a driver may offer besides: to say which cameras there are."""

    def find(self, places: Sequence[Path]) -> Sequence[FoundProducer]:
        """Look for cameras; ``places`` are files or folders to look in, none for where the driver looks by itself.

        What is broken is among the result, with its problem. Raises an `InputError` if there is nowhere to look.
        """
        ...


@runtime_checkable
class FeatureLister(Protocol):
    """What a camera may offer besides: to say what can be read and set on it."""

    def inspect(self) -> Inspection:
        """Connect to a camera that is not open, configure it as its options say, describe it, and let go of it.

        Works also where `open` would refuse what the camera sends. Raises `CameraError` or an `InputError`.
        """
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
            Noise standard deviation on the 0–1 scale, > 0; a `sci_stream.recon.algorithms.noise_level.Level` where it
            differs from place to place, which a denoiser may take for the same everywhere.

        Returns
        -------
        (N, H, W), same device and dtype; never aliases ``x``.
        """
        ...


@runtime_checkable
class RecordableDenoiser(Denoiser, Protocol):
    """A denoiser whose work on a device can be recorded and replayed with another σ.

    It reads σ from the device (`sci_stream.recon.algorithms.noise_level.on_device`), waits for nothing, and what it
    does depends on nothing but its input, σ and its form.
    """

    def form(self, sigma: float) -> Hashable:
        """Name what is done at this level: between levels of the same form, nothing but σ itself differs."""
        ...


@runtime_checkable
class MemoryReducible(Denoiser, Protocol):
    """A denoiser that can do with less memory, at the price of speed. Optional."""

    def spare_memory(self) -> bool:
        """Take less memory from the next call on; False if it takes as little as it can."""
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
