"""``sci-stream bench speed``: time per iteration and snapshot by size, relative to the device's
matrix rate.
"""

from __future__ import annotations

import dataclasses
import math
import re
import resource
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sci_stream.errors import ConfigError, DeviceError
from sci_stream.model import BayerPhase, Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import Denoiser, Solver
from sci_stream.recon.algorithms.unrolled import LEAST_BEFORE, UnrolledSolver
from sci_stream.recon.backend.async_solve import AsyncSolve
from sci_stream.recon.backend.transfers import Stopwatch
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.weights import FfdnetWeights
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import SolverSettings
from sci_stream_lab.bench.environment import matrix_rate
from sci_stream_lab.bench.result import Progress
from sci_stream_lab.bench.speed.network_ways import Layers, WayTrial, time_ways

_SIZE = re.compile(r"(?P<height>\d+)x(?P<width>\d+)x(?P<frames>\d+)(?P<bayer>:bayer)?")

CHUNKS = tuple(2**n for n in range(17, 25))
"""Pixels per chunk tried by `time_chunks`."""


@dataclass(frozen=True, slots=True)
class Size:
    """Rows, columns and frames of a snapshot, and whether it is a Bayer mosaic."""

    height: int
    width: int
    n_frames: int
    bayer: bool = False

    @property
    def pixels(self) -> int:
        """Pixels of the whole video."""
        return self.height * self.width * self.n_frames

    def __str__(self) -> str:
        return f"{self.height}x{self.width}x{self.n_frames}{':bayer' if self.bayer else ''}"


SIZES = (
    Size(256, 256, 8),
    Size(512, 512, 22, bayer=True),
    Size(1100, 850, 10),
    Size(1080, 1920, 24),
)


def parse_sizes(text: str) -> tuple[Size, ...]:
    """Read ``"256x256x8,512x512x22:bayer"``: rows × columns × frames.

    Raises
    ------
    ConfigError
        If the text has another form.
    """
    sizes = []
    for part in text.split(","):
        match = _SIZE.fullmatch(part.strip())
        numbers = [int(match[key]) for key in ("height", "width", "frames")] if match else [0]
        odd = match is not None and match["bayer"] and any(n % 2 for n in numbers[:2])
        if match is None or 0 in numbers or odd:
            raise ConfigError(
                f"invalid --sizes {text!r}",
                expected="rows x columns x frames, separated by commas, a mosaic's rows and "
                "columns even: "
                "256x256x8,512x512x22:bayer",
                got=repr(part),
            )
        height, width, n_frames = numbers
        sizes.append(Size(height, width, n_frames, bayer=bool(match["bayer"])))
    return tuple(sizes)


def flop_per_pixel(weights: FfdnetWeights) -> float:
    """Return the FLOP per pixel of a network: two per tap,
    at half resolution in both directions.
    """
    return sum(2.0 * kernel.numel() for kernel in weights.kernels) / 4


@dataclass(frozen=True, slots=True)
class SizeSpeed:
    """Time at one size, or why it was skipped. Operations are counted for networks only.

    ``snapshot_ms`` is that of a stream; ``of_matrix_rate`` relates the FLOP/s to those of large
    matrix products.
    """

    size: str
    iteration_ms: float | None = None
    iterations: int | None = None
    snapshot_ms: float | None = None
    snapshots_per_s: float | None = None
    memory_mib: float | None = None
    fault: str = ""
    flop_per_iteration: float | None = None
    flop_per_s: float | None = None
    of_matrix_rate: float | None = None
    skipped: str = ""

    @property
    def tflop_per_s(self) -> float | None:
        """Rate of operations, TFLOP/s."""
        return None if self.flop_per_s is None else self.flop_per_s / 1e12

    @property
    def rate_percent(self) -> str:
        """Percentage of the matrix rate."""
        return "" if self.of_matrix_rate is None else f"{100 * self.of_matrix_rate:.0f} %"

    @property
    def iteration(self) -> str:
        """Milliseconds of an iteration, or that it was skipped."""
        return "skipped" if self.iteration_ms is None else f"{self.iteration_ms:.4g}"


@dataclass(frozen=True, slots=True)
class ChunkSpeed:
    """Time of the network alone with this many pixels per chunk."""

    pixels_per_chunk: int
    ms: float


@dataclass(frozen=True, slots=True)
class Speeds:
    """Every size; the rate of matrix products and their data type;
    the arithmetic of the denoiser.
    """

    sizes: tuple[SizeSpeed, ...]
    matrix_flop_per_s: float
    matrix_dtype: str
    arithmetic: str


def bench(
    prior: Solver,
    weights: FfdnetWeights | None,
    settings: SolverSettings,
    *,
    device: torch.device,
    sizes: Sequence[Size],
    progress: Progress,
    most_seconds: float = 120.0,
) -> Speeds:
    """Time the engine on random scenes of several sizes.

    Parameters
    ----------
    prior
        On the device.
    weights
        Its weights, to count operations; None if it is not a network.
    settings
        ``iterations`` are those of a snapshot.
    sizes
        Tried in this order. A size that would take longer than ``most_seconds``, judged by the one
        before, or that does not fit in memory is skipped with a message.
    """
    arithmetic, dtype = "float32", torch.float32
    denoiser = prior.before if isinstance(prior, UnrolledSolver) else prior
    if isinstance(denoiser, FfdnetDenoiser):
        arithmetic, dtype = _arithmetic(denoiser)
    rate = matrix_rate(device, dtype)
    progress(f"matrix product, {str(dtype).removeprefix('torch.')}: {rate / 1e12:.3g} TFLOP/s")
    rows: list[SizeSpeed] = []
    s_per_pixel = 0.0  # and iteration
    for size in sizes:
        plan = _plan(settings, device, size)
        expected_s, began_s = s_per_pixel * size.pixels * plan.iterations, time.perf_counter()
        if expected_s > most_seconds:
            row = SizeSpeed(str(size), skipped=f"would take about {expected_s:.0f} s")
        else:
            try:
                row = _time_size(
                    prior, weights, settings, device=device, size=size, rate=rate, plan=plan
                )
            except DeviceError as error:
                row = SizeSpeed(str(size), skipped=str(error))
        if row.iteration_ms is not None:
            # Time is nearly proportional to pixels beyond the smallest size, so the previous size
            # predicts the next.
            s_per_pixel = (time.perf_counter() - began_s) / plan.iterations / size.pixels
        rows.append(row)
        progress(f"{size}: {_summary_line(row)}")
    return Speeds(tuple(rows), rate, str(dtype).removeprefix("torch."), arithmetic)


def _arithmetic(denoiser: FfdnetDenoiser) -> tuple[str, torch.dtype]:
    """Return the number formats in use, such as ``"bfloat16 from σ = 9/255"``, and that of high
    levels.
    """
    if denoiser.half is None or math.isinf(denoiser.half_from_sigma):
        return "float32", torch.float32
    name, sigma = str(denoiser.half).removeprefix("torch."), denoiser.half_from_sigma
    return f"{name} from σ = {255 * sigma:.3g}/255" if sigma > 0 else name, denoiser.half


def _summary_line(row: SizeSpeed) -> str:
    if row.skipped:
        return f"skipped: {row.skipped}"
    return f"{row.iteration_ms:.3g} ms per iteration, {row.snapshots_per_s:.3g} snapshots/s"


@dataclass(frozen=True, slots=True)
class _TimingPlan:
    """Repeats of solves with few and with many iterations, then of a stream of snapshots, and their
    iterations.
    """

    few: int
    many: int
    times: int
    snapshots: int
    iterations: int


def _plan(settings: SolverSettings, device: torch.device, size: Size) -> _TimingPlan:
    few, many, times, snapshots = 1, 3, 1, 1
    if device.type == "cuda":
        few, many, times, snapshots = 4, LEAST_BEFORE, 5, 50 if size.pixels < 10**7 else 8
    iterations = (
        2 * settings.min_iterations + (few + many) * times + (snapshots + 1) * settings.iterations
    )
    return _TimingPlan(few, many, times, snapshots, iterations)


def _time_size(
    prior: Solver,
    weights: FfdnetWeights | None,
    settings: SolverSettings,
    *,
    device: torch.device,
    size: Size,
    rate: float,
    plan: _TimingPlan,
) -> SizeSpeed:
    on_gpu = device.type == "cuda"
    if on_gpu:
        # The peak must be that of this size: cached blocks of a larger one would count.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    engine, snapshots = _scene(prior, settings, device, size)
    # First, while the recordings are those of the settings.
    snapshot_s = _stream_s(engine, snapshots, plan.snapshots)
    # The difference of two solves removes the start and the copies, which do not belong to an
    # iteration. Both are too short for trained stages.
    few_s, many_s = (_solve_s(engine, snapshots[0], n, plan.times) for n in (plan.few, plan.many))
    iteration_s = max(many_s - few_s, 1e-9) / (plan.many - plan.few)
    flop = None if weights is None else flop_per_pixel(weights) * size.pixels
    return SizeSpeed(
        size=str(size),
        iteration_ms=1e3 * iteration_s,
        iterations=settings.iterations,
        snapshot_ms=1e3 * snapshot_s,
        snapshots_per_s=1 / snapshot_s,
        memory_mib=_memory_mib(device),
        fault=engine.fault,
        flop_per_iteration=flop,
        flop_per_s=None if flop is None else flop / iteration_s,
        of_matrix_rate=None if flop is None else flop / iteration_s / rate,
    )


def _scene(
    prior: Solver, settings: SolverSettings, device: torch.device, size: Size
) -> tuple[Engine, list[Snapshot]]:
    """Make an engine with random binary masks, warm it up, and simulate snapshots of smooth random
    scenes.
    """
    random = np.random.default_rng(0)
    shape = (size.n_frames, size.height, size.width)
    phi = random.integers(0, 2, shape, dtype=np.uint8).astype(np.float32)
    calibration = Calibration(
        phi=phi, full_scale_dn=4095.0, bayer=BayerPhase.RGGB if size.bayer else None
    )
    engine = Engine(calibration, prior, device, settings, video_dtype=torch.float16)
    snapshots = []
    rows, columns = np.mgrid[: size.height, : size.width].astype(np.float32)
    for seq in range(2):
        waves = 0.5 + 0.4 * np.sin((rows + 0.5 * seq) / 9) * np.cos(columns / 13)
        noise = 20 * random.standard_normal((size.height, size.width), dtype=np.float32)
        counts = np.clip(4095 * waves * phi.sum(0) + noise, 0, 65535).astype(np.uint16)
        snapshots.append(calibration.snapshot("bench", seq, counts))
    engine.warm_up()
    return engine, snapshots


def _solve_s(engine: Engine, snapshot: Snapshot, iterations: int, times: int) -> float:
    """Return the median seconds of a solve by the device clock."""
    budget = iterations
    if engine.recordings:  # of a whole solve there is one for a number of iterations
        least = min(engine.settings.min_iterations, iterations)
        engine.change_settings(
            dataclasses.replace(engine.settings, iterations=iterations, min_iterations=least)
        )
        engine.reconstruct(snapshot, budget)
    return float(
        np.median([engine.reconstruct(snapshot, budget)[1].solve_ns / 1e9 for _ in range(times)])
    )


def _stream_s(engine: Engine, snapshots: list[Snapshot], count: int) -> float:
    """Return the seconds per snapshot of a stream, started one ahead as in a reconstruct node."""
    budget = engine.settings.iterations

    def begin(seq: int) -> AsyncSolve:
        # Consecutive numbers: with warm starts each one begins from the video before.
        snapshot = snapshots[seq % len(snapshots)]
        return engine.begin(dataclasses.replace(snapshot, id=SnapshotId("stream", 0, seq)), budget)

    under_way = deque([begin(0)])
    under_way.popleft().finish()
    began = time.perf_counter()
    for n in range(count):
        under_way.append(begin(n + 1))
        if len(under_way) > 1:
            under_way.popleft().finish()
    while under_way:
        under_way.popleft().finish()
    return (time.perf_counter() - began) / count


def _memory_mib(device: torch.device) -> float:
    """Return the peak memory: on the device for this size, or of the process so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def time_stacks(
    weights: FfdnetWeights, device: torch.device, dtype: torch.dtype, progress: Progress
) -> tuple[WayTrial, ...]:
    """Time the convolutions of a network in every way that there is, the fastest first."""
    layers = Layers(
        [kernel.to(device, dtype, memory_format=torch.channels_last) for kernel in weights.kernels],
        [bias.to(device, dtype) for bias in weights.biases],
    )
    progress("trying the ways to run the network; those that compile take minutes")
    trials = time_ways(layers)
    for trial in trials:
        progress(f"  {trial}")
    return trials


@torch.inference_mode()
def time_chunks(
    make: Callable[[int], Solver], device: torch.device, size: Size, progress: Progress
) -> tuple[ChunkSpeed, ...]:
    """Time the network alone for several chunk sizes, to choose `PIXELS_PER_CHUNK` for a device.

    ``make`` makes the denoiser for a number of pixels per chunk.
    """
    planes = 4 if size.bayer else 1
    frame = (size.height // 2, size.width // 2) if size.bayer else (size.height, size.width)
    x = torch.rand(planes * size.n_frames, *frame, generator=torch.Generator().manual_seed(0)).to(
        device
    )
    rows = []
    for pixels in CHUNKS:
        prior, watch = make(pixels), Stopwatch(device)
        denoise = prior.before if isinstance(prior, UnrolledSolver) else prior
        assert isinstance(denoise, Denoiser)
        denoise(x, 0.1)
        seconds = []
        for _ in range(10 if device.type == "cuda" else 1):
            watch.lap()
            denoise(x, 0.1)
            watch.lap()
            seconds.append(watch.seconds())
        rows.append(ChunkSpeed(pixels, 1e3 * float(np.median(seconds))))
        progress(f"{size}, {pixels} pixels at once: {rows[-1].ms:.3g} ms")
    return tuple(rows)
