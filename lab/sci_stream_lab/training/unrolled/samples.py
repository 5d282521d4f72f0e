"""Snapshots to learn from: a scene behind masks of a class, as a sensor records it, with the start of its solve.

All shares and ranges were chosen, not tuned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sci_stream.optics.calibration import Calibration
from sci_stream.optics.forward import gram_diag, inverse_gram
from sci_stream.recon.algorithms.unrolled import Coded
from sci_stream.recon.initialization.initializer import Initializer, Past, coded
from sci_stream.recon.initialization.lmmse import LmmseEstimator
from sci_stream.recon.measurement import Measurement
from sci_stream.recon.noise_estimation import coded_windows, estimate_noise
from sci_stream.recon.settings import SolverSettings
from sci_stream_lab.training.unrolled.masks import MaskPair, draw_pair
from sci_stream_lab.training.video.entries import sensed
from sci_stream_lab.training.video.scenes import Scenes, Video

# Frames behind a snapshot, and how likely they are.
_FRAMES = (4, 6, 8, 10, 12, 14, 16, 20, 24)
_LIKELY = (0.08, 0.08, 0.36, 0.1, 0.1, 0.12, 0.08, 0.04, 0.04)
_WARM_SHARE, _SATURATED_SHARE = 0.12, 0.06
# Shares with a sensor in low light and in good light, with limits of read noise and of electrons (`sensed`).
_DIM_SHARE, _DIM = 0.12, ((0.005, 0.03), (1e2, 3e3))
_BRIGHT_SHARE, _BRIGHT = 0.48, ((0.0005, 0.01), (3e3, 1e5))
# Part of the error of its start that the preceding video still has.
_PAST_ERROR = (0.15, 0.7)
_STARTS = Initializer(SolverSettings(linear_start=True, warm_start=True))


class CodedSamples(NamedTuple):
    """Snapshots of as many frames each, with the truth, (N, B, H, W)."""

    coded: Coded
    truth: torch.Tensor


def draw_n_frames(rng: np.random.Generator) -> int:
    """Draw a number of frames."""
    return int(rng.choice(_FRAMES, p=_LIKELY))


def draw_sample(
    rng: np.random.Generator, scenes: Scenes, n_frames: int, size: int, measured: Sequence[Video]
) -> CodedSamples:
    """Draw a snapshot of a scene and find its start: the same for the same state of ``rng``."""
    warm = rng.random() < _WARM_SHARE
    video = scenes.draw(rng, 2 * n_frames if warm else n_frames, size)
    masks = draw_pair(rng, n_frames, size, measured)
    past = _past(rng, video[:n_frames], masks) if warm else None
    truth = video[-n_frames:]
    y, clipped = exposed(rng, truth, masks)
    return CodedSamples(started(y, masks.known, clipped=clipped, past=past), torch.from_numpy(truth).unsqueeze(0))


def _past(rng: np.random.Generator, truth: Video, masks: MaskPair) -> Video:
    """Return a possible result of the preceding snapshot's solve: errors as its start has, but smaller."""
    start = started(exposed(rng, truth, masks)[0], masks.known).start[0].numpy()
    return np.asarray(truth + np.float32(rng.uniform(*_PAST_ERROR)) * (start - truth), dtype=np.float32)


def exposed(rng: np.random.Generator, truth: Video, masks: MaskPair) -> tuple[Video, npt.NDArray[np.bool_] | None]:
    """Return y, (H, W), and which of its pixels are saturated; None if none are."""
    y = np.asarray((masks.true * truth).sum(0), dtype=np.float32)
    chance = rng.random()
    if chance < _DIM_SHARE + _BRIGHT_SHARE:
        y = sensed(rng, y, *(_DIM if chance < _DIM_SHARE else _BRIGHT))
    if rng.random() >= _SATURATED_SHARE:
        return y, None
    limit = np.quantile(y, rng.uniform(0.9, 0.995)).astype(np.float32)
    return np.minimum(y, limit), y >= limit


@torch.no_grad()
def started(
    y: Video, masks: Video, *, clipped: npt.NDArray[np.bool_] | None = None, past: Video | None = None
) -> Coded:
    """Return a snapshot with its noise and its start, as the engine finds them.

    Parameters
    ----------
    y, masks
        (H, W) and (B, H, W).
    clipped
        Which pixels are saturated.
    past
        The preceding video, (B, H, W), which the start continues if that predicts y.
    """
    image, phi = torch.from_numpy(y).unsqueeze(0), torch.from_numpy(masks).unsqueeze(0)
    r_inv_clipped = r_inv = inverse_gram(gram_diag(phi))
    if clipped is not None:
        r_inv = r_inv * torch.from_numpy(~clipped)
    noise, mismatch = estimate_noise(image, coded_windows(phi), r_inv)
    measurement = Measurement(image, phi, r_inv, noise, mismatch, r_inv_clipped)
    before = None if past is None else Past(torch.from_numpy(past).unsqueeze(0), torch.tensor(True))
    linear = LmmseEstimator(phi, r_inv_clipped, Calibration(phi=masks / max(1.0, float(masks.max()))).fineness)
    return coded(measurement, _STARTS.begin(measurement, linear, before))


def cut(rng: np.random.Generator, samples: Sequence[CodedSamples], size: int) -> CodedSamples:
    """Cut a random square of this even size out of each sample; mirror, turn and reverse it at random."""
    fields: list[list[torch.Tensor]] = []
    for sample in samples:
        rows, columns = (
            slice(at := 2 * int(rng.integers((n - size) // 2 + 1)), at + size) for n in sample.truth.shape[-2:]
        )
        kind, backwards = int(rng.integers(8)), rng.random() < 0.5
        flipped = [axis for axis, bit in ((-1, 1), (-2, 2)) if kind & bit]
        parts = []
        for image in (*sample.coded, sample.truth):
            part = image[..., rows, columns].flip([*flipped, 1] if backwards and image.ndim == 4 else flipped)
            parts.append(part.mT if kind & 4 else part)
        fields.append(parts)
    *coded, truth = (torch.cat(field).contiguous() for field in zip(*fields, strict=True))
    return CodedSamples(Coded(*coded), truth)
