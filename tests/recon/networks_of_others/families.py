"""Small networks in the style of published families, with random weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

B = 8


def a(x: Tensor, phi: Tensor) -> Tensor:
    return (x * phi).sum(1)


def at(y: Tensor, phi: Tensor) -> Tensor:
    return y.unsqueeze(1) * phi


class StackedUnet(nn.Module):
    """A 2-D U-net on the normalised measurement and the masks; sizes are multiples of 4."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(2 * B, channels, 3, padding=1)
        self.down = nn.Conv2d(channels, channels, 4, stride=4)
        self.up = nn.ConvTranspose2d(channels, channels, 4, stride=4)
        self.last = nn.Conv2d(2 * channels, B, 3, padding=1)

    def forward(self, y: Tensor, Phi: Tensor, Phi_s: Tensor) -> Tensor:
        mean = torch.div(y, Phi_s).unsqueeze(1)
        x = relu(self.first(torch.cat([mean * Phi, Phi], 1)))
        x = torch.cat([x, self.up(relu(self.down(x)))], 1)
        return mean + 0.1 * torch.tanh(self.last(x))


class UnrolledConv3d(nn.Module):
    """Iterations of GAP with 3-D convolutions: a list of the last estimates."""

    def __init__(self, stages: int = 3) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(
                nn.Conv3d(1, 4, 3, padding=1),
                nn.LeakyReLU(inplace=True),
                nn.Conv3d(4, 1, 3, padding=1),
            )
            for _ in range(stages)
        )

    def forward(self, meas: Tensor, mask: Tensor, mask_s: Tensor) -> list[Tensor]:
        x = at(meas, mask)
        estimates = []
        for stage in self.stages:
            x = x + at((meas - a(x, mask)) / mask_s, mask)
            x = x + 0.1 * stage(x.unsqueeze(1)).squeeze(1)
            estimates.append(x)
        return estimates[-2:]


class WindowTransformer(nn.Module):
    """Attention in windows of 8 × 8 pixels, with a bias of fixed size: y is (N, 1, H, W)."""

    def __init__(self, window: int = 8, dim: int = 8) -> None:
        super().__init__()
        self.window = window
        self.embed = nn.Conv3d(1, dim, 1)
        self.attention = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.bias = nn.Parameter(0.01 * torch.randn(window * window, window * window))
        self.out = nn.Conv3d(dim, 1, 1)

    def forward(self, y: Tensor, Phi: Tensor, Phi_s: Tensor) -> list[Tensor]:
        mean = y / Phi_s
        x = torch.cat([mean, Phi], 1)[:, 1:] * mean + mean  # torch.cat needs y (N, 1, H, W)
        n, b, h, w = x.shape
        side = self.window
        tokens = self.embed(x.unsqueeze(1))
        c = tokens.shape[1]
        tokens = tokens.view(n, c, b, h // side, side, w // side, side)
        tokens = tokens.permute(0, 2, 3, 5, 4, 6, 1).reshape(-1, side * side, c)
        tokens = tokens + self.attention(tokens, tokens, tokens, attn_mask=self.bias)[0]
        tokens = tokens.view(n, b, h // side, w // side, side, side, c)
        tokens = tokens.permute(0, 6, 1, 2, 4, 3, 5).reshape(n, c, b, h, w)
        return [mean.expand_as(x) + 0.1 * self.out(tokens).squeeze(1)]
