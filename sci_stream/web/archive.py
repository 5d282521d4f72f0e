"""The past of the live page: figures of minutes, an hour and a day, and pictures of minutes, all in
bounded memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sci_stream.model import JsonObject, Reconstruction
from sci_stream.web.message import Picture

KEPT_S = 300
SPANS_S = {KEPT_S: 1, 3600: 12, 86_400: 288}
"""Spans that the page shows, and the length of a sample of each: 300 samples, whatever the span."""
TAIL = 5
"""Seconds sent with every status, once a second: they cover a few statuses that a viewer missed."""


@dataclass
class Sample:
    """Statistics of one second, or of a longer time, which began at Unix time ``at_s``."""

    at_s: int
    shown: int = 0
    slowest_ms: float | None = None
    solve_ms: float = 0.0
    dropped: int = 0
    queued: int = 0

    def as_list(self) -> list[float | int | None]:
        """Return ``[at_s, shown, slowest_ms, mean solve_ms, dropped, queued]``."""
        slowest = None if self.slowest_ms is None else round(self.slowest_ms, 1)
        solve = round(self.solve_ms / self.shown, 1) if self.shown else None
        return [self.at_s, self.shown, slowest, solve, self.dropped, self.queued]


class History:
    """Statistics of the last five minutes, hour and day. Bounded; thread-safe."""

    def __init__(self) -> None:
        self._samples = {span_s: deque[Sample](maxlen=KEPT_S) for span_s in SPANS_S}
        self._lock = threading.Lock()
        self._lost: int | None = None
        self._series = ""

    def add(self, reconstruction: Reconstruction, now_s: float) -> None:
        """Add a reconstruction received at Unix time ``now_s``."""
        times = reconstruction.times
        arrived_ns = times.accepted_ns or times.finished_ns
        latency_ms = (arrived_ns - times.acquired_ns) / 1e6
        with self._lock:
            for sample in self._current(now_s):
                sample.shown += 1
                sample.slowest_ms = max(sample.slowest_ms or 0.0, latency_ms)
                sample.solve_ms += reconstruction.report.solve_ns / 1e6

    def update(self, status: JsonObject, now_s: float) -> None:
        """Add the ledger and the queue of a status of the sink."""
        ledger = status.get("ledger")
        if not isinstance(ledger, dict) or not ledger:
            return
        lost = sum(ledger.get("dropped", {}).values()) + ledger.get("camera_missed", 0)
        with self._lock:
            is_same = self._lost is not None and status.get("series") == self._series
            newly_lost = max(0, lost - (self._lost or 0)) if is_same else 0
            for sample in self._current(now_s):
                sample.queued = ledger.get("in_flight", 0)
                sample.dropped += newly_lost
            self._lost = lost
            self._series = str(status.get("series", ""))

    def samples(self, last: int = KEPT_S, span_s: int = KEPT_S) -> list[list[float | int | None]]:
        """Return the last samples of a span, oldest first: `TAIL` for a page that has the earlier
        ones.
        """
        with self._lock:
            return [sample.as_list() for sample in list(self._samples[span_s])[-last:]]

    def _current(self, now_s: float) -> Iterator[Sample]:
        """Yield the sample of each span that the present belongs to."""
        for span_s, length_s in SPANS_S.items():
            samples = self._samples[span_s]
            at_s = int(now_s) // length_s * length_s
            if not samples or samples[-1].at_s < at_s:
                samples.append(Sample(at_s))
            yield samples[-1]


# A coded snapshot takes more than its whole video, and no viewer can read thirty of them per
# second.
CODED_EVERY_NS = 500_000_000


class TimelineEntry(NamedTuple):
    """A kept picture on the timeline.

    It is a list in JSON: the order of the fields is part of the page's protocol.
    """

    number: int
    series: str
    seq: int
    acquired_ns: int
    lost_before: int


class PictureArchive:
    """The encoded pictures of the last five minutes, at most ``max_bytes`` of them. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._pictures = OrderedDict[int, Picture]()
        self.n_bytes = 0
        """Bytes in use."""
        self._coded_ns = 0
        self._lock = threading.Lock()

    def add(self, picture: Picture) -> None:
        """Keep a picture; one of the same reconstruction in another tone is replaced."""
        with self._lock:
            last = next(reversed(self._pictures.values()), None)
            if last is not None and last.published_ns == picture.published_ns:
                self._remove(last.number)
                picture = picture if last.coded is not None else picture.without_coded
            elif picture.published_ns - self._coded_ns < CODED_EVERY_NS:
                picture = picture.without_coded
            else:
                self._coded_ns = picture.published_ns
            self._pictures[picture.number] = picture
            self.n_bytes += picture.n_bytes
            oldest_ns = picture.published_ns - KEPT_S * 1_000_000_000
            while len(self._pictures) > 1:
                first = next(iter(self._pictures.values()))
                if self.n_bytes <= self.max_bytes and first.published_ns >= oldest_ns:
                    break
                self._remove(first.number)

    def _remove(self, number: int) -> None:
        self.n_bytes -= self._pictures.pop(number).n_bytes

    def get(self, number: int) -> Picture | None:
        """Return a picture; None if it is no longer kept."""
        with self._lock:
            return self._pictures.get(number)

    def timeline(self, after: int = -1) -> tuple[int, list[TimelineEntry]]:
        """Return the number of the oldest picture (−1 without one) and the entries after a number,
        oldest first.
        """
        with self._lock:
            headers = [
                (number, picture.header)
                for number, picture in self._pictures.items()
                if number > after
            ]
            return next(iter(self._pictures), -1), [
                TimelineEntry(
                    number,
                    header["series"],
                    header["seq"],
                    header["acquired_ns"],
                    header["dropped_before"],
                )
                for number, header in headers
            ]

    def last(self, seconds: float, until: int | None = None) -> list[Picture]:
        """Return the pictures of the last seconds of one series before, and with, picture ``until``
        or the newest.
        """
        with self._lock:
            pictures = [
                picture
                for number, picture in self._pictures.items()
                if until is None or number <= until
            ]
        if not pictures:
            return []
        newest = pictures[-1].header
        first_ns = newest["acquired_ns"] - round(seconds * 1e9)
        return [
            picture
            for picture in pictures
            if picture.header["series"] == newest["series"]
            and picture.header["acquired_ns"] > first_ns
        ]
