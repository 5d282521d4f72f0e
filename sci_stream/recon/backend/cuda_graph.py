"""An iteration recorded once and replayed: one launch instead of some fifty.

A GPU runs the kernels of an iteration on a small video in less time than the host takes to launch them one by one. A
CUDA graph holds them all, with the addresses they read and write. So whatever changes from one iteration to the next
lives in tensors that stay where they are: the state v, y_acc and m, the measurement, and σ as a scalar on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch

from sci_stream.ports import RecordableDenoiser
from sci_stream.recon.algorithms.gap import CorrelatedResidual, PosteriorMean, Problem, State, gap_step
from sci_stream.recon.algorithms.noise_level import NoiseLevel
from sci_stream.recon.denoisers.temporal import IterationDenoiser

Replay = Callable[[], None]
Recorder = Callable[[Callable[[], None]], Replay]
"""Takes work on tensors that stay where they are; returns how to do it again."""

MOST_PIXELS = 2**26
"""Pixels of a video above which nothing is recorded: its iterations take so long that launching them costs nothing,
and a recording holds four more videos."""


@dataclass(slots=True, eq=False)
class _Recording:
    """The tensors an iteration reads and writes, and how to run it once more."""

    v: torch.Tensor
    y_acc: torch.Tensor
    d: torch.Tensor
    y: torch.Tensor
    r_inv: torch.Tensor
    phi: torch.Tensor
    noise_ratio: torch.Tensor | None
    where: torch.Tensor | None
    relative: torch.Tensor | None
    sigma: torch.Tensor
    x: torch.Tensor | None
    replay: Replay = lambda: None
    loaded: list[torch.Tensor | None] = field(default_factory=list)
    """Sources that v, y_acc, y, r_inv, noise_ratio, where and relative were last filled from, or their outputs."""

    def load(self, tensors: tuple[torch.Tensor | None, ...]) -> None:
        """Fill the inputs, passing over those that hold their value already."""
        own = (self.v, self.y_acc, self.y, self.r_inv, self.noise_ratio, self.where, self.relative)
        for n, (target, value) in enumerate(zip(own, tensors, strict=True)):
            if self.loaded[n] is not value and target is not None and value is not None:
                target.copy_(value)
                self.loaded[n] = value


class CudaGraphStep:
    """Replace `sci_stream.recon.algorithms.gap.gap_step` on a GPU by replaying a recording per shape and prior.

    Iterations that cannot be recorded are done step by step, and `fault` says why: the first of a solve always is, as
    it has no estimate before it.

    Parameters
    ----------
    denoiser
        The prior that ``denoise`` calls. Levels of σ of the same form share a recording.
    recorder
        How to record; `record_cuda_graph` bound to a device.
    """

    def __init__(self, denoiser: RecordableDenoiser, recorder: Recorder) -> None:
        self.fault = ""
        self._denoiser = denoiser
        self._recorder = recorder
        self._recordings: dict[tuple[Hashable, ...], _Recording] = {}
        self._posterior_mean: PosteriorMean | None = None

    @property
    def recordings(self) -> int:
        """How many iterations are held recorded."""
        return len(self._recordings)

    def give_up(self, why: str) -> bool:
        """Let go of all recordings and make no more; return whether there were any."""
        held = bool(self._recordings)
        self.fault = self.fault or f"iterations are not recorded: {why}"
        self._recordings.clear()
        return held

    def __call__(self, state: State, sigma: float, problem: Problem) -> State:
        """Do one iteration, as `gap_step` does. The new state's d is a tensor of its own; v and y_acc are not."""
        if state.d is None or self.fault or state.v.numel() > MOST_PIXELS:
            return gap_step(state, sigma, problem)
        prior = problem.denoise(state.iteration)
        graph_key = prior.graph_key(sigma) if isinstance(prior, IterationDenoiser) else self._denoiser.graph_key(sigma)
        correlated = problem.correlated_at(state.iteration)
        posterior_mean = None if correlated is None else correlated.posterior_mean
        if (
            posterior_mean is not None and posterior_mean != self._posterior_mean
        ):  # of other masks: those before are not met again
            self._posterior_mean = posterior_mean
            self._recordings = {key: held for key, held in self._recordings.items() if key[-1] is None}
        key = (
            state.v.shape,
            state.v.dtype,
            id(problem.phi),
            prior,
            graph_key,
            problem.relaxation,
            problem.observed,
            problem.noise_ratio is None,
            problem.relative is None,
            posterior_mean,
        )
        if key not in self._recordings:
            try:
                self._recordings[key] = _record(state, sigma, problem, self._recorder)
            except RuntimeError as error:  # no memory for it, or an operation that a graph cannot hold
                self.give_up(str(error).partition("\n")[0])
                return gap_step(state, sigma, problem)
        recording = self._recordings[key]
        where = None if correlated is None else correlated.where
        now = problem.y, problem.r_inv, problem.noise_ratio, where, problem.relative
        recording.load((state.v, state.y_acc, *now))
        recording.sigma.fill_(sigma)
        recording.replay()
        recording.loaded[:2] = [recording.v, recording.y_acc]
        x = recording.x.clone() if recording.x is not None else None
        return State(recording.v, recording.y_acc, recording.d.clone(), x, state.iteration + 1)


def _record(state: State, sigma: float, problem: Problem, recorder: Recorder) -> _Recording:
    """Record an iteration on copies of its inputs, which the state after it is written back to."""
    v, y_acc, y, r_inv = map(_own, (state.v, state.y_acc, problem.y, problem.r_inv))
    optional = (problem.noise_ratio, problem.relative)
    noise_ratio, relative = (None if image is None else _own(image) for image in optional)
    correlated = problem.correlated_at(state.iteration)
    where = None if correlated is None else _own(correlated.where)
    d = torch.empty_like(v)
    recording = _Recording(
        *(v, y_acc, d, y, r_inv, problem.phi, noise_ratio, where, relative),
        sigma=problem.y.new_full((), sigma),
        x=torch.empty_like(v) if problem.observed else None,
        loaded=[None] * 7,
    )
    own_problem = problem._replace(
        y=y,
        r_inv=r_inv,
        noise_ratio=noise_ratio,
        relative=relative,
        priors=(problem.denoise(state.iteration),),
        correlated=None
        if correlated is None or where is None
        else CorrelatedResidual(correlated.posterior_mean, where, 1),
    )
    level = NoiseLevel(sigma, recording.sigma)

    def once() -> None:
        after = gap_step(State(v, y_acc, None), level, own_problem)
        assert after.d is not None
        v.copy_(after.v)
        y_acc.copy_(after.y_acc)
        d.copy_(after.d)
        if recording.x is not None and after.x is not None:
            recording.x.copy_(after.x)

    recording.replay = recorder(once)
    return recording


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a recording's own, contiguous."""
    return tensor.clone(memory_format=torch.contiguous_format)


def record_cuda_graph(device: torch.device) -> Recorder:
    """Return a recorder of CUDA graphs on a device."""

    def record(work: Callable[[], None]) -> Replay:
        with torch.cuda.device(device):
            side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                for _ in range(3):  # libraries load, choose their ways and allocate, none of which can be recorded
                    work()
            torch.cuda.current_stream(device).wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Of this thread only: others may copy and allocate meanwhile.
            with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                work()
        return graph.replay

    return record
