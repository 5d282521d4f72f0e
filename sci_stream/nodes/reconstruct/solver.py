"""Reports of a solver to its reconstruct node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sci_stream.errors import SciStreamError
from sci_stream.model import Array, Snapshot, StageTimes
from sci_stream.parameters import Parameter, Value
from sci_stream.reports import SolveReport


@dataclass(frozen=True)
class Ready:
    """The engine of this calibration is on its device and warmed up."""

    calibration_hash: str
    device: str


@dataclass(frozen=True, eq=False)
class Solved:
    """The reconstruction of a snapshot."""

    snapshot: Snapshot
    video: Array
    report: SolveReport
    times: StageTimes
    evidence: Mapping[str, Value] = field(default_factory=dict)
    """About the mask modulator."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Of the rig's analyses."""
    picture: Array | None = None
    """Of one of them, (H, W, 3) uint8."""


@dataclass(frozen=True)
class Failed:
    """A snapshot that could not be reconstructed or, with None, an engine that could not be
    created.
    """

    snapshot: Snapshot | None
    error: Exception


@dataclass(frozen=True)
class Changed:
    """A parameter change took effect for the following snapshots or, with ``error``, changed
    nothing.
    """

    request: str
    error: SciStreamError | None = None
    parameters: Sequence[Parameter] = ()
    """Parameters right after the change; another change may have followed."""


Result = Ready | Solved | Failed | Changed
