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

    name: Name = "rig"
    """Name of the rig, shown on the live page and recorded with every series."""


class ExperimentSection(Section):
    """Who measures what: stored in recordings, where NeXus readers look for it."""

    title: str = Field("", max_length=1000)
    """Title of the experiment."""
    operator: str = Field("", max_length=1000)
    """Name of the operator."""
    sample: str = Field("", max_length=1000)
    """Name of the sample."""
    proposal: str = Field("", max_length=1000)
    """Identifier of the proposal or experiment."""
    pixel_size_um: float | None = Field(None, gt=0, le=1e6, examples=[5.5])
    """Size of a pixel, on the sensor or in the scene, µm."""


class CameraSection(Section):
    """The camera."""

    driver: Name = "simulated"
    """Camera driver, by the name of its entry point."""
    options: dict[str, object] = Field(default_factory=dict)
    """Options of the driver; each driver defines its own."""
    read_timeout_s: Rare[float] = Field(0.2, ge=0.01, le=60)
    """Timeout of one read; a stop request may take this long, s."""


class ModulatorSection(Section):
    """The mask modulator in front of the camera; without a driver, the rig does not command it."""

    driver: Name | None = Field(None, examples=["dlpc900"])
    """Modulator driver, by the name of its entry point; unset: the rig commands none."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Options of the driver; each driver defines its own."""
    patterns: OptionalPath = Field(None, examples=["masks.npy"])
    """The B masks: .npy of (B, H, W) or a folder of images, as `sci-stream masks make` writes
    them."""
    n_frames: int = Field(0, ge=0, le=256)
    """B for a mask that is moved by a waveform; 0: the number of patterns."""
    pattern_us: float = Field(0.0, ge=0, le=1e7)
    """Time of one mask, µs; 0: the shortest that fits."""
    dark_us: Rare[float] = Field(0.0, ge=0, le=1e7)
    """Darkness after each mask, µs."""
    master: Literal["modulator", "camera", "external"] = "modulator"
    """The device that starts each cycle: modulator, camera or external."""
    pulse: Rare[Literal["auto", "per_pattern", "per_cycle"]] = "auto"
    """Pulses of the modulator: per_cycle; per_pattern, which the camera counts; auto."""
    pulse_width_us: Rare[float] = Field(0.0, ge=0, le=1e6)
    """Width of a pulse, µs; 0: as it suits."""
    delay_us: float = Field(0.0, ge=-1e6, le=1e6)
    """From the pulse to the light of the first mask, µs; check measures it."""
    correct: bool = True
    """Correct the modulator by the picture: phase of the cycle, delay, moved pattern."""
    mirror_px: Rare[tuple[float, float]] = Field((0.0, 0.0), strict=False)
    """(x, y) by which the masks move on the sensor when the patterns move by a mirror to the right
    and down, pixels, negative if mirrored; 0: patterns are not moved."""

    @property
    def frame_s(self) -> float | None:
        """Time from one mask to the next; None where the file does not set it."""
        if self.driver is None or not self.pattern_us:
            return None
        return 1e-6 * (self.pattern_us + self.dark_us)


class CalibrationSection(Section):
    """The masks Φ and the meaning of the sensor counts."""

    file: OptionalPath = Field(None, examples=["calibration.h5"])
    """Calibration file; "": the masks that the camera driver provides (simulated, replay)."""
    other_camera: Rare[bool] = False
    """Accept a calibration of a camera with another serial number, and a camera with another serial
    number or firmware in the course of a run."""
    health_every: Rare[int] = Field(20, ge=0, le=1_000_000)
    """Check the mask position every N snapshots; 0: never."""
    warn_shift_px: Rare[float] = Field(0.1, gt=0, le=10)
    """Warn if the masks have moved further than this since the calibration, pixels."""
    correct_shift: bool = True
    """Correct the masks by what snapshots show: shift, blur and gain of each, black level."""
    correct_sensor: Rare[bool] = True
    """Correct faults of the sensor that snapshots show: two taps, image lag, dust."""
    lamps_hz: Rare[float] = Field(0.0, ge=0, le=10_000, examples=[100])
    """Frequency at which the lamps pulse, Hz, twice that of the mains; 0: unknown. The light within
    exposures is then measured more exactly."""


class PolicySection(Section):
    """Behaviour under overload, when reconstruction is slower than the camera.

    The camera cannot be paused.
    """

    mode: Policy = Field(Policy.LIVE, strict=False)
    """live: drop the oldest queued snapshot; record: store each raw one first."""
    queue_snapshots: int = Field(8, ge=1, le=100_000)
    """Snapshots queued for the reconstruct nodes; a longer queue means a longer delay."""
    max_wait_s: Rare[float] = Field(0.0, ge=0, le=3600)
    """live: once a snapshot has waited this long for a node, s, the newest goes first and the
    others are dropped; 0: as long as a solve takes, at least 0.2 s."""
    ring_mib: int = Field(512, ge=1)
    """Memory for snapshots that the sink has not acknowledged, MiB; frames beyond it are
    dropped."""
    spool: Rare[OptionalPath] = Field(None, examples=["/dev/shm"])
    """Folder for unacknowledged snapshots, from which a restarted acquire node resumes the
    series."""
    wait_for_nodes_s: Rare[float] = Field(60.0, ge=0)
    """Longest wait for all reconstruct nodes to be ready before the camera is started, s."""


def _conditions(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(Condition.parse(text).text for text in texts)


class RecordSection(Section):
    """Recording to disk."""

    enabled: bool = True
    """Record every series."""
    folder: RigPath = Path("recordings")
    """Folder for recordings; created if missing."""
    mode: Literal["continuous", "triggered"] = "continuous"
    """continuous: everything; triggered: from before_s before to after_s after each event."""
    before_s: float = Field(2.0, ge=0, le=3600)
    """triggered: time before an event that is kept, s."""
    after_s: float = Field(2.0, ge=0, le=3600)
    """triggered: time after an event that is kept, s."""
    trigger: Annotated[tuple[str, ...], AfterValidator(_conditions)] = Field(
        (),
        strict=False,
        max_length=8,
        examples=[["motion > 0.02, hold-off 5 s, at most 100"]],
    )
    """triggered: conditions that trigger an event (recordings.md)."""
    reconstruct: Rare[Literal["all", "kept"]] = "all"
    """triggered: all snapshots, for the live page; kept: only those of events."""
    raw: bool = True
    """Record raw snapshots; the video can be reconstructed from them again."""
    video: bool = True
    """Record the reconstructed video: B frames per snapshot."""
    error: Rare[bool] = False
    """Record the estimated error of the video: a thirtieth of its size (recordings.md)."""
    compression: Literal["none", "bitshuffle_lz4"] = "none"
    """none: fastest, any HDF5 tool reads it; bitshuffle_lz4: lossless, needs hdf5plugin."""
    video_dtype: Rare[Literal["float16", "float32", "uint16"]] = "float16"
    """Type of the recorded video: float16; float32, which every HDF5 reader knows; or uint16, 0 to
    2 in equal steps of 2/65535, as large as float16."""
    segment_mib: Rare[int] = Field(16_384, ge=0)
    """Start a new file after this much data, MiB; 0: never."""
    segment_minutes: Rare[float] = Field(0.0, ge=0)
    """Start a new file after this long, minutes; 0: never."""
    stop_after_mib: Rare[int] = Field(0, ge=0)
    """Switch the recording of a series off after this much data, MiB; the series continues. 0:
    never."""
    min_free_mib: int = Field(1024, ge=0)
    """Stop recording when less than this is free on the disk, MiB; warn at 8 times."""

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

    enabled: bool = True
    """Serve the live page."""
    host: Host = "127.0.0.1"
    """Address that the page listens on; an address beyond this machine needs a token."""
    port: Port = 8765
    """Port that the page listens on; 0: any free port."""
    token: Token = ""
    """Secret that viewers append to the address; better set in the environment."""
    open_browser: Rare[bool] = False
    """Open the page in a browser when the rig starts."""
    gamma: float = Field(2.2, ge=0.1, le=10)
    """Display gamma: 2.2 for a camera's linear light, 1 for video made for a display."""
    exposure_ev: Rare[float] = Field(0.0, ge=-10, le=10)
    """Brightness of the picture, stops."""
    black: Rare[float] = Field(0.0, ge=0, le=0.95)
    """Intensity that is shown as black, 0–1."""
    white_balance: Rare[Literal["none", "grey_world", "fixed"]] = "none"
    """none: unchanged; grey_world: the mean becomes grey; fixed: white_gains."""
    white_gains: Rare[tuple[WhiteGain, WhiteGain, WhiteGain]] = Field((1.0, 1.0, 1.0), strict=False)
    """Gains of red, green and blue for white_balance fixed, 1/8 to 8."""
    demosaic: Rare[Literal["bilinear", "directional"]] = "bilinear"
    """Demosaicing method, cheapest first; `sci-stream bench colour` compares them."""
    false_colour: Rare[Literal["none", "inferno", "viridis", "turbo", "bone"]] = "none"
    """Colour map for monochrome video."""
    h264_mbit_per_s: Rare[float] = Field(12.0, ge=0, le=1000)
    """Bound on the H.264 video of each viewer, Mbit/s; needs the extra video. 0: JPEG alone."""
    max_viewers: Rare[int] = Field(16, ge=1, le=64)
    """Viewers at once; further ones are refused."""
    history_mib: Rare[int] = Field(256, ge=1, le=65536)
    """Memory for the pictures of the last five minutes, MiB."""
    stale_after_s: float = Field(3.0, gt=0, le=3600)
    """The page shows NO DATA after this long without new video, s."""


class DrainSection(Section):
    """Shutdown: finishing the snapshots in flight."""

    timeout_s: float = Field(30.0, ge=0, le=3600)
    """Time to finish the snapshots in flight, s; the rest is dropped and counted."""


class NetworkSection(Section):
    """Addresses of the nodes. Addresses beyond this machine need encryption; see [security]."""

    dispatch: Endpoint = "tcp://127.0.0.1:5701"
    """Acquire node: sends snapshots to reconstruct nodes from this address."""
    results: Endpoint = "tcp://127.0.0.1:5702"
    """Sink node: receives the results of the other nodes at this address."""
    taps: Endpoint = "tcp://127.0.0.1:5703"
    """Sink node: other programs subscribe to results at this address."""
    bind_host: Rare[Annotated[str, Field(max_length=253)]] = Field("", examples=["0.0.0.0"])
    """Interface to listen on, if it is not the host that others connect to; "0.0.0.0": all."""
    heartbeat_s: Rare[float] = Field(0.5, ge=0.05, le=60)
    """Heartbeat interval, s; a node that misses three heartbeats is considered lost."""
    max_message_mib: Rare[int] = Field(256, ge=1, le=16_384)
    """Largest accepted part of a message, MiB; it must hold the video of one snapshot."""

    @property
    def listening(self) -> dict[str, str]:
        """Endpoints that the nodes listen on, by the name of their address."""
        endpoints = {"dispatch": self.dispatch, "results": self.results, "taps": self.taps}
        for name, endpoint in endpoints.items():
            if self.bind_host and (address := tcp_address(endpoint)):
                endpoints[name] = f"tcp://{network_location(self.bind_host, address[1])}"
        return endpoints


class HealthSection(Section):
    """HTTP endpoints of each node: /healthz, /readyz, /status, /metrics."""

    enabled: Rare[bool] = True
    """Serve the health endpoints."""
    host: Host = "127.0.0.1"
    """Address that every node listens on; an address beyond this machine needs a token."""
    acquire_port: Rare[Port] = 5711
    """Port of the acquire node; 0: any free one."""
    sink_port: Rare[Port] = 5712
    """Port of the sink node; 0: any free one."""
    reconstruct_port: Rare[Port] = 5720
    """Port of the first reconstruct node, the others use the next ones; 0: any free ports."""
    token: Token = ""
    """Secret of the header Authorization: Bearer; better set in the environment."""
    webhook: Webhook = Field("", max_length=2000, examples=["https://alerts.example.org/rig"])
    """Address that is sent each alarm as JSON when it begins and clears; a secret, better set in
    the environment."""
    """Address that is sent each alarm as JSON when it begins and clears."""

    def port(self, kind_of_node: str, index: int = 0) -> int:
        """Return the port of a node, 0 for any free one."""
        first: int = getattr(self, f"{kind_of_node}_port")
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

    encryption: Literal["auto", "on", "off"] = "auto"
    """auto: encrypt beyond this machine; on: always; off: never."""
    unprotected_network: Rare[bool] = False
    """Allow addresses beyond this machine without encryption: any host may read and send."""
    key: Rare[RigPath] = Path("~/.config/sci-stream/key")
    """Secret key of this host, created by sci-stream keys new."""
    allowed: Rare[RigPath] = Path("~/.config/sci-stream/allowed_keys")
    """Public keys of the hosts that may connect to this one; sci-stream keys allow adds one."""
    acquire_key: PublicKey = ""
    """Public key of the acquire node's host."""
    sink_key: PublicKey = ""
    """Public key of the sink node's host."""

    def key_of(self, node: Literal["acquire", "sink"]) -> str:
        """Return the public key of a node's host."""
        return self.acquire_key if node == "acquire" else self.sink_key
