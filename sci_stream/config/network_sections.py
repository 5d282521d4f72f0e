"""The tables ``[network]``, ``[health]`` and ``[security]`` of a rig file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sci_stream.config.fields import (
    Endpoint,
    Expiry,
    Host,
    Port,
    PublicKey,
    RigPath,
    Section,
    Token,
    is_loopback,
    network_location,
    tcp_address,
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
    bind_host: Annotated[str, Field(max_length=253)] = Field(
        default="",
        description="Interface that the nodes above listen on, if it differs from the host that others connect to "
        '(a cluster name, a forwarded port); "0.0.0.0": all interfaces.',
        examples=["0.0.0.0"],
    )
    heartbeat_s: float = Field(
        default=0.5,
        ge=0.05,
        le=60,
        description="Heartbeat interval, s; a node that misses three heartbeats is considered lost.",
    )
    max_message_mib: int = Field(
        default=256,
        ge=1,
        le=16_384,
        description="Largest accepted part of a message, MiB; it must hold the video of one snapshot.",
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

    enabled: bool = Field(default=True, description="Serve the health endpoints.")
    host: Host = Field(
        default="127.0.0.1",
        description="Address that every node listens on; an address beyond this machine needs a token.",
    )
    acquire_port: Port = Field(default=5711, description="Port of the acquire node; 0: any free one.")
    sink_port: Port = Field(default=5712, description="Port of the sink node; 0: any free one.")
    reconstruct_port: Port = Field(
        default=5720,
        description="Port of the first reconstruct node, the others use the next ones; 0: any free ports.",
    )
    token: Token = Field(
        default="",
        description="Secret of the header Authorization: Bearer; never recorded. Better set in the environment.",
    )
    token_expires: Expiry = ""

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
    """Encryption between hosts. Nodes on one machine need none; addresses beyond it require it."""

    encryption: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="auto: encrypt if an address of [network] is beyond this machine; on: always; off: never.",
    )
    unprotected_network: bool = Field(
        default=False,
        description="true: run without encryption beyond this machine; any host that reaches the [network] addresses "
        "may read, send and end series.",
    )
    key: RigPath = Field(
        default=Path("~/.config/sci-stream/key"),
        description="Secret key of this host, created by sci-stream keys new.",
    )
    allowed: RigPath = Field(
        default=Path("~/.config/sci-stream/allowed_keys"),
        description="Public keys of the hosts that may connect to this one; sci-stream keys allow adds one.",
    )
    acquire_key: PublicKey = Field(default="", description="Public key of the acquire node's host.")
    sink_key: PublicKey = Field(default="", description="Public key of the sink node's host.")

    def key_of(self, node: Literal["acquire", "sink"]) -> str:
        """Return the public key of a node's host."""
        return self.acquire_key if node == "acquire" else self.sink_key
