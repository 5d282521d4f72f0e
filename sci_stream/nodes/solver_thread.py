"""The thread that computes: engines by calibration, one snapshot after the other."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from sci_stream.config import ReconstructSection
from sci_stream.errors import SciStreamError
from sci_stream.files.matconvnet import read_matconvnet
from sci_stream.model import Array, Snapshot, SolveReport, StageTimes
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import Denoiser
from sci_stream.recon.denoisers import make_denoiser
from sci_stream.recon.device import describe_device, pick_device
from sci_stream.recon.engine import Budget, BudgetController, Engine, SolverSettings, default_settings

log = logging.getLogger(__name__)

_ENGINES_KEPT = 2
"""The current calibration and the one before it, whose last snapshots may still be on their way."""


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


Result = Ready | Solved | Failed


def make_prior(section: ReconstructSection, device: torch.device) -> tuple[Denoiser, SolverSettings]:
    """Return the denoiser on its device, and the settings: what the rig says, and for the rest what suits the device.

    Raises
    ------
    ConfigError, WeightsError
        If the denoiser is unknown or its checkpoint missing or unusable.
    """
    name, weights = section.denoiser, section.weights
    if name == "auto":
        name = "ffdnet" if weights is not None else "tv"
    settings = default_settings(device, name)
    given = {
        field: value
        for field in ("iterations", "min_iterations", "sigma_first", "sigma_last", "accelerate")
        if (value := getattr(section, field)) is not None
    }
    if "iterations" in given and "min_iterations" not in given:
        given["min_iterations"] = min(settings.min_iterations, given["iterations"])
    matconvnet = weights is not None and weights.suffix == ".mat"
    denoiser = make_denoiser(name, device, read_matconvnet(weights) if matconvnet and weights else weights)
    return denoiser, dataclasses.replace(settings, **given)


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


class _CancelledError(Exception):
    """The solve in hand is not wanted any more."""


class _Cancellable:
    """A denoiser that refuses to go on once it is told to: that ends a solve within an iteration."""

    def __init__(self, denoiser: Denoiser) -> None:
        self._denoiser = denoiser
        self.name = denoiser.name
        self.cancelled = False

    def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        """Denoise, unless cancelled."""
        if self.cancelled:
            raise _CancelledError
        return self._denoiser(x, sigma)


class SolverThread:
    """Runs the engine beside the node's poll loop.

    Parameters
    ----------
    section
        ``[reconstruct]`` of the rig.
    device
        What to compute on: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises
    ------
    DeviceError, ConfigError, WeightsError
        If the device is missing, the denoiser unknown or its checkpoint unusable.
    """

    def __init__(self, section: ReconstructSection, device: str) -> None:
        self._section = section
        self._device = pick_device(device)
        if section.threads:
            torch.set_num_threads(section.threads)
        self.device_name = describe_device(self._device)
        denoiser, self._settings = make_prior(section, self._device)
        self._denoiser = _Cancellable(denoiser)
        self._dtype = np.dtype(section.video_dtype)
        self._wake: Callable[[], None] = lambda: None
        self._engines: OrderedDict[str, Engine] = OrderedDict()
        self._adopting: set[str] = set()
        self._jobs: queue.SimpleQueue[Calibration | Snapshot | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._controller = BudgetController(self._settings)
        self._thread = threading.Thread(target=self._run, name="solver", daemon=True)
        self._iterations = 0

    def start(self, wake: Callable[[], None]) -> None:
        """Begin; ``wake`` is called whenever there is a result to fetch."""
        self._wake = wake
        self._thread.start()

    def stop(self) -> None:
        """Give up the job in hand and end, within an iteration."""
        self._denoiser.cancelled = True
        self._jobs.put(None)
        self._thread.join()

    def has(self, calibration_hash: str) -> bool:
        """Return whether snapshots with this calibration can be submitted."""
        return calibration_hash in self._engines or calibration_hash in self._adopting

    def adopt(self, calibration: Calibration) -> None:
        """Bring a calibration onto the device; `Ready` follows."""
        if not self.has(calibration.hash):
            self._adopting.add(calibration.hash)
            self._jobs.put(calibration)

    def submit(self, snapshot: Snapshot) -> None:
        """Have a snapshot reconstructed; `Solved` or `Failed` follows."""
        self._jobs.put(snapshot)

    def results(self) -> Iterator[Result]:
        """Fetch what has come out since last asked."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._results.get_nowait()

    def status(self) -> dict[str, int | float | str]:
        """Return what the node reports of its solver."""
        return {"denoiser": self._denoiser.name, "device": self.device_name, "iterations": self._iterations}

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                result: Result = self._adopt(job) if isinstance(job, Calibration) else self._solve(job)
            except _CancelledError:
                return
            except SciStreamError as error:
                result = Failed(job if isinstance(job, Snapshot) else None, error)
            except Exception as error:
                log.exception("the solver failed")
                result = Failed(job if isinstance(job, Snapshot) else None, error)
            self._results.put(result)
            self._wake()

    def _adopt(self, calibration: Calibration) -> Ready:
        engine = Engine(calibration, self._denoiser, self._device, self._settings)
        # The first run loads kernels and allocates memory: better now than on the first snapshot.
        self._controller = BudgetController(self._settings, engine.warm_up())
        self._engines[calibration.hash] = engine
        self._adopting.discard(calibration.hash)
        while len(self._engines) > _ENGINES_KEPT:
            self._engines.popitem(last=False)
        return Ready(calibration.hash, self.device_name)

    def _solve(self, snapshot: Snapshot) -> Solved:
        started_ns = time.time_ns()
        engine = self._engines[snapshot.calibration_hash]
        budget = (
            self._controller.next_budget(period_ns=snapshot.period_ns, backlog=snapshot.backlog + self._jobs.qsize())
            if self._section.adapt_budget
            else Budget(iterations=self._settings.iterations)
        )
        video, report = engine.reconstruct(snapshot, budget)
        self._controller.record(iterations=report.iterations, solve_ns=report.solve_ns)
        self._iterations = report.iterations
        times = StageTimes(started_ns=started_ns, finished_ns=time.time_ns())
        return Solved(snapshot, video.astype(self._dtype, copy=False), report, times)
