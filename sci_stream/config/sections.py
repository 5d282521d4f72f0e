"""The tables of a rig file. Each field is documented where it is declared; ``example_toml`` writes it from here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sci_stream.config.fields import SECRET, Device, Endpoint, Name, OptionalPath, RigPath, Section
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
    wait_for_nodes_s: float = Field(
        default=60.0,
        ge=0,
        description="Start the camera once all reconstruct nodes are ready, at the latest after this, s.",
    )


class ReconstructSection(Section):
    """How video is computed from snapshots, and on what."""

    nodes: int = Field(
        default=1,
        ge=0,
        le=64,
        description="Reconstruct nodes that `sci-stream run` starts; 0: they run on other machines.",
    )
    devices: tuple[Device, ...] = Field(
        default=("auto",),
        strict=False,
        min_length=1,
        description="auto, cpu, cuda or cuda:N, for the nodes in turn: node i uses devices[i mod length].",
    )
    denoiser: Name = Field(
        default="auto",
        description="Prior: tv, ffdnet-lite, ffdnet (needs weights), or auto: ffdnet if weights are given, else tv.",
    )
    weights: OptionalPath = Field(
        default=None,
        description="Checkpoint of the denoiser (.safetensors, .pth); its layout is recognised.",
        examples=["ffdnet_gray.pth"],
    )
    iterations: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Iterations per snapshot; unset: what suits device and denoiser.",
        examples=[20],
    )
    min_iterations: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Fewest iterations when time is short; unset: what suits the denoiser.",
        examples=[4],
    )
    sigma_first: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Noise level σ at the first iteration, on the 0–1 scale; unset: what suits the denoiser.",
        examples=[0.2],
    )
    sigma_last: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Noise level σ at the last iteration, on the 0–1 scale; unset: as above.",
        examples=[0.03],
    )
    accelerate: bool = Field(
        default=True,
        description="Accumulate the residual (accelerated GAP): better in fewer iterations.",
    )
    adapt_budget: bool = Field(
        default=True,
        description="Spend fewer iterations when snapshots wait, before any is dropped; reported with each.",
    )
    credit: int = Field(
        default=2,
        ge=1,
        le=1024,
        description="Snapshots that a node may hold: one in work, the others on their way to it.",
    )
    block_snapshots: int = Field(
        default=8,
        ge=1,
        le=100_000,
        description="Consecutive snapshots that go to one node, so that its warm start has a past.",
    )
    threads: int = Field(default=0, ge=0, le=1024, description="CPU threads of a node; 0: torch's choice.")
    video_dtype: Literal["float16", "float32"] = Field(
        default="float16",
        description="Type of the reconstructed video on its way to the sink and in the recording.",
    )

    @model_validator(mode="after")
    def _ladders_descend(self) -> Self:
        if self.iterations and self.min_iterations and self.min_iterations > self.iterations:
            raise ValueError(f"min_iterations ({self.min_iterations}) is more than iterations ({self.iterations})")
        if self.sigma_first and self.sigma_last and self.sigma_last > self.sigma_first:
            raise ValueError(f"sigma_last ({self.sigma_last:g}) is more than sigma_first ({self.sigma_first:g})")
        return self


class NetworkSection(Section):
    """Where the nodes meet. Addresses beyond this machine are open to all who reach them."""

    dispatch: Endpoint = Field(
        default="tcp://127.0.0.1:5701",
        description="Acquire node: hands snapshots to reconstruct nodes here.",
    )
    results: Endpoint = Field(
        default="tcp://127.0.0.1:5702",
        description="Sink node: takes results from the other nodes here.",
    )
    taps: Endpoint = Field(
        default="tcp://127.0.0.1:5703",
        description="Sink node: other programs subscribe to results here.",
    )
    heartbeat_s: float = Field(
        default=0.5,
        ge=0.05,
        le=60,
        description="Distance of heartbeats, s; a node silent for three of them is taken for lost.",
    )
    max_message_mib: int = Field(
        default=256,
        ge=1,
        le=16_384,
        description="Largest part of a message that is accepted, MiB: one snapshot's video.",
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


class PreviewSection(Section):
    """The live page."""

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
    open_browser: bool = Field(default=False, description="Open the page in a browser when the rig starts.")
    gamma: float = Field(
        default=2.2,
        gt=0,
        le=10,
        description="Display gamma: 2.2 for a camera's linear light, 1 for video made for a display.",
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
