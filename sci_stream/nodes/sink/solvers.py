"""Solver settings of a series, as reconstruct nodes report them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

log = logging.getLogger(__name__)

# The ledger document of a recording has a fixed size.
_MAX_SOLVERS = 32
_MAX_BYTES = 1500

Solvers = Mapping[str, Mapping[str, int | float | str]]
"""Solver settings by id."""


class KnownSolvers:
    """The newest solver settings of a series, as many as its recording holds."""

    def __init__(self, series: str) -> None:
        self._series = series
        self.settings: dict[str, Mapping[str, int | float | str]] = {}

    def knows(self, name: str) -> bool:
        """Return whether these solver settings are known, or empty."""
        return not name or name in self.settings

    def learn(self, solvers: Solvers) -> None:
        """Store the solver settings of nodes by their ids; those too long for the recording are
        left out.
        """
        for name, settings in solvers.items():
            if name not in self.settings and len(json.dumps(dict(settings))) <= _MAX_BYTES:
                self.settings[name] = settings
        while len(self.settings) > _MAX_SOLVERS:
            discarded = next(iter(self.settings))
            del self.settings[discarded]
            log.warning(
                "%s: too many different solver settings for the recording; discarding %s",
                self._series,
                discarded,
            )
