"""Logging of nodes: one line per message, as text or as JSON objects."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from sci_stream.errors import ConfigError
from sci_stream.model import JsonObject

FORMAT_VARIABLE: Final = "SCI_STREAM_LOG"
"""``json`` for one JSON object per line, otherwise text. Nodes inherit it from their parent process."""

_FORMATS = ("people", "json")
_KEYS = ("series", "seq")
_current = {"series": ""}


def set_up_logging(node: str, *, verbose: bool, environment: Mapping[str, str] = os.environ) -> None:
    """Log to standard error, one line per message, with the node's name.

    Raises
    ------
    ConfigError
        If the environment names an unknown format.
    """
    wanted = environment.get(FORMAT_VARIABLE) or _FORMATS[0]
    if wanted not in _FORMATS:
        raise ConfigError(f"Unknown log format in {FORMAT_VARIABLE}", expected=" or ".join(_FORMATS), got=repr(wanted))
    for_people = logging.Formatter(f"%(asctime)s %(levelname)-7s {node}: %(message)s", datefmt="%H:%M:%S")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(node) if wanted == "json" else for_people)
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler], force=True)


def logs_json() -> bool:
    """Return whether this process logs JSON."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def log_for_series(series: str) -> None:
    """Attribute all further log records without a series of their own to this series."""
    _current["series"] = series


class JsonLines(logging.Formatter):
    """Format a record as a JSON object: ``time`` (UTC), ``level``, ``node``, ``logger``, ``message``.

    ``series`` and ``seq`` come from ``extra`` of the call, the series otherwise from `log_for_series`; ``error`` holds
    the traceback, if any.
    """

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        report: JsonObject = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "node": self._node,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if _current["series"]:
            report["series"] = _current["series"]
        report |= {key: getattr(record, key) for key in _KEYS if hasattr(record, key)}
        if record.exc_info:
            report["error"] = self.formatException(record.exc_info)
        return json.dumps(report, default=str, ensure_ascii=False)


def as_line(node: str, message: str) -> str:
    """Return a line of direct output in the format of the log."""
    if not logs_json() or message.startswith("{"):
        return message
    record = logging.LogRecord("sci_stream", logging.WARNING, "", 0, message, None, None)
    return JsonLines(node).format(record)
