r"""The last iterations of a solve, trained as a whole, for any masks, any number of frames and any
size.

Iterations with a denoiser come first. Each stage then is an iteration of GAP
(`sci_stream.recon.algorithms.gap`) with a network of its own::

    v, e² ← network(x, σ, change of the last data step, masks, noise, error of the start; memory)
    y_acc ← y + w (y_acc − y + α (y − Φv)),   w = Σe²φ² / (Σe²φ² + n²)
    x     ← v + e²φ (y_acc − Φv) / (Σe²φ² + n²)

and its result is v + ½ e²φ (y − Φv)/(Σe²φ² + n²). The network also gives e², (B, H, W), the
variance of the error that it expects at each pixel of each frame, in units of 2σ². The data step is
the linear minimum mean square error correction with these variances: the residual of the
measurement goes to the frames that are likely to be wrong, and as much of it as is not noise. σ is
a multiple of the error of the start, a different one in each stage.

The planes of a mosaic are videos apart here: stages for mosaics are not trained, and those for grey
videos still gain after iterations with a network of mosaics (lab/research/colour.md).

The networks are FFDNets with channels of two kinds. The first half are those of a frame network,
from whose weights a training can begin. The others also see the neighbouring frames, by channels
shifted along time between the layers, which needs no arithmetic and holds for any number of frames,
and they are summed up from stage to stage as the memory.

References
----------
Unrolled projections: Z. Meng, S. Jalali, X. Yuan, "GAP-net for snapshot compressive imaging"
(2020). Shifted channels: J. Lin, C. Gan, S. Han, "TSM: Temporal shift module for efficient video
understanding", ICCV 2019.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch import Tensor

from sci_stream.optics.forward import forward
from sci_stream.ports import Abilities, Coded, Denoiser, Recordable
from sci_stream.recon.backend.convolution import convolve_relu
from sci_stream.recon.backend.device import computes_bfloat16, half_dtype, prepare_libraries
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.backend.memory import PIXELS_PER_CHUNK, plan_chunks, solve_bytes
from sci_stream.recon.denoisers.weights import STAGE_INPUTS, Stage

# Added to e_p², so that no start counts as perfect; the highest σ. Stages are trained with these
# and those below.
_LEAST_ERROR, _MAX_SIGMA = 4e-4, 0.3
# How far log(e²/2σ²) can be from 0.
_LOG_RANGE = 5.5
# Scales of changes in units of the error, and of the maps, among the inputs; where the maps end.
_CHANGE_SCALE, _MAP_SCALE, _MAP_LIMIT = 0.3, 4.0, 0.5
_TINY = 1e-12
# Part of the correction that a result takes. All of it gains nothing, and costs 0.13 dB behind
# wrong masks (mean of six tuning clips); the rest of the residual shows errors that remain.
_FITTED = 0.5
# Stages learned from 4 to 24 frames. Of two, they blur still scenes by up to 7 dB, and gain up to
# 3 dB where something moves. The mean with the iterations before gains 0.7 dB and 2.6 dB on still
# and slow tuning scenes behind binary and grey masks, 0.1 dB and 1.0 dB on clips. Of three, it
# gains half as much, and loses 4 dB on a smooth, noisy clip (lab/research/linear-start.md).
_LEAST_FRAMES = 3
_SHARE_OF_START = 0.5
# Iterations that come before any stage. A stage takes as long as four or five: after four of them
# it gains hardly more than they do, and it leaves more false texture (lab/research/unrolled.md).
LEAST_BEFORE = 8


class UnrolledSolver:
    """Stages on a device, and the denoiser of the iterations before them: a `Reconstructor`.

    Parameters
    ----------
    before
        The denoiser.
    stages
        From `sci_stream.recon.denoisers.weights.load_unrolled`. Copied to the device.
    precision
        Arithmetic of the convolutions. With ``AUTO``, bfloat16, in which they were trained, where
        the device has instructions for it, else float16, else float32.
    """

    name = "unrolled"

    def __init__(
        self, before: Denoiser, stages: Sequence[Stage], device: torch.device, precision: Precision
    ) -> None:
        prepare_libraries(device)
        self.before = before
        half = torch.bfloat16 if computes_bfloat16(device) else half_dtype(device)
        if precision is Precision.HALF:
            half = half or torch.bfloat16
        self.dtype = torch.float32 if precision is Precision.FLOAT32 else half or torch.float32
        """Of the features."""
        self.pixels_per_chunk = PIXELS_PER_CHUNK[device.type]
        """Pixels that go through the layers at once; a frame, with its planes, is never cut."""
        self._frame_pixels = 0
        self.stages = [
            Stage(
                [
                    k.to(device, self.dtype, memory_format=torch.channels_last)
                    for k in stage.kernels
                ],
                [b.to(device, self.dtype) for b in stage.biases],
                stage.step.to(device),
            )
            for stage in stages
        ]

    @property
    def recordable(self) -> bool:
        """Whether the denoiser leaves every σ on the device, as the stages do; see `Recordable`."""
        return isinstance(self.before, Recordable) and self.before.recordable

    @property
    def abilities(self) -> Abilities:
        """See `sci_stream.ports.Reconstructor`."""
        return Abilities(self.before, len(self.stages), LEAST_BEFORE, start=True)

    def solve_bytes(self, n_frames: int, height: int, width: int) -> int:
        """See `sci_stream.ports.MemoryPlanner`."""
        chunk = self.pixels_per_chunk
        return solve_bytes(n_frames, height, width, pixels_per_chunk=chunk, features=self.dtype)

    def reconstruct(
        self, problem: Coded, steps: int, between: Callable[[], None]
    ) -> Iterator[Tensor]:
        """Return the estimates of the first stages; see `sci_stream.ports.Reconstructor`."""
        self._frame_pixels = problem.y.numel()
        stages = self.stages[:steps]
        chunk = self.pixels_per_chunk
        return _trusted(problem, estimates(problem, stages, self.dtype, chunk, between))

    def reconstruct_series(
        self, problems: Sequence[Coded], steps: int, between: Callable[[], None]
    ) -> Iterator[Tensor]:
        """Return the estimates of the first stages; see `sci_stream.ports.SeriesReconstructor`."""
        joined = Coded(*map(torch.cat, zip(*problems, strict=True)))
        stages, chunk = self.stages[:steps], self.pixels_per_chunk
        number = len(problems)
        series = estimates(joined, stages, self.dtype, chunk, between, snapshots=number)
        return _trusted(joined, series)

    def reduce_memory(self) -> bool:
        """Take chunks of half the size, down to a frame each; see
        `sci_stream.ports.MemoryReducible`.
        """
        more_than_one = self.pixels_per_chunk >= 2 * self._frame_pixels > 0
        if more_than_one:
            self.pixels_per_chunk //= 2
        return more_than_one


def _trusted(problem: Coded, results: Iterator[Tensor]) -> Iterator[Tensor]:
    """Yield results of stages, and their means with the start if the frames are too few."""
    start = problem.start
    if start.shape[1] >= _LEAST_FRAMES:
        return results
    return (result.lerp(start, _SHARE_OF_START) for result in results)


def estimates(
    problem: Coded,
    stages: Iterable[Stage],
    dtype: torch.dtype,
    pixels_per_chunk: int | None = None,
    between: Callable[[], None] = lambda: None,
    *,
    snapshots: int = 1,
) -> Iterator[Tensor]:
    """Yield the result of each stage, (N, B, H, W); convolutions in ``dtype``, all else in float32.

    Gradients pass.

    ``pixels_per_chunk``: see `UnrolledSolver`; None for all frames at once. ``between`` is called
    before each stage. The videos are those of so many ``snapshots``, one behind the other: their
    frames are neighbours across the seam.
    """
    rows, columns = problem.y.shape[-2:]
    y, phi, r_inv, noise, start_error, still, v = _even(problem)
    del problem  # the start, a whole video
    n_frames, valid, scale = phi.shape[1], r_inv > 0, r_inv.sqrt()
    error = (start_error + _LEAST_ERROR).sqrt()
    maps = _MAP_SCALE * torch.stack((noise.sqrt() * scale, start_error.sqrt()), 1).clamp_max(
        _MAP_LIMIT
    )
    planes = len(y) // snapshots
    frame_pixels = y[:planes].numel()
    sizes = plan_chunks(n_frames, frame_pixels, pixels_per_chunk or n_frames * frame_pixels)
    ends = list(itertools.accumulate(sizes))
    chunks = [
        (slice(first, first + planes), slice(end - size, end))
        for first in range(0, len(y), planes)
        for size, end in zip(sizes, ends, strict=True)
    ]

    def corrected(v: Tensor, aim: Tensor, variance: Tensor) -> Tensor:
        """Return v with the share of the residual against ``aim`` that is not noise."""
        share = variance * phi
        step = valid * (aim - forward(phi, v)) / (forward(phi, share) + noise).clamp_min(_TINY)
        return v + share * step.unsqueeze(1)

    def inputs(x: Tensor, before: Tensor, sigma: Tensor) -> Iterator[Tensor]:
        """Yield the inputs of the network for each chunk, (N·F, C, H/2, W/2)."""
        for at in chunks:
            part = at[0]
            change = (x[at] - before[at]) * (_CHANGE_SCALE / error[part]).unsqueeze(1)
            blocks = _blocked(x[at]), _halved(sigma[part], change), _blocked(change)
            known = _blocked(phi[at] * scale[part].unsqueeze(1)), _halved(maps[part], change)
            yield torch.cat((*blocks, *known), 1).to(dtype)

    before, y_acc, relaxation = still.unsqueeze(1).expand_as(phi), y, y.new_zeros(())
    variance = memory = None
    for stage in stages:
        between()
        sigma = (stage.step[0].exp() * error).clamp_max(_MAX_SIGMA).unsqueeze(1)
        if variance is None or memory is None:
            variance = 2 * sigma.square()
            channels = stage.kernels[0].shape[1] - STAGE_INPUTS
            memory = y.new_zeros(
                (planes, snapshots * n_frames, y.shape[-2] // 2, y.shape[-1] // 2, channels),
                dtype=dtype,
            )
        else:
            gram = forward(phi, variance * phi)
            y_acc = y + gram / (gram + noise).clamp_min(_TINY) * (
                y_acc - y + relaxation * (y - forward(phi, v))
            )
        x = corrected(v, y_acc, variance)
        variance = torch.empty_like(x)
        outputs = _through(stage, inputs(x, before, sigma), memory)
        for at, out in zip(chunks, outputs, strict=True):
            wrong, log = (
                F.pixel_shuffle(out.float(), 2).view(*x[at].shape[:2], 2, *x.shape[2:]).unbind(2)
            )
            x[at] -= wrong
            level = 2 * sigma[at[0]].square()
            variance[at] = level * (_LOG_RANGE * torch.tanh(log / _LOG_RANGE)).exp()
        before, v, relaxation = x, x, stage.step[1]
        yield v.lerp(corrected(v, y, variance), _FITTED)[..., :rows, :columns]


def _through(stage: Stage, chunks: Iterable[Tensor], memory: Tensor) -> Iterator[Tensor]:
    """Pass frames through the layers, chunk by chunk: each layer is a chunk behind the one before.

    Parameters
    ----------
    chunks
        Inputs, (N·F, C, H/2, W/2).
    memory
        (N, B, H/2, W/2, C), which the layers take too and add to, in place.

    Yields
    ------
    The outputs for each chunk, (N·F, 8, H/2, W/2).
    """
    kernels = [kernel.to(memory.dtype) for kernel in stage.kernels]
    biases = [bias.to(memory.dtype) for bias in stage.biases]
    passed = memory.shape[-1]
    # No name holds features of a layer while another one computes.
    features = map(partial(_convolved, kernels[0], biases[0]), _with_memory(chunks, memory))
    for kernel, bias in zip(kernels[1:-1], biases[1:-1], strict=True):
        pairs = itertools.pairwise(itertools.chain(features, (None,)))
        features = map(partial(_convolved, kernel, bias), map(_Exchange(passed), pairs))
    done = 0
    for videos in features:
        at = slice(done, done := done + videos.shape[1])
        memory[:, at] += videos[..., -passed:]
        images = videos.flatten(0, 1).permute(0, 3, 1, 2)
        yield F.conv2d(images, kernels[-1], biases[-1], padding=1)


def _with_memory(chunks: Iterable[Tensor], memory: Tensor) -> Iterator[Tensor]:
    """Yield inputs with the memory as further channels, (N, F, H/2, W/2, C)."""
    begun = 0
    for chunk in chunks:
        videos = chunk.permute(0, 2, 3, 1).reshape(
            len(memory), -1, *memory.shape[2:4], chunk.shape[1]
        )
        now = slice(begun, begun := begun + videos.shape[1])
        yield torch.cat((videos, memory[:, now]), -1)


def _convolved(kernel: Tensor, bias: Tensor, videos: Tensor) -> Tensor:
    """Return features after a layer, (N, F, H, W, C) both."""
    images = convolve_relu(videos.flatten(0, 1).permute(0, 3, 1, 2), kernel, bias)
    return images.permute(0, 2, 3, 1).reshape(*videos.shape[:-1], len(bias))


def _even(problem: Coded) -> Coded:
    """Repeat the last row and column where their number is odd."""
    odd = problem.y.shape[-1] % 2, problem.y.shape[-2] % 2
    padded = (F.pad(field, (0, odd[0], 0, odd[1]), mode="replicate") for field in problem)
    return Coded(*padded) if any(odd) else problem


def _blocked(video: Tensor) -> Tensor:
    """Return sub-pixels as channels, (N, F, H, W) → (N·F, 4, H/2, W/2)."""
    return F.pixel_unshuffle(video.flatten(0, 1).unsqueeze(1), 2)


def _halved(maps: Tensor, video: Tensor) -> Tensor:
    """Return maps at half resolution for the frames of a video, (N, C, H, W) → (N·F, C, H/2,
    W/2).
    """
    return F.avg_pool2d(maps, 2).repeat_interleave(video.shape[1], 0)


class _Exchange:
    """Give features, whose last ``number`` channels are passed on, those of neighbouring frames.

    Of eight of them 3 are of the frame before, 3 of the frame after and 2 of the same one. Beyond
    the first and the last frame they are 0.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._before: Tensor | None = None

    def __call__(self, pair: tuple[Tensor | None, Tensor | None]) -> Tensor:
        """Return a chunk, (N, F, H, W, C), that another one, or none, follows; call it in order."""
        chunk, following = pair
        assert chunk is not None
        part = 3 * self._number // 8
        first = chunk.shape[-1] - self._number
        past = slice(first, first + part)
        future = slice(past.stop, past.stop + part)
        nothing = chunk.new_zeros(())
        before = nothing if self._before is None else self._before
        after = nothing if following is None else following[:, :1, ..., future]
        exchanged = chunk.clone()
        exchanged[:, :1, ..., past] = before
        exchanged[:, 1:, ..., past] = chunk[:, :-1, ..., past]
        exchanged[:, :-1, ..., future] = chunk[:, 1:, ..., future]
        exchanged[:, -1:, ..., future] = after
        self._before = chunk[:, -1:, ..., past].clone()
        return exchanged
