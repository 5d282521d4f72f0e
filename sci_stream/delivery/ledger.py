"""The conservation ledger: acquired = reconstructed + raw_only + not_kept + Σ dropped[reason], to
the snapshot.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from typing import TypedDict

from sci_stream.delivery.interval_set import IntervalSet
from sci_stream.errors import LedgerError


class Outcome(enum.StrEnum):
    """The outcome of a snapshot. Each has exactly one, and keeps it."""

    RECONSTRUCTED = "reconstructed"
    """Its video reached the sink (and, where a recording is made, the recording)."""
    RAW_ONLY = "raw_only"
    """Its raw counts are in the recording; its video can be computed from them later."""
    NOT_KEPT = "not_kept"
    """No event covers it: by decision it is not in the recording, which is triggered."""
    DROPPED = "dropped"
    """None of these; the reason is counted."""


class DropReason(enum.StrEnum):
    """Why a snapshot was neither reconstructed nor kept raw.

    The list is complete; the ledger counts each reason.
    """

    RING_FULL = "ring_full"
    """The memory for unacknowledged snapshots was used up."""
    QUEUE_FULL = "queue_full"
    """The dispatch queue was full: under `live` the oldest queued snapshot is dropped."""
    NODE_FAILURES = "node_failures"
    """Every reconstruct node that received it failed or was lost."""
    RECONSTRUCT_FAILED = "reconstruct_failed"
    """Reconstruct nodes reported errors for it as often as it may be sent; their logs have the
    cause."""
    DRAIN_TIMEOUT = "drain_timeout"
    """It was still queued when the time to drain ran out."""
    ACQUIRE_LOST = "acquire_lost"
    """It was lost in a crash of the acquire node, before it was in the spool."""
    NOT_RECORDED = "not_recorded"
    """It arrived, but could not be stored in the recording (disk full, or the recorder failed)."""
    RECORDING_OFF = "recording_off"
    """It was to be recorded raw, but arrived while the operator had switched the recording off."""
    LOST_IN_CRASH = "lost_in_crash"
    """`repair` found its row without an outcome: the sink crashed before the row was flushed."""
    OTHER = "other"
    """A reason that is not in this list, when more than `MAX_REASONS` different ones have been
    counted."""


# The stored ledger has a fixed size (`LEDGER_BYTES`): a faulty node that invents reasons must not
# overflow it.
MAX_REASONS = 32
"""Different reasons that a ledger counts, so that the account always fits the recording."""


_REASONS = frozenset(DropReason)


class LedgerCounts(TypedDict, total=False):
    """The counts of a `Ledger` at one moment, ``dropped`` by reason: in status, recording and
    summary.

    Ledgers of older recordings may lack some; ``repaired`` marks one that `repair` counted from the
    rows.
    """

    acquired: int
    reconstructed: int
    raw_only: int
    not_kept: int
    dropped: dict[str, int]
    in_flight: int
    closed: bool
    duplicates: int
    redelivered: int
    camera_missed: int
    unrecorded: int
    repaired: bool


def not_recorded(dropped: Mapping[str, int]) -> int:
    """Return how many dropped snapshots a recording should have: those that a disk, or a sink that
    was away for too long, has cost.
    """
    return dropped.get(DropReason.NOT_RECORDED, 0) + dropped.get(DropReason.RING_FULL, 0)


def outcomes_in_words(ledger: LedgerCounts) -> str:
    """Return the outcomes in a ledger as a sum, such as ``12 reconstructed + 1 dropped
    (queue_full)``.
    """
    counts = {"reconstructed": ledger["reconstructed"], "raw only": ledger["raw_only"]}
    counts |= {"not kept": ledger.get("not_kept", 0)}
    counts |= {f"dropped ({reason})": count for reason, count in ledger["dropped"].items()}
    return " + ".join(
        f"{count} {word}" for word, count in counts.items() if count or word == "reconstructed"
    )


@dataclass
class LedgerState:
    """The state of a `Ledger`, which another process can continue; its size depends on the gaps,
    not on the snapshots.

    ``settled`` are runs of sequence numbers with an outcome, as [start, stop); ``highest`` the
    highest of them, −1 for none; ``announced`` the number acquired, as last reported. Two counts
    are kept next to the sum: ``camera_missed``, frames that were never acquired, and
    ``unrecorded``, reconstructions that came while nothing was being recorded.
    """

    settled: list[tuple[int, int]] = field(default_factory=list)
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    dropped: dict[str, int] = field(default_factory=dict)
    highest: int = -1
    announced: int = 0
    duplicates: int = 0
    redelivered: int = 0
    camera_missed: int = 0
    unrecorded: int = 0


class Ledger(LedgerState):
    """Account of one series, kept at the sink; continues a ``state``.

    Raises ValueError if that is inconsistent.

    The first outcome of a sequence number counts; later ones are duplicates. What has been acquired
    but has no outcome yet is in flight. `check` compares with the total that the acquire node
    reports.
    """

    def __init__(self, state: LedgerState | None = None) -> None:
        super().__init__(**({} if state is None else vars(state)))
        self.outcomes = dict.fromkeys(Outcome, 0) | self.outcomes
        self._settled = IntervalSet(self.settled)
        if len(self._settled) != sum(self.outcomes.values()):
            raise ValueError(
                f"{len(self._settled)} snapshots are settled, with {sum(self.outcomes.values())} "
                "outcomes"
            )
        self._total: int | None = None

    def state(self) -> LedgerState:
        """Return the state, to be continued by another process."""
        copies = {one.name: copy(getattr(self, one.name)) for one in fields(LedgerState)}
        return LedgerState(**{**copies, "settled": self._settled.runs})

    def settle(self, seq: int, outcome: Outcome, reason: str = "") -> bool:
        """Give ``seq`` its outcome; return False, counting a duplicate, if it has one already.

        Raises ValueError if a drop comes without a reason.
        """
        if outcome is Outcome.DROPPED and not reason:
            raise ValueError("a dropped snapshot needs a reason")
        if not self._settled.add(seq):
            self.duplicates += 1
            return False
        self.highest = max(self.highest, seq)
        self.outcomes[outcome] += 1
        if outcome is Outcome.DROPPED:
            known = reason in self.dropped or reason in _REASONS or len(self.dropped) < MAX_REASONS
            reason = reason if known else DropReason.OTHER
            self.dropped[reason] = self.dropped.get(reason, 0) + 1
        return True

    def is_settled(self, seq: int) -> bool:
        """Return whether ``seq`` has an outcome."""
        return seq in self._settled

    @property
    def settled_below(self) -> int:
        """The first snapshot without an outcome."""
        return self._settled.first_missing()

    def announce(self, acquired: int) -> None:
        """Record the number of snapshots that the acquire node has acquired so far."""
        self.announced = max(self.announced, acquired)

    def end(self, acquired: int) -> None:
        """Record the acquire node's total at the end of the series."""
        self._total = acquired

    def expects(self, seq: int, ahead: int) -> bool:
        """Return whether a snapshot with this number can exist: at most ``ahead`` beyond those that
        are known.

        Known are those reported by the acquire node and those that were settled, but only while it
        has reported none: otherwise each invalid number would admit a larger one.
        """
        if self._total is not None:
            return seq < self._total
        return seq < (self.announced or self.highest + 1) + ahead

    @property
    def acquired(self) -> int:
        """Snapshots acquired, as far as is known."""
        return max(self.announced, self.highest + 1) if self._total is None else self._total

    @property
    def in_flight(self) -> int:
        """Acquired snapshots without an outcome."""
        return self.acquired - len(self._settled)

    @property
    def closed(self) -> bool:
        """True if the series has ended and every acquired snapshot has its one outcome."""
        return self._total is not None and len(self._settled) == self._total == self.highest + 1

    def check(self) -> None:
        """Raise `LedgerError`, naming the snapshots, unless the ledger is closed."""
        if self.closed:
            return
        if self._total is None:
            raise LedgerError(
                "The series was not ended by its acquire node",
                expected="a series_end message with the number acquired",
                got=f"{len(self._settled)} snapshots accounted for",
                hint="The acquire node was lost or stopped hard; the recording is readable.",
            )
        missing = self._settled.missing(self._total)
        beyond = [
            seq
            for start, stop in self._settled.runs
            for seq in range(max(start, self._total), stop)[:20]
        ]
        named = f"; without one, for example: {missing}" if missing else ""
        named += f"; beyond the end of the series: {beyond[:20]}" if beyond else ""
        raise LedgerError(
            "The ledger does not close",
            expected=f"{self._total} snapshots with an outcome",
            got=f"{len(self._settled)}{named}",
        )

    def counts(self) -> LedgerCounts:
        """Return the counts now."""
        return LedgerCounts(
            acquired=self.acquired,
            reconstructed=self.outcomes[Outcome.RECONSTRUCTED],
            raw_only=self.outcomes[Outcome.RAW_ONLY],
            not_kept=self.outcomes[Outcome.NOT_KEPT],
            dropped=dict(sorted(self.dropped.items())),
            in_flight=self.in_flight,
            closed=self.closed,
            duplicates=self.duplicates,
            redelivered=self.redelivered,
            camera_missed=self.camera_missed,
            unrecorded=self.unrecorded,
        )
