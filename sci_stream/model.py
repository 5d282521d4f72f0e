"""Values exchanged between the components: frames, snapshots, reconstructions.

Frozen, without input or output.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from sci_stream.errors import InputError
from sci_stream.field_types import (
    BitDepth,
    Chunks,
    Count,
    Dim,
    Label,
    Name,
    Payload,
    Sentence,
    Seq,
    SmallCount,
    Units,
    Versions,
    text,
)
from sci_stream.reports import SolveReport

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
U8 = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""A value of a JSON document, as status, summary and journals are written."""
JsonObject = dict[str, Json]

# Types of the elements of snapshots and of videos.
COUNTS = ("uint8", "uint16", "float32")
VIDEO = ("float16", "float32")


class BayerPhase(enum.StrEnum):
    """Colours of the top-left 2×2 pixels of the sensor, read row by row."""

    RGGB = "RGGB"
    GRBG = "GRBG"
    GBRG = "GBRG"
    BGGR = "BGGR"

    @classmethod
    def named(cls, name: str | None) -> Self | None:
        """Return the phase of this name, in any case; None for None and ``"none"``.

        Raises `InputError` if it is unknown.
        """
        if name is None or name.lower() == "none":
            return None
        try:
            return cls(name.upper())
        except ValueError:
            raise InputError(
                "Unknown Bayer phase",
                expected=", ".join(cls),
                got=repr(name),
                hint="Of filter arrays, only Bayer's is solved: a quad-Bayer or RGBW sensor needs "
                "its binned or monochrome output.",
            ) from None


class Policy(enum.StrEnum):
    """Behaviour under overload, when reconstruction is slower than the camera, which cannot be
    paused.
    """

    LIVE = "live"
    """Drop and count the oldest queued snapshot: the live view stays recent."""
    RECORD = "record"
    """Record every raw snapshot first; those beyond capacity are reconstructed later from the
    recording."""


@dataclass(frozen=True)
class FrameIds:
    """Numbering of a camera's frames: from ``first`` up to ``last``, then from ``first`` again."""

    first: int = 0
    last: int | None = None

    def missed(self, previous: int, current: int) -> int:
        """Return the number of ids strictly between two received ones; −1 for a repeated id.

        On wrap-around the shorter distance counts: an id behind by less than half the range is a
        repetition (−1), not a loss of nearly all frames.
        """
        if self.last is None:
            return current - previous - 1 if current > previous else -1
        span = self.last - self.first + 1
        step = (current - previous) % span
        if step == 0 or step > span // 2:
            return -1
        return step - 1


@dataclass(frozen=True)
class CameraCapabilities:
    """Properties of an open camera and its frames.

    ``height_px`` and ``width_px`` give the shape of every frame; ``pixel_format`` is the GenICam
    (PFNC) name of the sensor's format; ``clock`` names the clock of camera timestamps;
    ``frame_period_ns`` is the nominal frame period if known. A ``finite`` camera ends by itself;
    one with ``has_truth`` also delivers the true video. ``chunks`` gives the units of the numbers
    that come with each frame (`CameraFrame.chunks`), by name. ``distortions`` are settings that
    break y = Φx, such as gamma and automatic gain: each a sentence with its value, its effect and
    the remedy. ``firmware`` is its version, ``patterns`` the hash of the masks that a modulator
    shows to it; empty if unknown.
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
    chunks: Units = field(default_factory=dict)
    distortions: tuple[str, ...] = ()
    firmware: str = ""
    patterns: str = ""


@dataclass(frozen=True, eq=False)
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
        (B, H, W) uint8 (255 = 1.0) or float (0–1): the true video behind this frame, from cameras
        that know it.
    chunks
        GenICam chunk data of the frame, by name: exposure time, gain, line states, ….
    """

    counts: Array
    frame_id: int | None
    camera_time_ns: int | None
    host_time_ns: int
    truth: Array | None = None
    chunks: Chunks = field(default_factory=dict)


@dataclass(frozen=True)
class SnapshotId:
    """Identity of a snapshot: ``seq`` counts from 0 within a ``series`` and is never repeated in
    it.

    ``epoch`` counts the camera's (re)starts within the series: frame ids and timestamps compare
    only within one epoch.
    """

    series: Name
    epoch: SmallCount
    seq: Seq


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One coded exposure, y = Σ_b φ_b ⊙ x_b + z in DN, with everything needed to reconstruct and
    account for it.

    ``counts`` (H, W) uint8, uint16 or float32 DN; ``dropped_before`` frames lost by the camera
    between the preceding snapshot and this one; ``truth`` as in `CameraFrame`; ``backlog``
    snapshots queued behind this one when it was dispatched; ``period_ns`` time budget of one
    reconstruct node per snapshot (camera period × nodes), 0 if unknown; ``redelivered`` number of
    earlier deliveries; ``chunks`` as in `CameraFrame`.
    """

    id: SnapshotId
    counts: Annotated[Array, Payload(COUNTS, 2)]
    calibration_hash: Name
    n_frames: Dim
    host_time_ns: Count
    camera_time_ns: Count | None = None
    camera_clock: Label = "none"
    camera_frame_id: Count | None = None
    pixel_format: Label = "Mono16"
    bayer: BayerPhase | None = None
    dropped_before: Count = 0
    truth: Annotated[Array | None, Payload(("uint8", *VIDEO), 3, optional=True)] = None
    backlog: SmallCount = 0
    period_ns: Count = 0
    redelivered: SmallCount = 0
    dispatched_ns: Count = 0
    chunks: Chunks = field(default_factory=dict)


@dataclass(frozen=True)
class StageTimes:
    """Unix time in ns at which a snapshot passed each stage; 0 for stages not reached."""

    acquired_ns: Count = 0
    dispatched_ns: Count = 0
    received_ns: Count = 0
    started_ns: Count = 0
    finished_ns: Count = 0
    accepted_ns: Count = 0


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """The B video frames recovered from one snapshot.

    ``video`` (B, H, W) float16 or float32 on the 0–1 scale, a Bayer mosaic if ``bayer`` is set (the
    sink demosaics); ``counts`` the coded snapshot, so that a sink needs no second stream to show or
    record it; ``picture`` that of an analysis, (H, W, 3) RGB; ``node`` and ``device`` the origin.
    """

    id: SnapshotId
    video: Annotated[Array, Payload(VIDEO, 3)]
    calibration_hash: Name
    report: SolveReport
    times: StageTimes
    node: Name
    device: Label
    bayer: BayerPhase | None = None
    counts: Annotated[Array | None, Payload(COUNTS, 2, optional=True)] = None
    picture: Annotated[Array | None, Payload(("uint8",), 3, optional=True)] = None
    camera_time_ns: Count | None = None
    camera_frame_id: Count | None = None
    redelivered: SmallCount = 0
    dropped_before: Count = 0
    chunks: Chunks = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot, **solved: Any) -> Self:
        """Return the reconstruction of a snapshot: the fields of both are the snapshot's unless
        given.
        """
        names = [one.name for one in fields(cls) if hasattr(snapshot, one.name)]
        shared = {name: getattr(snapshot, name) for name in names}
        return cls(**(shared | solved))


FIRMWARE = "camera firmware"
"""Entry of the firmware in the versions of a series."""


@dataclass(frozen=True)
class SeriesInfo:
    """Description of a series, known when it starts; recorded with it.

    ``chunks`` gives the units of the numbers that the camera adds to each frame, by name;
    ``distortions`` its settings that break y = Φx, as in `CameraCapabilities`.
    """

    series: Name
    started_ns: Count
    rig: Label
    policy: Policy
    camera_model: Label
    camera_serial: Label
    height_px: Dim
    width_px: Dim
    pixel_format: Label
    bit_depth: BitDepth
    n_frames: Dim
    calibration_hash: Name
    bayer: BayerPhase | None = None
    frame_period_ns: Count | None = None
    rig_toml: Annotated[str, text(65536)] = ""
    versions: Versions = field(default_factory=dict)
    chunks: Units = field(default_factory=dict)
    distortions: Sentence = ""

    @property
    def camera(self) -> str:
        """Model and serial number of the camera."""
        return f"{self.camera_model} {self.camera_serial}".strip()

    @property
    def camera_firmware(self) -> str:
        """Version of the camera's firmware; "" if unknown."""
        return self.versions.get(FIRMWARE, "")


@dataclass(frozen=True)
class Feature:
    """A feature of a camera, as described by its driver.

    ``kind`` is integer, float, boolean, enumeration, string, register or command; ``access`` RO,
    WO, RW, or NA if not available now; ``minimum``, ``maximum``, ``step`` are None if there are
    none; ``choices`` are the values that an enumeration can take now; ``category`` is its place in
    the camera's feature tree, with slashes; ``visibility`` is the GenICam level of its audience:
    Beginner, Expert, Guru or Invisible.
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


@dataclass(frozen=True)
class Inspection:
    """The features of a camera, in its own order, and driver options.

    ``suggested`` are a good start for a rig: they select the camera, and set its best format and
    all that spoils a measurement. ``trigger`` is an example with a line that the camera has, None
    without.
    """

    features: tuple[Feature, ...]
    suggested: Mapping[str, Json] = field(default_factory=dict)
    trigger: Mapping[str, Json] | None = None


@dataclass(frozen=True)
class FoundCamera:
    """A camera on the system; ``access`` is its availability in a word, ``options`` select exactly
    this camera.
    """

    id: str
    vendor: str
    model: str
    serial: str
    user_defined_name: str
    access: str
    options: Mapping[str, Json]


@dataclass(frozen=True)
class FoundInterface:
    """An interface that cameras are attached to: a network or USB controller, a frame grabber."""

    id: str
    name: str
    transport: str
    cameras: tuple[FoundCamera, ...]


@dataclass(frozen=True)
class FoundProducer:
    """The software through which a driver reaches cameras; ``problem`` describes its fault,
    if any.
    """

    path: str
    name: str
    vendor: str
    version: str
    interfaces: tuple[FoundInterface, ...]
    problem: str = ""
