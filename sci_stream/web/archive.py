"""The pictures of the last minutes, in bounded memory, for scrubbing back and for downloads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from sci_stream.web.history import KEPT_S
from sci_stream.web.message import Picture

# A coded snapshot takes more than its whole video, and no viewer can read thirty of them per second.
CODED_EVERY_NS = 500_000_000


class TimelineEntry(NamedTuple):
    """A kept picture on the timeline. It is a list in JSON: the order of the fields is part of the page's protocol."""

    number: int
    series: str
    seq: int
    acquired_ns: int
    lost_before: int

    @classmethod
    def of(cls, picture: Picture) -> TimelineEntry:
        """Return the entry of a picture."""
        header = picture.header
        return cls(picture.number, header["series"], header["seq"], header["acquired_ns"], header["dropped_before"])


class PictureArchive:
    """The encoded pictures of the last five minutes, at most ``most_bytes`` of them. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._pictures: OrderedDict[int, Picture] = OrderedDict()
        self._bytes = 0
        self._coded_ns = 0
        self._lock = threading.Lock()

    @property
    def n_bytes(self) -> int:
        """Bytes in use."""
        return self._bytes

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
            self._bytes += picture.n_bytes
            oldest_ns = picture.published_ns - KEPT_S * 1_000_000_000
            while len(self._pictures) > 1:
                first = next(iter(self._pictures.values()))
                if self._bytes <= self.most_bytes and first.published_ns >= oldest_ns:
                    break
                self._remove(first.number)

    def _remove(self, number: int) -> None:
        self._bytes -= self._pictures.pop(number).n_bytes

    def get(self, number: int) -> Picture | None:
        """Return a picture; None if it is no longer kept."""
        with self._lock:
            return self._pictures.get(number)

    def timeline(self, after: int = -1) -> tuple[int, list[TimelineEntry]]:
        """Return the number of the oldest picture (−1 without one) and the entries after a number, oldest first."""
        with self._lock:
            oldest = next(iter(self._pictures), -1)
            return oldest, [TimelineEntry.of(each) for number, each in self._pictures.items() if number > after]

    def last(self, seconds: float, until: int | None = None) -> list[Picture]:
        """Return the pictures of the last seconds of one series before, and with, picture ``until`` or the newest."""
        with self._lock:
            found = [each for number, each in self._pictures.items() if until is None or number <= until]
        if not found:
            return []
        newest = found[-1].header
        first_ns = newest["acquired_ns"] - round(seconds * 1e9)
        return [
            each
            for each in found
            if each.header["series"] == newest["series"] and each.header["acquired_ns"] > first_ns
        ]
