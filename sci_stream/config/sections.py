"""The tables of a rig file that have no module of their own.

Each field is documented where it is declared; ``example_toml`` writes it from here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sci_stream.config.fields import (
    SECRET,
    Expiry,
    Name,
    OptionalPath,
    RigPath,
    Section,
)
from sci_stream.model import Policy


class RigSection(Section):
    """What this rig is."""

    name: Name = Field(default="rig", description="Name of the rig: shown, and recorded with every series.")


class CameraSection(Section):
    """The camera, and what to do when it goes away."""

    driver: Name = Field(default="simulated", description="Camera driver, by the name under which it is installed.")
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of the driver: keys and values are the driver's own.",
    )
    read_timeout_s: float = Field(
        default=0.5,
        ge=0.01,
        le=60,
        description="How long one wait for a frame may last, s; a stop request waits as long.",
    )
    reconnect_first_s: float = Field(
        default=0.5,
        ge=0.01,
        le=3600,
        description="Pause before the first attempt to open a lost camera again, s; doubled after each failure.",
    )
    reconnect_max_s: float = Field(
        default=10.0,
        ge=0.01,
        le=3600,
        description="Longest pause between two attempts, s.",
    )

    @model_validator(mode="after")
    def _pauses_grow(self) -> Self:
        if self.reconnect_max_s < self.reconnect_first_s:
            raise ValueError(
                f"reconnect_max_s ({self.reconnect_max_s:g}) is less than reconnect_first_s "
                f"({self.reconnect_first_s:g})"
            )
        return self


class CalibrationSection(Section):
    """The masks Φ and what the counts mean."""

    file: OptionalPath = Field(
        default=None,
        description='Calibration file; "" for the masks that the camera itself knows (simulated, replay).',
        examples=["calibration.h5"],
    )
    other_camera: bool = Field(
        default=False,
        description="Use a calibration that was made with a camera of another serial number.",
    )
    health_every: int = Field(
        default=20,
        ge=0,
        le=1_000_000,
        description="Check while running whether the masks are still where they were calibrated, at one snapshot in "
        "so many; 0: never.",
    )
    warn_shift_px: float = Field(
        default=0.1,
        gt=0,
        le=10,
        description="Warn when the masks stand further than this from where they were calibrated, pixels.",
    )
    correct_shift: bool = Field(
        default=False,
        description="Reconstruct with the masks moved to where they are found to be.",
    )


class PolicySection(Section):
    """What happens when reconstruction cannot keep up. The camera cannot be paused."""

    mode: Policy = Field(
        default=Policy.LIVE,
        strict=False,
        description="live: the oldest waiting snapshot is dropped, and counted; record: every raw snapshot is "
        "recorded first, what cannot be reconstructed now can be later.",
    )
    queue_snapshots: int = Field(
        default=8,
        ge=1,
        le=100_000,
        description="Snapshots that may wait for a reconstruct node: more of them, more delay.",
    )
    ring_mib: int = Field(
        default=512,
        ge=1,
        description="Memory for snapshots that are not yet safe, MiB; beyond it frames are dropped.",
    )
    spool: OptionalPath = Field(
        default=None,
        description="Folder, best on a memory file system, for snapshots that are not yet safe: a series goes on where "
        'an acquire node that dies leaves it; "": one of the supervisor\'s, none without a supervisor.',
        examples=["/dev/shm"],
    )
    wait_for_nodes_s: float = Field(
        default=60.0,
        ge=0,
        description="Start the camera once all reconstruct nodes are ready, at the latest after this, s.",
    )


class RecordSection(Section):
    """What is written to the disk."""

    enabled: bool = Field(default=True, description="Record.")
    folder: RigPath = Field(default=Path("recordings"), description="Folder for recordings; made if it is not there.")
    raw: bool = Field(default=True, description="Record raw snapshots: everything can be computed again from them.")
    video: bool = Field(
        default=True,
        description="Record reconstructed video: B times the frames of the raw snapshots.",
    )
    compression: Literal["none", "bitshuffle_lz4"] = Field(
        default="none",
        description="none: fastest, any HDF5 tool reads it; bitshuffle_lz4: lossless, readers need hdf5plugin.",
    )
    segment_mib: int = Field(
        default=16_384,
        ge=0,
        description="Go on in a new file when this much is in one, MiB; 0: never.",
    )
    segment_minutes: float = Field(
        default=0.0,
        ge=0,
        description="Go on in a new file after this long, minutes; 0: never.",
    )
    movie: Literal["none", "mp4", "mkv"] = Field(
        default="none",
        description="Film beside the recording, H.264 in colour, to share; gives way where the machine is busy. "
        'Needs pip install "sci-stream[video]".',
    )
    movie_fps: float = Field(
        default=25.0,
        gt=0,
        le=1000,
        description="Frames a second at which the film plays; B frames a snapshot.",
    )
    min_free_mib: int = Field(
        default=1024,
        ge=0,
        description="Recording ends, in order and counted, when less than this is free on the disk, MiB.",
    )
    warn_free_mib: int = Field(default=8192, ge=0, description="Warn when less than this is free on the disk, MiB.")

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.enabled and not (self.raw or self.video):
            raise ValueError("raw and video are both false: set one of them, or enabled = false")
        if self.warn_free_mib < self.min_free_mib:
            raise ValueError(
                f"warn_free_mib ({self.warn_free_mib}) is less than min_free_mib ({self.min_free_mib}): "
                "there would be no warning"
            )
        return self


WhiteGain = Annotated[float, Field(ge=0.125, le=8)]


class PreviewSection(Section):
    """The live page, and how video looks on it. All of it can be changed on the page; none of it touches the data."""

    enabled: bool = Field(default=True, description="Serve the live page.")
    host: Annotated[str, Field(min_length=1, max_length=253)] = Field(
        default="127.0.0.1",
        description="Address it listens on; beyond this machine a token is needed.",
    )
    port: int = Field(default=8765, ge=0, le=65535, description="Port it listens on; 0: any that is free.")
    token: str = Field(
        default="",
        max_length=256,
        repr=False,
        json_schema_extra=SECRET,
        description="Word that viewers give in the address; never recorded. Better set by the environment than here.",
    )
    token_expires: Expiry = Field(
        default="",
        description='When the token is worth nothing any more, such as "2027-01-31T00:00:00Z"; "": never.',
    )
    open_browser: bool = Field(default=False, description="Open the page in a browser when the rig starts.")
    gamma: float = Field(
        default=2.2,
        gt=0,
        le=10,
        description="Display gamma: 2.2 for a camera's linear light, 1 for video made for a display.",
    )
    exposure_ev: float = Field(default=0.0, ge=-10, le=10, description="Brightness of the picture, stops.")
    black: float = Field(default=0.0, ge=0, le=0.95, description="Light that is shown as black, 0–1.")
    white_balance: Literal["none", "grey_world", "fixed"] = Field(
        default="none",
        description="none: as the sensor saw it; grey_world: the mean is grey; fixed: white_gains.",
    )
    white_gains: tuple[WhiteGain, WhiteGain, WhiteGain] = Field(
        default=(1.0, 1.0, 1.0), strict=False, description="Gains of red, green and blue for fixed, 1/8 to 8."
    )
    demosaic: Literal["bilinear", "edge_aware", "malvar", "directional"] = Field(
        default="bilinear",
        description="How colours are found between pixels, cheapest first; `sci-stream bench colour` compares them.",
    )
    false_colour: Literal["none", "inferno", "viridis", "turbo", "bone"] = Field(
        default="none", description="Colours for monochrome video."
    )
    jpeg_quality: int = Field(default=85, ge=1, le=100, description="Quality of the pictures, 1–100.")
    stale_after_s: float = Field(
        default=3.0,
        gt=0,
        le=3600,
        description="Without new video for this long it says NO DATA, s.",
    )


class DrainSection(Section):
    """What happens when the rig is stopped."""

    timeout_s: float = Field(
        default=30.0,
        ge=0,
        le=3600,
        description="Time to finish what is under way, s; the rest is then dropped, and counted.",
    )
