"""The interface between a reconstruct node and its solver, with the solver's results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sci_stream.errors import SciStreamError
from sci_stream.model import Array, Snapshot, StageTimes
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import Parameter, Value
from sci_stream.reports import SolveReport


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine of this calibration is on its device and warmed up."""

    calibration_hash: str
    device: str


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """The reconstruction of a snapshot."""

    snapshot: Snapshot
    video: Array
    report: SolveReport
    times: StageTimes


@dataclass(frozen=True, slots=True)
class Failed:
    """A snapshot that could not be reconstructed or, with None, an engine that could not be created."""

    snapshot: Snapshot | None
    error: Exception


@dataclass(frozen=True, slots=True)
class Changed:
    """A parameter change took effect for the following snapshots or, with ``error``, changed nothing."""

    request: str
    error: SciStreamError | None = None
    parameters: Sequence[Parameter] = ()
    """Parameters right after the change; another change may have followed."""


Result = Ready | Solved | Failed | Changed


class Solver(Protocol):
    """The solver of a reconstruct node; everything but `results` may run in another thread."""

    device_name: str

    def start(self, wake: Callable[[], None]) -> None:
        """Start; ``wake`` is called whenever a result is available."""
        ...

    def stop(self) -> None:
        """Abort the current job and stop."""
        ...

    def has(self, calibration_hash: str) -> bool:
        """Return whether snapshots with this calibration can be submitted."""
        ...

    def adopt(self, calibration: Calibration) -> None:
        """Load a calibration to the device; `Ready` follows."""
        ...

    def submit(self, snapshot: Snapshot) -> None:
        """Queue a snapshot for reconstruction; `Solved` or `Failed` follows."""
        ...

    def stalled(self) -> SciStreamError | None:
        """Return an error if the solver makes no progress any more."""
        ...

    def results(self) -> Iterator[Result]:
        """Return the results since the last call."""
        ...

    def status(self) -> dict[str, int | float | str]:
        """Return the solver's part of the node status."""
        ...

    def parameters(self) -> Sequence[Parameter]:
        """Return the adjustable parameters, if any."""
        ...

    def change(self, request: str, changes: Mapping[str, Value]) -> None:
        """Set parameters, already checked one by one, from the next snapshot on; `Changed` follows."""
        ...
