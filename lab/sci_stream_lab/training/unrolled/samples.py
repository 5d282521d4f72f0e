"""Snapshots to learn from: a scene behind masks of a class, as a sensor records it, and its solve
up to the stages.

All shares and ranges were chosen, not tuned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sci_stream.model import BayerPhase
from sci_stream.optics.bayer import split
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import Coded, Denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.initialization.initializer import InitialState, Past, coded
from sci_stream.recon.measurement import Measurement
from sci_stream.recon.settings import SolverSettings, default_settings
from sci_stream_lab.training.unrolled.masks import MaskPair, draw_pair
from sci_stream_lab.training.video.scenes import Scenes, Video, sensed

# Frames behind a snapshot, and how likely they are.
_FRAMES = (4, 6, 8, 10, 12, 14, 16, 20, 24)
_LIKELY = (0.08, 0.08, 0.36, 0.1, 0.1, 0.12, 0.08, 0.04, 0.04)
WARM_SHARE = 0.12
"""How often a solve continues a video."""
SHORT_SHARE = 0.3
"""How often a draw has short solves that continue a video, as live ones are: a class of its own,
since the errors of their start are few and large."""
SHORT = (4, 5, 6)
"""Iterations of short solves."""
_SATURATED_SHARE = 0.06
# Shares with a sensor in low light and in good light, with limits of read noise and of electrons
# (`sensed`).
_DIM_SHARE, _DIM = 0.12, ((0.005, 0.03), (1e2, 3e3))
_BRIGHT_SHARE, _BRIGHT = 0.35, ((0.0005, 0.01), (3e3, 1e5))
# Part of the error of its start that the preceding video still has, where it is not solved.
_PAST_ERROR = (0.15, 0.7)
# Iterations of the preceding solve.
_PAST_ITERATIONS = (8, 12, 16)


class StartedSolve(NamedTuple):
    """A snapshot whose solve can begin, and the truth, (P, B, h, w)."""

    engine: Engine
    measurement: Measurement
    start: InitialState
    truth: torch.Tensor


class CodedSamples(NamedTuple):
    """Snapshots of as many frames each as stages meet them, with the truth, (N, B, H, W).

    ``taught``, (N, B, H, W), is the result of a teacher, if there is one.
    """

    coded: Coded
    truth: torch.Tensor
    taught: torch.Tensor | None = None


def draw_n_frames(rng: np.random.Generator) -> int:
    """Draw a number of frames."""
    return int(rng.choice(_FRAMES, p=_LIKELY))


def guessed_past(rng: np.random.Generator, before: StartedSolve) -> torch.Tensor:
    """Return a possible result of a solve: errors as its start has, but smaller."""
    return before.truth + rng.uniform(*_PAST_ERROR) * (before.start.v - before.truth)


def solved_past(rng: np.random.Generator, before: StartedSolve) -> torch.Tensor:
    """Return the result of a solve."""
    engine, measurement, start, _truth = before
    return _last(engine.solve(measurement, start, int(rng.choice(_PAST_ITERATIONS))))


def _last(estimates: Iterator[torch.Tensor]) -> torch.Tensor:
    (last,) = deque(estimates, maxlen=1)
    return last


PastOf = Callable[[np.random.Generator, StartedSolve], torch.Tensor]


@torch.no_grad()
def draw_solve(
    rng: np.random.Generator,
    scenes: Scenes,
    measured: Sequence[Video],
    start_of: StartOf,
    *,
    n_frames: int,
    size: int,
    warm_share: float = WARM_SHARE,
    past_of: PastOf = guessed_past,
) -> StartedSolve:
    """Draw a snapshot of a scene and find its start: the same for the same state of ``rng``.

    ``warm_share``: how often a video precedes it; ``past_of`` gives that video.
    """
    warm = rng.random() < warm_share
    video = scenes.draw(rng, 2 * n_frames if warm else n_frames, size)
    masks = draw_pair(rng, n_frames, size, measured)
    truth = video[-n_frames:]
    if not warm:
        return start_of(masks.known, *exposed(rng, truth, masks), truth=truth)
    before = start_of(masks.known, *exposed(rng, video[:n_frames], masks), truth=video[:n_frames])
    past = past_of(rng, before)
    return start_of(masks.known, *exposed(rng, truth, masks), truth=truth, past=past)


def exposed(
    rng: np.random.Generator, truth: Video, masks: MaskPair
) -> tuple[Video, npt.NDArray[np.bool_] | None]:
    """Return y, (H, W), and which of its pixels are saturated; None if none are."""
    y = np.asarray((masks.true * truth).sum(0), dtype=np.float32)
    chance = rng.random()
    if chance < _DIM_SHARE + _BRIGHT_SHARE:
        y = sensed(rng, y, *(_DIM if chance < _DIM_SHARE else _BRIGHT))
    if rng.random() >= _SATURATED_SHARE:
        return y, None
    limit = np.quantile(y, rng.uniform(0.9, 0.995)).astype(np.float32)
    return np.minimum(y, limit), y >= limit


class StartOf:
    """Finds the starts of solves with a denoiser, on a device.

    ``settings`` are those of the solves; ``bayer`` is the phase where frames are mosaics.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        settings: SolverSettings,
        device: torch.device,
        bayer: BayerPhase | None = None,
    ) -> None:
        self._denoiser, self._settings, self._device = denoiser, settings, device
        self._bayer = bayer

    def __call__(
        self,
        masks: Video,
        y: Video,
        clipped: npt.NDArray[np.bool_] | None = None,
        *,
        truth: Video,
        past: torch.Tensor | None = None,
    ) -> StartedSolve:
        """Return a snapshot whose solve can begin.

        Parameters
        ----------
        masks, y
            (B, H, W) and (H, W).
        clipped
            Which pixels are saturated.
        truth
            (B, H, W).
        past
            The preceding video, (P, B, h, w), which the start continues if that predicts y.
        """
        calibration = Calibration(phi=masks, bayer=self._bayer)
        engine = Engine(calibration, self._denoiser, self._device, self._settings)
        saturated = None if clipped is None else torch.from_numpy(clipped).to(self._device)
        measurement = engine.prepare(torch.from_numpy(y).to(self._device), saturated)
        before = (
            None
            if past is None
            else Past(past, torch.ones((), dtype=torch.bool, device=self._device))
        )
        frames = torch.from_numpy(np.ascontiguousarray(truth)).to(self._device)
        frames = frames.unsqueeze(0) if self._bayer is None else split(frames)
        return StartedSolve(engine, measurement, engine.initialize(measurement, before), frames)


class Teacher:
    """Solves with another denoiser and more iterations, on a device."""

    def __init__(self, denoiser: Denoiser, iterations: int, device: torch.device) -> None:
        self._denoiser, self._iterations, self._device = denoiser, iterations, device
        self._settings = default_settings(device, denoiser.name)

    @torch.no_grad()
    def __call__(self, calibration: Calibration, measurement: Measurement) -> torch.Tensor:
        """Return the video of a measurement, (1, B, H, W), from the start that needs no other."""
        engine = Engine(calibration, self._denoiser, self._device, self._settings)
        start = engine.initialize(measurement, None)
        return _last(engine.solve(measurement, start, self._iterations))


@torch.no_grad()
def finish_iterations(
    solve: StartedSolve, iterations: int, teacher: Teacher | None = None
) -> CodedSamples:
    """Return a snapshot as the stages meet it, after this many iterations, ≥ 1, and its teacher's
    result.
    """
    engine, measurement, start, truth = solve
    taught = None if teacher is None else teacher(engine.calibration, measurement)
    last = _last(engine.solve(measurement, start, iterations))
    return CodedSamples(coded(measurement, start, last), truth, taught)


def cut(rng: np.random.Generator, samples: Sequence[CodedSamples], size: int) -> CodedSamples:
    """Cut a random square of this even size out of each sample; mirror, turn and reverse it at
    random.
    """
    fields: list[list[torch.Tensor]] = []
    for sample in samples:
        rows, columns = (
            slice(at := 2 * int(rng.integers((n - size) // 2 + 1)), at + size)
            for n in sample.truth.shape[-2:]
        )
        kind, backwards = int(rng.integers(8)), rng.random() < 0.5
        flipped = [axis for axis, bit in ((-1, 1), (-2, 2)) if kind & bit]
        parts = []
        for image in (
            *sample.coded,
            sample.truth,
            *(() if sample.taught is None else (sample.taught,)),
        ):
            part = image[..., rows, columns].flip(
                [*flipped, 1] if backwards and image.ndim == 4 else flipped
            )
            parts.append(part.mT if kind & 4 else part)
        fields.append(parts)
    images = [torch.cat(field).contiguous() for field in zip(*fields, strict=True)]
    n_coded = len(Coded._fields)
    return CodedSamples(Coded(*images[:n_coded]), *images[n_coded:])
