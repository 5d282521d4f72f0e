"""Logging of nodes: one line per message, as text or as JSON objects."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import select
import stat
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

from sci_stream.delivery.rate_limit import KeyedRateLimiter
from sci_stream.errors import ConfigError
from sci_stream.model import JsonObject

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FORMAT_VARIABLE = "SCI_STREAM_LOG"
"""``json`` for one JSON object per line, otherwise text. Nodes inherit it from their parent
process."""

_FORMATS = ("people", "json")
# A fault that repeats with every snapshot, or an attempt of an unknown peer each second, must not
# fill the log, whose first lines explain it.
_LINES_PER_S = 0.1
_LINES_BURST = 20
# Time for the reader of a full pipe; once it was too short, nothing waits until the reader is back.
_READER_MS = 200
_KEYS = ("series", "seq")
# Terminals act on control characters, which a plug-in or a peer may have put into a message.
_CONTROL = re.compile(r"[^\n\t -~\x80-\U0010ffff]|[\x80-\x9f\u2028\u2029]")
_current = {"series": ""}


def set_up_logging(
    node: str, *, verbose: bool, environment: Mapping[str, str] = os.environ
) -> None:
    """Log to standard error, one line per message, with the node's name.

    Raises `ConfigError` if the environment names an unknown format.
    """
    wanted = environment.get(FORMAT_VARIABLE) or _FORMATS[0]
    if wanted not in _FORMATS:
        raise ConfigError(
            f"Unknown log format in {FORMAT_VARIABLE}",
            expected=" or ".join(_FORMATS),
            got=repr(wanted),
        )
    for_people = TextLines(f"%(asctime)s %(levelname)-7s {node}: %(message)s", datefmt="%H:%M:%S")
    handler = logging.StreamHandler(lossy(sys.stderr))
    handler.addFilter(RepeatLimit())
    handler.setFormatter(JsonLines(node) if wanted == "json" else for_people)
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, handlers=[handler], force=True
    )


class RepeatLimit(logging.Filter):
    """Limit the lines from each place in the code, so that neither unknown peers nor viewers can
    flood the log.

    The next line that passes gives the number of those that did not.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rate = KeyedRateLimiter[tuple[str, int]](_LINES_PER_S, _LINES_BURST)
        self._suppressed = Counter[tuple[str, int]]()
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be logged."""
        place = (record.pathname, record.lineno)
        with self._lock:
            if not self._rate.take(place, time.monotonic()):
                self._suppressed[place] += 1
                return False
            suppressed = self._suppressed.pop(place, 0)
        if suppressed:
            record.msg = f"{record.getMessage()} (and {suppressed} more like this before)"
            record.args = None
        return True


def lossy(stream: TextIO) -> TextIO:
    """Return a stream that never waits for its reader: text that a full pipe or a paused terminal
    refuses is dropped.

    A node whose output nothing reads must continue. The next text that is written gives the number
    of lost ones. A file is returned as it is.
    """
    try:
        number = stream.fileno()
        mode = os.fstat(number).st_mode
        if not hasattr(os, "O_NONBLOCK") or not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
            return stream
        # Reopened, because the flag of an inherited descriptor would change for all processes that
        # share it.
        descriptor = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        return stream
    return io.TextIOWrapper(
        cast(BinaryIO, _LossyFile(descriptor, "w")),
        encoding="utf-8",
        errors="replace",
        write_through=True,
    )


class _LossyFile(io.FileIO):
    """A descriptor that does not block; texts that it does not accept are counted."""

    _lock = threading.Lock()
    _stuck = False
    _lost = 0

    def write(self, text: ReadableBuffer) -> int:
        """Write a text, or drop the rest of it."""
        with self._lock:
            lost = f"({self._lost} texts lost: the output was not read)\n" if self._lost else ""
            self._lost = 0 if self._write(lost.encode() + bytes(text)) else self._lost + 1
        return len(bytes(text))

    def _write(self, data: bytes) -> bool:
        """Return whether all data were written."""
        poller = select.poll()
        poller.register(self, select.POLLOUT)
        while data:
            try:
                data = data[os.write(self.fileno(), data) :]
            except BlockingIOError:
                if not poller.poll(0 if self._stuck else _READER_MS):
                    self._stuck = True
                    return False
            except OSError:  # nothing reads any more
                return False
        self._stuck = False
        return True


def logs_json() -> bool:
    """Return whether this process logs JSON."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def log_for_series(series: str) -> None:
    """Attribute all further log records without a series of their own to this series."""
    _current["series"] = series


class TextLines(logging.Formatter):
    """Format a record as text; further lines of a message are indented, so that no text can forge a
    record.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines."""
        return _CONTROL.sub("?", super().format(record)).replace("\n", "\n    ")


class JsonLines(logging.Formatter):
    """Format a record as a JSON object: ``time`` (UTC), ``level``, ``node``, ``logger``,
    ``message``.

    ``series`` and ``seq`` come from ``extra`` of the call, the series otherwise from
    `log_for_series`; ``error`` holds the traceback, if any.
    """

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry: JsonObject = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "node": self._node,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if _current["series"]:
            entry["series"] = _current["series"]
        entry |= {key: getattr(record, key) for key in _KEYS if hasattr(record, key)}
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


def as_line(node: str, message: str) -> str:
    """Return a line of direct output in the format of the log."""
    if not logs_json() or message.startswith("{"):
        return message
    record = logging.LogRecord("sci_stream", logging.INFO, "", 0, message, None, None)
    return JsonLines(node).format(record)
