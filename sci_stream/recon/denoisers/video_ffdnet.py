r"""An FFDNet that sees the neighbouring frames, aligned by motion.

Each frame enters with its neighbours: the two frames before and the two after it, shifted along the motion to
where its own content lies, and the mean of the frames around, not shifted. All enter as differences to the frame. A
neighbour that does not exist differs by nothing, so that any B will do, one included. The rest of the network is
FFDNet's: the work is that of the frame network but for the first layer.

The motion is found in the frames to be denoised themselves, at a quarter of their resolution, where errors average out
(`sci_stream.recon.initialization.optical_flow.neighbour_velocities`), and rounded to whole pixels: interpolation would
smooth the neighbours.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

from sci_stream.recon.algorithms.noise_level import Sigma, on_device
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.backend.memory import plan_chunks
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser, frame_input, network_sigma, padded_to_even
from sci_stream.recon.denoisers.weights import FRAME_INPUTS, SUBPIXELS, VIDEO_INPUTS, FfdnetWeights
from sci_stream.recon.initialization.optical_flow import NEIGHBOURS, neighbour_velocities, neighbour_windows

# Frames on each side whose mean is an input: where nothing moves, it is better than the four neighbours.
_MEAN_REACH = 4


class VideoFfdnetDenoiser(FfdnetDenoiser):
    """Grey FFDNet with aligned neighbouring frames, on whole videos; see `FfdnetDenoiser` for the parameters.

    A batch of frames that do not belong together is denoised as videos of one frame each.
    `FinishedVideoFfdnetDenoiser` leaves the end of a solve to a frame prior.

    References
    ----------
    Frames aligned by search and denoised by one network: Davy, Ehret, Morel, Arias, Facciolo, "A non-local CNN for
    video denoising", ICIP 2019.
    """

    def denoise_video(self, x: torch.Tensor, sigma: Sigma, relative: torch.Tensor | None = None) -> torch.Tensor:
        """Denoise (P, B, H, W); see `sci_stream.ports.VideoDenoiser`."""
        network = self.network_at(sigma)
        level = on_device(sigma, x)
        n_videos, n_frames, height, width = x.shape
        padded = padded_to_even(x.flatten(0, 1).unsqueeze(1))
        out = torch.empty_like(x)
        self._frame_pixels = height * width
        at_once = plan_chunks(n_frames, self._frame_pixels, self.pixels_per_chunk)[0]
        for n, video in enumerate(padded.view(n_videos, n_frames, *padded.shape[-2:])):
            at = network_sigma(level, None if relative is None else relative[n : n + 1], 1)
            flow = neighbour_velocities(video)
            for first in range(0, n_frames, at_once):
                frames = slice(first, min(first + at_once, n_frames))
                out[n, frames] = self._run(network_input(video, at, flow, frames), network)[:, :height, :width]
        return out

    def _inputs(self, frames: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        """Return the input of the network for frames that have no neighbours."""
        single = frame_input(frames, sigma)
        nothing = single.new_zeros(len(single), VIDEO_INPUTS - FRAME_INPUTS, *single.shape[-2:])
        return torch.cat((single[:, :SUBPIXELS], nothing, single[:, SUBPIXELS:]), 1)


class FinishedVideoFfdnetDenoiser(VideoFfdnetDenoiser):
    """A `VideoFfdnetDenoiser` whose solves a frame prior finishes; see `sci_stream.ports.FinishedByFrames`."""

    def __init__(
        self,
        weights: FfdnetWeights,
        device: torch.device,
        precision: Precision,
        *,
        name: str,
        frame_prior: FfdnetDenoiser,
    ) -> None:
        super().__init__(weights, device, precision, name=name)
        self.frame_prior = frame_prior

    @property
    def recordable(self) -> bool:
        """Whether both are; see `sci_stream.ports.RecordableDenoiser`."""
        return super().recordable and self.frame_prior.recordable

    def reduce_memory(self) -> bool:
        """Reduce the memory of both; see `sci_stream.ports.MemoryReducible`."""
        reduced = super().reduce_memory()
        return self.frame_prior.reduce_memory() or reduced


def network_input(video: torch.Tensor, sigma: torch.Tensor, flow: torch.Tensor, frames: slice) -> torch.Tensor:
    """Return the input of the network for some frames of a video.

    Parameters
    ----------
    video
        (B, H, W), H and W even.
    sigma
        Noise level, () or (1, 1, H/2, W/2).
    flow
        Motion of all frames, from `neighbour_velocities`.
    frames
        Which frames, N of them.

    Returns
    -------
    (N, 25, H/2, W/2), channels last: four sub-pixels, how those of the four neighbours and of the mean around differ,
    and σ.
    """
    n_frames, height, width = video.shape
    image = _blocked(video[frames])
    index, exists = (part[frames] for part in neighbour_windows(n_frames, video.device))
    flow = F.interpolate(flow[frames], size=image.shape[1:3], mode="bilinear", align_corners=False)
    lines = video.flatten(1)
    parts = [image]
    for n, offset in enumerate(NEIGHBOURS):
        near = lines[index[:, n]].gather(1, _shifted(flow * offset, height, width)).view(image.shape)
        parts.append(near.sub_(image).mul_(exists[:, n].view(-1, 1, 1, 1)))
    around = slice(max(0, frames.start - _MEAN_REACH), frames.stop + _MEAN_REACH)
    mean = _means(n_frames, video.device)[frames, around] @ lines[around]
    parts += [_blocked(mean.view(-1, height, width)).sub_(image), _level(sigma, image)]
    return torch.cat(parts, -1).permute(0, 3, 1, 2)


def _level(sigma: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    return (sigma.permute(0, 2, 3, 1) if sigma.ndim else sigma).expand(*image.shape[:-1], 1)


def _blocked(frames: torch.Tensor) -> torch.Tensor:
    """Return the four sub-pixels of each block of 2 × 2 pixels, (N, H, W) → (N, H/2, W/2, 4), a new tensor."""
    n, height, width = frames.shape
    blocks = frames.view(n, height // 2, 2, width // 2, 2).transpose(2, 3)
    return blocks.reshape(n, height // 2, width // 2, SUBPIXELS)


def _shifted(shift: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return the pixels that a shift (N, 2, H/2, W/2) leads to, in frames as lines of H·W, (N, H·W), block by block.

    Shifts are rounded to whole pixels; blocks of 2 × 2 pixels move together and stay inside the frame.
    """
    rows, columns, within = _blocks(height, width, shift.device)
    shift = shift.round().long()
    row = (rows + shift[:, 0]).clamp_(0, height - 2)
    column = (columns + shift[:, 1]).clamp_(0, width - 2)
    return (row.mul_(width).add_(column).unsqueeze(-1) + within).flatten(1)


@functools.lru_cache(maxsize=16)
def _blocks(height: int, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return first row (H/2, 1) and column (W/2,) of each block, and the places of its pixels, (4,)."""
    rows = torch.arange(0, height, 2, device=device).unsqueeze(1)
    columns = torch.arange(0, width, 2, device=device)
    return rows, columns, torch.tensor([0, 1, width, width + 1], device=device)


@functools.lru_cache(maxsize=16)
def _means(n_frames: int, device: torch.device) -> torch.Tensor:
    """Return the matrix (B, B) of the means of the frames around each one, itself included."""
    frame = torch.arange(n_frames, device=device)
    near = ((frame.unsqueeze(1) - frame).abs() <= _MEAN_REACH).float()
    return near / near.sum(1, keepdim=True)
