"""The tables ``[rig]``, ``[camera]``, ``[calibration]``, ``[policy]``, ``[record]``, ``[preview]`` and ``[drain]``.

``example_toml`` generates the documentation of the keys from the field descriptions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sci_stream.config.fields import Expiry, Host, Name, OptionalPath, Port, RigPath, Section, Token
from sci_stream.model import Policy


class RigSection(Section):
    """Identity of the rig."""

    name: Name = Field(
        default="rig", description="Name of the rig, shown on the live page and recorded with every series."
    )


class ExperimentSection(Section):
    """Who measures what: stored in recordings, where NeXus readers look for it."""

    title: str = Field(default="", max_length=1000, description="Title of the experiment.")
    operator: str = Field(default="", max_length=1000, description="Name of the operator.")
    sample: str = Field(default="", max_length=1000, description="Name of the sample.")
    proposal: str = Field(default="", max_length=1000, description="Identifier of the proposal or experiment.")
    pixel_size_um: float | None = Field(
        default=None, gt=0, le=1e6, examples=[5.5], description="Size of a pixel, on the sensor or in the scene, µm."
    )
    exposure_s: float | None = Field(
        default=None, gt=0, le=1e6, examples=[0.02], description="Exposure of a snapshot, s; unset: as calibrated."
    )


class CameraSection(Section):
    """The camera, and how to reconnect to it."""

    driver: Name = Field(default="simulated", description="Camera driver, by the name of its entry point.")
    options: dict[str, object] = Field(
        default_factory=dict,
        description="Options of the driver; each driver defines its own.",
    )
    read_timeout_s: float = Field(
        default=0.5,
        ge=0.01,
        le=60,
        description="Timeout of one read from the camera, s; a stop request may take this long.",
    )
    reconnect_first_s: float = Field(
        default=0.5,
        ge=0.01,
        le=3600,
        description="Pause before the first attempt to reopen a lost camera, s; doubled after each failure.",
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
    """The masks Φ and the meaning of the sensor counts."""

    file: OptionalPath = Field(
        default=None,
        description='Calibration file; "": use the masks that the camera driver provides (simulated, replay).',
        examples=["calibration.h5"],
    )
    other_camera: bool = Field(
        default=False,
        description="Accept a calibration that was measured with a camera of another serial number.",
    )
    health_every: int = Field(
        default=20,
        ge=0,
        le=1_000_000,
        description="Check the mask position every N snapshots; 0: never.",
    )
    warn_shift_px: float = Field(
        default=0.1,
        gt=0,
        le=10,
        description="Warn if the masks have moved further than this since the calibration, pixels.",
    )
    correct_shift: bool = Field(
        default=True,
        description="Reconstruct with masks corrected by what snapshots show: shift and blur of all, and, where the "
        "evidence is strong, shift, blur and gain of each, and the black level.",
    )


class PolicySection(Section):
    """Behaviour under overload, when reconstruction is slower than the camera. The camera cannot be paused."""

    mode: Policy = Field(
        default=Policy.LIVE,
        strict=False,
        description="live: the oldest queued snapshot is dropped and counted; record: every raw snapshot is recorded "
        "first, and those that cannot be reconstructed in time can be reconstructed later.",
    )
    queue_snapshots: int = Field(
        default=8,
        ge=1,
        le=100_000,
        description="Snapshots that may be queued for the reconstruct nodes; a longer queue means a longer delay.",
    )
    ring_mib: int = Field(
        default=512,
        ge=1,
        description="Memory for snapshots that the sink has not acknowledged, MiB; frames beyond it are dropped.",
    )
    spool: OptionalPath = Field(
        default=None,
        description="Folder, best on a memory file system, for unacknowledged snapshots, so that a restarted acquire "
        'node resumes the series; "": a folder of the supervisor, or no spool without a supervisor.',
        examples=["/dev/shm"],
    )
    wait_for_nodes_s: float = Field(
        default=60.0,
        ge=0,
        description="Longest wait for all reconstruct nodes to be ready before the camera is started, s.",
    )


class RecordSection(Section):
    """Recording: what is written to disk."""

    enabled: bool = Field(default=True, description="Record every series.")
    folder: RigPath = Field(default=Path("recordings"), description="Folder for recordings; created if missing.")
    raw: bool = Field(default=True, description="Record raw snapshots; the video can be reconstructed from them again.")
    video: bool = Field(
        default=True,
        description="Record the reconstructed video: B frames per snapshot.",
    )
    compression: Literal["none", "bitshuffle_lz4"] = Field(
        default="none",
        description="none: fastest, any HDF5 tool reads it; bitshuffle_lz4: lossless, readers need hdf5plugin.",
    )
    video_dtype: Literal["float16", "float32", "uint16"] = Field(
        default="float16",
        description="Type of the recorded video: float16; float32, which every HDF5 reader knows; or uint16, 0 to 2 in "
        "equal steps of 2/65535, as large as float16.",
    )
    segment_mib: int = Field(
        default=16_384,
        ge=0,
        description="Start a new file after this much data, MiB; 0: never.",
    )
    segment_minutes: float = Field(
        default=0.0,
        ge=0,
        description="Start a new file after this long, minutes; 0: never.",
    )
    stop_after_mib: int = Field(
        default=0,
        ge=0,
        description="Switch the recording of a series off after this much data, MiB; the series continues. 0: never.",
    )
    movie: Literal["none", "mp4", "mkv"] = Field(
        default="none",
        description="Video file next to the recording, H.264 in colour, to share; frames are skipped under load. "
        'Needs pip install "sci-stream[video]".',
    )
    movie_fps: float = Field(
        default=25.0,
        gt=0,
        le=1000,
        description="Frames per second at which the video file plays; a snapshot has B frames.",
    )
    min_free_mib: int = Field(
        default=1024,
        ge=0,
        description="Stop recording cleanly when less than this is free on the disk, MiB.",
    )
    warn_free_mib: int = Field(default=8192, ge=0, description="Warn when less than this is free on the disk, MiB.")

    @model_validator(mode="after")
    def _writes_something_and_warns_first(self) -> Self:
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
    """The live page and how it renders video; recorded data is not affected."""

    enabled: bool = Field(default=True, description="Serve the live page.")
    host: Host = Field(
        default="127.0.0.1",
        description="Address that the page listens on; an address beyond this machine needs a token.",
    )
    port: Port = Field(default=8765, description="Port that the page listens on; 0: any free port.")
    token: Token = Field(
        default="",
        description="Secret that viewers append to the address; never recorded. Better set in the environment.",
    )
    token_expires: Expiry = ""
    open_browser: bool = Field(default=False, description="Open the page in a browser when the rig starts.")
    gamma: float = Field(
        default=2.2,
        gt=0,
        le=10,
        description="Display gamma: 2.2 for a camera's linear light, 1 for video made for a display.",
    )
    exposure_ev: float = Field(default=0.0, ge=-10, le=10, description="Brightness of the picture, stops.")
    black: float = Field(default=0.0, ge=0, le=0.95, description="Intensity that is shown as black, 0–1.")
    white_balance: Literal["none", "grey_world", "fixed"] = Field(
        default="none",
        description="none: unchanged; grey_world: the mean becomes grey; fixed: white_gains.",
    )
    white_gains: tuple[WhiteGain, WhiteGain, WhiteGain] = Field(
        default=(1.0, 1.0, 1.0),
        strict=False,
        description="Gains of red, green and blue for white_balance fixed, 1/8 to 8.",
    )
    demosaic: Literal["bilinear", "edge_aware", "malvar", "directional"] = Field(
        default="bilinear",
        description="Demosaicing method, cheapest first; `sci-stream bench colour` compares them.",
    )
    false_colour: Literal["none", "inferno", "viridis", "turbo", "bone"] = Field(
        default="none", description="Colour map for monochrome video."
    )
    jpeg_quality: int = Field(default=85, ge=1, le=100, description="JPEG quality of the frames, 1–100.")
    h264_mbit_per_s: float = Field(
        default=12.0,
        ge=0,
        le=1000,
        description="Bound on the H.264 video of each viewer, Mbit/s; needs the extra video. 0: JPEG alone.",
    )
    most_viewers: int = Field(default=16, ge=1, le=64, description="Most viewers at once; further ones are refused.")
    history_mib: int = Field(
        default=256, ge=1, le=65536, description="Memory for the pictures of the last five minutes, MiB."
    )
    stale_after_s: float = Field(
        default=3.0,
        gt=0,
        le=3600,
        description="The page shows NO DATA after this long without new video, s.",
    )


class DrainSection(Section):
    """Shutdown: finishing the snapshots in flight."""

    timeout_s: float = Field(
        default=30.0,
        ge=0,
        le=3600,
        description="Time to finish the snapshots in flight, s; the rest is dropped and counted.",
    )
