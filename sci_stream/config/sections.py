"""The tables of a rig file. Each field is documented where it is declared; ``example_toml`` writes it from here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sci_stream.config.fields import (
    SECRET,
    DenoiserName,
    Device,
    Endpoint,
    Expiry,
    Name,
    OptionalPath,
    PublicKey,
    RigPath,
    Section,
    is_loopback,
    tcp_address,
)
from sci_stream.model import Policy
from sci_stream.recon.schedule import LambdaRule, Shape


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
    denoiser: DenoiserName = Field(
        default="auto",
        description="Prior: tv, ffdnet-lite, ffdnet (needs weights), two in sequence (tv+ffdnet-lite), or auto: ffdnet "
        "if weights are given, else tv.",
    )
    weights: OptionalPath = Field(
        default=None,
        description="Checkpoint of the denoiser (.safetensors, .pth); its layout is recognised.",
        examples=["ffdnet_gray.pth"],
    )
    precision: Literal["auto", "float32", "half"] = Field(
        default="auto",
        description="Arithmetic of networks. auto: 16 bits where the device is faster in them and next to nothing is "
        "lost; float32; half: 16 bits always.",
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
    sigma_shape: Shape | None = Field(
        default=None,
        strict=False,
        description="How σ falls: by a constant factor (unset: that one), or in four plateaus.",
        examples=["geometric"],
    )
    lambda_rule: LambdaRule | None = Field(
        default=None,
        strict=False,
        description="monotone: σ falls with every iteration; adaptive: when the estimate has come to rest; residual: "
        "as monotone, but never far above the error that the residual shows; unset: what suits the denoiser.",
        examples=["residual"],
    )
    xi: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="ξ of the adaptive rule: factor by which σ² falls; unset: 0.7.",
        examples=[0.7],
    )
    eta: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="η of the adaptive rule: σ is held while a step is below η times the last one; unset: 0.9.",
        examples=[0.9],
    )
    switch_at: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="For two priors in sequence: share of the iterations that the first is given; unset: a half.",
        examples=[0.5],
    )
    solver: Literal["gap", "admm"] | None = Field(
        default=None,
        description="gap (unset: that one), which explains every measured pixel exactly, or admm, for noisy snapshots.",
        examples=["gap"],
    )
    gamma: float | None = Field(
        default=None,
        ge=0,
        le=1e6,
        description="γ of admm: how far the measurement is doubted, compared with Σφ²; unset: 0.3.",
        examples=[0.3],
    )
    accelerate: bool = Field(
        default=True,
        description="Accumulate the residual (accelerated GAP): better in fewer iterations.",
    )
    along_time: bool | None = Field(
        default=None,
        description="Denoise every other time what groups of frames have in common and what changes between them, "
        "instead of frame by frame; unset: what suits the denoiser.",
        examples=[True],
    )
    warm_start: bool = Field(
        default=True,
        description="Begin a snapshot from the video of the one before it, where that predicts it: better in fewer "
        "iterations. Each snapshot says how it began, and why.",
    )
    relaxation: float | None = Field(
        default=None,
        ge=0,
        lt=2,
        description="α of accelerated GAP: weight of the residual that is accumulated; unset: what suits the denoiser.",
        examples=[1.0],
    )
    momentum: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="β of accelerated GAP: how far the estimate is carried on; unset: what suits the denoiser.",
        examples=[0.0],
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
    bind_host: Annotated[str, Field(max_length=253)] = Field(
        default="",
        description="Where the nodes above listen, if not at the host that others connect to: behind a name of a "
        'cluster or a forwarded port, "0.0.0.0" for all.',
        examples=["0.0.0.0"],
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

    def listening(self, name: Literal["dispatch", "results", "taps"]) -> str:
        """Return where the node behind an address listens."""
        endpoint: str = getattr(self, name)
        address = tcp_address(endpoint)
        if not self.bind_host or address is None:
            return endpoint
        host = f"[{self.bind_host}]" if ":" in self.bind_host else self.bind_host
        return f"tcp://{host}:{address[1]}"


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


class HealthSection(Section):
    """What each node tells a supervisor or Prometheus by HTTP: /healthz, /readyz, /status, /metrics."""

    enabled: bool = Field(default=True, description="Serve it.")
    host: Annotated[str, Field(min_length=1, max_length=253)] = Field(
        default="127.0.0.1",
        description="Address that every node listens on; beyond this machine a token is needed.",
    )
    acquire_port: int = Field(default=5711, ge=0, le=65535, description="Port of the acquire node; 0: any free one.")
    sink_port: int = Field(default=5712, ge=0, le=65535, description="Port of the sink node; 0: any free one.")
    reconstruct_port: int = Field(
        default=5720,
        ge=0,
        le=65535,
        description="Port of the first reconstruct node, the others follow it; 0: any free ones.",
    )
    token: str = Field(
        default="",
        max_length=256,
        repr=False,
        json_schema_extra=SECRET,
        description="Word in the header Authorization: Bearer; never recorded. Better set by the environment.",
    )
    token_expires: Expiry = Field(
        default="",
        description='When the token is worth nothing any more, such as "2027-01-31T00:00:00Z"; "": never.',
    )

    def port(self, kind_of_node: str, index: int = 0) -> int:
        """Return the port of a node, 0 for any free one."""
        first = {"acquire": self.acquire_port, "sink": self.sink_port}.get(kind_of_node, self.reconstruct_port)
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
    """Encryption between hosts. Nodes on one machine need none; addresses beyond it are refused without."""

    encryption: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="auto: encrypt where an address of [network] is beyond this machine; on: always.",
    )
    unprotected_network: bool = Field(
        default=False,
        description="true: whoever reaches the addresses of [network] may read, send and end series. Say so knowingly.",
    )
    key: RigPath = Field(
        default=Path("~/.config/sci-stream/key"),
        description="This host's secret key; sci-stream keys new makes it.",
    )
    allowed: RigPath = Field(
        default=Path("~/.config/sci-stream/allowed_keys"),
        description="Public keys of the hosts that may connect to this one; sci-stream keys allow adds to it.",
    )
    acquire_key: PublicKey = Field(default="", description="Public key of the acquire node's host.")
    sink_key: PublicKey = Field(default="", description="Public key of the sink node's host.")

    def key_of(self, node: Literal["acquire", "sink"]) -> str:
        """Return the public key of a node's host."""
        return self.acquire_key if node == "acquire" else self.sink_key


class DrainSection(Section):
    """What happens when the rig is stopped."""

    timeout_s: float = Field(
        default=30.0,
        ge=0,
        le=3600,
        description="Time to finish what is under way, s; the rest is then dropped, and counted.",
    )
