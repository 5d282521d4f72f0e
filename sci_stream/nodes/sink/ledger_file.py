"""The ledger in a file of its own, so that a restarted sink continues it whether or not anything is
recorded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from sci_stream.config import Rig
from sci_stream.delivery.ledger import Ledger, LedgerState
from sci_stream.delivery.trigger_ring import TriggerState
from sci_stream.nodes.runtime.process import SPOOL_VARIABLE
from sci_stream.nodes.runtime.runtime_folder import (
    make_private_folder,
    open_own,
    private_folder,
    user_runtime_folder,
)
from sci_stream.parameters import SettingChange

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedLedger:
    """Content of the file: ledger, whether the recording was switched on, the latest changes,
    triggers if there are.
    """

    series: str
    recording: bool
    ledger: LedgerState
    changes: Sequence[SettingChange] = ()
    triggers: TriggerState | None = None


_DOCUMENT = TypeAdapter(SavedLedger)


class LedgerFile:
    """The ledger of the running series in a file, replaced before the snapshots in it are
    acknowledged.

    It survives a crash of the sink, on a memory file system not one of the host; neither does the
    spool of the acquire node. If it cannot be written, a warning says so once, and the series runs
    without it. Its folder is created when it is first written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._warned = False

    @classmethod
    def of(cls, rig: Rig, environment: Mapping[str, str] = os.environ) -> LedgerFile:
        """Return the ledger file of a rig: next to its spool, otherwise in this user's runtime
        folder.
        """
        if place := rig.policy.spool or environment.get(SPOOL_VARIABLE):
            return cls(private_folder(Path(place)) / f"{rig.rig.name}.ledger")
        # Rigs of one name can share that folder, but not the address of their sinks.
        address = re.sub(r"\W+", "-", rig.network.results)
        return cls(
            private_folder(user_runtime_folder(environment)) / f"{rig.rig.name}-{address}.ledger"
        )

    def read(self, series: str) -> SavedLedger | None:
        """Return the saved ledger of a series; None if there is none, or, with a warning, if it is
        damaged.
        """
        try:
            with os.fdopen(open_own(self._path, os.O_RDONLY), "rb") as file:
                saved = _DOCUMENT.validate_json(file.read())
            Ledger(saved.ledger)  # raises ValueError if its runs are not ascending
            return saved if saved.series == series else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning(
                "cannot read the saved ledger %s (%s): using the recording's", self._path, error
            )
            return None

    def write(self, saved: SavedLedger) -> None:
        """Replace the file."""
        document = _DOCUMENT.dump_json(saved)
        new = self._path.with_suffix(".ledger.new")
        try:
            make_private_folder(self._path.parent)
            with os.fdopen(open_own(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
                file.write(document)
            new.replace(self._path)
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning(
                    "cannot save the ledger to %s (%s): if the sink crashes, snapshots are "
                    "missing from it unless they "
                    "are recorded",
                    self._path,
                    error.strerror,
                )

    def delete(self) -> None:
        """Delete the file: every sender knows what became of its messages."""
        with contextlib.suppress(OSError):
            self._path.unlink()
