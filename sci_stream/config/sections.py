"""The tables of a rig file, except ``[reconstruct]``.

``example_toml`` generates the documentation of the keys from the field descriptions: one line each,
and for keys that are rarely needed, of type `Rare`, up to two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from sci_stream.config.fields import (
    Endpoint,
    Host,
    Name,
    OptionalPath,
    Port,
    PublicKey,
    Rare,
    RigPath,
    Section,
    Token,
    Webhook,
    is_loopback,
    network_location,
    tcp_address,
)
from sci_stream.delivery.trigger_ring import Condition
from sci_stream.model import Policy


class RigSection(Section):
    """Identity of the rig."""

    name: Name = Field(
        default="rig",
        description="Name of the rig, shown on the live page and recorded with every series.",
    )


class ExperimentSection(Section):
    """Who measures what: stored in recordings, where NeXus readers look for it."""

    title: str = Field(default="", max_length=1000, description="Title of the experiment.")
    operator: str = Field(default="", max_length=1000, description="Name of the operator.")
    sample: str = Field(default="", max_length=1000, description="Name of the sample.")
    proposal: str = Field(
        default="", max_length=1000, description="Identifier of the proposal or experiment."
    )
    pixel_size_um: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        examples=[5.5],
        description="Size of a pixel, on the sensor or in the scene, µm.",
    )


class CameraSection(Section):
    """The camera."""

    driver: Name = Field(
        default="simulated", description="Camera driver, by the name of its entry point."
    )
    options: dict[str, object] = Field(
        default_factory=dict, description="Options of the driver; each driver defines its own."
    )
    read_timeout_s: Rare[float] = Field(
        default=0.2,
        ge=0.01,
        le=60,
        description="Timeout of one read; a stop request may take this long, s.",
    )


class ModulatorSection(Section):
    """The mask modulator in front of the camera; without a driver, the rig does not command it."""

    driver: Name | None = Field(
        default=None,
        description="Modulator driver, by the name of its entry point; unset: the rig commands "
        "none.",
        examples=["dlpc900"],
    )
    options: dict[str, JsonValue] = Field(
        default_factory=dict, description="Options of the driver; each driver defines its own."
    )
    patterns: OptionalPath = Field(
        default=None,
        description="The B masks: .npy of (B, H, W) or a folder of images, as `sci-stream masks "
        "make` writes them.",
        examples=["masks.npy"],
    )
    n_frames: int = Field(
        default=0,
        ge=0,
        le=256,
        description="B for a mask that is moved by a waveform; 0: the number of patterns.",
    )
    pattern_us: float = Field(
        default=0.0, ge=0, le=1e7, description="Time of one mask, µs; 0: the shortest that fits."
    )
    dark_us: Rare[float] = Field(
        default=0.0, ge=0, le=1e7, description="Darkness after each mask, µs."
    )
    master: Literal["modulator", "camera", "external"] = Field(
        default="modulator",
        description="The device that starts each cycle: modulator, camera or external.",
    )
    pulse: Rare[Literal["auto", "per_pattern", "per_cycle"]] = Field(
        default="auto",
        description="Pulses of the modulator: per_cycle; per_pattern, which the camera counts; "
        "auto.",
    )
    pulse_width_us: Rare[float] = Field(
        default=0.0, ge=0, le=1e6, description="Width of a pulse, µs; 0: as it suits."
    )
    delay_us: float = Field(
        default=0.0,
        ge=-1e6,
        le=1e6,
        description="From the pulse to the light of the first mask, µs; check measures it.",
    )
    correct: bool = Field(
        default=True,
        description="Correct the modulator by the picture: phase of the cycle, delay, moved "
        "pattern.",
    )
    mirror_px: Rare[tuple[float, float]] = Field(
        default=(0.0, 0.0),
        strict=False,
        description="(x, y) by which the masks move on the sensor when the patterns move by a "
        "mirror to the right and "
        "down, pixels, negative if mirrored; 0: patterns are not moved.",
    )


class CalibrationSection(Section):
    """The masks Φ and the meaning of the sensor counts."""

    file: OptionalPath = Field(
        default=None,
        description='Calibration file; "": the masks that the camera driver provides (simulated, '
        "replay).",
        examples=["calibration.h5"],
    )
    other_camera: Rare[bool] = Field(
        default=False,
        description="Accept a calibration of a camera with another serial number, and a camera "
        "with another serial number or firmware in the course of a run.",
    )
    health_every: Rare[int] = Field(
        default=20,
        ge=0,
        le=1_000_000,
        description="Check the mask position every N snapshots; 0: never.",
    )
    warn_shift_px: Rare[float] = Field(
        default=0.1,
        gt=0,
        le=10,
        description="Warn if the masks have moved further than this since the calibration, pixels.",
    )
    correct_shift: bool = Field(
        default=True,
        description="Correct the masks by what snapshots show: shift, blur and gain of each, "
        "black level.",
    )


class PolicySection(Section):
    """Behaviour under overload, when reconstruction is slower than the camera.

    The camera cannot be paused.
    """

    mode: Policy = Field(
        default=Policy.LIVE,
        strict=False,
        description="live: drop the oldest queued snapshot; record: store each raw one first.",
    )
    queue_snapshots: int = Field(
        default=8,
        ge=1,
        le=100_000,
        description="Snapshots queued for the reconstruct nodes; a longer queue means a longer "
        "delay.",
    )
    max_wait_s: Rare[float] = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="live: once a snapshot has waited this long for a node, s, the newest goes "
        "first and the others "
        "are dropped; 0: as long as a solve takes, at least 0.2 s.",
    )
    ring_mib: int = Field(
        default=512,
        ge=1,
        description="Memory for snapshots that the sink has not acknowledged, MiB; frames beyond "
        "it are dropped.",
    )
    spool: Rare[OptionalPath] = Field(
        default=None,
        description="Folder for unacknowledged snapshots, from which a restarted acquire node "
        "resumes the series.",
        examples=["/dev/shm"],
    )
    wait_for_nodes_s: Rare[float] = Field(
        default=60.0,
        ge=0,
        description="Longest wait for all reconstruct nodes to be ready before the camera is "
        "started, s.",
    )


def _conditions(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(Condition.parse(text).text for text in texts)


class RecordSection(Section):
    """Recording to disk."""

    enabled: bool = Field(default=True, description="Record every series.")
    folder: RigPath = Field(
        default=Path("recordings"), description="Folder for recordings; created if missing."
    )
    mode: Literal["continuous", "triggered"] = Field(
        default="continuous",
        description="continuous: everything; triggered: from before_s before to after_s after "
        "each event.",
    )
    before_s: float = Field(
        default=2.0, ge=0, le=3600, description="triggered: time before an event that is kept, s."
    )
    after_s: float = Field(
        default=2.0, ge=0, le=3600, description="triggered: time after an event that is kept, s."
    )
    trigger: Annotated[tuple[str, ...], AfterValidator(_conditions)] = Field(
        default=(),
        strict=False,
        max_length=8,
        description="triggered: conditions that trigger an event (recordings.md).",
        examples=[["motion > 0.02, hold-off 5 s, at most 100"]],
    )
    reconstruct: Rare[Literal["all", "kept"]] = Field(
        default="all",
        description="triggered: all snapshots, for the live page; kept: only those of events.",
    )
    raw: bool = Field(
        default=True,
        description="Record raw snapshots; the video can be reconstructed from them again.",
    )
    video: bool = Field(
        default=True, description="Record the reconstructed video: B frames per snapshot."
    )
    error: Rare[bool] = Field(
        default=False,
        description="Record the estimated error of the video: a thirtieth of its size "
        "(recordings.md).",
    )
    compression: Literal["none", "bitshuffle_lz4"] = Field(
        default="none",
        description="none: fastest, any HDF5 tool reads it; bitshuffle_lz4: lossless, needs "
        "hdf5plugin.",
    )
    video_dtype: Rare[Literal["float16", "float32", "uint16"]] = Field(
        default="float16",
        description="Type of the recorded video: float16; float32, which every HDF5 reader knows; "
        "or uint16, 0 to 2 in "
        "equal steps of 2/65535, as large as float16.",
    )
    segment_mib: Rare[int] = Field(
        default=16_384, ge=0, description="Start a new file after this much data, MiB; 0: never."
    )
    segment_minutes: Rare[float] = Field(
        default=0.0, ge=0, description="Start a new file after this long, minutes; 0: never."
    )
    stop_after_mib: Rare[int] = Field(
        default=0,
        ge=0,
        description="Switch the recording of a series off after this much data, MiB; the series "
        "continues. 0: never.",
    )
    min_free_mib: int = Field(
        default=1024,
        ge=0,
        description="Stop recording when less than this is free on the disk, MiB; warn at 8 times.",
    )

    @model_validator(mode="after")
    def _writes_something(self) -> Self:
        if self.enabled and not (self.raw or self.video):
            raise ValueError("raw and video are both false: set one of them, or enabled = false")
        if self.is_triggered and not (self.enabled and self.raw):
            raise ValueError('mode = "triggered" keeps raw snapshots: it needs enabled and raw')
        return self

    @property
    def is_triggered(self) -> bool:
        """Whether only events are recorded."""
        return self.mode == "triggered"


WhiteGain = Annotated[float, Field(ge=0.125, le=8)]


class PreviewSection(Section):
    """The live page and how it renders video; recorded data is not affected."""

    enabled: bool = Field(default=True, description="Serve the live page.")
    host: Host = Field(
        default="127.0.0.1",
        description="Address that the page listens on; an address beyond this machine needs a "
        "token.",
    )
    port: Port = Field(default=8765, description="Port that the page listens on; 0: any free port.")
    token: Token = Field(
        default="",
        description="Secret that viewers append to the address; better set in the environment.",
    )
    open_browser: Rare[bool] = Field(
        default=False, description="Open the page in a browser when the rig starts."
    )
    gamma: float = Field(
        default=2.2,
        ge=0.1,
        le=10,
        description="Display gamma: 2.2 for a camera's linear light, 1 for video made for a "
        "display.",
    )
    exposure_ev: Rare[float] = Field(
        default=0.0, ge=-10, le=10, description="Brightness of the picture, stops."
    )
    black: Rare[float] = Field(
        default=0.0, ge=0, le=0.95, description="Intensity that is shown as black, 0–1."
    )
    white_balance: Rare[Literal["none", "grey_world", "fixed"]] = Field(
        default="none",
        description="none: unchanged; grey_world: the mean becomes grey; fixed: white_gains.",
    )
    white_gains: Rare[tuple[WhiteGain, WhiteGain, WhiteGain]] = Field(
        default=(1.0, 1.0, 1.0),
        strict=False,
        description="Gains of red, green and blue for white_balance fixed, 1/8 to 8.",
    )
    demosaic: Rare[Literal["bilinear", "directional"]] = Field(
        default="bilinear",
        description="Demosaicing method, cheapest first; `sci-stream bench colour` compares them.",
    )
    false_colour: Rare[Literal["none", "inferno", "viridis", "turbo", "bone"]] = Field(
        default="none", description="Colour map for monochrome video."
    )
    h264_mbit_per_s: Rare[float] = Field(
        default=12.0,
        ge=0,
        le=1000,
        description="Bound on the H.264 video of each viewer, Mbit/s; needs the extra video. 0: "
        "JPEG alone.",
    )
    max_viewers: Rare[int] = Field(
        default=16, ge=1, le=64, description="Viewers at once; further ones are refused."
    )
    history_mib: Rare[int] = Field(
        default=256,
        ge=1,
        le=65536,
        description="Memory for the pictures of the last five minutes, MiB.",
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


class NetworkSection(Section):
    """Addresses of the nodes. Addresses beyond this machine need encryption; see [security]."""

    dispatch: Endpoint = Field(
        default="tcp://127.0.0.1:5701",
        description="Acquire node: sends snapshots to reconstruct nodes from this address.",
    )
    results: Endpoint = Field(
        default="tcp://127.0.0.1:5702",
        description="Sink node: receives the results of the other nodes at this address.",
    )
    taps: Endpoint = Field(
        default="tcp://127.0.0.1:5703",
        description="Sink node: other programs subscribe to results at this address.",
    )
    bind_host: Rare[Annotated[str, Field(max_length=253)]] = Field(
        default="",
        description="Interface to listen on, if it is not the host that others connect to; "
        '"0.0.0.0": all.',
        examples=["0.0.0.0"],
    )
    heartbeat_s: Rare[float] = Field(
        default=0.5,
        ge=0.05,
        le=60,
        description="Heartbeat interval, s; a node that misses three heartbeats is considered "
        "lost.",
    )
    max_message_mib: Rare[int] = Field(
        default=256,
        ge=1,
        le=16_384,
        description="Largest accepted part of a message, MiB; it must hold the video of one "
        "snapshot.",
    )

    def listening(self, name: Literal["dispatch", "results", "taps"]) -> str:
        """Return the endpoint that the node of an address listens on."""
        endpoint: str = getattr(self, name)
        address = tcp_address(endpoint)
        if not self.bind_host or address is None:
            return endpoint
        return f"tcp://{network_location(self.bind_host, address[1])}"


class HealthSection(Section):
    """HTTP endpoints of each node: /healthz, /readyz, /status, /metrics."""

    enabled: Rare[bool] = Field(default=True, description="Serve the health endpoints.")
    host: Host = Field(
        default="127.0.0.1",
        description="Address that every node listens on; an address beyond this machine needs a "
        "token.",
    )
    acquire_port: Rare[Port] = Field(
        default=5711, description="Port of the acquire node; 0: any free one."
    )
    sink_port: Rare[Port] = Field(
        default=5712, description="Port of the sink node; 0: any free one."
    )
    reconstruct_port: Rare[Port] = Field(
        default=5720,
        description="Port of the first reconstruct node, the others use the next ones; 0: any "
        "free ports.",
    )
    token: Token = Field(
        default="",
        description="Secret of the header Authorization: Bearer; better set in the environment.",
    )
    webhook: Webhook = Field(
        default="",
        max_length=2000,
        description="Address that is sent each alarm as JSON when it begins and clears; a secret, "
        "better set in the environment.",
        examples=["https://alerts.example.org/rig"],
    )

    def port(self, kind_of_node: str, index: int = 0) -> int:
        """Return the port of a node, 0 for any free one."""
        first = {"acquire": self.acquire_port, "sink": self.sink_port}.get(
            kind_of_node, self.reconstruct_port
        )
        return first + index if first else 0

    @model_validator(mode="after")
    def _beyond_this_machine_needs_a_token(self) -> Self:
        if self.enabled and not self.token and not is_loopback(self.host):
            raise ValueError(
                f"health.host {self.host} is open to other machines: set health.token "
                "(environment: SCI_STREAM_RIG__HEALTH__TOKEN), or listen on 127.0.0.1"
            )
        return self


class SecuritySection(Section):
    """Encryption between hosts. Nodes on one machine need none; addresses beyond it require it."""

    encryption: Literal["auto", "on", "off"] = Field(
        default="auto", description="auto: encrypt beyond this machine; on: always; off: never."
    )
    unprotected_network: Rare[bool] = Field(
        default=False,
        description="Allow addresses beyond this machine without encryption: any host may read "
        "and send.",
    )
    key: Rare[RigPath] = Field(
        default=Path("~/.config/sci-stream/key"),
        description="Secret key of this host, created by sci-stream keys new.",
    )
    allowed: Rare[RigPath] = Field(
        default=Path("~/.config/sci-stream/allowed_keys"),
        description="Public keys of the hosts that may connect to this one; sci-stream keys allow "
        "adds one.",
    )
    acquire_key: PublicKey = Field(default="", description="Public key of the acquire node's host.")
    sink_key: PublicKey = Field(default="", description="Public key of the sink node's host.")

    def key_of(self, node: Literal["acquire", "sink"]) -> str:
        """Return the public key of a node's host."""
        return self.acquire_key if node == "acquire" else self.sink_key
