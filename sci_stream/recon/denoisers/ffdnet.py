"""FFDNet: the learned prior of the paper, a small convolutional network that takes the noise level
as input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch import Tensor

from sci_stream.model import BayerPhase
from sci_stream.recon.algorithms.noise_level import Sigma, on_device
from sci_stream.recon.backend.convolution import convolve_relu
from sci_stream.recon.backend.device import half_dtype, prepare_libraries
from sci_stream.recon.backend.half_precision import Precision, round_network, scale_to_exact_biases
from sci_stream.recon.backend.memory import PIXELS_PER_CHUNK, plan_chunks
from sci_stream.recon.backend.transfers import Stopwatch
from sci_stream.recon.denoisers.weights import SUBPIXELS, FfdnetWeights

# Root mean square error of 16-bit arithmetic, as a fraction of σ, up to which it is used
# (docs/decisions/16-bit-and-graphs.md).
_ERROR_PER_SIGMA = 0.02

MAX_TRAINED = 75 / 255
"""Level up to which networks are trained, FFDNet's paper, Section IV."""

_PROBED_SIGMAS = tuple(level / 255 for level in (50, 35, 25, 18, 12, 9, 6, 4, 2.5))
# Brightness beyond which the network's input is clipped in 16 bits.
#
# Noise can take a pixel that hardly any mask exposes that far. The published networks' activations
# reach 12 times their input, so that float16, which ends at 65504, is safe by a wide margin.
_INPUT_LIMIT = 16.0

# Relative error up to which two ways to run the layers agree: sums of 576 products rounded to 16
# bits in each.
_ROUNDING = 2e-2

Stack = Callable[[Tensor], Tensor]
"""The convolutions of a network: (N, C, h, w), channels last, in the dtype of the first kernel →
(N, 4, h, w)."""


@dataclass(frozen=True, eq=False)
class LayerStack:
    """The convolutions on the device, with the dtype that they take.

    ``limit``: brightness beyond which the input is clipped; ``gives_noise`` as in `FfdnetWeights`.
    """

    stack: Stack
    dtype: torch.dtype
    limit: float
    gives_noise: bool


class FfdnetDenoiser:
    """Grey FFDNet, of any number of layers and channels, on a batch of frames.

    Each frame is split into four sub-pixel images of half the size, stacked with a map of σ, passed
    through the convolutions and recombined. 242 kFLOP per pixel for the published network
    of 15 layers and 64 channels, 24 for ``ffdnet-lite``.

    Parameters
    ----------
    weights
        The network, from `sci_stream.recon.denoisers.weights.load_ffdnet`. Copied to the device.
    device
        Where to run; frames must be there.
    precision
        Arithmetic of the convolutions; the image itself is float32 throughout. With ``AUTO``, 16
        bits are used if the device has instructions for them, down to the lowest σ at which the
        error of these weights on a test picture is below 2 % of σ.
    name
        Its name in reports.
    pixels_per_chunk
        See `sci_stream.recon.backend.memory.PIXELS_PER_CHUNK`; None for the device's default.
    mosaic
        The network for Bayer mosaics; None to denoise their planes apart.

    References
    ----------
    Zhang, Zuo, Zhang, "FFDNet: Toward a fast and flexible solution for CNN based image denoising",
    IEEE TIP 27 (2018).
    """

    takes_relative = True

    def __init__(
        self,
        weights: FfdnetWeights,
        device: torch.device,
        precision: Precision = Precision.FLOAT32,
        *,
        name: str = "ffdnet",
        pixels_per_chunk: int | None = None,
        mosaic: FfdnetWeights | None = None,
    ) -> None:
        self.name = name
        self._device = device
        self._precision = precision
        self._mosaic = mosaic
        self._of_mosaics: dict[BayerPhase, MosaicFfdnetDenoiser] = {}
        prepare_libraries(device)
        self.pixels_per_chunk = pixels_per_chunk or PIXELS_PER_CHUNK[device.type]
        """Pixels that go through the network at once."""
        self._frame_pixels = 0
        self._full = _network(weights, device, torch.float32)
        self.half: torch.dtype | None = half_dtype(device)
        if precision is Precision.HALF:
            self.half = self.half or torch.bfloat16
        if precision is Precision.FLOAT32:
            self.half = None
        self._half = self._full if self.half is None else _network(weights, device, self.half)
        self.half_from_sigma = 0.0 if precision is Precision.HALF else math.inf
        if precision is Precision.AUTO and self.half is not None:
            self.half_from_sigma = self._lowest_sigma_in_half(device)

    @property
    def network(self) -> LayerStack | None:
        """The network, if it is one and the same at all levels of σ."""
        if self.half_from_sigma == 0.0:
            return self._half
        return self._full if math.isinf(self.half_from_sigma) else None

    @property
    def recordable(self) -> bool:
        """Whether one network serves all levels; see `sci_stream.ports.Recordable`."""
        return self.network is not None

    def network_at(self, sigma: Sigma) -> LayerStack:
        """Return the network for a level, in 16 bits where its error is small against σ."""
        return self.network or (
            self._half if torch.as_tensor(sigma).amax() >= self.half_from_sigma else self._full
        )

    def __call__(self, x: Tensor, sigma: Sigma, relative: Tensor | None = None) -> Tensor:
        """Denoise (N, H, W); see `sci_stream.ports.LocalDenoiser`."""
        out = torch.empty_like(x)
        level = network_sigma(on_device(sigma, x), relative, len(x))
        self._denoise_to(out.unsqueeze(1), x.unsqueeze(1), level, self.network_at(sigma))
        return out

    def for_mosaic(self, bayer: BayerPhase) -> MosaicFfdnetDenoiser | None:
        """Return the network for mosaics; see `sci_stream.ports.MosaicDenoiser`."""
        if self._mosaic is not None and bayer not in self._of_mosaics:
            self._of_mosaics[bayer] = MosaicFfdnetDenoiser(
                self._mosaic.for_phase(bayer),
                self._device,
                self._precision,
                name=self.name,
                pixels_per_chunk=self.pixels_per_chunk,
            )
        return self._of_mosaics.get(bayer)

    def _denoise_to(self, out: Tensor, images: Tensor, level: Tensor, network: LayerStack) -> None:
        """Denoise (N, C, H, W) into ``out``, in chunks."""
        self._frame_pixels = images[0].numel()
        sizes = plan_chunks(len(images), self._frame_pixels, self.pixels_per_chunk)
        levels = torch.split(level, sizes) if level.ndim else [level] * len(sizes)
        chunks = zip(torch.split(images, sizes), levels, torch.split(out, sizes), strict=True)
        for chunk, at, result in chunks:
            result.copy_(self._denoise(chunk, at, network))

    def reduce_memory(self) -> bool:
        """Take chunks of half the size, down to a frame each; see
        `sci_stream.ports.MemoryReducible`.
        """
        more_than_one = self.pixels_per_chunk >= 2 * self._frame_pixels > 0
        if more_than_one:
            self.pixels_per_chunk //= 2
        return more_than_one

    def _denoise(self, images: Tensor, sigma: Tensor, network: LayerStack) -> Tensor:
        """Denoise (N, 1, H, W)."""
        height, width = images.shape[-2:]
        inputs = frame_input(_padded_to_even(images), sigma)
        return F.pixel_shuffle(_subpixels(inputs, network), 2)[..., :height, :width]

    def _test_images(self, picture: Tensor) -> Tensor:
        """Return pictures, (N, 1, H, W), as `_denoise` takes them."""
        return picture

    @torch.inference_mode()
    def _lowest_sigma_in_half(self, device: torch.device) -> float:
        """Return the lowest of the probed σ down to which 16 bits err by a small fraction of σ
        only; ∞ if none.
        """
        picture, noise = (
            self._test_images(image.unsqueeze(1).to(device)) for image in _test_picture()
        )
        lowest = math.inf
        for sigma in _PROBED_SIGMAS:
            noisy, level = picture + sigma * noise, picture.new_full((), sigma)
            error = self._denoise(noisy, level, self._half) - self._denoise(
                noisy, level, self._full
            )
            if not float(error.square().mean().sqrt()) <= _ERROR_PER_SIGMA * sigma:
                break
            lowest = sigma
        return 0.0 if lowest == _PROBED_SIGMAS[-1] else lowest


class MosaicFfdnetDenoiser(FfdnetDenoiser):
    """FFDNet on a batch of Bayer mosaics: the four planes of a frame are its four sub-pixels.

    It has the layers and the cost of a grey one. Parameters as of `FfdnetDenoiser`; the weights are
    those of the phase.
    """

    def __call__(self, x: Tensor, sigma: Sigma, relative: Tensor | None = None) -> Tensor:
        """Denoise the planes of N frames, (4, N, h, w); see `sci_stream.ports.MosaicDenoiser`."""
        out = torch.empty_like(x)
        level = mosaic_sigma(on_device(sigma, x), relative)
        frames = x.transpose(0, 1)
        level = level.expand(len(frames), *level.shape[1:]) if level.ndim else level
        self._denoise_to(out.transpose(0, 1), frames, level, self.network_at(sigma))
        return out

    def _denoise(self, images: Tensor, sigma: Tensor, network: LayerStack) -> Tensor:
        """Denoise (N, 4, h, w)."""
        return _subpixels(with_level(images, sigma), network)

    def _test_images(self, picture: Tensor) -> Tensor:
        return F.pixel_unshuffle(picture, 2)


def _subpixels(inputs: Tensor, network: LayerStack) -> Tensor:
    """Return the denoised sub-pixels, (N, 4, h, w), of an input of the network."""
    if math.isfinite(network.limit):
        inputs = inputs.clamp(-network.limit, network.limit)
    return denoised_subpixels(
        inputs, network.stack, gives_noise=network.gives_noise, dtype=network.dtype
    )


def frame_input(x: Tensor, sigma: Tensor) -> Tensor:
    """Return the input of the network: four sub-pixels and σ, (N, 5, H/2, W/2), channels last.

    Parameters
    ----------
    x
        (N, 1, H, W) with even H and W, 0–1.
    sigma
        Noise level on the 0–1 scale, of all frames, (), of each, (N, 1, 1, 1), or of every 2×2
        pixels of each, (N, 1, H/2, W/2).
    """
    n, _, height, width = x.shape
    rows = x.reshape(n, height // 2, 2, width // 2, 2)
    inputs = x.new_empty(n, height // 2, width // 2, SUBPIXELS + 1)
    inputs[..., 0:2] = rows[:, :, 0]
    inputs[..., 2:4] = rows[:, :, 1]
    inputs[..., 4:] = sigma.movedim(1, -1) if sigma.ndim else sigma
    return inputs.permute(0, 3, 1, 2)


def with_level(subpixels: Tensor, sigma: Tensor) -> Tensor:
    """Return sub-pixels, (N, 4, h, w), with σ as the last channel; σ as of `frame_input`."""
    level = sigma.expand(len(subpixels), 1, *subpixels.shape[2:])
    return torch.cat((subpixels, level), dim=1)


def denoised_subpixels(
    inputs: Tensor, stack: Stack, *, gives_noise: bool, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Denoise by FFDNet of any number of layers and channels; the one definition of the network,
    for use and training.

    Parameters
    ----------
    inputs
        (N, 5, H/2, W/2), from `frame_input`.
    stack
        The convolutions, on the device of ``inputs``.
    gives_noise
        As in `FfdnetWeights`.
    dtype
        That the stack takes.

    Returns
    -------
    The sub-pixels of the denoised frames, (N, 4, H/2, W/2).
    """
    h = stack(inputs.to(dtype, memory_format=torch.channels_last))
    return inputs[:, :SUBPIXELS] - h if gives_noise else h


def in_layers(kernels: Sequence[Tensor], biases: Sequence[Tensor]) -> Stack:
    """Return 3×3 convolutions with ReLU between them as one; gradients pass.

    Each kernel takes features in its own dtype.
    """

    def run(h: Tensor) -> Tensor:
        for kernel, bias in zip(kernels[:-1], biases[:-1], strict=True):
            h = convolve_relu(h.to(kernel.dtype), kernel, bias)
        return F.conv2d(h.to(kernels[-1].dtype), kernels[-1], biases[-1], padding=1)

    return run


def in_three_terms(kernels: Sequence[Tensor], biases: Sequence[Tensor], first: Tensor) -> Stack:
    """Return `in_layers` whose first layer multiplies 16-bit numbers, as exactly as float32 does.

    A float32 number is the sum of two of 16 bits and a rest that is negligible: (a + b)(c + d) ≈
    ac + bc + ad.

    Parameters
    ----------
    kernels, biases
        In 16 bits; the first kernel is not used.
    first
        Kernel of the first layer in float32.
    """
    dtype = kernels[0].dtype
    high = first.to(dtype)
    low = (first - high).to(dtype)
    kernel = torch.cat((high, high, low), 1).contiguous(memory_format=torch.channels_last)
    layers = in_layers([kernel, *kernels[1:]], biases)

    def run(features: Tensor) -> Tensor:
        high = features.to(dtype)
        low = (features - high).to(dtype)
        return layers(torch.cat((high, low, high), 1))

    return run


def fused_layers(kernels: Sequence[Tensor], biases: Sequence[Tensor]) -> Stack:
    """Return `in_layers` by cuDNN's convolutions with bias and ReLU in the same kernel, on a GPU;
    without gradients.
    """
    last = in_layers(kernels[-1:], biases[-1:])

    def run(h: Tensor) -> Tensor:
        for kernel, bias in zip(kernels[:-1], biases[:-1], strict=True):
            h = torch.cudnn_convolution_relu(h, kernel, bias, (1, 1), (1, 1), (1, 1), 1)
        return last(h)

    return run


@torch.inference_mode()
def _fastest_layers(kernels: Sequence[Tensor], biases: Sequence[Tensor]) -> Stack:
    """Return `in_layers` or `fused_layers`, as is faster on a GPU for features of eight frames of
    256×256 pixels.
    """
    ways = in_layers(kernels, biases), fused_layers(kernels, biases)
    features = torch.rand(8, kernels[0].shape[1], 128, 128, device=kernels[0].device).to(kernels[0])
    features = features.contiguous(memory_format=torch.channels_last)
    try:
        plain, fused = (way(features).float() for way in ways)
        if not float((fused - plain).square().mean().sqrt()) <= _ROUNDING * float(
            plain.square().mean().sqrt()
        ):
            return ways[0]
        return min(ways, key=lambda way: stack_seconds(way, features))
    except RuntimeError:  # a cuDNN without such convolutions
        return ways[0]


def stack_seconds(stack: Stack, features: Tensor, calls: int = 20) -> float:
    """Return the seconds of a call of many."""
    watch = Stopwatch(features.device)
    stack(features)
    watch.lap()
    for _ in range(calls):
        stack(features)
    watch.lap()
    return watch.seconds() / calls


def _network(weights: FfdnetWeights, device: torch.device, dtype: torch.dtype) -> LayerStack:
    """Return the network in a dtype.

    In 16 bits on a CPU the layers that the image itself passes are as exact as in float32: the
    first one, and the last one if it gives the image, 3 % of the work. On a GPU they would cost far
    more, and float16 has three bits more than bfloat16.
    """
    kernels, biases = list(weights.kernels), list(weights.biases)
    mixed = dtype is not torch.float32 and device.type == "cpu" and len(kernels) > 1
    if dtype is not torch.float32:
        kernels, biases = round_network(kernels, biases, dtype)
    # Scaled as the rounded layers are, so that what follows fits.
    exact = scale_to_exact_biases(weights.kernels, weights.biases, dtype)
    if mixed and not weights.gives_noise:
        kernels[-1], biases[-1] = (value.float() for value in exact[-1])
    # Channels last is the layout in which convolution libraries run without reordering.
    kernels = [kernel.to(device, memory_format=torch.channels_last) for kernel in kernels]
    biases = [bias.to(device) for bias in biases]
    if mixed:
        stack = in_three_terms(kernels, biases, exact[0][0].float())
    else:
        choose = _fastest_layers if device.type == "cuda" else in_layers
        stack = choose(kernels, biases)
    limit = _INPUT_LIMIT if dtype is torch.float16 else math.inf
    taken = torch.float32 if mixed else dtype
    return LayerStack(stack, taken, limit, weights.gives_noise)


def _test_picture() -> tuple[Tensor, Tensor]:
    """Return a picture with ramps, waves and edges, and white noise of σ = 1, (2, 64, 64) both,
    always the same.
    """
    size = 64
    rows, columns = torch.meshgrid(
        torch.arange(float(size)), torch.arange(float(size)), indexing="ij"
    )
    waves = 0.5 + 0.25 * torch.sin(columns / 3 + rows / 11) * torch.cos(rows * columns / 300)
    edges = 0.2 + 0.6 * ((rows // 16 + columns // 24) % 2) * (columns / size)
    generator = torch.Generator().manual_seed(0)
    return torch.stack([waves, edges]), torch.randn(2, size, size, generator=generator)


def network_sigma(level: Tensor, relative: Tensor | None, n_images: int) -> Tensor:
    """Return σ as a network takes it for N images: (), (N, 1, 1, 1), or by pixel (N, 1, ⌈H/2⌉,
    ⌈W/2⌉).

    ``level``, () or (N, 1, 1), and ``relative`` as of `sci_stream.ports.LocalDenoiser`.
    """
    if relative is None:
        return level.unsqueeze(-1) if level.ndim else level
    halved = F.avg_pool2d(_padded_to_even(relative.unsqueeze(1)), 2)
    by_plane = level.reshape(len(halved) if level.ndim else 1, -1, 1, 1)
    levels = (halved * by_plane).clamp_max_(MAX_TRAINED).expand(-1, n_images // len(halved), -1, -1)
    return levels.reshape(n_images, 1, *levels.shape[-2:])


def mosaic_sigma(level: Tensor, relative: Tensor | None) -> Tensor:
    """Return σ as a network takes it for N mosaics: (), (N, 1, 1, 1), or by cell (N or 1, 1, h, w).

    ``level``, () or (N, 1, 1); ``relative``, (4, h, w). A network takes one level a cell: the mean
    of its four pixels, as of the pixels of a grey frame.
    """
    level = level.unsqueeze(-1) if level.ndim else level
    if relative is None:
        return level
    by_cell = relative.mean(0, keepdim=True).unsqueeze(1)
    return (by_cell * level).clamp_max_(MAX_TRAINED)


def _padded_to_even(x: Tensor) -> Tensor:
    """Extend (N, 1, H, W) by a mirrored row or column where H or W is odd."""
    height, width = x.shape[-2:]
    if height % 2 == 0 and width % 2 == 0:
        return x
    # A single row or column has nothing to mirror: repeat it.
    mode = "reflect" if min(height, width) > 1 else "replicate"
    return F.pad(x, (0, width % 2, 0, height % 2), mode=mode)
