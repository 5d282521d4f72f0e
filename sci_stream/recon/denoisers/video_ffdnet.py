"""An FFDNet that sees neighbouring frames: what moves is denoised with the help of the frames around it.

The body is the frame network's. Its input holds, besides each frame, how the frame before, the one after and the mean
of the frames around differ from it, and between its layers some features move one frame forward and others one frame
back, which costs no multiplication (temporal shift). So the work is that of the frame network but for the first layer,
any B will do, and nothing is aligned by search: neighbouring frames behind one mask sequence are close in time.
"""

from __future__ import annotations

import torch

from sci_stream.recon.algorithms.noise_level import sigma_map
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser, network_sigma_map
from sci_stream.recon.denoisers.half_precision import Precision
from sci_stream.recon.denoisers.weights import FfdnetWeights

# Pixels of all frames that go through the network at once. All frames of a strip are alive together, so that a strip
# is larger than a chunk of frames: 2²¹ pixels take about 0.3 GB in float32.
_PIXELS_PER_STRIP = {"cpu": 2**21, "cuda": 2**23}
_LEAST_STRIP_ROWS = 32


class VideoFfdnetDenoiser(FfdnetDenoiser):
    """Grey FFDNet with neighbouring frames, on whole videos; see `FfdnetDenoiser` for the parameters.

    A batch of frames that do not belong together is denoised as videos of one frame each.

    References
    ----------
    Lin, Gan, Han, "TSM: Temporal shift module for efficient video understanding", ICCV 2019; its use for denoising:
    Qi, Chen, Yang, Chen, "Real-time streaming video denoising with bidirectional buffers", ACM MM 2022.
    """

    def __init__(
        self,
        weights: FfdnetWeights,
        device: torch.device,
        precision: Precision = Precision.FLOAT32,
        *,
        name: str = "video",
        pixels_per_strip: int | None = None,
    ) -> None:
        super().__init__(weights, device, precision, name=name)
        self._pixels_per_strip = pixels_per_strip or _PIXELS_PER_STRIP[device.type]
        # What a pixel of the result depends on: one pixel of a half-size image in each layer, two rows of the frame.
        self._halo_rows = 2 * weights.layers
        self._smallest = True  # until a video was denoised

    def denoise_video(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        """Denoise (P, B, H, W); see `sci_stream.ports.VideoDenoiser`."""
        network = self._half if self.graph_key(sigma) == "half" else self._full
        n_planes, n_frames, height, width = x.shape
        level = network_sigma_map(sigma_map(sigma, x), n_planes)
        out = torch.empty_like(x)
        rows = self._rows_per_strip(n_frames, width)
        self._smallest = rows == _LEAST_STRIP_ROWS
        for plane in range(n_planes):
            for top in range(0, height, rows):
                first, end = max(0, top - self._halo_rows), min(height, top + rows + self._halo_rows)
                strip = x[plane, :, first:end]
                at = level[plane : plane + 1, :, first // 2 : -(-end // 2)] if level.ndim else level
                kept = slice(top - first, min(top + rows, height) - first)
                out[plane, :, top : top + rows] = self._denoise(strip, at, network, n_frames)[:, kept]
        return out

    def reduce_memory(self) -> bool:
        """Take strips of half the height, and chunks of half the frames; see `sci_stream.ports.MemoryReducible`."""
        reduced = super().reduce_memory()
        if not self._smallest:
            self._pixels_per_strip //= 2
        return reduced or not self._smallest

    def _rows_per_strip(self, n_frames: int, width: int) -> int:
        """Return an even number of rows."""
        return max(_LEAST_STRIP_ROWS, self._pixels_per_strip // (n_frames * width) // 2 * 2)
