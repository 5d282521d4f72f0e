"""The messages beside the model's own values: who is there, what is safe, what is over.

`SeriesInfo`, `Snapshot`, `Reconstruction` and `Calibration` travel as they are; these are the rest. docs/wire.md
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
    """A node introduces itself to one that it has connected to, and again whenever something here changes.

    ``node`` names it in the rig, ``incarnation`` distinguishes this process from an earlier one of that name;
    ``credit`` is how many snapshots it may hold that are not done: 0 while it takes none. ``shows`` a few bytes of its
    memory to a peer that may be able to read them; ``reads`` that it can read the peer's: see
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
    """The answer to a hello; heartbeats are expected every ``heartbeat_s`` from here on.

    ``shows`` and ``reads`` as in `Hello`.
    """

    node: str
    incarnation: str
    heartbeat_s: float
    shows: str = ""
    reads: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A node is alive, and how it is. A number in ``status`` that is not finite is not sent."""

    node: str
    status: Mapping[str, StatusValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ping:
    """A node asks what the peer's clock says; ``sent_ns`` by its own."""

    sent_ns: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a ping: its ``sent_ns``, and when it came and was answered by the peer's clock."""

    sent_ns: int
    received_ns: int
    answered_ns: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """A node leaves by its own will; nothing need be waited for."""

    node: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A node will not work with the peer: ``reason`` in a word, ``text`` for both sides to log."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """A reconstruct node gives a snapshot back: the sink has accepted its video, or it failed for ``reason``."""

    series: str
    seq: int
    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The acquire node informs the sink of a snapshot that will not be reconstructed in this run.

    ``reason`` in a word under which the ledger counts it; ``outcome`` says whether its raw counts are recorded.
    """

    series: str
    epoch: int
    seq: int
    reason: str
    outcome: Outcome = "dropped"


@dataclass(frozen=True, slots=True)
class SeriesEnd:
    """The acquire node has acquired ``acquired`` snapshots, seq 0 to ``acquired`` − 1, and no more will come.

    ``reason`` in words; ``camera_dropped`` frames the camera numbered but never delivered.
    """

    series: str
    acquired: int
    reason: str = ""
    camera_dropped: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    """The sink has what was sent, as safely as the rig promises; ``seq`` is 0 for the start and end of a series."""

    series: str
    seq: int
    of: Acceptable


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """A node asks for the calibration of this hash."""

    hash: str


@dataclass(frozen=True, slots=True)
class CalibrationMissing:
    """The answer to a request for a calibration that is not there."""

    hash: str


@dataclass(frozen=True, slots=True)
class Control:
    """The sink asks a node, on behalf of ``who``, to ``action``: ``set`` its parameters, or what its status lists.

    ``request`` names the question, so that the answer finds back; ``parameters`` are new values by name.
    """

    request: str
    node: str
    action: str
    parameters: Mapping[str, StatusValue] = field(default_factory=dict)
    who: str = ""


@dataclass(frozen=True, slots=True)
class ControlResult:
    """The answer to a `Control`: ``values`` as they are now, or, if not ``ok``, ``text`` says why nothing changed."""

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
"""Everything that can be encoded and decoded."""
