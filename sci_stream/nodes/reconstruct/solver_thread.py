"""The solver thread: one engine per calibration, one snapshot after the other."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from sci_stream.clock import unix_ns
from sci_stream.config import CalibrationSection, ReconstructSection
from sci_stream.delivery.throughput import ThroughputMeter
from sci_stream.devices.analyses import Analyses
from sci_stream.devices.solver import (
    changed_section,
    describe_solver,
    make_prior,
    solver_id,
    solver_parameters,
    suited,
)
from sci_stream.errors import CaptureError, DeviceLostError, DeviceMemoryError, SciStreamError
from sci_stream.model import Snapshot, SnapshotId, StageTimes
from sci_stream.nodes.reconstruct.calibration_watch import CalibrationWatch
from sci_stream.nodes.reconstruct.solver import Changed, Failed, Ready, Result, Solved
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import SOLVER_KEY, Parameter, Value
from sci_stream.ports import Solver
from sci_stream.recon.backend.async_solve import AsyncSolve
from sci_stream.recon.backend.device import (
    describe_device,
    idle_cuda,
    is_lost,
    memory_in_use,
    pick_device,
)
from sci_stream.recon.budget import BudgetController, SolveCosts
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import SolverSettings

log = logging.getLogger(__name__)

_T = TypeVar("_T")

# The current calibration and the previous one, whose last snapshots may still be in flight.
_MAX_ENGINES = 2
# Snapshots that fail one after the other, after which a new process is tried.
_MAX_FAILURES = 5
# Without progress for this many times the longest pause so far, the solver hangs.
_STALLED = 20.0
# Shorter silence is none.
_LEAST_STALL_S = 30.0
# An engine may be prepared for so long: it may compile for minutes.
_PREPARATION_S = 900.0
# A thread that hangs is abandoned when the node ends.
_JOIN_S = 5.0


@dataclass(frozen=True)
class _Change:
    request: str
    changes: Mapping[str, Value]


class _CancelledError(Exception):
    """The current solve is aborted."""


@dataclass(eq=False)
class _UnderWay:
    """A started solve."""

    snapshot: Snapshot
    pending: AsyncSolve
    started_ns: int


class SolverThread:
    """Run the engine in parallel with the node's poll loop.

    On a GPU the next solve starts before the previous video has been copied out, so that copies
    overlap with computing; a video is passed on as soon as it arrives. ``device`` is ``auto``,
    ``cpu``, ``cuda`` or ``cuda:N``; ``frame_s`` as of `CalibrationWatch`.

    Raises `DeviceError`, `ConfigError`, `WeightsError` if the device is missing, the denoiser
    unknown or its checkpoint unusable.
    """

    def __init__(
        self,
        section: ReconstructSection,
        device: str,
        calibration: CalibrationSection | None = None,
        frame_s: float | None = None,
    ) -> None:
        self._frame_s = frame_s
        self._given = self._section = section
        self._calibration_section = calibration or CalibrationSection()
        self._analyses = Analyses(section.analyses)
        self._watch_status: dict[str, int | float | str] = {}
        self._device = pick_device(device)
        if reason := idle_cuda(device):
            log.warning("%s: computing on the CPU, which is many times slower", reason)
        if section.threads:
            torch.set_num_threads(section.threads)
        self.device_name = describe_device(self._device)
        self._denoiser, self._settings = make_prior(section, self._device)
        self._reported = self._current_status()
        self._dtype = torch.float16 if section.video_dtype == "float16" else torch.float32
        self._cancelled = False
        self._denoised = 0
        self._under_way: _UnderWay | None = None
        self._wake: Callable[[], None] = lambda: None
        self._watches = OrderedDict[str, CalibrationWatch]()  # each with its engine, by calibration
        self._last_engine: Engine | None = None
        self._adopting = set[str]()
        self._jobs = queue.SimpleQueue[Calibration | Snapshot | _Change | None]()
        self._results = queue.SimpleQueue[Result]()
        self._controller = BudgetController(self._settings, SolveCosts())
        self._thread = threading.Thread(target=self._run, name="solver", daemon=True)
        self._iterations = 0
        self._busy_s = 0.0
        self._out_of_memory = 0
        self._failures = 0
        self._progress_s: float | None = None
        self._longest_s = 0.0
        self.prepares = False
        """Whether it prepares an engine, which may compile for minutes."""
        self._utilisation = ThroughputMeter()

    def start(self, wake: Callable[[], None]) -> None:
        """Start; ``wake`` is called whenever a result is available."""
        self._wake = wake
        self._thread.start()

    def stop(self) -> None:
        """Abort the current job and stop, within an iteration."""
        self._cancelled = True
        self._jobs.put(None)
        self._thread.join(_JOIN_S if self.stalled() else None)

    def stalled(self) -> DeviceLostError | None:
        """Return an error if the thread makes no progress any more."""
        began_s = self._progress_s
        if began_s is None:
            return None
        limit_s = (
            _PREPARATION_S if self.prepares else max(_LEAST_STALL_S, _STALLED * self._longest_s)
        )
        silent_s = time.monotonic() - began_s
        if silent_s < limit_s:
            return None
        return DeviceLostError(
            "The solver hangs",
            expected=f"an iteration within {limit_s:.0f} s",
            got=f"none for {silent_s:.0f} s",
            hint=f"The denoiser {self._denoiser.name} or the device {self.device_name} does not "
            "return.",
        )

    def has(self, calibration_hash: str) -> bool:
        """Return whether snapshots with this calibration can be submitted."""
        return calibration_hash in self._watches or calibration_hash in self._adopting

    def adopt(self, calibration: Calibration) -> None:
        """Load a calibration to the device; `Ready` follows."""
        if not self.has(calibration.hash):
            self._adopting.add(calibration.hash)
            self._jobs.put(calibration)

    def submit(self, snapshot: Snapshot) -> None:
        """Queue a snapshot for reconstruction; `Solved` or `Failed` follows."""
        self._jobs.put(snapshot)

    def parameters(self) -> Sequence[Parameter]:
        """Return the adjustable parameters."""
        return self._parameters

    def change(self, request: str, changes: Mapping[str, Value]) -> None:
        """Set parameters from the next snapshot on; `Changed` follows."""
        self._jobs.put(_Change(request, changes))

    def results(self) -> Iterator[Result]:
        """Return the results since the last call."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._results.get_nowait()

    def status(self) -> dict[str, int | float | str]:
        """Return the solver's part of the node status."""
        now_s = time.monotonic()
        self._utilisation.update(now_s, self._busy_s)
        figures: dict[str, int | float | str] = {
            "denoiser": self._denoiser.name,
            "device": self.device_name,
            "iterations": self._iterations,
            "denoised": self._denoised,
            "busy_s": round(self._busy_s, 3),
            "utilisation": round(min(1.0, self._utilisation.per_s(now_s)), 3),
            "out_of_memory": self._out_of_memory,
            "fault": "" if self._last_engine is None else self._last_engine.fault,
        }
        return {**figures, **memory_in_use(self._device), **self._reported, **self._watch_status}

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # a plug-in may even call sys.exit()
            log.error("the solver thread ended", exc_info=error)
            self._put(
                Failed(
                    None,
                    DeviceLostError(
                        "The solver thread ended", got=f"{type(error).__name__}: {error}"
                    ),
                )
            )

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self.prepares = not isinstance(job, Snapshot)
            self._progress_s = time.monotonic()
            try:
                # The previous result is delivered before anything that may replace its engine.
                if isinstance(job, Calibration):
                    self._deliver()
                    self._put(self._adopt(job))
                elif isinstance(job, _Change):
                    self._deliver()
                    self._put(self._change(job))
                else:
                    self._begin(job)
            except _CancelledError:
                return
            except Exception as error:
                self._fail(job if isinstance(job, Snapshot) else None, error)
            # With another job queued, its solve starts first; the video is passed on once it has
            # arrived.
            if self._jobs.empty() or (self._under_way and self._under_way.pending.ready):
                self._deliver()
            self._progress_s = None
            self.prepares = False
        self._deliver()

    def _put(self, result: Result) -> None:
        self._results.put(result)
        self._wake()

    def _fail(self, snapshot: Snapshot | None, error: Exception) -> None:
        if (
            not isinstance(error, SciStreamError) or error.__cause__ is not None
        ):  # such as that of a denoiser of users
            log.error("solver failed", exc_info=error)
        self._failures += 1
        # Lost to this process: the node ends, and its snapshots are sent again.
        if is_lost(error):
            snapshot = None
            if not isinstance(error, CaptureError):
                error = DeviceLostError(f"The device {self.device_name} is lost", got=error)
        elif self._failures >= _MAX_FAILURES and snapshot is not None:
            snapshot = None
            error = DeviceLostError(
                f"{self._failures} snapshots failed one after the other", got=error
            )
        self._put(Failed(snapshot, error))

    def _change(self, job: _Change) -> Changed:
        """Apply changed settings, all or none."""
        try:
            section = changed_section(self._given, self._section, self._denoiser.name, job.changes)
            denoiser, settings = make_prior(section, self._device)
            if denoiser.name == self._denoiser.name:
                for watch in self._watches.values():
                    # Only the number of iterations differs.
                    watch.engine.change_settings(
                        suited(section, settings, watch.engine.calibration)
                    )
                if self._last_engine is not None:
                    self._controller = BudgetController(
                        self._last_engine.settings, self._last_engine.costs
                    )
            else:
                made = [
                    self._make_engine(watch.engine.calibration, denoiser, section, settings)
                    for watch in self._watches.values()
                ]
                self._denoiser = denoiser
                self._settings = settings
                for engine in made:
                    self._install(engine)
                self._last_engine = None
        except CaptureError:
            raise
        except SciStreamError as error:
            return Changed(job.request, error)
        self._section = section
        self._settings = settings
        self._reported = self._current_status()
        return Changed(job.request, parameters=self._parameters)

    def _current_status(self) -> dict[str, int | float | str]:
        """Declare the parameters and return the solver settings."""
        section = self._section
        prior = self._denoiser.name
        settings = self._settings
        self._parameters = solver_parameters(self._given, section, prior, settings)
        solver = describe_solver(section, prior, settings)
        self._solver_id = solver_id(solver)
        return {
            f"{SOLVER_KEY}{name}": value
            for name, value in {"id": self._solver_id, **solver}.items()
        }

    def _make_engine(
        self,
        calibration: Calibration,
        denoiser: Solver,
        section: ReconstructSection,
        settings: SolverSettings,
    ) -> Engine:
        """Return an engine that is ready."""
        engine = Engine(
            calibration,
            denoiser,
            self._device,
            suited(section, settings, calibration),
            video_dtype=self._dtype,
            between=self._between_iterations,
            cuda_graphs=self._section.cuda_graphs,
        )
        # The first run loads kernels and allocates memory: do it before the first snapshot.
        while self._within_memory(engine, SnapshotId("", 0, 0), engine.warm_up) is None:
            pass
        return engine

    def _install(self, engine: Engine) -> None:
        if engine.fault:
            log.warning("%s: %s", self.device_name, engine.fault)
        watch = CalibrationWatch(self._calibration_section, engine, self._frame_s)
        self._watches[engine.calibration.hash] = watch

    def _adopt(self, calibration: Calibration) -> Ready:
        self._install(self._make_engine(calibration, self._denoiser, self._section, self._settings))
        self._adopting.discard(calibration.hash)
        while len(self._watches) > _MAX_ENGINES:
            self._watches.popitem(last=False)
        return Ready(calibration.hash, self.device_name)

    def _begin(self, snapshot: Snapshot) -> None:
        """Start the solve of a snapshot and pass on the previous result."""
        started_ns = unix_ns()
        watch = self._watches[snapshot.calibration_hash]
        engine = watch.engine
        if self._last_engine is not engine:
            if self._last_engine is not None:
                engine.forget("calibration")
            self._controller = BudgetController(engine.settings, engine.costs)
        self._last_engine = engine
        budget = (
            self._controller.next_budget(
                period_ns=snapshot.period_ns, backlog=snapshot.backlog + self._jobs.qsize()
            )
            if self._section.adapt_budget
            else engine.settings.iterations
        )
        with_image = self._controller.with_image(budget, period_ns=snapshot.period_ns)
        engine.seeks_moving_image = with_image > 0
        budget = with_image or budget
        while (
            pending := self._within_memory(
                engine, snapshot.id, lambda: watch.begin(snapshot, budget)
            )
        ) is None:
            pass
        self._under_way = _UnderWay(snapshot, pending, started_ns)

    def _within_memory(
        self, engine: Engine, which: SnapshotId, work: Callable[[], _T]
    ) -> _T | None:
        """Run some work and pass on the previous result; None if out of memory, after freeing some
        for a retry.
        """
        try:
            return work()
        except DeviceMemoryError as error:
            self._out_of_memory += 1
            short = str(error)
        finally:
            self._deliver()
        what = f"snapshot {which.seq}" if which.series else "the first run"
        # Only now is the memory of the attempt free: the exception referenced it.
        if not engine.reduce_memory():
            raise DeviceMemoryError(
                f"Out of memory for {what}, and nothing left to free", got=short
            )
        about = {"series": which.series, "seq": which.seq} if which.series else {}
        log.warning(
            "%s: out of memory, solving again in smaller chunks: %s", what, short, extra=about
        )
        return None

    def _between_iterations(self) -> None:
        """Abort if requested; pass on the previous result if it has arrived."""
        if self._cancelled:
            raise _CancelledError
        self._denoised += 1
        self._note_progress()
        if self._under_way and self._under_way.pending.ready:
            self._deliver()

    def _note_progress(self) -> None:
        now_s = time.monotonic()
        if self._progress_s is not None and not self.prepares:
            self._longest_s = max(self._longest_s, now_s - self._progress_s)
        self._progress_s = now_s

    def _deliver(self) -> None:
        """Wait for the pending result, if any, and pass it on."""
        done = self._under_way
        self._under_way = None
        if done is None:
            return
        watch = self._watches[done.snapshot.calibration_hash]
        try:
            video, report, *_ = watch.finish(done.snapshot, done.pending)
        except Exception as error:
            self._fail(done.snapshot, error)
            return
        self._failures = 0
        self._iterations = report.iterations
        self._busy_s += report.solve_ns / 1e9
        first = None if watch.first_mask is None else float(watch.first_mask)
        report = dataclasses.replace(report, solver=self._solver_id, start_mask=first)
        self._watch_status = watch.status()
        figures, picture = self._analyses(video, report)
        times = StageTimes(started_ns=done.started_ns, finished_ns=unix_ns())
        evidence = watch.evidence(done.snapshot, report.health)
        self._put(Solved(done.snapshot, video, report, times, evidence, figures, picture))
