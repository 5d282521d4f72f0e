"""Triggered recording: events, the conditions that cause them, and the ring of snapshots that are
not decided yet.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Self

# The last stands for the chunk data of the camera, such as ``chunk_LineStatusAll``.
_CONDITION = re.compile(
    r"(motion|brightness|saturated|residual|chunk_\w+) *([<>]) *(-?\d+(?:\.\d+)?(?:e-?\d+)?)"
    r"(?:, *hold-off +(\d+(?:\.\d+)?) *s)?(?:, *at most +(\d+))?",
    re.ASCII,
)


@dataclass(frozen=True)
class Event:
    """An event of a series, numbered from 1: snapshots exposed from ``first_ns`` to ``last_ns`` are
    kept.

    ``time_ns`` is the time of its trigger. All are Unix times of the acquire node's host, whose
    clock was ``behind_ns`` behind that of the ring (see `EventRing`). ``who`` triggered it, ``""``
    for a condition.
    """

    number: int
    time_ns: int
    first_ns: int
    last_ns: int
    cause: str
    who: str = ""
    behind_ns: int = 0

    def covers(self, time_ns: int) -> bool:
        """Return whether a snapshot of this time of the ring is kept for the event."""
        return self.first_ns <= time_ns - self.behind_ns <= self.last_ns


def ring_time(steps: Sequence[tuple[int, int]], seq: int, time_ns: int) -> int:
    """Return the time of a snapshot on a clock that is never set back.

    ``steps`` are pairs, ascending: from this snapshot on, its clock was so much behind.
    """
    after = bisect_right(steps, seq, key=lambda step: step[0])
    return time_ns + (steps[after - 1][1] if after else 0)


@dataclass(frozen=True)
class Condition:
    """A condition on a ``figure`` of a snapshot, as ``text``: ``motion > 0.02, hold-off 5 s, at
    most 10``.

    It triggers an event when it begins to hold, though not within ``hold_off_ns`` after its last
    one, and again when it still holds after the end of that; at most ``max_events`` in a series,
    None for no limit.
    """

    text: str
    figure: str
    is_above: bool
    threshold: float
    hold_off_ns: int
    max_events: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the condition of a text. Raises ValueError if it is none."""
        match = _CONDITION.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                f"{text!r} is no condition: expected motion, brightness, saturated, residual or "
                "chunk_NAME, < or >, a "
                'number, and perhaps ", hold-off 5 s" and ", at most 10"'
            )
        figure, sign, threshold, hold_off_s, count = match.groups()
        most = None if count is None else int(count)
        return cls(
            match[0],
            figure,
            sign == ">",
            float(threshold),
            round(float(hold_off_s or 0) * 1e9),
            most,
        )

    def holds(self, value: float) -> bool:
        """Return whether the condition holds for a value of its figure."""
        return value > self.threshold if self.is_above else value < self.threshold


@dataclass
class TriggerState:
    """The last ``events`` of a series, of which another process needs those that still keep
    snapshots.

    Conditions were judged for the snapshots up to ``judged``: those of ``holding`` held for it;
    ``fired`` has the number of their events and the time of the last one. ``delivered`` are
    snapshots whose video came, or none will, before their raw counts are decided. ``newest`` has
    the number and the time of the newest snapshot, ``steps`` those of `ring_time`.
    """

    events: list[Event] = field(default_factory=list)
    fired: dict[str, tuple[int, int]] = field(default_factory=dict)
    holding: set[str] = field(default_factory=set)
    judged: int = -1
    delivered: list[int] = field(default_factory=list)
    newest: tuple[int, int] = (-1, 0)
    steps: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class EventRing:
    """Decides which snapshots are kept, in the order in which they arrive; pure, without a clock.

    An event covers snapshots from ``before_ns`` before its trigger to ``after_ns`` after it, and is
    triggered no earlier than the newest snapshot. A snapshot is kept as soon as an event covers it.
    It is not kept once it is older than the newest by more than ``before_ns``, so that no later
    event can cover it, or if undecided ones take more than ``max_bytes``.

    Decisions depend only on times and events: with the same ``state`` they are the same in another
    process. The ring has a clock of its own, which goes on where that of the snapshots is set back,
    as between two boots of their host: a hold-off would otherwise last as long as the step.
    """

    before_ns: int
    after_ns: int
    conditions: Sequence[Condition]
    max_bytes: int
    state: TriggerState
    n_bytes: int = field(default=0, init=False)
    is_short: bool = field(default=False, init=False)
    """Whether the memory once held less than ``before_ns``."""
    _undecided: dict[int, tuple[int, int]] = field(default_factory=dict, init=False)
    _decided: list[tuple[int, bool]] = field(default_factory=list, init=False)
    _ended: bool = field(default=False, init=False)

    def add(
        self, seq: int, time_ns: int, n_bytes: int, figures: Mapping[str, float]
    ) -> Event | None:
        """Add a snapshot; return the event that its figures trigger."""
        newest = self.state.newest
        now_ns = ring_time(self.state.steps, seq, time_ns)
        if seq > newest[0] and now_ns < newest[1]:
            now_ns = newest[1]
            self.state.steps.append((seq, now_ns - time_ns))
        self.state.newest = max(newest, (seq, now_ns))
        event = None
        if seq > self.state.judged:  # otherwise in an earlier process
            event = self.judge(figures)
            self.state.judged = seq
        self._undecided[seq] = (now_ns, n_bytes)
        self.n_bytes += n_bytes
        lasting = takewhile(
            lambda event: event.last_ns + event.behind_ns >= now_ns, reversed(self.state.events)
        )
        if any(event.covers(now_ns) for event in lasting):
            self._decide(seq, is_kept=True)
        self._evict()
        return event

    def _evict(self) -> None:
        while self._undecided:
            seq, (time_ns, _) = next(iter(self._undecided.items()))
            if not self._ended and time_ns >= self.state.newest[1] - self.before_ns:
                if self.n_bytes <= self.max_bytes or len(self._undecided) == 1:
                    return
                self.is_short = True
            self._decide(seq, is_kept=False)

    def _decide(self, seq: int, *, is_kept: bool) -> None:
        self.n_bytes -= self._undecided.pop(seq)[1]
        self._decided.append((seq, is_kept))

    def judge(self, figures: Mapping[str, float]) -> Event | None:
        """Judge the conditions on some figures; return the event that they trigger."""
        triggered = None
        holding = self.state.holding
        for condition in self.conditions:
            value = figures.get(condition.figure)
            if value is None:
                continue
            begins = condition.text not in holding
            if not condition.holds(value):
                holding.discard(condition.text)
                continue
            holding.add(condition.text)
            count, last_ns = self.state.fired.get(condition.text, (0, 0))
            quiet_ns = (
                condition.hold_off_ns if begins else max(condition.hold_off_ns, self.after_ns + 1)
            )
            now_ns = self.state.newest[1]
            is_due = not count or now_ns >= last_ns + quiet_ns
            if is_due and (condition.max_events is None or count < condition.max_events):
                self.state.fired[condition.text] = count + 1, now_ns
                triggered = triggered or self.trigger(0, f"{condition.figure} {value:.3g}")
        return triggered

    def trigger(self, time_ns: int, cause: str, who: str = "") -> Event:
        """Begin an event at this time of the snapshots' clock, at the earliest that of the newest
        one: earlier ones may be decided.
        """
        events = self.state.events
        seq, newest_ns = self.state.newest
        behind_ns = ring_time(self.state.steps, seq, 0)
        time_ns = max(time_ns, newest_ns - behind_ns)
        number = events[-1].number + 1 if events else 1
        first_ns = time_ns - self.before_ns
        event = Event(number, time_ns, first_ns, time_ns + self.after_ns, cause, who, behind_ns)
        events.append(event)
        for seq in [seq for seq, (at_ns, _) in self._undecided.items() if event.covers(at_ns)]:
            self._decide(seq, is_kept=True)
        return event

    def end(self) -> None:
        """End the series: snapshots that no event covers are not kept."""
        self._ended = True
        self._evict()

    def decisions(self) -> list[tuple[int, bool]]:
        """Return the numbers of the snapshots decided since the last call, and whether they are
        kept.
        """
        decided = self._decided
        self._decided = []
        return decided
