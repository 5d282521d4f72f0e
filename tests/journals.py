"""Read journals, as a user's script would."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from sci_stream.model import JsonObject


def read_journal(path: Path) -> list[JsonObject]:
    """Return the events of a journal, oldest first, without a line that a crash cut off."""
    events = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):
            events.append(json.loads(line))
    return [event for event in events if isinstance(event, dict)]
