"""Values exchanged between the components: frames, snapshots, reconstructions. Frozen, without input or output."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]

# A parsed JSON object. Any, because a recursive union would need a cast at every nested access.
JsonObject = dict[str, Any]


class BayerPhase(enum.StrEnum):
    """Colours of the top-left 2×2 pixels of the sensor, read row by row."""

    RGGB = "RGGB"
    GRBG = "GRBG"
    GBRG = "GBRG"
    BGGR = "BGGR"


class Policy(enum.StrEnum):
    """Behaviour under overload, when reconstruction is slower than the camera, which cannot be paused."""

    LIVE = "live"
    """Drop and count the oldest queued snapshot: the live view stays recent."""
    RECORD = "record"
    """Record every raw snapshot first; those beyond capacity are reconstructed later from the recording."""


class Start(enum.StrEnum):
    """Initial estimate of a solve."""

    COLD = "cold"
    """From ȳ = y/Σφ, repeated to all B frames."""
    WARM = "warm"
    """From an estimate based on the preceding reconstruction."""


@dataclass(frozen=True, slots=True)
class FrameIds:
    """Numbering of a camera's frames: from ``first`` up to ``last``, then from ``first`` again."""

    first: int = 0
    last: int | None = None

    def missed(self, previous: int, current: int) -> int:
        """Return the number of ids strictly between two received ones; −1 for a repeated id.

        On wrap-around the shorter distance counts: an id behind by less than half the range is a repetition (−1), not a
        loss of nearly all frames.
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
    """Properties of an open camera and its frames.

    ``height_px`` and ``width_px`` give the shape of every frame; ``pixel_format`` is the GenICam (PFNC) name of the
    sensor's format; ``clock`` names the clock of camera timestamps; ``frame_period_ns`` is the nominal frame period if
    known. A ``finite`` camera ends by itself; one with ``has_truth`` also delivers the true video. ``chunks`` gives the
    units of the numbers that come with each frame (`CameraFrame.chunks`), by name.
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
    """One frame as delivered by a driver.

    Parameters
    ----------
    counts
        (H, W) uint8, uint16 or float32, DN. Owned by the receiver: the driver keeps no reference.
    frame_id
        Frame number of the camera, see `FrameIds`; None if it has none.
    camera_time_ns
        Time stamp on the camera's clock, None if it has none.
    host_time_ns
        Unix time at which the host received the frame.
    truth
        (B, H, W) uint8 (255 = 1.0) or float (0–1): the true video behind this frame, from cameras that know it.
    chunks
        GenICam chunk data of the frame, by name: exposure time, gain, line states, ….
    """

    counts: Array
    frame_id: int | None
    camera_time_ns: int | None
    host_time_ns: int
    truth: Array | None = None
    chunks: dict[str, bool | int | float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SnapshotId:
    """Identity of a snapshot: ``seq`` counts from 0 within a ``series`` and is never repeated in it.

    ``epoch`` counts the camera's (re)starts within the series: frame ids and timestamps compare only within one epoch.
    """

    series: str
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One coded exposure, y = Σ_b φ_b ⊙ x_b + z in DN, with everything needed to reconstruct and account for it.

    ``counts`` (H, W) uint8, uint16 or float32 DN; ``dropped_before`` frames lost by the camera between the preceding
    snapshot and this one; ``truth`` as in `CameraFrame`; ``backlog`` snapshots queued behind this one when it was
    dispatched; ``period_ns`` time budget of one reconstruct node per snapshot (camera period × nodes), 0 if unknown;
    ``redelivered`` number of earlier deliveries; ``chunks`` as in `CameraFrame`.
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
    """Unix time in ns at which a snapshot passed each stage; 0 for stages not reached."""

    acquired_ns: int = 0
    dispatched_ns: int = 0
    received_ns: int = 0
    started_ns: int = 0
    finished_ns: int = 0
    accepted_ns: int = 0


@dataclass(frozen=True, slots=True)
class CalibrationHealth:
    """State of the calibration, measured from a snapshot at run time.

    Parameters
    ----------
    shift_x_px, shift_y_px
        Shift of the masks to the right and downwards since the calibration; None if it could not be measured: too
        little light, or other masks.
    shift_sd_px
        Standard deviation of the shift, from scatter alone.
    match
        Mask correlation, 0–1: the part of the measurement explained by the calibrated masks, relative to the part that
        masks could explain at all; None on small sensors.
    contrast
        Modulation by the masks relative to the calibration.
    order, first_mask
        Order of the masks: ``"forward"``, ``"reversed"``, ``"rotated"``, or ``"unknown"`` while nothing moves; and the
        index of the calibrated mask that is shown first.
    corrected
        Whether snapshots are reconstructed with corrected masks.
    below_black_fraction
        Fraction of pixels darker than the dark frame by more than the noise.
    brightness
        Mean of the video, 0–1. A change of the scene and a change of the gain cannot be distinguished by it.
    gain
        Exposure time and amplification from chunk data, relative to the calibration; None if the camera or the
        calibration provides neither.
    error_log_odds
        Natural logarithm of the odds for errors of single masks or of the black level against none; they are corrected
        from 5 on. None if they are not estimated.
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
    error_log_odds: float | None = None

    @property
    def shift_px(self) -> float | None:
        """Distance of the masks from their calibrated position."""
        if self.shift_x_px is None or self.shift_y_px is None:
            return None
        return math.hypot(self.shift_x_px, self.shift_y_px)


@dataclass(frozen=True, slots=True)
class SolveReport:
    """Report of the engine on one solve.

    ``start_reason`` is a word for the choice of the start (``"first"``, ``"gap"``, ``"cut"``, …, see
    `sci_stream.recon.initialization.initializer.Initializer`);
    ``budget_limited`` is set if there was no time for the requested iterations; ``residual`` is ‖y − Φv‖₂/‖y‖₂ of the
    estimate; ``saturated_fraction`` of pixels were excluded from the data term; ``health`` is set on snapshots that
    measured the calibration; ``solver`` is the id of the settings in the status of its node, ``""`` if unknown;
    ``masks_at`` is the correction of the masks used, ``""`` for none: see
    `sci_stream.optics.mask_errors.MaskCorrection.to_text`; ``noise`` is the root mean square of the noise of y, as
    estimated, relative to that of y, and ``mismatch`` the part of it that grows with the brightness, as errors of the
    masks do; None if the noise was not estimated.
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
    noise: float | None = None
    mismatch: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Reconstruction:
    """The B video frames recovered from one snapshot.

    ``video`` (B, H, W) float16 or float32 on the 0–1 scale, a Bayer mosaic if ``bayer`` is set (the sink demosaics);
    ``counts`` the coded snapshot, so that a sink needs no second stream to show or record it; ``node`` and ``device``
    the origin.
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
    """Description of a series, known when it starts; recorded with it.

    ``chunks`` gives the units of the numbers that the camera adds to each frame, by name.
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
    """A feature of a camera, as described by its driver.

    ``kind`` is integer, float, boolean, enumeration, string, register or command; ``access`` RO, WO, RW, or NA if not
    available now; ``minimum``, ``maximum``, ``step`` are None if there are none; ``choices`` are the values that an
    enumeration can take now; ``category`` is its place in the camera's feature tree, with slashes; ``visibility`` is
    the GenICam level of its audience: Beginner, Expert, Guru or Invisible.
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
    """The features of a camera, in its own order, and driver options that restore its present state."""

    features: tuple[Feature, ...]
    options: JsonObject


@dataclass(frozen=True, slots=True)
class FoundCamera:
    """A camera on the system; ``access`` is its availability in a word, ``options`` select exactly this camera."""

    id: str
    vendor: str
    model: str
    serial: str
    user_defined_name: str
    access: str
    options: JsonObject


@dataclass(frozen=True, slots=True)
class FoundInterface:
    """An interface that cameras are attached to: a network or USB controller, a frame grabber."""

    id: str
    name: str
    transport: str
    cameras: tuple[FoundCamera, ...]


@dataclass(frozen=True, slots=True)
class FoundProducer:
    """The software through which a driver reaches cameras; ``problem`` describes what is wrong with it, if anything."""

    path: str
    name: str
    vendor: str
    version: str
    interfaces: tuple[FoundInterface, ...]
    problem: str = ""
