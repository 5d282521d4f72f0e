"""The engine: calibration and prior on a device; a snapshot in, a video out."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sci_stream.calibration.compatibility import require_matching_snapshot
from sci_stream.model import Snapshot, SolveReport, Start
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.forward import projection_fault
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.ports import Denoiser, MemoryReducible
from sci_stream.recon.algorithms.gap import CorrelatedResidual, Denoise, Problem, noise_variance_ratio
from sci_stream.recon.algorithms.noise_level import ladder_on_device
from sci_stream.recon.algorithms.schedule import LEAST_SIGMA, AnytimeSchedule, Budget, levels_by_graph_key
from sci_stream.recon.backend.async_solve import AsyncSolve
from sci_stream.recon.backend.cuda_graph import (
    MOST_PIXELS,
    MOST_PIXELS_AT_ONCE,
    CudaGraphStep,
    Graphs,
    Recorder,
    record_cuda_graph,
)
from sci_stream.recon.backend.memory import within_memory
from sci_stream.recon.backend.transfers import Stopwatch, Transfers, solve_clock
from sci_stream.recon.denoisers.temporal import cycled_denoisers, ending_on_frames
from sci_stream.recon.factory import make_solver, solver_step
from sci_stream.recon.fused_gap import fused_gap
from sci_stream.recon.initialization.error_map import InitialErrorMap
from sci_stream.recon.initialization.initializer import REASONS, Initializer, InitialState, call_directly
from sci_stream.recon.mask_stack import MaskStack
from sci_stream.recon.measurement import Measurement
from sci_stream.recon.noise_estimation import estimate_noise
from sci_stream.recon.settings import SolverSettings

Watch = Callable[[torch.Tensor], None]
"""Called with the video after each iteration; must not write to it."""

# Counts beyond this multiple of full scale are no light: such pixels are left out, as those that are not finite, since
# squares of floats near the largest overflow.
_MOST_Y = 1e6


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """The result of a solve on the device.

    ``planes`` (P, B, h, w); ``video`` (B, H, W) in the engine's dtype, memory that nothing else uses; ``finite``, ():
    False if the solve diverged, and ``planes`` is the still image instead; ``facts``, (5,): the residual
    ‖y − Φv‖₂/‖y‖₂, ``finite``, the place of the reason for the start in ``reasons``, and the noise and its part due to
    the masks (`SolveReport`), NaN if unknown; ``iterations`` spent.
    """

    planes: torch.Tensor
    video: torch.Tensor
    finite: torch.Tensor
    facts: torch.Tensor
    reasons: tuple[str, ...]
    iterations: int
    saturated_fraction: float


class _Upload(NamedTuple):
    """A snapshot on the device: counts as y, (H, W), and which are saturated, None where that is not known."""

    y: torch.Tensor
    saturated: torch.Tensor | None
    saturated_fraction: float


class Engine:
    """Reconstruct snapshots of one calibration with one prior on one device. Used from one thread.

    With ``settings.warm_start`` it keeps the video of the last snapshot and starts from it if the next snapshot
    directly continues it; otherwise each result depends on its snapshot alone.

    Parameters
    ----------
    calibration
        The masks and scale; copied to the device once.
    denoiser
        The prior, already on the device.
    device
        Where to compute.
    settings
        Solver settings, with the iterations to use without a budget.
    video_dtype
        Of the returned videos: float32, or float16, which halves the copy from a GPU.
    between
        Called before each iteration; an exception that it raises ends the solve.
    recorder
        How work on the device is recorded to be replayed. None for CUDA graphs on a GPU where ``cuda_graphs``, and
        nothing elsewhere.
    cuda_graphs
        False to launch all work step by step.

    Raises
    ------
    ConfigError
        If the settings name an unknown solver.
    DeviceMemoryError
        If the calibration does not fit into the device's memory.
    """

    def __init__(
        self,
        calibration: Calibration,
        denoiser: Denoiser,
        device: torch.device,
        settings: SolverSettings,
        *,
        video_dtype: torch.dtype = torch.float32,
        between: Callable[[], None] = lambda: None,
        recorder: Recorder | None = None,
        cuda_graphs: bool = True,
    ) -> None:
        self.calibration = calibration
        self.settings = settings
        self.device = device
        self._denoiser = denoiser
        self._priors = cycled_denoisers(denoiser, calibration.n_frames, device, along_time=settings.along_time)
        if recorder is None and cuda_graphs and device.type == "cuda":
            recorder = record_cuda_graph(device)
        self._graphs = None if recorder is None else Graphs(recorder)
        self._recorded_step: CudaGraphStep | None = None
        if self._graphs is not None:
            self._recorded_step = CudaGraphStep(self._graphs, solver_step(settings))
        self._algorithm = make_solver(settings, self._recorded_step)
        small = calibration.phi.size <= MOST_PIXELS
        self._call = call_directly if self._graphs is None or not small else self._graphs.call
        self._transfers = Transfers(device)
        self._video_dtype = video_dtype
        self._between = between
        self._iteration_s: float | None = None
        self._initializer = Initializer(settings, self._call)
        self._start_s = 0.0
        with within_memory(calibration, device):
            self._masks = MaskStack(calibration, device, in_place=self._graphs is not None)
        self._fused_fault = ""
        self._whole = make_solver(settings) if self._is_one_graph() else None
        if self._whole is not None and settings.solver == "gap":
            lowest = min(settings.sigma_last, LEAST_SIGMA)
            fused, self._fused_fault = fused_gap(denoiser, self._priors, self._masks.phi.shape, lowest, device)
            self._whole = fused or self._whole
        self._solving = False
        self._correction: MaskCorrection | None = None

    def correct_masks(self, correction: MaskCorrection) -> None:
        """Correct the calibrated masks and black level, from the next snapshot on.

        The precision is that of reports, see `MaskCorrection.rounded`. May be called between the iterations of a solve,
        which continues with the masks that it started with.

        Raises
        ------
        DeviceMemoryError
            If the device runs out of memory.
        """
        if self._solving:
            self._correction = correction
            return
        with within_memory(self.calibration, self.device):
            self._masks.correct(correction)

    def change_settings(self, settings: SolverSettings) -> None:
        """Solve with other numbers of iterations from the next snapshot on; all else must be as it was.

        Whole solves are recorded again when the next one is due.
        """
        if self._graphs is not None and settings.iterations != self.settings.iterations:
            self._graphs.drop(self._whole_key)
        self.settings = settings

    def reduce_memory(self) -> bool:
        """Release memory that the next solve can do without, and use smaller batches.

        Returns
        -------
        Whether anything was released; if so, another call may release more.
        """
        released = self._initializer.forget("memory")
        if self._graphs is not None:
            released |= self._graphs.give_up("memory ran out")
        if self._recorded_step is not None:
            self._recorded_step.forget()
        if isinstance(self._denoiser, MemoryReducible):
            released |= self._denoiser.reduce_memory()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return released

    @property
    def fault(self) -> str:
        """Why the engine runs below full speed; empty if it does not."""
        faults = ("" if self._graphs is None else self._graphs.fault, projection_fault(self.device), self._fused_fault)
        return "; ".join(filter(None, faults))

    @property
    def start_s(self) -> float:
        """Seconds spent on the start of the last snapshot, if the device was idle."""
        return self._start_s

    def forget(self, reason: str = "first") -> None:
        """Start the next snapshot cold, for this reason."""
        self._initializer.forget(reason)

    @property
    def recordings(self) -> int:
        """Number of recordings that can be replayed."""
        return 0 if self._graphs is None else len(self._graphs)

    def warm_up(self) -> float:
        """Solve two snapshots of a moving pattern, so that the first real one finds everything prepared.

        Libraries are loaded and memory is allocated. Where work is recorded, all kinds of it are recorded here: both
        starts; iterations with each prior, at levels of σ of each form, with and without neighbours; and whole solves.

        Returns
        -------
        Seconds that one iteration takes, measured after the first solve.
        """
        first, second = (_moving_pattern(self.calibration, seq) for seq in range(2))
        iterations = self.settings.min_iterations if self._graphs is None else self.settings.iterations
        self.reconstruct(first, Budget(iterations))
        if self._graphs is None:
            _, report = self.reconstruct(second, Budget(iterations))
        else:
            self._record_iterations(first)
            # First step by step, as under load, then at once; the last time everything is there.
            for watch in (lambda _video: None, None, None):
                self.forget()
                for snapshot in (first, second):
                    _, report = self.reconstruct(snapshot, Budget(iterations), watch=watch)
        self.forget()
        return report.solve_ns / 1e9 / report.iterations

    def _record_iterations(self, snapshot: Snapshot) -> None:
        """Do an iteration of every kind that a solve can consist of."""
        with within_memory(self.calibration, self.device), torch.inference_mode():
            measurement = self.prepare(self._upload(snapshot))
            start = self.initialize(snapshot, measurement, Budget(self.settings.iterations))
            for prior in dict.fromkeys(self._priors):
                problem = self._problem(measurement, start.error, (prior,))
                sigmas = levels_by_graph_key(self.settings.schedule, prior.graph_key)
                if problem.correlated is not None:
                    problem = problem._replace(correlated=problem.correlated._replace(iterations=len(sigmas)))
                    sigmas = [*sigmas, *sigmas]
                for _ in self._algorithm(start.v, problem, sigmas):
                    self._between()

    def reconstruct(
        self, snapshot: Snapshot, budget: Budget | None = None, *, watch: Watch | None = None
    ) -> tuple[npt.NDArray[np.floating[Any]], SolveReport]:
        """Recover the B frames behind a snapshot.

        Parameters
        ----------
        snapshot
            Must belong to the engine's calibration. If it contains the truth, the report has the PSNR.
        budget
            Its limits; None for the settings' iterations and no time limit.
        watch
            Called with the estimate of every iteration, (B, H, W) on the device; its time counts.

        Returns
        -------
        video, report
            (B, H, W) in host memory, nominally 0–1, not clipped, finite; a Bayer mosaic if the calibration is one.
            The caller owns it.

        Raises
        ------
        CalibrationError
            If the snapshot or its truth does not fit the calibration.
        DeviceMemoryError
            If the device runs out of memory: `reduce_memory` may help.
        """
        return self.begin(snapshot, budget, watch=watch).finish()

    def begin(self, snapshot: Snapshot, budget: Budget | None = None, *, watch: Watch | None = None) -> AsyncSolve:
        """Start a reconstruction, as `reconstruct`, without waiting for the device where possible.

        On a GPU the next one may be started before this one is finished: its snapshot is copied in while this one is
        solved, and this one's video is copied out while the next is solved. With a time limit this returns after the
        last iteration is issued. On a CPU the solve is complete when this returns.
        """
        require_matching_snapshot(snapshot, self.calibration)
        if self._correction is not None:
            correction, self._correction = self._correction, None
            self.correct_masks(correction)
        budget = budget or Budget(self.settings.iterations)
        stopwatch, began_s = Stopwatch(self.device), time.perf_counter()
        on_device = torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()
        self._solving = True
        try:
            with within_memory(self.calibration, self.device), torch.inference_mode(), on_device:
                stopwatch.lap()
                upload = self._upload(snapshot)
                if self._graphs is not None and self._iteration_s:
                    # A GPU takes the same time for each iteration: asking it how far it is would make it wait for the
                    # host.
                    budget = budget.planned(self._iteration_s, self.settings.min_iterations)
                whole = self._whole is not None and watch is None and budget == Budget(self.settings.iterations)
                if whole:
                    estimate = self._solve_at_once(snapshot, upload)
                else:
                    estimate = self._solve_step_by_step(snapshot, upload, budget, began_s, watch)
                self._initializer.keep(snapshot, self._own(estimate.planes, estimate.video), estimate.finite)
                stopwatch.lap()
                arrival = self._transfers.download(estimate.video, estimate.facts)
        finally:
            self._solving = False
        report = SolveReport(
            iterations=estimate.iterations,
            start=Start.COLD,
            start_reason="",
            budget_limited=estimate.iterations < self.settings.iterations,
            solve_ns=0,
            residual=0.0,
            saturated_fraction=estimate.saturated_fraction,
            masks_at=self._masks.correction.to_text,
        )
        return AsyncSolve(arrival, report, snapshot.truth, stopwatch, self._record_duration, estimate.reasons)

    def _own(self, planes: torch.Tensor, video: torch.Tensor) -> torch.Tensor:
        """Return planes that the caller of a solve cannot change: on a CPU its array may be their memory."""
        shared = planes.untyped_storage().data_ptr() == video.untyped_storage().data_ptr()
        return planes.clone() if shared and self.device.type == "cpu" else planes

    def _record_duration(self, solve_s: float, report: SolveReport) -> None:
        """Store the duration of an iteration, to plan the next solve."""
        self._iteration_s = solve_s / report.iterations

    def _upload(self, snapshot: Snapshot) -> _Upload:
        """Start copying a snapshot to the device."""
        counts, saturation_dn = snapshot.counts, self.calibration.saturation_dn
        measurement, black = self.calibration.measurement(counts), self._masks.correction.black
        y = self._transfers.upload(measurement - np.float32(black) if black else measurement)
        if saturation_dn is None:
            return _Upload(y, None, 0.0)
        where = counts >= saturation_dn
        return _Upload(y, self._transfers.upload(where), float(np.mean(where)))

    # --- a whole solve as one recording

    def _is_one_graph(self) -> bool:
        """Return whether a solve of all iterations can be one recording: if nothing but tensors decides its course."""
        settings = self.settings
        levels = [levels_by_graph_key(settings.schedule, prior.graph_key) for prior in self._priors]
        recordable = all(prior.graph_key(settings.sigma_first) is not None for prior in self._priors)
        return (
            self._graphs is not None
            and self.calibration.phi.size <= MOST_PIXELS_AT_ONCE
            and recordable
            and all(len(each) == 1 for each in levels)
        )

    @property
    def _whole_key(self) -> Hashable:
        return "whole", self._masks.linear

    def _solve_at_once(self, snapshot: Snapshot, upload: _Upload) -> Estimate:
        """Solve by one replay: the device decides on the start and the levels of σ, and the host waits for nothing."""
        self._between()
        past, past_finite, reason = self._initializer.past(snapshot)
        planes, video, finite, facts = self._call(
            self._whole_key, self._solved, upload.y, upload.saturated, past, past_finite
        )
        reasons = (reason,) if past is None else REASONS
        iterations, fraction = self.settings.iterations, upload.saturated_fraction
        # Copies: the next replay overwrites what this one gave while it may still be on its way to the host.
        return Estimate(planes, video.clone(), finite, facts.clone(), reasons, iterations, fraction)

    def _solved(
        self,
        y: torch.Tensor,
        saturated: torch.Tensor | None,
        past: torch.Tensor | None,
        past_finite: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return ``planes``, ``video``, ``finite`` and ``facts`` of an `Estimate`; no number leaves the device."""
        assert self._whole is not None
        iterations = self.settings.iterations
        planes, r_inv, *others = self._measured(y, saturated)
        measurement = Measurement(planes, self._masks.phi, r_inv, *others)
        start = self._initializer.begin_on_device(measurement, self._masks.linear, iterations, past, past_finite)
        problem = self._problem(measurement, start.error, ending_on_frames(self._priors, iterations))
        sigmas = ladder_on_device(self.settings.schedule, start.sigma_first, start.sigma_last, iterations)
        for estimate in self._whole(start.v, problem, sigmas):  # noqa: B007 - the last one is the result
            pass
        return self._result(estimate, measurement, start.still, start.reason)

    def _result(
        self, estimate: torch.Tensor, measurement: Measurement, still: torch.Tensor, reason: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return ``planes``, ``video``, ``finite`` and ``facts`` of an `Estimate` from the last iterate."""
        # A diverged solve returns the still image, and its report says so, instead of NaN.
        finite = estimate.isfinite().all()
        planes = torch.where(finite, estimate, still)
        residual = measurement.residual(planes)
        facts = torch.stack((residual, finite.to(residual.dtype), reason, *measurement.noise_level()))
        return planes, self._masks.merged(planes).to(self._video_dtype), finite, facts

    # --- the three stages of a solve, step by step

    def _solve_step_by_step(
        self, snapshot: Snapshot, upload: _Upload, budget: Budget, began_s: float, watch: Watch | None
    ) -> Estimate:
        measurement = self.prepare(upload)
        start = self.initialize(snapshot, measurement, budget)
        still, reason = start.still, start.reason
        iterates, sigmas = self.solve(measurement, start, budget, began_s)
        del start  # a whole video, which only the first iteration needs
        for estimate in iterates:
            if watch is not None:  # recorded iterations overwrite their estimates
                watch(self._masks.merged(estimate if self._graphs is None else estimate.clone()))
        result = self._result(estimate, measurement, still, measurement.y.new_zeros(()))
        return Estimate(*result, (reason,), sigmas.taken, upload.saturated_fraction)

    def prepare(self, upload: _Upload) -> Measurement:
        """Find the valid pixels of a snapshot and its noise."""
        key = "measurement", self.settings.weigh_noise
        planes, r_inv, *others = self._call(key, self._measured, upload.y, upload.saturated)
        return Measurement(planes, self._masks.phi, r_inv, *others)

    def _measured(
        self, y: torch.Tensor, saturated: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor]:
        """Return the tensors of a `Measurement` except for the masks."""
        masks, valid = self._masks, y.abs() < _MOST_Y  # false for NaN
        planes = masks.planes(torch.where(valid, y, 0.0))
        r_inv = r_inv_clipped = masks.r_inv * masks.planes(valid)
        if saturated is not None:
            r_inv = masks.r_inv * masks.planes(valid & ~saturated)
        return planes, r_inv, *self._noise(planes, r_inv), r_inv_clipped

    def _noise(self, y: torch.Tensor, r_inv: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the variance of y's noise, of the calibration or as the snapshot shows it, whichever is larger.

        And by how much it grows with y beyond what the calibration accounts for, which errors of the masks cause.
        """
        if not self.settings.weigh_noise:
            return None, None
        found = estimate_noise(y, self._masks.phi, r_inv)
        if self.calibration.noise is None:
            return found
        # Masks that shifted or blurred since calibration act as noise, which the calibrated variance does not contain.
        offset, slope = self.calibration.noise
        noise = torch.maximum(found.variance, y.clamp_min(0.0).mul_(slope).add_(offset))
        return noise, (found.slope - slope).clamp_min_(0.0)

    def initialize(self, snapshot: Snapshot, measurement: Measurement, budget: Budget) -> InitialState[float, str]:
        """Find the start of the solve, warm or cold."""
        began_s = time.perf_counter()
        start = self._initializer.begin(snapshot, measurement, self._masks.linear, budget.iterations)
        self._start_s = time.perf_counter() - began_s
        return start

    def solve(
        self, measurement: Measurement, start: InitialState[float, str], budget: Budget, began_s: float
    ) -> tuple[Iterator[torch.Tensor], AnytimeSchedule]:
        """Return the iterates from the start until the budget is spent, and their schedule, which counts them.

        ``began_s`` is the clock when the solve began.
        """
        settings = dataclasses.replace(self.settings, sigma_first=start.sigma_first, sigma_last=start.sigma_last)
        sigmas = AnytimeSchedule(
            settings.schedule,
            budget,
            min_iterations=settings.min_iterations,
            iteration_s=self._iteration_s,
            clock=solve_clock(self.device),
            started_s=began_s,
        )
        priors = ending_on_frames(self._priors, budget.iterations)
        problem = self._problem(measurement, start.error, priors)
        return self._algorithm(start.v, problem, self._interruptible(sigmas)), sigmas

    def _problem(
        self,
        measurement: Measurement,
        error: InitialErrorMap | None,
        priors: tuple[Denoise, ...],
    ) -> Problem:
        """Return the problem for the algorithm, given the estimated error of the start."""
        noise, correlated = measurement.noise, self._correlated(error)
        if error is not None and noise is not None and measurement.mismatch is not None:
            noise, error = error.with_noise(noise, measurement.mismatch * measurement.y, measurement.r_inv)
        # From ȳ, where errors are not known, σ is the same everywhere, as in the paper.
        relative = error.levels() if self.settings.local_sigma and error is not None else None
        return Problem(
            *(measurement.y, measurement.phi, measurement.r_inv, priors),
            relaxation=self.settings.relaxation if self.settings.accelerate else 0.0,
            gamma=self.settings.gamma,
            noise_ratio=noise_variance_ratio(noise, measurement.r_inv, relative),
            correlated=correlated,
            relative=relative,
        )

    def _correlated(self, error: InitialErrorMap | None) -> CorrelatedResidual | None:
        """Return the data step of the first iterations; from ȳ they project, as in the paper."""
        if error is None or not self.settings.correlated:
            return None
        prior = self._masks.linear.first_iterations
        return CorrelatedResidual(prior.posterior_mean, error.moves, self.settings.correlated)

    def _interruptible(self, sigmas: Iterable[float]) -> Iterator[float]:
        """Yield each σ after calling `between`."""
        for sigma in sigmas:
            self._between()
            yield sigma


def _moving_pattern(calibration: Calibration, seq: int) -> Snapshot:
    """Return a snapshot of waves that move fast enough to begin at levels of σ that real scenes begin at."""
    rows, columns = np.ogrid[: calibration.shape[0], : calibration.shape[1]]
    counts = np.zeros(calibration.shape, np.float32)
    for b, mask in enumerate(calibration.phi):
        moved = 1.5 * (b + seq * calibration.n_frames)
        frame = 0.5 + 0.3 * np.sin((columns - moved) / 3) * np.cos(rows / 2)
        counts += mask * frame.astype(np.float32)
    counts_dn = np.asarray(calibration.dark + calibration.full_scale_dn * counts, np.float32)
    return calibration.snapshot("warm-up", seq, counts_dn)
