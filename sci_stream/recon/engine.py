"""The engine: what a reconstruct node holds. Calibration and prior on the device; a snapshot in, a video out."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sci_stream.errors import CalibrationError
from sci_stream.model import Array, Snapshot, SnapshotId, SolveReport, Start
from sci_stream.optics import bayer as bayer_planes
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.forward import forward, gram_diag, inverse_gram
from sci_stream.optics.mask_shift import NO_DISPLACEMENT, Displacement, displace, unknown
from sci_stream.ports import Denoiser, MemoryReducible, RecordableDenoiser
from sci_stream.recon.algorithms.gap import CorrelatedResidual, Step, cold_start, gap_step
from sci_stream.recon.algorithms.schedule import AnytimeSchedule, Budget
from sci_stream.recon.backend.async_solve import AsyncSolve
from sci_stream.recon.backend.cuda_graph import CudaGraphStep, record_cuda_graph
from sci_stream.recon.backend.device import describe_device
from sci_stream.recon.backend.memory import within_memory
from sci_stream.recon.backend.transfers import Stopwatch, Transfers, solve_clock
from sci_stream.recon.budget import BudgetController
from sci_stream.recon.denoisers.temporal import ending_in_full, priors_in_turn
from sci_stream.recon.factory import SOLVERS, make_rule, make_solver
from sci_stream.recon.initialization.initializer import Initializer, InitialState, gentle
from sci_stream.recon.initialization.lmmse import LinearStart
from sci_stream.recon.initialization.trust_region import TrustRegion, round_to_end_after
from sci_stream.recon.initialization.warm_start import Coded
from sci_stream.recon.settings import SolverSettings, default_settings

__all__ = ["SOLVERS", "Budget", "BudgetController", "Engine", "SolverSettings", "default_settings"]

Watch = Callable[[torch.Tensor], None]
"""Shown the video as it is after an iteration; must not write to it."""

_DARK = 1e-6
"""Root mean square of y, in units of scene brightness, below which a relative residual means nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """A snapshot on the device, by planes P (1, or the mosaic's 4): all are (P, h, w). No noise: it is not known."""

    y: torch.Tensor
    r_inv: torch.Tensor
    start_r_inv: torch.Tensor
    noise: torch.Tensor | None
    saturated_fraction: float


@dataclass(frozen=True, slots=True, eq=False)
class _Solved:
    """What was asked of the device: the planes (P, B, h, w), ‖y − Φv‖₂/‖y‖₂, and whether all came out finite.

    ``ended_early``: not for want of time, but because there was little left to correct.
    """

    planes: torch.Tensor
    residual: torch.Tensor
    finite: torch.Tensor
    iterations: int
    ended_early: bool


class Engine:
    """Reconstruct snapshots of one calibration with one prior on one device. Used from one thread.

    With ``settings.warm_start`` it remembers the video of the last snapshot and begins from it when the next one that
    it is given directly continues it; otherwise each result depends on its snapshot alone.

    Parameters
    ----------
    calibration
        The masks and scale; copied to the device once.
    denoiser
        The prior, already on the device.
    device
        Where to compute.
    settings
        How to solve when no budget says otherwise.
    video_dtype
        Of the videos it hands out: float32, or float16, which halves what is copied from a GPU.
    between
        Called before each iteration; what it raises ends the solve.

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
    ) -> None:
        self.calibration = calibration
        self.settings = settings
        self.device = device
        self._denoiser = denoiser
        self._priors = priors_in_turn(denoiser, calibration.n_frames, device, along_time=settings.along_time)
        self._step: Step = gap_step
        if device.type == "cuda" and isinstance(denoiser, RecordableDenoiser):
            self._step = CudaGraphStep(denoiser, record_cuda_graph(device))
        self._solve = {
            Start.COLD: make_solver(settings, self._step),
            Start.WARM: make_solver(gentle(settings), self._step),
        }
        self._transfers = Transfers(device)
        self._video_dtype = video_dtype
        self._between = between
        self._iteration_s: float | None = None
        self._starter = Initializer(settings)
        self._start_s = 0.0
        self._phi = torch.empty(0)
        self._solving = False
        self._displacement: Displacement | None = None
        self._masks_at = ""
        self.displace_masks(NO_DISPLACEMENT)

    def displace_masks(self, displacement: Displacement) -> None:
        """Take the masks to be displaced from where they were calibrated, from the next snapshot on.

        They are placed as exactly as reports can tell, see `Displacement.rounded`. May be called between the iterations
        of a solve, which goes on with the masks that it began with.

        Raises
        ------
        DeviceMemoryError
            If the device runs out of memory.
        """
        if self._solving:
            self._displacement = displacement
            return
        calibration, displacement = self.calibration, displacement.rounded()
        with within_memory(calibration, self.device):
            # A copy: the calibration's arrays are read-only, which torch does not know.
            phi = torch.from_numpy(calibration.phi.copy()).to(self.device)
            phi = self._planes(phi if displacement.is_none else displace(phi, displacement))
            # Recorded iterations know the masks by where they are in memory: there they stay.
            self._phi = self._phi.copy_(phi) if self._phi.shape == phi.shape else phi
            good = ~unknown(displacement, calibration.shape)
            if calibration.bad_pixels is not None:
                good &= torch.from_numpy(~calibration.bad_pixels)
            self._r_inv = inverse_gram(gram_diag(self._phi), self._planes(good.to(self.device)))
            self._linear = LinearStart(self._phi, self._r_inv)
            self._masks_at = displacement.to_text

    def spare_memory(self) -> bool:
        """Give back what the next solve can do without, and have it take less at once, if more slowly.

        Returns
        -------
        Whether there was anything to spare; may be asked again while there is.
        """
        spared = self._starter.forget("memory")
        if isinstance(self._step, CudaGraphStep):
            spared |= self._step.give_up("memory ran out")
        if isinstance(self._denoiser, MemoryReducible):
            spared |= self._denoiser.spare_memory()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return spared

    @property
    def description(self) -> str:
        """The device in words."""
        return describe_device(self.device)

    @property
    def fault(self) -> str:
        """What keeps the engine from its full speed; empty if nothing does."""
        return self._step.fault if isinstance(self._step, CudaGraphStep) else ""

    @property
    def start_s(self) -> float:
        """Seconds that finding the start of the last snapshot took, where the device had nothing else to finish."""
        return self._start_s

    def forget(self, reason: str = "first") -> None:
        """Begin the next snapshot cold, and say this word of why."""
        self._starter.forget(reason)

    def warm_up(self) -> float:
        """Solve a dark snapshot, so that the first real one finds libraries loaded and memory allocated.

        Returns
        -------
        Seconds that one iteration takes, measured after the first solve.
        """
        dark = Snapshot(
            id=SnapshotId("warm-up", 0, 0),
            counts=np.array(self.calibration.dark),
            calibration_hash=self.calibration.hash,
            n_frames=self.calibration.n_frames,
            host_time_ns=0,
        )
        budget = Budget(self.settings.min_iterations)
        # On a GPU every kind of turn is recorded here, the first one's when it comes round again.
        once_round = len(self._priors) + 1 if self.device.type == "cuda" else 1
        self.reconstruct(dark, Budget(max(budget.iterations, once_round)))
        _, report = self.reconstruct(dark, budget)
        self.forget()
        return report.solve_ns / 1e9 / report.iterations

    def reconstruct(
        self, snapshot: Snapshot, budget: Budget | None = None, *, watch: Watch | None = None
    ) -> tuple[npt.NDArray[np.floating[Any]], SolveReport]:
        """Recover the B frames behind a snapshot.

        Parameters
        ----------
        snapshot
            Must be of the engine's calibration. Where it carries the truth, the report says the PSNR.
        budget
            What it may cost; None for the settings' iterations and no limit of time.
        watch
            Shown the estimate of every iteration, (B, H, W) on the device; its time counts.

        Returns
        -------
        video, report
            (B, H, W) in host memory, nominally 0–1, not clipped, finite, a Bayer mosaic if the calibration is one;
            owned by the caller.

        Raises
        ------
        CalibrationError
            If the snapshot or its truth does not fit the calibration.
        DeviceMemoryError
            If the device runs out of memory: `spare_memory` may help.
        """
        return self.begin(snapshot, budget, watch=watch).finish()

    def begin(self, snapshot: Snapshot, budget: Budget | None = None, *, watch: Watch | None = None) -> AsyncSolve:
        """Ask for a reconstruction: `reconstruct`, without waiting for the device where nothing needs to be waited for.

        On a GPU the next one may be begun before this one is finished: its snapshot is copied in while this one is
        solved, and this one's video is copied out while the next is. A budget with a limit of time has to be watched,
        and returns with the last iteration asked for. On a CPU the solve is over when this returns.
        """
        check_fit(snapshot, self.calibration)
        if self._displacement is not None:
            displacement, self._displacement = self._displacement, None
            self.displace_masks(displacement)
        budget = budget or Budget(self.settings.iterations)
        stopwatch, began_s = Stopwatch(self.device), time.perf_counter()
        on_device = torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()
        self._solving = True
        try:
            with within_memory(self.calibration, self.device), torch.inference_mode(), on_device:
                stopwatch.lap()
                measured = self._measure(snapshot.counts)
                beginning = self._beginning(snapshot, measured, budget)
                solved = self._iterate(measured, beginning, budget, began_s, watch)
                self._starter.keep(snapshot, solved.planes, solved.finite)
                video = self._merged(solved.planes).to(self._video_dtype)
                stopwatch.lap()
                facts = torch.stack([solved.residual, solved.finite.to(solved.residual.dtype)])
                arrival = self._transfers.download(video, facts)
        finally:
            self._solving = False
        report = SolveReport(
            iterations=solved.iterations,
            start=beginning.start,
            start_reason=beginning.reason,
            budget_limited=not solved.ended_early and solved.iterations < self.settings.iterations,
            solve_ns=0,
            residual=0.0,
            saturated_fraction=measured.saturated_fraction,
            masks_at=self._masks_at,
        )
        return AsyncSolve(arrival, report, snapshot.truth, stopwatch, self._learn)

    def _learn(self, solve_s: float, report: SolveReport) -> None:
        """Remember what an iteration takes, for planning the next solve."""
        self._iteration_s = solve_s / report.iterations

    def _measure(self, counts: Array) -> _Measured:
        """Bring a snapshot to the device and tell which of its pixels hold."""
        y = self._transfers.upload(self.calibration.measurement(counts))
        valid = torch.isfinite(y)
        y = torch.where(valid, y, 0.0)
        # Where clipped, y is wrong, and yet the best guess of how bright the start should be there.
        start_r_inv = self._r_inv * self._planes(valid)
        saturated_fraction = 0.0
        if self.calibration.saturation_dn is not None:
            saturated = counts >= self.calibration.saturation_dn
            saturated_fraction = float(np.mean(saturated))
            valid &= self._transfers.upload(~saturated)
        r_inv = self._r_inv * self._planes(valid)
        y = self._planes(y)
        return _Measured(y, r_inv, start_r_inv, self._noise(y), saturated_fraction)

    def _noise(self, y: torch.Tensor) -> torch.Tensor | None:
        """Return the variance of the noise of y, where it is known and to be heeded."""
        noise = self.calibration.noise if self.settings.weigh_noise else None
        return None if noise is None else y.clamp_min(0.0).mul_(noise[1]).add_(noise[0])

    def _beginning(self, snapshot: Snapshot, measured: _Measured, budget: Budget) -> InitialState:
        """Find where to begin, and note what that took."""
        began_s = time.perf_counter()
        still = cold_start(measured.y, self._phi, measured.start_r_inv)
        coded = Coded(measured.y, self._phi, measured.r_inv, measured.noise)
        beginning = self._starter.begin(snapshot, coded, still, self._linear, budget.iterations)
        self._start_s = time.perf_counter() - began_s
        return beginning

    def _iterate(
        self, measured: _Measured, beginning: InitialState, budget: Budget, began_s: float, watch: Watch | None
    ) -> _Solved:
        """Run the solver from where to begin until the budget is spent."""
        settings = dataclasses.replace(
            self.settings, sigma_first=beginning.sigma_first, sigma_last=beginning.sigma_last
        )
        y, r_inv = measured.y, measured.r_inv
        rule, observe = make_rule(settings, y, self._phi, r_inv)
        ladder = AnytimeSchedule(
            settings.schedule,
            budget,
            min_iterations=settings.min_iterations,
            iteration_s=self._iteration_s,
            clock=solve_clock(self.device),
            started_s=began_s,
            rule=rule,
        )
        restraint = None
        if settings.restrain and beginning.error is not None:
            enough = round_to_end_after(len(self._priors), budget.iterations)
            restraint = TrustRegion(beginning.v, beginning.error, lambda: ladder.end_after(enough))
        iterates = self._solve[beginning.start](
            beginning.v,
            y,
            self._phi,
            r_inv,
            denoise=ending_in_full(self._priors, budget.iterations),
            sigmas=self._watched(ladder, restraint),
            noise=measured.noise,
            correlated=self._correlated(beginning),
            relative=self._levels(beginning),
            observe=observe,
        )
        if restraint is not None:
            iterates = restraint.watched(iterates)
        if watch is not None:
            iterates = self._shown(iterates, watch, restraint)
        (estimate,) = deque(iterates, maxlen=1)
        # Better the still image, said to be one, than a frame of NaN or a dead node.
        finite = estimate.isfinite().all()
        if restraint is not None:
            estimate = restraint.held(estimate)
        estimate = torch.where(finite, estimate, beginning.still)
        ended_early = restraint is not None and restraint.ended_early
        return _Solved(estimate, self._residual(estimate, y, r_inv), finite, ladder.taken, ended_early)

    def _correlated(self, beginning: InitialState) -> CorrelatedResidual | None:
        """Return how the first iterations explain what is left; from ȳ they project, as in the paper."""
        if beginning.error is None or not self.settings.correlated:
            return None
        return CorrelatedResidual(
            self._linear.first_iterations.explain, beginning.error.moves, self.settings.correlated
        )

    def _levels(self, beginning: InitialState) -> torch.Tensor | None:
        """Return σ at each pixel as a multiple of σ; from ȳ it is the same everywhere, as in the paper."""
        return beginning.error.levels() if self.settings.local_sigma and beginning.error is not None else None

    def _watched(self, sigmas: Iterable[float], restraint: TrustRegion | None) -> Iterator[float]:
        """Hand σ on, restrained, calling `between` before each iteration."""
        for sigma in sigmas:
            self._between()
            yield sigma if restraint is None else restraint.sigma(sigma)

    def _shown(
        self, iterates: Iterator[torch.Tensor], watch: Watch, restraint: TrustRegion | None
    ) -> Iterator[torch.Tensor]:
        """Pass the iterates through, each shown on its way as it would be handed out if it were the last."""
        for estimate in iterates:
            watch(self._merged(estimate if restraint is None else restraint.held(estimate)))
            yield estimate

    def _residual(self, v: torch.Tensor, y: torch.Tensor, r_inv: torch.Tensor) -> torch.Tensor:
        """Return ‖y − Φv‖₂/‖y‖₂ over the pixels that take part in the projection."""
        part = r_inv > 0
        difference: torch.Tensor = torch.linalg.vector_norm((y - forward(self._phi, v)) * part)
        norm: torch.Tensor = torch.linalg.vector_norm(y * part).clamp_min(_DARK * y.numel() ** 0.5)
        return difference / norm

    def _planes(self, image: torch.Tensor) -> torch.Tensor:
        """Put the plane dimension first: four planes of a mosaic, or the one there is."""
        return image.unsqueeze(0) if self.calibration.bayer is None else bayer_planes.split(image)

    def _merged(self, planes: torch.Tensor) -> torch.Tensor:
        return planes.squeeze(0) if self.calibration.bayer is None else bayer_planes.merge(planes)


def check_fit(snapshot: Snapshot, calibration: Calibration) -> None:
    """Raise if a snapshot, or the truth that it carries, is not of a calibration.

    Raises
    ------
    CalibrationError
        Saying what does not fit.
    """
    what = f"Snapshot {snapshot.id.seq} of series {snapshot.id.series!r} does not fit the calibration"
    if snapshot.counts.shape != calibration.shape:
        raise CalibrationError(
            what, expected=f"{calibration.shape} pixels, as its masks have", got=snapshot.counts.shape
        )
    if snapshot.n_frames != calibration.n_frames:
        raise CalibrationError(
            what,
            expected=f"{calibration.n_frames} frames per snapshot, one for each of its masks",
            got=f"{snapshot.n_frames} frames",
        )
    if snapshot.calibration_hash != calibration.hash:
        raise CalibrationError(
            what,
            expected=f"hash {calibration.hash} (the engine's)",
            got=f"hash {snapshot.calibration_hash} (the snapshot's)",
            hint="Give the reconstruct node the calibration with which the snapshot was acquired.",
        )
    if snapshot.bayer is not None and snapshot.bayer is not calibration.bayer:
        raise CalibrationError(
            what,
            expected=f"Bayer phase {calibration.bayer or 'none'} (the calibration's)",
            got=f"{snapshot.bayer} (the snapshot's)",
        )
    video_shape = (calibration.n_frames, *calibration.shape)
    if snapshot.truth is not None and snapshot.truth.shape != video_shape:
        raise CalibrationError(
            f"The truth of snapshot {snapshot.id.seq} has a wrong shape",
            expected=video_shape,
            got=snapshot.truth.shape,
        )
