"""Options of the simulated camera: ``[camera.options]`` of a rig."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from sci_stream.errors import did_you_mean
from sci_stream.plugins import F32, BayerPhase, FrameIds
from sci_stream_drivers.fields import BayerOption, DriverOptions, Rare

CLIPS = ("splash", "fan", "drops", "balloon")
"""Names of the filmed events."""
SCENES = ("fast", *CLIPS, "pan", "belt", "slow", "static")
"""Names of all scenes; any other value is a path."""

MAX_DEVIATIONS = 3
"""Largest error of a single mask, in standard deviations."""

_Shift = Annotated[float, Field(ge=-16, le=16)]


class FaultOptions(DriverOptions):
    """Faults of the camera. All off by default; their times are determined by the seed."""

    drop_probability: float = Field(0.0, ge=0, le=0.99)
    """Probability that a frame is numbered but never delivered."""
    duplicate_probability: float = Field(0.0, ge=0, le=1)
    """Probability that a frame is delivered twice with the same id."""
    id_first: int = Field(0, ge=0)
    """Id of the first frame after a start or wrap-around."""
    id_last: int | None = Field(None, ge=1)
    """Highest frame id, followed by id_first (GigE Vision: 65535); unset: ids never wrap."""
    stall_every: int = Field(0, ge=0)
    """Stall after every N delivered frames; 0: never."""
    stall_s: float = Field(0.0, ge=0, le=600)
    """Duration of a stall, s."""
    buffers: int = Field(0, ge=0)
    """Frames buffered for a late reader; older ones are overwritten and their ids missing. 0:
    unlimited."""
    disconnect_after: int = Field(0, ge=0)
    """Lose the camera after N frames delivered since it was opened; 0: never."""
    disconnects: int = Field(1, ge=1)
    """Number of times it is lost."""
    return_after_s: float = Field(0.0, ge=0, le=3600)
    """Time until a lost camera can be reopened, s."""

    @model_validator(mode="after")
    def _ids_span_more_than_one(self) -> FaultOptions:
        if self.id_last is not None and self.id_last <= self.id_first:
            raise ValueError(
                f"id_last ({self.id_last}) must be greater than id_first ({self.id_first})"
            )
        return self

    @property
    def frame_ids(self) -> FrameIds:
        """Numbering of the frames."""
        return FrameIds(self.id_first, self.id_last)


class ModulatorFaultOptions(DriverOptions):
    """Faults of the modulator, by the number of the exposure at which they happen."""

    first_pattern: int = Field(0, ge=0, le=255)
    """Pattern with which the first cycle begins."""
    lost_pulses: list[int] = Field(default_factory=list)
    """Exposures before which a pulse gets lost."""
    underruns: list[int] = Field(default_factory=list)
    """Exposures in which a pattern comes late."""
    restarts: list[int] = Field(default_factory=list)
    """Exposures in which the modulator loses power."""


class SimulatedOptions(DriverOptions):
    """Options of the simulated camera."""

    scene: str = Field("fast", min_length=1)
    """Scene: splash, fast, fan, drops, balloon, pan, belt, slow, static, or a video, a folder of
    images or a glob."""
    speed: Rare[float] = Field(1.0, ge=0, le=100)
    """Speed of the scene; for a video, its frames per sub-frame."""
    width_px: int = Field(256, ge=16, le=8192)
    """Width of the sensor, pixels."""
    height_px: int = Field(256, ge=16, le=8192)
    """Height of the sensor, pixels."""
    n_frames: int = Field(8, ge=1, le=256)
    """B: masks, and so video frames, per snapshot."""
    bayer: BayerOption = BayerPhase.RGGB
    """Colour filters: RGGB, GRBG, GBRG or BGGR; none for a monochrome sensor."""

    mask: Literal["shifting", "moving", "random"] = "shifting"
    """shifting: one pattern, moved by a pixel a frame; moving: one of larger elements, as behind a
    real stage, whose neighbours are alike; random: independent patterns, as on a DMD."""
    mask_density: Rare[float] = Field(0.5, gt=0, lt=1)
    """Fraction of open mask elements."""
    mask_blur_px: Rare[float] = Field(0.5, ge=0, le=10)
    """Standard deviation of the relay optics' blur of the mask, pixels."""
    mask_closed: Rare[float] = Field(0.02, ge=0, lt=1)
    """Transmission of a closed mask element."""
    mask_unevenness: Rare[float] = Field(0.15, ge=0, lt=1)
    """How much the transmission falls off, smoothly, across the field."""
    mask_shift_px: Rare[tuple[_Shift, _Shift]] = (0.0, 0.0)
    """(x, y) by which the masks stand to the right of and below where the calibration has them,
    pixels."""
    mask_drift_px_per_snapshot: Rare[tuple[float, float]] = (0.0, 0.0)
    """(x, y) by which they move on with each snapshot, as a rig does that warms up, pixels."""
    mask_drift_limit_px: Rare[float] = Field(2.0, ge=0, le=16)
    """Where the drift comes to rest, pixels along each axis."""
    mask_jitter_px: Rare[float] = Field(0.0, ge=0, le=2)
    """Standard deviation along each axis of a displacement of each mask by itself that the
    calibration does not have, as of a stage that vibrates, pixels."""
    frame_gain_error: Rare[float] = Field(0.0, ge=0, le=0.3)
    """Standard deviation of the error of each frame's exposure, relative; the same in every
    snapshot."""

    lamp_depth: float = Field(0.0, ge=0, le=1)
    """How much the light changes, (max − min)/(max + min); 0: even light."""
    lamp_hz: Rare[float] = Field(100.0, gt=0, le=1e6)
    """Frequency of the light: twice that of the mains, Hz."""
    lamp_wave: Rare[Literal["sine", "flash"]] = "sine"
    """sine: as of mains light; flash: bright for half of each period."""

    bit_depth: Literal[8, 10, 12] = 12
    """Bits per pixel of the sensor's converter."""
    black_level_dn: Rare[float | None] = Field(None, ge=0)
    """Counts without light, DN; unset: 1/64 of the range (64 DN of 12 bit)."""
    calibration_light: Rare[float] = Field(0.4, gt=0, le=10)
    """Brightness of the uniform white field in front of the camera while the modulator holds a
    pattern, 1 = white; the all-open mask must not saturate."""
    white_field: Rare[bool] = False
    """Film the uniform white field in place of the scene, to calibrate a moving mask."""
    exposure: float = Field(0.9, ge=0.01, le=10)
    """Fraction of the range that a white scene reaches; above 1 the sensor saturates."""
    full_well_e: Rare[float] = Field(10_500.0, gt=10)
    """Electrons at the top of the range."""
    read_noise_e: Rare[float] = Field(2.5, ge=0)
    """Standard deviation of the read noise, electrons."""
    noise: Rare[bool] = True
    """Shot and read noise; quantisation and clipping are always applied."""
    seed: int = Field(0, ge=0)
    """Seed of everything random; part of the serial number."""

    snapshot_rate_hz: float = Field(10.0, ge=0, le=100_000)
    """Snapshots per second; 0: as fast as they can be rendered."""
    trigger: Rare[Literal["free", "software"]] = "free"
    """free: at snapshot_rate_hz; software: one snapshot per call of trigger()."""
    snapshots: Rare[int] = Field(0, ge=0)
    """Snapshots until the camera is exhausted; 0: endless."""
    loop_snapshots: Rare[int] = Field(0, ge=0, le=100_000)
    """Render N snapshots on opening and deliver them in a loop, for rates that cannot be rendered
    live (the seam is a scene cut); 0: render live."""
    truth: bool = False
    """Deliver the true video with each snapshot."""
    bench: Rare[str] = "bench"
    """Optical bench that it shares with a modulator."""
    faults: Rare[FaultOptions] = Field(default_factory=FaultOptions)
    """Faults on request."""

    @field_validator("scene")
    @classmethod
    def _scene_is_a_name_or_a_path(cls, scene: str) -> str:
        looks_like_a_path = any(mark in scene for mark in "./\\*?[~")
        if scene in SCENES or looks_like_a_path:
            return scene
        advice = did_you_mean(scene, SCENES) or f"A folder here is written './{scene}'."
        raise ValueError(f"{scene!r} is neither a scene ({', '.join(SCENES)}) nor a path. {advice}")

    @model_validator(mode="after")
    def _fields_agree(self) -> SimulatedOptions:
        if self.bayer is not None and (self.width_px % 2 or self.height_px % 2):
            raise ValueError(
                f"a Bayer mosaic needs even width_px and height_px, got {self.width_px} × "
                f"{self.height_px}"
            )
        if self.black_dn >= self.max_dn:
            raise ValueError(
                f"black_level_dn must be below the {self.bit_depth} bit range's top {self.max_dn}"
            )
        return self

    @property
    def mask_travel_px(self) -> float:
        """Largest displacement of the masks along either axis, pixels."""
        drifts = any(self.mask_drift_px_per_snapshot)
        drift_px = self.mask_drift_limit_px if drifts else 0.0
        return max(map(abs, self.mask_shift_px)) + drift_px + MAX_DEVIATIONS * self.mask_jitter_px

    def mask_position_px(self, snapshot: int) -> tuple[float, float]:
        """Return the displacement of the masks at a snapshot, (x, y), pixels."""
        limit = self.mask_drift_limit_px
        x, y = (
            start + min(max(drift * snapshot, -limit), limit)
            for start, drift in zip(
                self.mask_shift_px, self.mask_drift_px_per_snapshot, strict=True
            )
        )
        return x, y

    @property
    def frame_s(self) -> float:
        """Duration of a frame: exposures follow each other without a pause; 1/240 s at a rate of
        0.
        """
        rate_hz = self.snapshot_rate_hz * self.n_frames
        return 1 / rate_hz if rate_hz else 1 / 240

    def light(self, snapshot: int) -> F32:
        """Return the light of each frame of a snapshot, (B,), 1 on average over many."""
        middles = snapshot * self.n_frames + np.arange(self.n_frames) + 0.5
        wave = np.sin(2 * np.pi * self.lamp_hz * self.frame_s * middles)
        if self.lamp_wave == "flash":
            wave = np.where(wave >= 0, 1.0, -1.0)
        return np.asarray(1 + self.lamp_depth * wave, np.float32)

    @property
    def max_dn(self) -> int:
        """Top of the converter's range, DN."""
        return (1 << self.bit_depth) - 1

    @property
    def black_dn(self) -> float:
        """Black level, DN, with the default resolved."""
        return (
            self.black_level_dn if self.black_level_dn is not None else 2.0 ** (self.bit_depth - 6)
        )
