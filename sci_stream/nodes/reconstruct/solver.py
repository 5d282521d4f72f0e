"""What a reconstruct node needs of whoever computes, and what it is told by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sci_stream.errors import SciStreamError
from sci_stream.model import Array, Snapshot, SolveReport, StageTimes
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import Parameter, Value


@dataclass(frozen=True, slots=True)
class Ready:
    """An engine holds this calibration on its device and has made its first, slow run."""

    calibration_hash: str
    device: str


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """A snapshot's video."""

    snapshot: Snapshot
    video: Array
    report: SolveReport
    times: StageTimes


@dataclass(frozen=True, slots=True)
class Failed:
    """A snapshot, or (None) an engine, that could not be made."""

    snapshot: Snapshot | None
    error: Exception


@dataclass(frozen=True, slots=True)
class Changed:
    """What was to be set is in force for the snapshots that follow, or (``error``) nothing was changed."""

    request: str
    error: SciStreamError | None = None
    parameters: Sequence[Parameter] = ()
    """As they are right after it: another change may have come since."""


Result = Ready | Solved | Failed | Changed


class Solver(Protocol):
    """What a reconstruct node needs of whoever computes; all but `results` may be done in another thread."""

    device_name: str

    def start(self, wake: Callable[[], None]) -> None:
        """Begin; ``wake`` is called whenever there is a result to fetch."""
        ...

    def stop(self) -> None:
        """Give up the job in hand and end."""
        ...

    def has(self, calibration_hash: str) -> bool:
        """Return whether snapshots with this calibration can be submitted."""
        ...

    def adopt(self, calibration: Calibration) -> None:
        """Bring a calibration onto the device; `Ready` follows."""
        ...

    def submit(self, snapshot: Snapshot) -> None:
        """Have a snapshot reconstructed; `Solved` or `Failed` follows."""
        ...

    def results(self) -> Iterator[Result]:
        """Fetch what has come out since last asked."""
        ...

    def status(self) -> dict[str, int | float | str]:
        """Return what the node reports of its solver."""
        ...

    def parameters(self) -> Sequence[Parameter]:
        """Return what may be set while it runs; none where nothing may."""
        ...

    def change(self, request: str, changes: Mapping[str, Value]) -> None:
        """Set parameters, which were checked one by one, from the next snapshot on; `Changed` follows."""
        ...
