"""A tiny U-net for one mask: trained in two minutes, then run live.

Train it, then give it to the demo, or to a rig as ``solver``::

    python examples/tiny_unet.py            # writes examples/tiny_unet.safetensors
    make demo ARGS="--solver examples/tiny_unet.py:TinyUnet"

Its scenes are drawn by this file. Train a network for a camera with films of similar scenes, and
with the masks of its calibration.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, relu

WEIGHTS = Path(__file__).with_suffix(".safetensors")
FRAMES = 8
PATCH_PX = 64


class TinyUnet(nn.Module):
    """A U-net with two halvings on y and the masks, for 8 frames of any size."""

    def __init__(self, weights: Path | None = WEIGHTS, channels: int = 16) -> None:
        super().__init__()
        wide = 2 * channels
        self.first = nn.Conv2d(2 * FRAMES + 1, channels, 3, padding=1)
        self.down = nn.Conv2d(channels, wide, 3, padding=1)
        self.deep = nn.Sequential(
            nn.Conv2d(wide, wide, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(wide, wide, 3, padding=1),
        )
        self.up = nn.Conv2d(2 * wide, channels, 3, padding=1)
        self.last = nn.Conv2d(2 * channels, FRAMES, 3, padding=1)
        nn.init.zeros_(self.last.weight)  # training begins with the mean in each frame
        nn.init.zeros_(self.last.bias)
        if weights is not None:
            self.load_state_dict(load_file(weights))

    def forward(self, y: Tensor, Phi: Tensor, Phi_s: Tensor) -> Tensor:
        """Return the frames, (N, 8, H, W)."""
        mean = (y / Phi_s).unsqueeze(1)
        full = relu(self.first(torch.cat([mean, mean * Phi, Phi], 1)))
        half = relu(self.down(avg_pool2d(full, 2)))
        low = relu(self.deep(avg_pool2d(half, 2)))
        low = interpolate(low, half.shape[-2:], mode="bilinear")
        half = relu(self.up(torch.cat([half, low], 1)))
        half = interpolate(half, full.shape[-2:], mode="bilinear")
        return mean + self.last(torch.cat([full, half], 1))


def scenes(number: int, generator: torch.Generator) -> Tensor:
    """Draw videos, (N, 8, 64, 64) from 0 to 1: moving discs before textures that rest or move."""
    side = PATCH_PX + 4 * FRAMES
    canvas = torch.zeros(number, 1, side, side)
    for scale in (4, 8, 16, 32):
        coarse = torch.randn(number, 1, side // scale + 1, side // scale + 1, generator=generator)
        canvas += (scale / 32) ** 1.2 * interpolate(coarse, (side, side), mode="bicubic")
    canvas = torch.sigmoid(1.5 * canvas)
    place = torch.stack(torch.meshgrid(*[torch.arange(float(side))] * 2, indexing="ij"))
    videos = []
    for one in canvas:
        velocity = 2.4 * torch.rand(2, generator=generator) - 1.2
        velocity *= torch.rand((), generator=generator) < 0.5
        discs = [side * torch.rand(4, generator=generator) for _ in range(3)]
        frames = []
        for b in range(FRAMES):
            row, column = (side // 2 - PATCH_PX // 2 + b * velocity).round().int().tolist()
            frame = one[0, row : row + PATCH_PX, column : column + PATCH_PX].clone()
            for disc in discs:
                centre = disc[:2] + b * (disc[2:] / side - 0.5) * 5
                distance = (place[:, :PATCH_PX, :PATCH_PX] - centre.view(2, 1, 1)).norm(dim=0)
                inside = (6 + disc[3] / 12 - distance).clamp(0, 1)
                frame = frame * (1 - inside) + inside * (disc[2] / side)
            frames.append(frame)
        videos.append(torch.stack(frames))
    return torch.stack(videos)


def shifted_mask(side: int = 512) -> Tensor:
    """Return the masks of a plane of the simulated colour camera: a pattern, a little out of focus,
    moves by a pixel a frame.
    """
    generator = torch.Generator().manual_seed(0)
    pattern = (torch.rand(side + FRAMES, side, generator=generator) < 0.5).float()
    pattern = 0.6 * pattern + 0.4 * avg_pool2d(pattern[None], 3, stride=1, padding=1)[0]
    frames = [pattern[FRAMES - b : FRAMES - b + side] for b in range(FRAMES)]
    return torch.stack(frames)[:, ::2, ::2]


def train(masks: Tensor, seconds: float, batch: int = 8) -> TinyUnet:
    """Train behind masks, (8, H, W), from 0 to 1, for some seconds."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    films = scenes(128, generator)
    network = TinyUnet(weights=None)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    height, width = (side - PATCH_PX + 1 for side in masks.shape[-2:])
    began_s = time.monotonic()
    step = 0
    while (spent := (time.monotonic() - began_s) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * (1 - spent) + 1e-5
        video = films[torch.randint(len(films), (batch,), generator=generator)]
        if step % 2:
            video = video.flip(1).transpose(2, 3)
        row, column = (int(torch.randint(n, (), generator=generator)) for n in (height, width))
        phi = masks[:, row : row + PATCH_PX, column : column + PATCH_PX].expand_as(video)
        y = (phi * video).sum(1)
        y = y + 0.02 * torch.rand((), generator=generator) * torch.randn(y.shape)
        total = phi.sum(1)
        loss = (network(y, phi, total.where(total > 0, 1.0)) - video).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 50 == 0:
            print(f"{spent:4.0%} step {step}: {-10 * loss.log10().item():.1f} dB")
    return network


if __name__ == "__main__":
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    trained = train(shifted_mask(), 60 * minutes)
    save_file(trained.state_dict(), WEIGHTS)
    print(f"wrote {WEIGHTS}")
