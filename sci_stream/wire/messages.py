"""Messages other than the values of the model: sessions, acknowledgements, control.

`SeriesInfo`, `Snapshot`, `Reconstruction` and `Calibration` are sent as they are; all others are here. docs/wire.md
specifies every field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sci_stream.model import Reconstruction, SeriesInfo, Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.wire.header import SCHEMA_VERSION

StatusValue = int | float | str | bool
NodeKind = Literal["acquire", "reconstruct", "sink", "tool"]
Outcome = Literal["dropped", "raw_only"]
Acceptable = Literal["snapshot", "reconstruction", "dropped", "series_start", "series_end"]


@dataclass(frozen=True, slots=True)
class Hello:
    """A node introduces itself after connecting, and again whenever one of these values changes.

    ``node`` is its name in the rig, ``incarnation`` distinguishes this process from an earlier one of that name;
    ``credit`` is the number of snapshots it may hold that are not done: 0 while it accepts none. ``shows`` a few bytes
    of its memory to a peer that may be able to read them; ``reads`` is set if it can read the peer's: see
    `sci_stream.transport.remote_memory`.
    """

    node: str
    kind_of_node: NodeKind
    incarnation: str
    device: str = ""
    credit: int = 0
    protocol: int = SCHEMA_VERSION
    versions: Mapping[str, str] = field(default_factory=dict)
    shows: str = ""
    reads: bool = False


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer to `Hello`; heartbeats are expected every ``heartbeat_s`` from then on.

    ``shows`` and ``reads`` as in `Hello`.
    """

    node: str
    incarnation: str
    heartbeat_s: float
    shows: str = ""
    reads: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A node is alive; its status. Non-finite numbers in ``status`` are not sent."""

    node: str
    status: Mapping[str, StatusValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ping:
    """Request for the time of the peer's clock; ``sent_ns`` is the time of the own clock."""

    sent_ns: int


@dataclass(frozen=True, slots=True)
class Pong:
    """Answer to `Ping`: its ``sent_ns``, and the times of receipt and answer on the peer's clock."""

    sent_ns: int
    received_ns: int
    answered_ns: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """A node leaves intentionally; the peer need not wait for a timeout."""

    node: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A node refuses to work with the peer: ``reason`` in a word, ``text`` for both logs."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """A reconstruct node returns a snapshot: the sink has accepted its video, or it failed for ``reason``."""

    series: str
    seq: int
    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The acquire node reports a snapshot that will not be reconstructed in this run to the sink.

    ``reason`` is the word under which the ledger counts it; ``outcome`` says whether its raw counts are recorded.
    """

    series: str
    epoch: int
    seq: int
    reason: str
    outcome: Outcome = "dropped"


@dataclass(frozen=True, slots=True)
class SeriesEnd:
    """End of a series: ``acquired`` snapshots, seq 0 to ``acquired`` − 1, were acquired.

    ``reason`` is a sentence; ``camera_dropped`` frames were numbered by the camera but never delivered.
    """

    series: str
    acquired: int
    reason: str = ""
    camera_dropped: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    """The sink has stored a message as durably as the policy promises; ``seq`` is 0 for series start and end."""

    series: str
    seq: int
    of: Acceptable


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """Request for the calibration with this hash."""

    hash: str


@dataclass(frozen=True, slots=True)
class CalibrationMissing:
    """Answer to a request for an unknown calibration."""

    hash: str


@dataclass(frozen=True, slots=True)
class Control:
    """The sink requests an ``action`` of a node for ``who``: ``set`` parameters, or an action of the node's status.

    ``request`` identifies the request in the answer; ``parameters`` are new values by name.
    """

    request: str
    node: str
    action: str
    parameters: Mapping[str, StatusValue] = field(default_factory=dict)
    who: str = ""


@dataclass(frozen=True, slots=True)
class ControlResult:
    """Answer to `Control`: the current ``values``, or, if not ``ok``, the reason why nothing changed in ``text``."""

    request: str
    ok: bool
    text: str = ""
    values: Mapping[str, StatusValue] = field(default_factory=dict)


Message = (
    SeriesInfo
    | Snapshot
    | Reconstruction
    | SeriesEnd
    | Dropped
    | Accepted
    | Hello
    | Welcome
    | Heartbeat
    | Ping
    | Pong
    | Goodbye
    | Refused
    | Done
    | CalibrationRequest
    | Calibration
    | CalibrationMissing
    | Control
    | ControlResult
)
"""Every message that can be encoded and decoded."""
