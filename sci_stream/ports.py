"""The extension points of the instrument on one screen: camera, mask modulator, denoiser and
reconstructor as protocols.

They are structural: a camera class need not import anything from here, so a driver package depends
on ``sci_stream`` only for the value types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

    from sci_stream.model import (
        Array,
        BayerPhase,
        CameraCapabilities,
        CameraFrame,
        FoundProducer,
        Inspection,
    )
    from sci_stream.modulation.timing import (
        CameraTiming,
        CameraTrigger,
        MaskTiming,
        ModulatorCapabilities,
    )
    from sci_stream.optics.calibration import Calibration
    from sci_stream.parameters import Parameter, Value


Pattern = int | Literal["dark", "white"]
"""A calibration pattern of a mask modulator: mask 0 to B − 1, all elements closed, or all elements
open."""


@runtime_checkable
class Camera(Protocol):
    """A source of coded frames, used from one thread: ``open → (start → read… → stop)* → close``.

    Calls in another order raise RuntimeError. Only `stop` and `close` are allowed in any state;
    `open` of an open camera and `start` of a started one change nothing.
    `sci_stream_testing.cameras` tests these rules.
    """

    def open(self) -> CameraCapabilities:
        """Connect, configure, and return the capabilities.

        Raises `CameraError` or an `InputError`, which end the run. While a lost camera is reopened,
        a `CameraError` is a reason to try again; there is no need to raise `CameraLost` here.
        """
        ...

    def calibration(self) -> Calibration | None:
        """Return the camera's own calibration (simulated, replay), else None. Only while open."""
        ...

    def start(self) -> None:
        """Start delivering frames. Raises `CameraLost` if reopening may help, else `CameraError`.

        A finite camera begins with its first frame. Ids and clock of others begin again or go on.
        """
        ...

    def read(self, timeout_s: float) -> CameraFrame | None:
        """Return the next frame, or None after the timeout.

        Raises `CameraLost` if reopening may help: the camera is reopened, for hours if need be, and
        a new epoch begins. Any other `CameraError` ends the run. Ids that have gone back without a
        wrap of `FrameIds` are a lost camera too: frames missed in between cannot be counted.
        """
        ...

    @property
    def exhausted(self) -> bool:
        """True once a finite camera has delivered its last frame:
        `read` returns None from then on.
        """
        ...

    def counters(self) -> Mapping[str, int]:
        """Return the driver's counters since `open`, by name.

        ``delivered``, the frames that `read` returned, is required; others are the driver's
        (``incomplete``, ``timeouts``, …) and tell why frames are missing.
        """
        ...

    def stop(self) -> None:
        """Stop delivering; `start` may follow. Does not raise if the camera is lost."""
        ...

    def close(self) -> None:
        """Release all resources; `open` may follow.

        May be called again; does not raise if the camera is lost.
        """
        ...


@runtime_checkable
class TriggeredCamera(Camera, Protocol):
    """A camera whose exposures can be timed for a mask modulator. Optional."""

    def timing(self) -> CameraTiming:
        """Return the limits of its exposures. Only while open."""
        ...

    def trigger_now(self) -> CameraTrigger:
        """Return how exposures are started at present. Only while open."""
        ...

    def arm(self, trigger: CameraTrigger) -> CameraTrigger:
        """Change the start and length of exposures while it is stopped; return them as read back.

        Only while open. Raises `CameraError` if it does not respond, an `InputError` if it cannot
        do that.
        """
        ...


@runtime_checkable
class MaskModulator(Protocol):
    """The device that shows B masks during each exposure, used from one thread: ``open → load → arm
    → start → stop``.

    Calls in another order raise RuntimeError. Only `stop` and `close` are allowed in any state and
    never raise; `open` of an open modulator changes nothing. `sci_stream_testing.modulators` tests
    these rules. All calls but these two raise `CameraError` if the device does not respond, and an
    `InputError` if it cannot do that.
    """

    def open(self) -> ModulatorCapabilities:
        """Connect; return the capabilities."""
        ...

    def load(self, patterns: Array) -> str:
        """Store the patterns of a cycle; return their content hash
        (`sci_stream.modulation.timing.pattern_hash`).

        ``patterns`` is (B, H, W) uint8, 0 closed, 255 open; (0, H, W) for a mask that is moved by a
        waveform and needs none. Stops the sequence.
        """
        ...

    def arm(self, timing: MaskTiming) -> MaskTiming:
        """Set the timing of the stopped cycle, which ends `hold`; return the times that the device
        keeps, rounded.
        """
        ...

    def start(self) -> None:
        """Show the cycle, again and again, from its first pattern on; of a started one changes
        nothing.
        """
        ...

    def stop(self) -> None:
        """Stop the sequence. The modulator may show any pattern afterwards."""
        ...

    def hold(self, pattern: Pattern | None) -> None:
        """Stop and show one pattern until further notice; None ends that.

        Needs `load` for masks by number.

        Raises ValueError if the pattern does not exist, `ConfigError` if the modulator cannot hold
        one.
        """
        ...

    def advance(self, patterns: int) -> None:
        """Let exposures begin so many patterns later in the cycle, or earlier if negative, from the
        next cycle on.
        """
        ...

    def counters(self) -> Mapping[str, int]:
        """Return counts since `open`, by name: ``restarts`` and ``underruns`` if the device knows
        them, and others.
        """
        ...

    def close(self) -> None:
        """Release the device; `open` may follow."""
        ...


class ModulatorDriver(Protocol):
    """The object that an entry point of the group ``sci_stream.modulators`` names: a class with an
    options model.
    """

    Options: type[BaseModel]
    """Validates ``[modulator.options]`` of the rig; must forbid unknown keys."""

    def __call__(self, options: Any, /) -> MaskModulator:
        """Make a modulator, not yet open, from validated options."""
        ...


@runtime_checkable
class AdjustableCamera(Camera, Protocol):
    """A camera with settings that can be changed while it delivers frames. Optional."""

    def settings(self) -> Sequence[Parameter]:
        """Return the settings that can be changed now, with ranges and values. Only while open."""
        ...

    def set(self, name: str, value: Value) -> CameraCapabilities:
        """Set one of `settings` from the next exposure on; return the new capabilities.

        Only while open; the image format must not change. `close` discards the value. Raises an
        `InputError` if the value is invalid, `CameraError` if the camera does not respond.
        """
        ...


class CameraDriver(Protocol):
    """The object that an entry point of the group ``sci_stream.cameras`` names: a class with an
    options model.
    """

    Options: type[BaseModel]
    """Validates ``[camera.options]`` of the rig; must forbid unknown keys. A field that is rarely
    needed may be marked
    by ``json_schema_extra={"expert": True}``: `sci-stream config init` writes it only with
    ``--all``."""

    def __call__(self, options: Any, /) -> Camera:
        """Make a camera, not yet open, from validated options."""
        ...


@runtime_checkable
class CameraFinder(Protocol):
    """Optional part of a driver: find the cameras of this machine."""

    def find(self, places: Sequence[Path]) -> Sequence[FoundProducer]:
        """Find cameras; ``places`` are files or folders to search, none for the driver's default
        search path.

        Defective producers are included, with their problem. Raises an `InputError` if there is
        nothing to search.
        """
        ...


@runtime_checkable
class FeatureLister(Protocol):
    """Optional part of a camera: list the features that can be read and set."""

    def inspect(self) -> Inspection:
        """Connect to a camera that is not open, configure it with its options, describe it and
        disconnect.

        Also works where `open` would refuse the camera's format. Raises `CameraError` or an
        `InputError`.
        """
        ...


@runtime_checkable
class Denoiser(Protocol):
    """D_σ of the paper's Eq.

    (14): removes white Gaussian noise of a known level from a batch of frames.
    """

    name: str

    def __call__(self, x: torch.Tensor, sigma: float | torch.Tensor) -> torch.Tensor:
        """Denoise.

        Parameters
        ----------
        x
            (N, H, W) on the denoiser's device and in its dtype, nominally 0–1. Not modified.
        sigma
            Noise standard deviation on the 0–1 scale, > 0: () or a number. ``float(sigma)`` makes
            the host wait for a GPU; `sci_stream.recon.algorithms.noise_level.on_device` does not.

        Returns
        -------
        (N, H, W), same device and dtype; never aliases ``x``.
        """
        ...


@runtime_checkable
class LocalDenoiser(Denoiser, Protocol):
    """A denoiser that takes the level of each pixel.

    Optional; of a `VideoDenoiser` the same holds for its videos.
    """

    takes_relative: bool

    def __call__(
        self, x: torch.Tensor, sigma: float | torch.Tensor, relative: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Denoise, as `Denoiser`.

        Parameters
        ----------
        sigma
            Also of each image, (N, 1, 1).
        relative
            The level at each pixel as a multiple of σ, (P, H, W), for all images of a plane; a
            batch holds equally many images of each plane. None if it is the same everywhere.
        """
        ...


@runtime_checkable
class MosaicDenoiser(Denoiser, Protocol):
    """A denoiser that has another one for the frames of a colour camera. Optional.

    Without it the four planes of a mosaic are denoised apart, as four grey videos.
    """

    def for_mosaic(self, bayer: BayerPhase) -> Denoiser | None:
        """Return the denoiser of mosaics of this phase; None if their planes are denoised apart.

        It is called as this one, with the planes of each frame together: (4, N, h, w) in place of
        (N, H, W), in the order of `sci_stream.optics.bayer`. ``relative`` is (4, h, w) then.
        """
        ...


@runtime_checkable
class Recordable(Protocol):
    """A denoiser or reconstructor whose work on a device can be recorded (CUDA graph) and replayed
    with another σ.

    Optional.

    It reads σ from the device (`sci_stream.recon.algorithms.noise_level.on_device`), does not
    synchronise, and its work depends on nothing but its input and σ.
    """

    @property
    def recordable(self) -> bool:
        """Whether that is so.

        False where its arithmetic depends on the level: then it reads σ as a number.
        """
        ...


@runtime_checkable
class VideoDenoiser(Denoiser, Protocol):
    """A denoiser that sees all frames of a video at once and may use their similarity. Optional.

    The solver then calls `denoise_video` in every iteration, instead of denoising each frame by
    itself and temporal frequencies in between (`sci_stream.recon.denoisers.temporal`).
    """

    def denoise_video(self, x: torch.Tensor, sigma: float | torch.Tensor) -> torch.Tensor:
        """Denoise P videos of B frames each.

        Parameters
        ----------
        x
            (P, B, H, W), otherwise as for a batch of frames. P is 1, or 4 for the planes of a Bayer
            mosaic; B ≥ 1.
        sigma
            As for a batch of frames; all frames of a plane have the same.

        Returns
        -------
        (P, B, H, W), same device and dtype; never aliases ``x``.
        """
        ...


@runtime_checkable
class MemoryReducible(Protocol):
    """A denoiser or reconstructor that can reduce its memory use at the cost of speed. Optional."""

    def reduce_memory(self) -> bool:
        """Use less memory from the next call on; return False if no further reduction
        is possible.
        """
        ...


class Coded(NamedTuple):
    """Measurements of N videos of B frames each, with estimates of them; the planes of a mosaic are
    videos.

    ``y`` (N, H, W); ``phi`` (N, B, H, W); ``r_inv`` (N, H, W), 1/Σφ², 0 where nothing valid was
    measured; ``noise`` and ``error``, n² and e_p² of the start of the solve, (N, H, W); ``still``
    ȳ, (N, H, W); ``start``, an estimate of the frames, (N, B, H, W).
    """

    y: torch.Tensor
    phi: torch.Tensor
    r_inv: torch.Tensor
    noise: torch.Tensor
    error: torch.Tensor
    still: torch.Tensor
    start: torch.Tensor


class Abilities(NamedTuple):
    """Needs and abilities of a reconstructor."""

    before: Denoiser | None = None
    """Denoiser of the iterations that come first; None if it recovers the frames at once."""
    steps: int = 1
    """Steps that it takes at most."""
    least_before: int = 0
    """Iterations that come before its first step."""
    start: bool = False
    """Whether it uses error and start of the problem, which are ȳ alone if it does not."""
    frames: int | None = None
    """The only number of frames that it recovers."""
    data_step: bool = False
    """Whether the engine corrects its video by the part of the residual that is no noise."""

    def steps_among(self, iterations: int) -> int:
        """Return how many of some iterations are its own: the last ones."""
        return min(max(0, iterations - self.least_before), self.steps)


@runtime_checkable
class Reconstructor(Protocol):
    """Recovers the frames from the measurement and the masks: trained stages, or a whole network.

    It takes any size and the planes of a mosaic as N videos. It may be `Recordable`,
    `MemoryReducible` and `MemoryPlanner`. `sci_stream_testing.reconstructors` tests these rules.
    """

    name: str

    @property
    def abilities(self) -> Abilities:
        """Return its needs and abilities."""
        ...

    def reconstruct(
        self, problem: Coded, steps: int, between: Callable[[], None]
    ) -> Iterator[torch.Tensor]:
        """Yield the estimate, (N, B, H, W), after each step; the last one counts.

        ``between`` is called before each step. The problem is not modified, and no estimate aliases
        it.
        """
        ...


@runtime_checkable
class SeriesReconstructor(Reconstructor, Protocol):
    """A reconstructor whose last steps see consecutive snapshots as one video. Optional."""

    def reconstruct_series(
        self, problems: Sequence[Coded], steps: int, between: Callable[[], None]
    ) -> Iterator[torch.Tensor]:
        """Yield the estimates of all snapshots, one behind the other along N; see `Reconstructor`.

        ``problems`` are those of directly consecutive snapshots, of one size.
        """
        ...


@runtime_checkable
class MemoryPlanner(Protocol):
    """A reconstructor that knows the memory that it needs. Optional."""

    def solve_bytes(self, n_frames: int, height: int, width: int) -> int:
        """Return the peak memory of a solve on a sensor of this size, bytes."""
        ...


Solver = Denoiser | Reconstructor
"""Solves are iterations with a denoiser, or end with a reconstructor."""
