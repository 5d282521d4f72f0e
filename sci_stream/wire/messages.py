"""Messages other than the values of the model: sessions, acknowledgements, control.

`SeriesInfo`, `Snapshot`, `Reconstruction` and `Calibration` are sent as they are; all others are
here. Fields are sent in the order of their declaration, each checked as its type says. docs/wire.md
specifies them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Self

from sci_stream.field_types import (
    Chunks,
    Count,
    Dim,
    Label,
    Name,
    OptionalWord,
    Paragraph,
    Parameters,
    Payload,
    Sentence,
    Seq,
    SmallCount,
    Status,
    Versions,
    Word,
    integer,
    number,
)
from sci_stream.model import (
    COUNTS,
    Array,
    BayerPhase,
    Reconstruction,
    SeriesInfo,
    Snapshot,
    SnapshotId,
)
from sci_stream.optics.calibration import Calibration
from sci_stream.wire.header import SCHEMA_VERSION

NodeKind = Literal["acquire", "reconstruct", "sink", "tool"]
Outcome = Literal["dropped", "raw_only"]
Acceptable = Literal[
    "snapshot", "not_kept", "reconstruction", "dropped", "series_start", "series_end"
]


MAX_RUN = 4096
"""Snapshots that one `Accepted` may name."""


@dataclass(frozen=True)
class Hello:
    """A node introduces itself after connecting, and again whenever one of these values changes.

    ``node`` is its name in the rig, ``incarnation`` distinguishes this process from an earlier one
    of that name; ``credit`` is the number of snapshots it may hold that are not done: 0 while it
    accepts none.
    """

    node: Name
    kind_of_node: NodeKind
    incarnation: Name
    device: Label = ""
    credit: Annotated[int, integer(0, 1024)] = 0
    protocol: Annotated[int, integer(1, 2**31 - 1)] = SCHEMA_VERSION
    versions: Versions = field(default_factory=dict)


@dataclass(frozen=True)
class Welcome:
    """Answer to `Hello`; heartbeats are expected every ``heartbeat_s`` from then on."""

    node: Name
    incarnation: Name
    heartbeat_s: Annotated[float, number(0.01, 3600)]


@dataclass(frozen=True)
class Heartbeat:
    """A node is alive; its status. Non-finite numbers in ``status`` are not sent."""

    node: Name
    status: Status = field(default_factory=dict)


@dataclass(frozen=True)
class Ping:
    """Request for the time of the peer's clock; ``sent_ns`` is the time of the own clock."""

    sent_ns: Count


@dataclass(frozen=True)
class Pong:
    """Answer to `Ping`: its ``sent_ns``, and the times of receipt and answer on the
    peer's clock.
    """

    sent_ns: Count
    received_ns: Count
    answered_ns: Count


@dataclass(frozen=True)
class Goodbye:
    """A node leaves intentionally; the peer need not wait for a timeout."""

    node: Name


@dataclass(frozen=True)
class Refused:
    """A node refuses to work with the peer: ``reason`` in a word, ``text`` for both logs."""

    reason: Word
    text: Paragraph


@dataclass(frozen=True)
class Done:
    """A reconstruct node returns a snapshot: the sink has accepted its video, or it failed for
    ``reason``.

    ``masks`` is the evidence of its video about the mask modulator
    (`sci_stream.modulation.feedback`).
    """

    series: Name
    seq: Seq
    ok: bool
    reason: Sentence = ""
    masks: Parameters = field(default_factory=dict)


@dataclass(frozen=True)
class RawRow:
    """Times and numbers of a snapshot that is only recorded; fields as in `Snapshot`."""

    host_time_ns: Count
    camera_time_ns: Count | None
    camera_frame_id: Count | None
    dropped_before: Count
    chunks: Chunks


@dataclass(frozen=True, eq=False)
class RawSnapshots:
    """Consecutive snapshots that are recorded, and that no reconstruct node gets.

    ``id`` is that of the first. ``counts`` and ``rows`` have an entry for each. The outcome of each
    is ``raw_only`` once it is safe.
    """

    id: SnapshotId
    counts: Annotated[Sequence[Array], Payload(COUNTS, 2, many=True)]
    calibration_hash: Name
    n_frames: Dim
    bayer: BayerPhase | None
    rows: list[RawRow]

    @classmethod
    def one(cls, identity: SnapshotId, counts: Array, row: RawRow, info: SeriesInfo) -> Self:
        """Return one snapshot of a series."""
        hash_ = info.calibration_hash
        return cls(identity, [counts], hash_, info.n_frames, info.bayer, [row])

    @property
    def seqs(self) -> range:
        """Their numbers."""
        return range(self.id.seq, self.id.seq + len(self.rows))

    def joined(self, following: Sequence[Self]) -> Self:
        """Return one message of these and the ``following`` ones, which continue the numbers."""
        parts = [self, *following]
        return replace(
            self,
            counts=[counts for part in parts for counts in part.counts],
            rows=[row for part in parts for row in part.rows],
        )

    def snapshots(self) -> Iterator[Snapshot]:
        """Return each snapshot."""
        for seq, counts, row in zip(self.seqs, self.counts, self.rows, strict=True):
            yield Snapshot(
                id=replace(self.id, seq=seq),
                counts=counts,
                calibration_hash=self.calibration_hash,
                n_frames=self.n_frames,
                bayer=self.bayer,
                **vars(row),
            )


@dataclass(frozen=True)
class Dropped:
    """The acquire node reports to the sink that a snapshot will not be reconstructed in this run.

    Or that ``count`` consecutive ones from ``seq`` on are lost. ``reason`` is the word under which
    the ledger counts them; ``outcome`` says whether raw counts are recorded.
    """

    series: Name
    epoch: SmallCount
    seq: Seq
    reason: OptionalWord
    outcome: Outcome = "dropped"
    count: Annotated[int, integer(1, 65536)] = 1

    @property
    def seqs(self) -> range:
        """The snapshots that it reports."""
        return range(self.seq, self.seq + self.count)


@dataclass(frozen=True)
class SeriesEnd:
    """End of a series: ``acquired`` snapshots, seq 0 to ``acquired`` − 1, were acquired.

    ``reason`` is a sentence; ``camera_dropped`` frames were numbered by the camera but never
    delivered.
    """

    series: Name
    acquired: Seq
    reason: Sentence = ""
    camera_dropped: Count = 0


@dataclass(frozen=True)
class Accepted:
    """The sink has stored a message as durably as the policy promises; ``seq`` is 0 for series
    start and end.

    Or those of ``count`` consecutive snapshots from ``seq`` on. ``of="not_kept"`` answers a
    snapshot that no event of a triggered recording covers.
    """

    series: Name
    seq: Seq
    of: Acceptable
    count: Annotated[int, integer(1, MAX_RUN)] = 1


Acknowledged = Snapshot | RawSnapshots | Reconstruction | Dropped | SeriesInfo | SeriesEnd
"""Messages that the sink acknowledges once they are safe."""


def acknowledgement_of(message: Acknowledged) -> Accepted:
    """Return the acknowledgement of a message, under which its sender keeps it."""
    match message:
        case Snapshot():
            return Accepted(message.id.series, message.id.seq, "snapshot")
        case RawSnapshots():
            return Accepted(message.id.series, message.id.seq, "snapshot", len(message.rows))
        case Reconstruction():
            return Accepted(message.id.series, message.id.seq, "reconstruction")
        case Dropped():
            return Accepted(message.series, message.seq, "dropped")
        case SeriesInfo():
            return Accepted(message.series, 0, "series_start")
        case SeriesEnd():
            return Accepted(message.series, 0, "series_end")


@dataclass(frozen=True)
class CalibrationRequest:
    """Request for the calibration with this hash."""

    hash: Name


@dataclass(frozen=True)
class CalibrationMissing:
    """Answer to a request for an unknown calibration."""

    hash: Name


@dataclass(frozen=True)
class Control:
    """The sink requests an ``action`` of a node for ``who``: ``set`` parameters, or an action of
    the node's status.

    ``request`` identifies the request in the answer; ``parameters`` are new values by name.
    """

    request: Name
    node: Name
    action: Word
    parameters: Parameters = field(default_factory=dict)
    who: Label = ""


@dataclass(frozen=True)
class ControlResult:
    """Answer to `Control`: the current ``values``, or, if not ``ok``, the reason why nothing
    changed in ``text``.
    """

    request: Name
    ok: bool
    text: Paragraph = ""
    values: Parameters = field(default_factory=dict)


Message = (
    SeriesInfo
    | Snapshot
    | RawSnapshots
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
