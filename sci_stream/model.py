"""The values that travel: frames from a camera, snapshots, reconstructions. Frozen, and free of any input or output."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy.typing as npt

Array = npt.NDArray[Any]

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
JsonObject: TypeAlias = Mapping[str, JsonValue]
"""A JSON document. Only what is read from or written to a file or a socket is one; everything else has a type."""


class BayerPhase(enum.StrEnum):
    """Colours of the top-left 2×2 pixels of the sensor, read row by row."""

    RGGB = "RGGB"
    GRBG = "GRBG"
    GBRG = "GBRG"
    BGGR = "BGGR"


class Policy(enum.StrEnum):
    """What a rig does when reconstruction cannot keep up with the camera, which cannot be paused."""

    LIVE = "live"
    """Drop the oldest waiting snapshot, counted: what is shown stays recent."""
    RECORD = "record"
    """Write every raw snapshot first; those beyond capacity are reconstructed later from the recording."""


class Start(enum.StrEnum):
    """Where an iteration started from."""

    COLD = "cold"
    """From ȳ = y/Σφ, repeated to all B frames."""
    WARM = "warm"
    """From an estimate made from the preceding reconstruction."""


@dataclass(frozen=True, slots=True)
class FrameIds:
    """How a camera numbers its frames: from ``first`` up, and after ``last`` from ``first`` again."""

    first: int = 0
    last: int | None = None

    def missed(self, previous: int, current: int) -> int:
        """Return how many ids lie strictly between two received ones; −1 for a repeated id.

        With wrap-around the shorter way round is taken: an id behind by less than half the range is a repetition
        (−1), not a loss of nearly all.
        """
        if self.last is None:
            return current - previous - 1 if current > previous else -1
        span = self.last - self.first + 1
        step = (current - previous) % span
        if step == 0 or step > span // 2:
            return -1
        return step - 1


@dataclass(frozen=True, slots=True)
class CameraCapabilities:
    """What an open camera delivers and can do.

    ``height_px``, ``width_px`` give the shape of every frame; ``pixel_format`` is the GenICam (PFNC) name of what
    the sensor sends; ``clock`` names the clock of camera timestamps; ``frame_period_ns`` is the nominal distance of
    frames where it is known. ``finite`` cameras end by themselves; ``has_truth`` ones hand over the true video.
    ``chunks`` are the numbers that come with each frame (`CameraFrame.chunks`), by name, with their units.
    """

    model: str
    serial: str
    height_px: int
    width_px: int
    pixel_format: str
    bit_depth: int
    n_frames: int | None = None
    bayer: BayerPhase | None = None
    frame_ids: FrameIds = field(default_factory=FrameIds)
    clock: str = "none"
    frame_period_ns: int | None = None
    finite: bool = False
    has_truth: bool = False
    chunks: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class CameraFrame:
    """One frame as a driver hands it over.

    Parameters
    ----------
    counts
        (H, W) uint8, uint16 or float32, DN. Owned by the receiver: the driver keeps no reference.
    frame_id
        The camera's own number, see `FrameIds`; None if it has none.
    camera_time_ns
        Time stamp on the camera's clock, None if it has none.
    host_time_ns
        Unix time at which the host had the frame.
    truth
        (B, H, W) uint8 (255 = 1.0) or float (0–1): the true video behind this frame, from cameras that know it.
    chunks
        What the camera added to the frame (GenICam chunk data): exposure time, gain, state of lines, …, by name.
    """

    counts: Array
    frame_id: int | None
    camera_time_ns: int | None
    host_time_ns: int
    truth: Array | None = None
    chunks: dict[str, bool | int | float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SnapshotId:
    """Which snapshot: ``seq`` counts from 0 within a ``series`` and never repeats in it.

    ``epoch`` counts the camera's (re)starts within the series: frame ids and time stamps compare only within one.
    """

    series: str
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One coded exposure, y = Σ_b φ_b ⊙ x_b + z in DN, with all that is needed to reconstruct and account for it.

    ``counts`` (H, W) uint8, uint16 or float32 DN; ``dropped_before`` frames the camera numbered but did not deliver
    between the preceding snapshot and this one; ``truth`` as in `CameraFrame`; ``backlog`` snapshots that were
    waiting behind this one when it was dispatched; ``period_ns`` time that one reconstruct node has per snapshot if
    nothing is to be dropped (camera period × nodes), 0 if unknown; ``redelivered`` how often it was sent before;
    ``chunks`` as in `CameraFrame`.
    """

    id: SnapshotId
    counts: Array
    calibration_hash: str
    n_frames: int
    host_time_ns: int
    camera_time_ns: int | None = None
    camera_clock: str = "none"
    camera_frame_id: int | None = None
    pixel_format: str = "Mono16"
    bayer: BayerPhase | None = None
    dropped_before: int = 0
    truth: Array | None = None
    backlog: int = 0
    period_ns: int = 0
    redelivered: int = 0
    dispatched_ns: int = 0
    chunks: dict[str, bool | int | float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Unix time in ns at which a snapshot passed each stage; 0 where it has not been (yet)."""

    acquired_ns: int = 0
    dispatched_ns: int = 0
    received_ns: int = 0
    started_ns: int = 0
    finished_ns: int = 0
    accepted_ns: int = 0


@dataclass(frozen=True, slots=True)
class CalibrationHealth:
    """How well a calibration still describes what is on the sensor, found from a snapshot while running.

    Parameters
    ----------
    shift_x_px, shift_y_px
        By how much the masks' image stands to the right of and below where it was calibrated; None if it could not be
        given: too little light, or masks that are not in front of this camera.
    shift_sd_px
        Standard deviation of these, from scatter alone.
    match
        0–1, how much of what masks could explain of the measurement the calibrated ones do; None on small sensors.
    contrast
        Modulation by the masks relative to the calibrated one.
    order, first_mask
        In which order the masks are shown: ``"forward"``, ``"reversed"``, ``"rotated"``, or ``"unknown"`` while nothing
        moves; and which of them, as calibrated, comes first.
    corrected
        Whether snapshots are being reconstructed with masks moved accordingly.
    below_black_fraction
        Of pixels that are darker than the dark frame by more than noise.
    brightness
        Mean of the video, 0–1: how much light there is through the masks. Whether the scene or the gain has changed is
        not to be distinguished from it.
    gain
        Exposure time and amplification by chunk data, relative to those of the calibration; None where the camera adds
        neither to its frames, or the calibration does not know its own.
    """

    shift_x_px: float | None
    shift_y_px: float | None
    shift_sd_px: float | None
    match: float | None
    contrast: float | None
    order: str = "unknown"
    first_mask: int = 0
    corrected: bool = False
    below_black_fraction: float = 0.0
    brightness: float | None = None
    gain: float | None = None

    @property
    def shift_px(self) -> float | None:
        """How far the masks stand from where they were calibrated."""
        if self.shift_x_px is None or self.shift_y_px is None:
            return None
        return math.hypot(self.shift_x_px, self.shift_y_px)


@dataclass(frozen=True, slots=True)
class SolveReport:
    """How one snapshot was solved: what the engine says beside the video.

    ``start_reason`` says in a word why the start was what it was (``"first"``, ``"gap"``, ``"cut"``, …, see
    `sci_stream.recon.initialization.initializer.Initializer`);
    ``budget_limited`` that fewer iterations were spent than asked for because time was short; ``residual`` is
    ‖y − Φv‖₂/‖y‖₂ of the delivered estimate; ``saturated_fraction`` of pixels were left out of the projection;
    ``health`` describes the calibration, on those snapshots on which it was looked at; ``solver`` names the settings it
    was solved with, which its node shows in full, ``""`` if it does not; ``masks_at`` where the masks were taken to be,
    as `sci_stream.optics.mask_shift.Displacement.to_text` says it, ``""`` for where they were calibrated.
    """

    iterations: int
    start: Start
    start_reason: str
    budget_limited: bool
    solve_ns: int
    residual: float
    saturated_fraction: float = 0.0
    psnr_db: float | None = None
    health: CalibrationHealth | None = None
    solver: str = ""
    masks_at: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Reconstruction:
    """The B video frames recovered from one snapshot.

    ``video`` (B, H, W) float16 or float32 on the 0–1 scale, a Bayer mosaic where ``bayer`` is given (demosaicing is
    the sink's); ``counts`` the coded snapshot it came from, so that a sink needs no second stream to show or record
    it; ``node`` and ``device`` say who made it.
    """

    id: SnapshotId
    video: Array
    calibration_hash: str
    report: SolveReport
    times: StageTimes
    node: str
    device: str
    bayer: BayerPhase | None = None
    counts: Array | None = None
    camera_time_ns: int | None = None
    camera_frame_id: int | None = None
    redelivered: int = 0
    dropped_before: int = 0
    chunks: dict[str, bool | int | float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SeriesInfo:
    """What is known when a series starts; recorded with it and shown beside it.

    ``chunks`` are the numbers that the camera adds to each frame, by name, with their units.
    """

    series: str
    started_ns: int
    rig: str
    policy: Policy
    camera_model: str
    camera_serial: str
    height_px: int
    width_px: int
    pixel_format: str
    bit_depth: int
    n_frames: int
    calibration_hash: str
    bayer: BayerPhase | None = None
    frame_period_ns: int | None = None
    rig_toml: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    chunks: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Feature:
    """One thing that can be read or set on a camera, as its driver describes it.

    ``kind`` is integer, float, boolean, enumeration, string, register or command; ``access`` RO, WO, RW, or NA if it
    is not available now; ``minimum``, ``maximum``, ``step`` are None where there are none; ``choices`` are the values
    that an enumeration can take now; ``category`` is its place in the camera's own order, with slashes; ``visibility``
    says for whom it is meant: Beginner, Expert, Guru or Invisible.
    """

    name: str
    kind: str
    access: str
    value: bool | int | float | str | None
    minimum: float | None = None
    maximum: float | None = None
    step: float | None = None
    unit: str = ""
    choices: tuple[str, ...] = ()
    category: str = ""
    visibility: str = "Beginner"
    about: str = ""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What there is on a camera: its features, in its own order, and options that bring it back into this state."""

    features: tuple[Feature, ...]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FoundCamera:
    """A camera that could be opened; ``access`` says in a word whether it can be now, ``options`` select exactly it."""

    id: str
    vendor: str
    model: str
    serial: str
    user_defined_name: str
    access: str
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FoundInterface:
    """What cameras are attached to: a network or USB controller, a frame grabber."""

    id: str
    name: str
    transport: str
    cameras: tuple[FoundCamera, ...]


@dataclass(frozen=True, slots=True)
class FoundProducer:
    """The software through which a driver reaches cameras; ``problem`` says what is wrong with it, if anything is."""

    path: str
    name: str
    vendor: str
    version: str
    interfaces: tuple[FoundInterface, ...]
    problem: str = ""
