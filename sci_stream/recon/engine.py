"""The engine: calibration and prior on a device; a snapshot in, a video out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sci_stream.calibration.compatibility import require_matching_snapshot
from sci_stream.model import F32, Flags, Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.ports import (
    Abilities,
    Coded,
    LocalDenoiser,
    MemoryReducible,
    Reconstructor,
    SeriesReconstructor,
    Solver,
    VideoDenoiser,
)
from sci_stream.recon.algorithms.gap import (
    Anchor,
    CorrelatedResidual,
    Problem,
    data_step,
    gap,
    noise_variance_ratio,
)
from sci_stream.recon.algorithms.noise_level import Sigma
from sci_stream.recon.algorithms.schedule import step_shares
from sci_stream.recon.backend.async_solve import AsyncSolve
from sci_stream.recon.backend.cuda_graph import (
    Graphs,
    Recorder,
    is_recordable,
    record_cuda_graph,
    rungs,
    why_not_recorded,
)
from sci_stream.recon.backend.fusion import Compiler, Fusion, compile_on_gpu
from sci_stream.recon.backend.memory import within_memory
from sci_stream.recon.backend.transfers import Stopwatch, Transfers
from sci_stream.recon.budget import SolveCosts
from sci_stream.recon.denoisers.colours import suited_to_colours
from sci_stream.recon.denoisers.temporal import (
    FrameDenoiser,
    IterationDenoiser,
    cycled_denoisers,
    ending_on_frames,
)
from sci_stream.recon.initialization.error_map import InitialErrorMap
from sci_stream.recon.initialization.filling import LEAST_SHARE, filled
from sci_stream.recon.initialization.initializer import (
    REASONS,
    Initializer,
    InitialState,
    Past,
    coded,
    levels_from,
)
from sci_stream.recon.mask_stack import MaskStack
from sci_stream.recon.measurement import Measurement
from sci_stream.recon.moving_look import (
    NO_LOOK,
    MovingFields,
    MovingLook,
    look_for_moving_image,
)
from sci_stream.recon.noise_estimation import estimate_noise
from sci_stream.recon.settings import SolverSettings
from sci_stream.recon.warm_up import WarmUp
from sci_stream.reports import SolveReport

Watch = Callable[[Tensor], None]
"""Called with the video after each iteration; must not write to it."""

# Counts beyond this multiple of full scale are no light: such pixels are left out, as those that
# are not finite, since squares of floats near the largest overflow.
_MAX_Y = 1e6


class Estimate(NamedTuple):
    """The result of a solve on the device.

    ``planes`` (P, B, h, w); ``video`` (B, H, W) in the engine's dtype; ``finite``, (): False if the
    solve diverged, and ``planes`` is the still image instead; ``facts``, (6,): the residual ‖y −
    Φv‖₂/‖y‖₂, ``finite``, the place of the reason for the start in `REASONS`, the noise and its
    part due to the masks (`SolveReport`), NaN if unknown, and the residual before the data step.
    """

    planes: Tensor
    video: Tensor
    finite: Tensor
    facts: Tensor


class Tail(NamedTuple):
    """The end of a solve, which a `SeriesReconstructor` repeats with the snapshots beside it.

    ``turns`` are those of its masks, see `MaskStack`.
    """

    engine: Engine
    measurement: Measurement
    problem: Coded
    steps: int
    turns: tuple[int, ...]


class Engine:
    """Reconstruct snapshots of one calibration with one solver on one device. Used from one thread.

    With ``settings.warm_start`` it keeps the video of the last snapshot and starts from it if the
    next snapshot directly continues it; otherwise each result depends on its snapshot alone.

    Parameters
    ----------
    calibration
        The masks and scale; copied to the device once.
    solver
        A denoiser, or a reconstructor, already on the device.
    device
        Where to compute.
    settings
        Solver settings, with the iterations to use without a budget.
    video_dtype
        Of the returned videos: float32, or float16, which halves the copy from a GPU.
    between
        Called before each iteration; an exception that it raises ends the solve.
    recorder
        How work on the device is recorded to be replayed. None for CUDA graphs on a GPU where
        ``cuda_graphs``, and nothing elsewhere.
    compiler
        How operations are fused; None for torch's compiler on a GPU, and nothing elsewhere.
    cuda_graphs
        False to launch each operation.

    Raises
    ------
    DeviceMemoryError
        If the calibration does not fit into the device's memory.
    """

    def __init__(
        self,
        calibration: Calibration,
        solver: Solver,
        device: torch.device,
        settings: SolverSettings,
        *,
        video_dtype: torch.dtype = torch.float32,
        between: Callable[[], None] = lambda: None,
        recorder: Recorder | None = None,
        compiler: Compiler[..., object] | None = None,
        cuda_graphs: bool = True,
    ) -> None:
        self.calibration = calibration
        self.device = device
        self._solver = solver
        self._network = solver if isinstance(solver, Reconstructor) else None
        self._abilities = (
            solver.abilities if isinstance(solver, Reconstructor) else Abilities(solver, steps=0)
        )
        self._denoiser = self._abilities.before
        self.settings = self._possible(settings)
        self._mosaics = False
        if self._denoiser is not None:
            self._denoiser, self._mosaics = suited_to_colours(self._denoiser, calibration.bayer)
        self._recordable = is_recordable(solver)
        if recorder is None and device.type == "cuda":
            recorder = record_cuda_graph(device)
            compiler = compiler or compile_on_gpu
        self._graphs = Graphs(recorder)
        if self._graphs.active and (
            why_not := why_not_recorded(solver, calibration.phi.size, cuda_graphs=cuda_graphs)
        ):
            self._graphs.give_up(why_not)
        self._fusion = Fusion(compiler)
        self._prepare = self._fusion(self.prepare)
        self._begin_start = self._fusion(self._start)
        self._data_step = self._fusion(data_step)
        # Tensors: the compiler would make a version of its own for each calibration's numbers.
        noise = calibration.noise
        self._noise = None if noise is None else torch.tensor(noise, device=device).unbind()
        self._transfers = Transfers(device)
        self._video_dtype = video_dtype
        self._between = between
        self.costs = SolveCosts()
        """Seconds that solves take, measured."""
        self._initializer = Initializer(self.settings)
        with within_memory(calibration, device, solver):
            one_turn = self._abilities.frames is not None
            self.masks = MaskStack(calibration, device, one_turn=one_turn)
            """The masks as corrected."""
        self._priors = self._cycle()
        self._fill = self._filling()
        self.seeks_moving_image = False
        """Whether solves end with `sci_stream.recon.moving_image`, if the settings have it."""
        self.keeps_tail = False
        """Whether `tail` is kept, if the solver can solve a series jointly."""
        self.tail: Tail | None = None
        """The end of the last solve."""
        self._solving = False
        self._correction: MaskCorrection | None = None
        self.left_out: Flags | None = None
        """Pixels, (H, W), that are left out from the next snapshot on, besides the calibration's
        bad ones."""

    def correct_masks(self, correction: MaskCorrection) -> None:
        """Correct the calibrated masks and black level, from the next snapshot on.

        The precision is that of reports, see `MaskCorrection.rounded`. May be called between the
        iterations of a solve, which continues with the masks that it started with.

        Raises `DeviceMemoryError` if the device runs out of memory.
        """
        if self._solving:
            self._correction = correction
            return
        turns = self.masks.turns
        with within_memory(self.calibration, self.device, self._solver):
            self.masks.correct(correction)
        if self.masks.turns != turns:
            self.forget("calibration")
            self._graphs.clear()
            if self._fusion.on:  # they would compile the making of the new estimator
                self._fusion.stop("masks are exposed for several frames")
            self._priors = self._cycle()

    def _possible(self, settings: SolverSettings) -> SolverSettings:
        """Return settings without those that the solver has no use for."""
        if self._denoiser is None:
            steps = self._abilities.steps
            settings = replace(settings, iterations=steps, min_iterations=steps)
        if self._network is not None and not self._abilities.start:
            settings = replace(settings, linear_start=False, warm_start=False)
        return settings

    def _cycle(self) -> tuple[IterationDenoiser, ...]:
        """Return the denoisers of the iterations in turn, for as many frames as the masks have."""
        if self._denoiser is None:
            return ()
        return cycled_denoisers(
            self._denoiser,
            self.masks.phi.shape[1],
            self.device,
            along_time=self.settings.along_time,
            mosaics=self._mosaics,
        )

    def _filling(self) -> FrameDenoiser | None:
        """Return the denoiser that fills pixels of still images; None where too few need it."""
        denoiser = self._denoiser
        if denoiser is None or isinstance(denoiser, VideoDenoiser):
            return None
        few = float(self.calibration.blind.mean()) < LEAST_SHARE
        if few or not self.settings.linear_start:
            return None
        return FrameDenoiser(denoiser, mosaics=self._mosaics)

    def change_settings(self, settings: SolverSettings) -> None:
        """Solve with other numbers of iterations from the next snapshot on; all else must be as it
        was.

        Solves are recorded again when the next one is due.
        """
        settings = self._possible(settings)
        if settings != self.settings:
            self._graphs.clear()
        self.settings = settings

    def reduce_memory(self) -> bool:
        """Release memory that the next solve can do without, and use smaller batches.

        Returns
        -------
        Whether anything was released; if so, another call may release more.
        """
        released = self._initializer.forget("memory")
        released |= self._graphs.give_up("memory ran out")
        parts: tuple[object, ...] = (self._denoiser, self._network)
        for part in parts:
            released |= isinstance(part, MemoryReducible) and part.reduce_memory()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return released

    @property
    def at_once(self) -> bool:
        """Whether a network recovers all frames at once, without iterations."""
        return self._denoiser is None

    @property
    def fault(self) -> str:
        """Why the engine runs below full speed; empty if it does not."""
        return "; ".join(filter(None, (self._graphs.fault, self._fusion.fault)))

    def forget(self, reason: str = "first") -> None:
        """Start the next snapshot cold, for this reason."""
        self._initializer.forget(reason)

    @property
    def recordings(self) -> int:
        """Number of recordings that can be replayed."""
        return len(self._graphs)

    def warm_up(self) -> SolveCosts:
        """Solve two snapshots of a moving pattern, so that the first real one finds everything
        prepared.

        Libraries are loaded and memory is allocated. Where solves are recorded, all of them are
        recorded here: with either start, and of each number of iterations that is used under load.
        Their operations are fused first if that is faster.

        Returns
        -------
        `costs`, measured when everything is prepared.
        """
        self.costs = WarmUp(self, self._graphs, self._fusion).measure(self._abilities)
        return self.costs

    def reconstruct(
        self, snapshot: Snapshot, iterations: int | None = None, *, watch: Watch | None = None
    ) -> tuple[npt.NDArray[np.floating[Any]], SolveReport]:
        """Recover the B frames behind a snapshot.

        Parameters
        ----------
        snapshot
            Must belong to the engine's calibration. If it contains the truth, the report has the
            PSNR.
        iterations
            Most to spend, ≥ 1; None for those of the settings. Where solves are recorded for some
            numbers of iterations, the next lower one is spent.
        watch
            Called with the estimate of every iteration, (B, H, W) on the device; its time counts.

        Returns
        -------
        video, report
            (B, H, W) in host memory, nominally 0–1, not clipped, finite; a Bayer mosaic if the
            calibration is one. The caller owns it.

        Raises
        ------
        CalibrationError
            If the snapshot or its truth does not fit the calibration.
        DeviceMemoryError
            If the device runs out of memory: `reduce_memory` may help.
        """
        return self.begin(snapshot, iterations, watch=watch).finish()

    def begin(
        self, snapshot: Snapshot, iterations: int | None = None, *, watch: Watch | None = None
    ) -> AsyncSolve:
        """Start a reconstruction, as `reconstruct`, without waiting for the device where possible.

        On a GPU the next one may be started before this one is finished: its snapshot is copied in
        while this one is solved, and this one's video is copied out while the next is solved. On a
        CPU the solve is complete when this returns.
        """
        require_matching_snapshot(snapshot, self.calibration)
        self.tail = None
        if self._correction is not None:
            correction = self._correction
            self._correction = None
            self.correct_masks(correction)
        stopwatch = Stopwatch(self.device)
        iterations = self._recorded(iterations or self.settings.iterations)
        on_device = (
            torch.cuda.device(self.device)
            if self.device.type == "cuda"
            else contextlib.nullcontext()
        )
        self._solving = True
        try:
            with (
                within_memory(self.calibration, self.device, self._solver),
                torch.inference_mode(),
                on_device,
            ):
                stopwatch.lap()
                y, saturated, saturated_fraction = self._upload(snapshot)
                past, reason = self._initializer.past(snapshot)
                tensors = (y, saturated, *(past or (None, None)))
                if watch is None and not self.keeps_tail and iterations in self.rungs:
                    self._between()
                    solve = partial(self._solved, iterations, lambda: None, None)
                    planes, video, finite, facts = self._graphs.call(iterations, solve, *tensors)
                else:
                    planes, video, finite, facts = self._solved(
                        iterations, self._between, watch, *tensors
                    )
                self._initializer.keep(snapshot, planes, finite)
                look = NO_LOOK
                if self._seeks:
                    look = self._look(self._measured(y, saturated), planes)
                    self.costs.looks.note(look.seconds, look.fields["moving_share"])
                before_image: tuple[Tensor, Tensor] | None = None
                if look.found is not None:
                    before_image = (video, facts[0])
                    video, residual = look.found
                    facts = torch.cat((residual.unsqueeze(0), facts[1:]))
                stopwatch.lap()
                arrival = self._transfers.download(video, facts)
        finally:
            self._solving = False
        report = partial(
            SolveReport,
            iterations=iterations,
            budget_limited=iterations < self.settings.iterations,
            saturated_fraction=saturated_fraction,
            masks_at=self.masks.correction.to_text,
            light_depth=self.masks.correction.light_depth,
            **look.fields,
        )
        reasons = REASONS if past is not None else (reason,)
        return AsyncSolve(
            arrival,
            report,
            snapshot.truth,
            stopwatch,
            lambda solved: self.costs.record(
                solved.iterations, solved.solve_ns / 1e9 - look.seconds
            ),
            reasons,
            before_image,
        )

    @property
    def rungs(self) -> tuple[int, ...]:
        """Numbers of iterations of which whole solves are recorded, from low to high; empty if none
        are.
        """
        return (
            rungs(self.settings.iterations, self.settings.min_iterations)
            if self._graphs.active
            else ()
        )

    def _recorded(self, iterations: int) -> int:
        """Return the largest number of iterations, at most this one, that is recorded; itself if
        none is.
        """
        if self._denoiser is None:
            return self._abilities.steps
        return max((rung for rung in self.rungs if rung <= iterations), default=iterations)

    def _upload(self, snapshot: Snapshot) -> tuple[Tensor, Tensor | None, float]:
        """Start copying a snapshot to the device.

        Returns
        -------
        Counts as y, (H, W); which are saturated, None where that is not known; and the fraction of
        these.
        """
        counts = snapshot.counts
        saturation_dn = self.calibration.saturation_dn
        measurement = self.calibration.measurement(counts)
        black = self.masks.correction.black
        if self.left_out is not None:
            measurement[self.left_out] = np.nan
        y = self._transfers.upload(measurement - np.float32(black) if black else measurement)
        if saturation_dn is None:
            return y, None, 0.0
        where = counts >= saturation_dn
        return y, self._transfers.upload(where), float(np.mean(where))

    # --- a solve: the same work live and recorded

    def _solved(  # noqa: PLR0917 - recorded calls take tensors by position
        self,
        iterations: int,
        between: Callable[[], None],
        watch: Watch | None,
        y: Tensor,
        saturated: Tensor | None,
        past: Tensor | None,
        past_finite: Tensor | None,
    ) -> Estimate:
        """Solve; no number leaves the device, unless the denoiser needs one.

        Call ``between`` before each iteration.
        """
        measurement = self._prepare(y, saturated)
        before = None if past is None or past_finite is None else Past(past, past_finite)
        start = self.initialize(measurement, before)
        still = start.still
        reason = start.reason
        iterates = self.solve(measurement, start, iterations, between)
        del start  # a whole video, which only the first iteration needs
        for estimate in iterates:
            if watch is not None:
                watch(self.masks.merged(estimate))
        *_, own_residual = measurement.figures(estimate)
        if self._abilities.data_step:
            estimate = measurement.fitted(estimate)
        # A diverged solve returns the still image, and its report says so, instead of NaN.
        finite = estimate.isfinite().all()
        planes = torch.where(finite, estimate, still)
        # A copy: the caller may write to the video, and the next solve begins with the planes.
        video = self.masks.merged(planes).to(self._video_dtype, copy=True)
        noise, mismatch, residual = measurement.figures(planes)
        figures = residual, finite.to(residual.dtype), reason, noise, mismatch, own_residual
        facts = torch.stack(figures)
        return Estimate(planes, video, finite, facts)

    def prepare(self, y: Tensor, saturated: Tensor | None = None) -> Measurement:
        """Find the valid pixels of counts as y, (H, W), and the noise.

        That is the noise of the calibration or as the snapshot shows it, whichever is larger: masks
        that shifted or blurred since calibration act as noise, which the calibrated variance does
        not contain.
        """
        measured = self._measured(y, saturated)
        if not self.settings.weigh_noise:
            return measured
        noise, mismatch = estimate_noise(measured.y, self.masks.windows, measured.r_inv)
        if self._noise is not None:
            offset, slope = self._noise
            noise = torch.maximum(noise, measured.y.clamp_min(0.0).mul_(slope).add_(offset))
            mismatch = (mismatch - slope).clamp_min_(0.0)
        return replace(measured, noise=noise, mismatch=mismatch)

    def _measured(self, y: Tensor, saturated: Tensor | None) -> Measurement:
        """Return a measurement without its noise; parameters as of `prepare`."""
        masks = self.masks
        valid = y.abs() < _MAX_Y  # false for NaN
        planes = masks.planes(torch.where(valid, y, 0.0))
        r_inv = r_inv_clipped = masks.r_inv * masks.planes(valid)
        if saturated is not None:
            r_inv = masks.r_inv * masks.planes(valid & ~saturated)
        return Measurement(planes, masks.phi, r_inv, r_inv_clipped=r_inv_clipped)

    @property
    def _seeks(self) -> bool:
        of_frames = self._denoiser is not None and not isinstance(self._denoiser, VideoDenoiser)
        return self.seeks_moving_image and self.settings.moving_image and of_frames

    def _look(
        self, measurement: Measurement, planes: Tensor, turns: tuple[int, ...] | None = None
    ) -> MovingLook:
        """Look for images that move; parameters as of `look_for_moving_image`."""
        denoiser = self._abilities.before
        assert denoiser is not None
        look = look_for_moving_image(
            measurement, planes, self.masks, denoiser, self.calibration.bayer, turns=turns
        )
        if look.found is None:
            return look
        video, residual = look.found
        return look._replace(found=(video.to(self._video_dtype), residual))

    def initialize(self, measurement: Measurement, past: Past | None = None) -> InitialState:
        """Find the start of a solve: warm, or cold without past."""
        return self._filled(self._begin_start(measurement, past), measurement)

    def _start(self, measurement: Measurement, past: Past | None) -> InitialState:
        """Find the start, but for pixels that are not measured."""
        return self._initializer.begin(measurement, self.masks.linear, past)

    def _filled(self, start: InitialState, measurement: Measurement) -> InitialState:
        """Return a start whose still image is filled where nothing is measured."""
        if self._fill is None:
            return start
        clipped = measurement.r_inv_clipped
        known = (measurement.r_inv if clipped is None else clipped) > 0
        still = filled(start.still, known, self._fill, self.settings.relaxation)
        # A warm start has pixels of the video before there.
        v = torch.where(start.v == start.still, still, start.v)
        return start._replace(v=v, still=still)

    def solve(
        self,
        measurement: Measurement,
        start: InitialState,
        iterations: int,
        between: Callable[[], None] = lambda: None,
    ) -> Iterator[Tensor]:
        """Return the estimates, (P, B, h, w), of some iterations from the start; ``between`` is
        called before each.

        The last of the iterations are those of a reconstructor.
        """
        steps = self._abilities.steps_among(iterations)
        iterations -= steps
        if self._network is not None and not iterations:
            whole = coded(measurement, start, start.v)
            return self._network.reconstruct(whole, steps, between)
        # Where the denoiser reads each level, the host waits once for the first.
        levels = levels_from(
            self.settings, start.first if self._recordable else start.first.cpu(), iterations
        )

        def sigmas() -> Iterator[Sigma]:
            for sigma in levels:
                between()
                yield sigma

        problem = self._problem(
            measurement, start.error, ending_on_frames(self._priors, iterations)
        )
        if self._mosaics and len(self._priors) > 1:
            shares = step_shares(iterations, self.calibration.fineness)
            problem = problem._replace(shares=shares)
        if start.known is not None and problem.noise_ratio is not None:
            anchor = Anchor.of(start.v, start.known, problem.noise_ratio)
            problem = problem._replace(anchor=anchor)
        estimates = gap(start.v, problem, sigmas(), self._data_step)
        if self._network is None or not steps:
            return estimates
        state = start._replace(v=start.still)  # the whole video is not kept
        finish = partial(self._network.reconstruct, steps=steps, between=between)
        if self.keeps_tail and isinstance(self._network, SeriesReconstructor):
            finish = partial(self._keeping_tail, finish, measurement, steps)
        return _finished(estimates, partial(coded, measurement, state), finish)

    def _keeping_tail(
        self,
        finish: Callable[[Coded], Iterator[Tensor]],
        measurement: Measurement,
        steps: int,
        problem: Coded,
    ) -> Iterator[Tensor]:
        """Keep what `finish_jointly` needs of a solve, and return the estimates of its steps."""
        phi = problem.phi.clone()  # corrections overwrite the masks
        measurement = replace(measurement, phi=phi)
        self.tail = Tail(self, measurement, problem._replace(phi=phi), steps, self.masks.turns)
        return finish(problem)

    def finish_jointly(self, tails: Sequence[Tail]) -> list[tuple[F32, float, MovingFields]]:
        """Repeat the last steps of the solves of consecutive snapshots, which see each other.

        Returns
        -------
        The video of each, (B, H, W), which may not be finite, its residual ‖y − Φv‖₂/‖y‖₂, and the
        motion of its image.

        Raises `DeviceMemoryError` if the device runs out of memory.
        """
        network = self._network
        assert isinstance(network, SeriesReconstructor)
        with within_memory(self.calibration, self.device, self._solver), torch.inference_mode():
            problems = [tail.problem for tail in tails]
            *_, joint = network.reconstruct_series(problems, tails[0].steps, self._between)
            finished = []
            for tail, planes in zip(tails, joint.chunk(len(tails)), strict=True):
                *_, residual = tail.measurement.figures(planes)
                video = self.masks.merged(planes, tail.turns).to(self._video_dtype)
                look = NO_LOOK
                if self._seeks:
                    look = self._look(tail.measurement, planes, tail.turns)
                video, residual = look.found or (video, residual)
                finished.append((video.cpu().numpy(), float(residual), look.fields))
        return finished

    def _problem(
        self,
        measurement: Measurement,
        error: InitialErrorMap | None,
        priors: tuple[Callable[..., Tensor], ...],
    ) -> Problem:
        """Return the problem for the algorithm, given the estimated error of the start."""
        noise = measurement.noise
        correlated = None
        # From ȳ all iterations project, as in the paper.
        if error is not None and self.settings.correlated:
            posterior_mean = self.masks.linear.first_iterations.posterior_mean
            iterations = round(self.settings.correlated / self.calibration.fineness**2)
            correlated = CorrelatedResidual(posterior_mean, error.moves, iterations)
        if error is not None and noise is not None and measurement.mismatch is not None:
            noise, error = error.with_noise(
                noise, measurement.mismatch * measurement.y, measurement.r_inv
            )
        # From ȳ, where errors are not known, σ is the same everywhere, as in the paper.
        relative = error.levels() if self.settings.local_sigma and error is not None else None
        return Problem(
            measurement.y,
            measurement.phi,
            measurement.r_inv,
            priors,
            relaxation=self.settings.relaxation,
            noise_ratio=noise_variance_ratio(noise, measurement.r_inv, relative),
            correlated=correlated,
            relative=relative if isinstance(self._denoiser, LocalDenoiser) else None,
        )


def _finished(
    iterations: Iterator[Tensor],
    problem: Callable[[Tensor], Coded],
    finish: Callable[[Coded], Iterator[Tensor]],
) -> Iterator[Tensor]:
    """Yield the estimates of iterations, at least one, and those of the steps after them."""
    for v in iterations:
        yield v
    steps = finish(problem(v))
    del v  # a whole video
    yield from steps
