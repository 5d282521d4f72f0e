"""Read journals, as a user's script would."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the events of a journal, oldest first, without a line that a crash cut off."""
    events = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):
            events.append(json.loads(line))
    return [event for event in events if isinstance(event, dict)]
