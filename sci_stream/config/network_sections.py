"""The tables of a rig file that say who may reach its nodes, where, and what they tell of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sci_stream.config.fields import (
    SECRET,
    Endpoint,
    Expiry,
    PublicKey,
    RigPath,
    Section,
    is_loopback,
    tcp_address,
)


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


class HealthSection(Section):
    """What each node publishes over HTTP: /healthz, /readyz, /status, /metrics."""

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
        description="true: any host that reaches the [network] addresses may read, send and end series.",
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
