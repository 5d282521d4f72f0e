"""What a video network sees of noisy videos and of iterations of the solver, with the truth.

Drawing is work of the host and depends on a random generator alone; `noisy_entry` and `solve_entries` compute on the
device. All shares and ranges in this module were chosen in the first trial, not tuned.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch

from sci_stream.optics.calibration import Calibration
from sci_stream.ports import VideoDenoiser
from sci_stream.recon.algorithms.noise_level import Sigma, sigma_map
from sci_stream.recon.denoisers.ffdnet import network_sigma
from sci_stream.recon.denoisers.video_ffdnet import network_input
from sci_stream.recon.engine import Engine
from sci_stream.recon.initialization.optical_flow import neighbour_velocities
from sci_stream.recon.settings import default_settings
from sci_stream_lab.training.video.scenes import Scenes, Video, disturb_masks, draw_masks

_NOISY_FRAMES = (4, 6, 8, 8, 8, 12)
_SOLVED_FRAMES = (4, 6, 8, 8, 8, 8, 10, 14, 20)
_ITERATIONS = (4, 8, 8, 12, 12, 12, 16, 20)
# Iterations of a solve whose inputs are kept, besides the last, whose result is what counts.
_RECORDED = 5
# Solves with masks that are not quite those that the solver knows, and with noise of the sensor.
_DISTURBED_SHARE, _SENSOR_SHARE = 0.6, 0.6
# Read noise in units of the largest value, electrons that this value stands for, and bits of the converter.
_READ_NOISE, _ELECTRONS, _BITS = (0.001, 0.02), (1e3, 5e4), (8, 8, 10, 12)
# Added to the mean squared error: weights grow up to 50 dB and not without bound.
_LEAST_MSE = 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class PoolEntry:
    """Inputs of the network for a video.

    Parameters
    ----------
    inputs
        (B, 25, H/2, W/2) float16, of `network_input`.
    truth
        (B, H, W) float16.
    weight
        One over the mean squared error of the network of the time: the derivative of the PSNR, but for a factor. So the
        mean PSNR is learnt, whatever the noise.
    """

    inputs: torch.Tensor
    truth: torch.Tensor
    weight: float


@dataclass(frozen=True, slots=True, eq=False)
class NoisyVideo:
    """A video with noise: truth and noisy (B, H, W), level σ · relative, (H, W), on the 0–1 scale."""

    truth: Video
    noisy: Video
    sigma: float
    relative: Video | None


@dataclass(frozen=True, slots=True, eq=False)
class CodedVideo:
    """One snapshot, or two in a row, and how to solve them.

    ``masks`` (B, H, W) are those that the solver knows; ``counts`` and ``truths`` by snapshot; ``recorded`` the
    iterations of each to learn from, counted from 0.
    """

    masks: Video
    counts: Sequence[Video]
    truths: Sequence[Video]
    iterations: int
    recorded: Sequence[frozenset[int]]


def draw_noisy(scenes: Scenes, rng: np.random.Generator, size: int, sigma_most: float) -> NoisyVideo:
    """Draw a video with Gaussian noise, at times of different levels over the frame, or correlated in space or time.

    Errors of masks and noise of the sensor are alike in all frames where nothing moves: only σ distinguishes them from
    texture.
    """
    n_frames = int(rng.choice(_NOISY_FRAMES))
    truth = scenes.draw(rng, n_frames, size)
    noise = rng.standard_normal(truth.shape, np.float32)
    relative = None
    sigma = rng.uniform(0, sigma_most)
    if rng.random() < 0.3:
        smooth_px = rng.uniform(0.3, 1.0)
        noise = np.stack([cv2.GaussianBlur(frame, (0, 0), smooth_px) for frame in noise])
        noise /= noise.std()
    if rng.random() < 0.5:
        coarse = rng.random((6, 6), np.float32)
        relative = cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC).clip(0.05, 1).astype(np.float32)
        noise *= relative
    if rng.random() < 0.4:
        share = rng.uniform(0, 1)
        common = noise.mean(0, keepdims=True) * n_frames**0.5
        noise = np.asarray((1 - share) * noise + share * common, dtype=np.float32)
    return NoisyVideo(truth, truth + np.float32(sigma) * noise, sigma, relative)


def draw_coded(scenes: Scenes, rng: np.random.Generator, size: int) -> CodedVideo:
    """Draw one or two snapshots; the sensor's noise and errors of the masks may be unknown to the solver."""
    n_frames = int(rng.choice(_SOLVED_FRAMES))
    n_snapshots = 2 if rng.random() < 0.4 else 1
    video = scenes.draw(rng, n_snapshots * n_frames, size)
    masks = draw_masks(rng, n_frames, size)
    true_masks = disturb_masks(rng, masks) if rng.random() < _DISTURBED_SHARE else masks
    iterations = int(rng.choice(_ITERATIONS))
    truths = np.split(video, n_snapshots)
    counts, recorded = [], []
    for truth in truths:
        y = (true_masks * truth).sum(0)
        counts.append(sensed(rng, y) if rng.random() < _SENSOR_SHARE else y)
        some = rng.choice(iterations, min(iterations, _RECORDED), replace=False)
        recorded.append(frozenset({*some.tolist(), iterations - 1}))
    return CodedVideo(masks, counts, truths, iterations, recorded)


def sensed(
    rng: np.random.Generator,
    y: Video,
    read_noise: tuple[float, float] = _READ_NOISE,
    electrons: tuple[float, float] = _ELECTRONS,
) -> Video:
    """Return the reading of a sensor for the light y: with read noise and shot noise, in whole numbers.

    ``read_noise`` in units of the largest value, and the ``electrons`` that this stands for: limits of either.
    """
    brightest = float(y.max()) + 1e-6
    read, full = (math.exp(rng.uniform(*np.log(limits))) for limits in (read_noise, electrons))
    variance = read**2 + y / (brightest * full)
    light = y / brightest + np.sqrt(variance) * rng.standard_normal(y.shape, np.float32)
    steps = 2 ** int(rng.choice(_BITS)) - 1
    return np.asarray(np.rint(light * steps) * (brightest / steps), dtype=np.float32)


def noisy_entry(drawn: NoisyVideo, denoiser: VideoDenoiser, device: torch.device) -> PoolEntry:
    """Return the network's inputs for a noisy video."""
    relative = () if drawn.relative is None else (torch.from_numpy(drawn.relative).to(device).unsqueeze(0),)
    recorder = IterateRecorder(denoiser, {0})
    with torch.inference_mode():
        recorder.denoise_video(torch.from_numpy(drawn.noisy).to(device).unsqueeze(0), drawn.sigma, *relative)
        return recorder.entries(drawn.truth)[0]


def solve_entries(drawn: CodedVideo, denoiser: VideoDenoiser, device: torch.device) -> list[PoolEntry]:
    """Return the network's inputs in solves of the product's engine; none of a solve that diverges."""
    recorder = IterateRecorder(denoiser)
    # Not recorded as CUDA graphs: each calibration is used for a solve or two.
    settings = dataclasses.replace(
        default_settings(device, "video-lite"), iterations=drawn.iterations, min_iterations=1, warm_start=True
    )
    engine = Engine(calibration := Calibration(phi=drawn.masks), recorder, device, settings, cuda_graphs=False)
    entries = []
    for seq, (counts, truth, recorded) in enumerate(zip(drawn.counts, drawn.truths, drawn.recorded, strict=True)):
        recorder.record(recorded)
        engine.reconstruct(calibration.snapshot("training", seq, counts))
        with torch.inference_mode():
            entries += recorder.entries(truth)
    return entries if all(math.isfinite(entry.weight) for entry in entries) else []


class IterateRecorder:
    """A denoiser of videos that keeps what enters and leaves another one in the ``recorded`` calls, counted from 0."""

    name = "recorder"
    takes_relative = True

    def __init__(self, denoiser: VideoDenoiser, recorded: Collection[int] = ()) -> None:
        self._denoiser = denoiser
        self.record(recorded)

    def record(self, recorded: Collection[int]) -> None:
        """Forget all calls, and keep these of those to come."""
        self._recorded = recorded
        self._calls = 0
        self._iterates: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def __call__(self, x: torch.Tensor, sigma: Sigma, *relative: torch.Tensor) -> torch.Tensor:
        """Denoise (N, H, W); see `sci_stream.ports.LocalDenoiser`."""
        return self._denoiser(x, sigma, *relative)

    def denoise_video(self, x: torch.Tensor, sigma: Sigma, *relative: torch.Tensor) -> torch.Tensor:
        """Denoise (1, B, H, W); see `sci_stream.ports.VideoDenoiser`."""
        denoised = self._denoiser.denoise_video(x, sigma, *relative)
        if self._calls in self._recorded:
            # Copies: the solver may write to both.
            self._iterates.append(
                (x[0].clone(), sigma_map(sigma, relative[0] if relative else None, x).clone(), denoised[0].clone())
            )
        self._calls += 1
        return denoised

    def entries(self, truth: Video) -> list[PoolEntry]:
        """Return the kept calls; ``truth`` is what they should have given."""
        entries = []
        for noisy, level, denoised in self._iterates:
            there = torch.from_numpy(truth).to(noisy.device)
            mse = float((denoised - there).square().mean())
            flow = neighbour_velocities(noisy)
            sigma = network_sigma(level.new_ones(()), level, 1) if level.ndim else level
            inputs = network_input(noisy, sigma, flow, slice(0, len(noisy))).half()
            entries.append(PoolEntry(inputs, there.half(), 1 / (mse + _LEAST_MSE)))
        return entries
