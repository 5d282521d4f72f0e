"""GAP with FFDNet in which one kernel does everything between two runs of the network.

The same algorithm as `sci_stream.recon.algorithms.gap`, for recorded solves on a GPU: between its iterations the state
is the network's output, not a video (`sci_stream.recon.backend.triton_between`).
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

from sci_stream.optics.forward import accumulate_and_project, forward, gram_diag, inverse_gram
from sci_stream.recon.algorithms.gap import Denoise, Problem, gap, gap_iteration, noise_variance_ratio
from sci_stream.recon.algorithms.noise_level import Sigma, on_device
from sci_stream.recon.backend.memory import plan_chunks
from sci_stream.recon.backend.network_stack import relative_error
from sci_stream.recon.denoisers.ffdnet import MAX_TRAINED, FfdnetDenoiser, Network
from sci_stream.recon.denoisers.temporal import FramesToImages, IterationDenoiser, WholeVideoDenoiser

_CHANNELS = 8

# Relative difference from `gap` up to which the kernel is used, after some iterations in 16 bits.
_TOLERANCE = 1e-2


class FusedGap:
    """The algorithm, called as `sci_stream.recon.algorithms.gap.gap`.

    Parameters
    ----------
    prior, network
        FFDNet, and its network at all levels of the solve, which takes eight channels.
    priors
        The denoisers of the iterations, all of ``prior`` and of images.
    n_frames, device
        B, and where all is.
    """

    def __init__(
        self,
        prior: FfdnetDenoiser,
        network: Network,
        priors: Sequence[IterationDenoiser],
        n_frames: int,
        device: torch.device,
    ) -> None:
        kernels = importlib.import_module("sci_stream.recon.backend.triton_between")
        self._between: Callable[..., None] = kernels.between
        self._prior, self._network = prior, network
        self._transforms: dict[Denoise, FramesToImages] = {}
        for turn in dict.fromkeys(priors):
            assert not isinstance(turn, WholeVideoDenoiser)
            self._transforms[turn] = turn.as_matrix(n_frames, device)

    def __call__(self, v: torch.Tensor, problem: Problem, sigmas: Iterable[Sigma]) -> Iterator[torch.Tensor]:
        """Yield the last estimate only; see `sci_stream.recon.algorithms.gap.gap`."""
        y_acc, levels, k = problem.y, iter(sigmas), 0
        # Iterations with the correlated residual have a data step of their own.
        first = 0 if problem.correlated is None else problem.correlated.iterations
        for k, sigma in enumerate(itertools.islice(levels, first), 1):
            v, y_acc = gap_iteration(v, y_acc, problem, sigma, k - 1)
        yield self._fused(v, y_acc, levels, problem, k)

    def _fused(
        self, v: torch.Tensor, y_acc: torch.Tensor, levels: Iterator[Sigma], problem: Problem, k: int
    ) -> torch.Tensor:
        """Return the estimate after the iterations from k on."""
        sigma = next(levels, None)
        if sigma is None:
            return v
        y, phi, r_inv = problem.y, problem.phi, problem.r_inv
        relaxation, weight = problem.relaxation, problem.weight(sigma)
        x, y_acc = accumulate_and_project(v, y_acc, y, phi, r_inv, relaxation=relaxation, weight=weight)
        around = None if problem.relative is None else F.avg_pool2d(problem.relative, 2)
        now = self._transforms[problem.prior(k)]
        image, packed = self._packed(x, now, sigma, around)
        output = self._run(packed)
        for number, level in enumerate(levels, k + 1):
            after = self._transforms[problem.prior(number)]
            self._between(
                *(output, image, y_acc, packed, now, after),
                phi=phi,
                y=y,
                r_inv=r_inv,
                sigma=on_device(level, y),
                relaxation=relaxation,
                gives_noise=self._network.gives_noise,
                weight=problem.weight(level),
                relative=around,
                limit=self._network.limit,
                max_level=MAX_TRAINED,
            )
            output, now = self._run(packed), after
        clean = F.pixel_shuffle(output[:, :4], 2).view(image.shape)
        clean = image - clean if self._network.gives_noise else clean.to(image.dtype)
        return now.frames(clean)

    def _packed(
        self, x: torch.Tensor, now: FramesToImages, sigma: Sigma, around: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the images for the network, (P, B, H, W), and its input, (P·B, 8, H/2, W/2)."""
        image = now.images(x)
        limit = self._network.limit
        parts = F.pixel_unshuffle(image.clamp(-limit, limit).flatten(0, 1).unsqueeze(1), 2)
        planes, n_frames = x.shape[:2]
        level = (on_device(sigma, x) * now.level).view(1, -1, 1, 1)
        if around is not None:
            level = (level * around.unsqueeze(1)).clamp_max(MAX_TRAINED)
        level = level.expand(planes, n_frames, *parts.shape[-2:]).reshape(-1, 1, *parts.shape[-2:])
        rest = torch.zeros_like(parts[:, :3])
        packed = torch.cat((parts, level, rest), 1).to(self._network.dtype, memory_format=torch.channels_last)
        return image.contiguous(), packed

    def _run(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the output of the network, computed in chunks."""
        sizes = plan_chunks(len(packed), 4 * packed[0, 0].numel(), self._prior.pixels_per_chunk)
        parts = [self._network.stack(chunk) for chunk in torch.split(packed, sizes)]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole.contiguous(memory_format=torch.channels_last)


def fused_gap(
    prior: object, priors: Sequence[IterationDenoiser], planes: torch.Size, device: torch.device
) -> tuple[FusedGap | None, str]:
    """Return the algorithm with the kernel, if it serves; else None and why, empty where it is not meant to serve.

    It serves FFDNet with one network of eight channels at all levels, as in 16 bits on a GPU, and even rows and
    columns. The kernel is compared with separate operations on a small problem first.
    """
    if not isinstance(prior, FfdnetDenoiser) or any(isinstance(turn, WholeVideoDenoiser) for turn in priors):
        return None, ""
    network = prior.network
    if network is None or network.channels != _CHANNELS or planes[-1] % 2 or planes[-2] % 2:
        return None, ""
    try:
        fused = FusedGap(prior, network, priors, planes[1], device)
        difference = _difference(fused, priors, planes[1], device)
    except Exception as error:  # no compiler, no cache folder: Triton fails in many ways, with the same remedy
        why = (str(error) or type(error).__name__).partition("\n")[0]
        return None, f"iterations run without their Triton kernel: {why}"
    if not difference < _TOLERANCE:  # NaN too
        return None, f"iterations run without their Triton kernel: its results differ by {difference:.2g}"
    return fused, ""


@torch.inference_mode()
def _difference(fused: FusedGap, priors: Sequence[IterationDenoiser], n_frames: int, device: torch.device) -> float:
    """Return the relative difference from `gap` after a few iterations on random frames."""
    generator = torch.Generator().manual_seed(0)
    phi, x = (torch.rand((2, n_frames, 12, 20), generator=generator).to(device) for _ in range(2))
    around = (0.5 + torch.rand((2, 12, 20), generator=generator)).to(device)
    y, r_inv = forward(phi, x), inverse_gram(gram_diag(phi))
    start = (y * r_inv).unsqueeze(1).expand_as(phi).clone()
    levels = list(torch.tensor((0.1, 0.08, 0.06, 0.05), device=device))
    noise_ratio = noise_variance_ratio(torch.full_like(y, 1e-3), r_inv, around)
    problem = Problem(y, phi, r_inv, tuple(priors), relaxation=1.5, noise_ratio=noise_ratio, relative=around)
    *_, wanted = gap(start, problem, levels)
    *_, result = fused(start, problem, levels)
    return relative_error(result, wanted)
