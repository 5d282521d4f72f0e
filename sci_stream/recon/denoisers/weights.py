"""Read weights of FFDNet in several layouts, and of unrolled stages
(`sci_stream.recon.algorithms.unrolled`) in one.

Three layouts of FFDNet are read, distinguished by their keys and shapes:

=========  ==================  =======================  ============  ==========  ==================
layout     file                keys                     bias          σ map       last layer gives
=========  ==================  =======================  ============  ==========  ==================
own        ``.safetensors``    ``conv.N.weight``        yes           last        given by metadata
KAIR       ``.pth``            ``model.2N.weight``      BN merged     last        the image
IPOL       ``.pth``            ``…_dncnn.K.weight``     BN to fold    first       the noise
=========  ==================  =======================  ============  ==========  ==================

All order the four sub-pixels of the unshuffled image row by row, as ``torch.pixel_unshuffle`` does.
"""

from __future__ import annotations

import itertools
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from sci_stream.errors import FileFormatError, InputError, WeightsError
from sci_stream.file_guard import reading, require_memory, require_ratio, require_regular
from sci_stream.model import BayerPhase

LAYOUT = "sci_stream.ffdnet.1"
"""The ``layout`` entry in the metadata of own checkpoints; the number increases with incompatible
changes."""
UNROLLED_LAYOUT = "sci_stream.unrolled.1"
"""That of unrolled stages."""

# The ``frames`` entry in the metadata of a network of mosaics; grey ones have none.
_MOSAICS = "RGGB mosaics"

SUBPIXELS = 4
"""Sub-pixel images of half the size that a frame is split into."""
FRAME_INPUTS = SUBPIXELS + 1
"""Channels that an FFDNet takes: sub-pixels and σ."""
STAGE_INPUTS = FRAME_INPUTS + 2 * SUBPIXELS + 2
STAGE_OUTPUTS = 2 * SUBPIXELS
"""Channels that an unrolled stage takes besides the memory, and gives.

x and σ as a frame network takes them, the last change and the masks by sub-pixels, noise and error
of the start; the error of x and log(e²/2σ²), by sub-pixels.
"""
_BN_EPS = 1e-5  # of torch.nn.BatchNorm2d, with which the published network was trained
_IPOL_KEY = re.compile(r"(?:module\.)?intermediate_dncnn\.itermediate_dncnn\.(\d+)\.(\w+)")
_KAIR_KEY = re.compile(r"(?:module\.)?model\.(\d+)\.(weight|bias)")
_OWN_KEY = re.compile(r"conv\.(\d+)\.(weight|bias)")
_EXPECTED = (
    "FFDNet (grey) as own .safetensors, KAIR .pth ('model.0.weight', …) or IPOL .pth "
    "('…_dncnn.0.weight', …)"
)

Layers = dict[int, dict[str, Tensor]]


@dataclass(frozen=True, eq=False)
class FfdnetWeights:
    """One grey FFDNet: 3×3 convolutions with ReLU between them, on four sub-pixel channels and the
    σ map.

    Parameters
    ----------
    kernels, biases
        (C_out, C_in, 3, 3) and (C_out,) float32 of each layer. The first takes 5 channels,
        sub-pixels then σ; the last gives 4.
    gives_noise
        The last layer's output is the noise, to be subtracted from the input, and not the image.
    origin
        Which layout it was read from: ``"own"``, ``"kair"``, ``"ipol"`` or ``"matconvnet"``.
    mosaic
        The frames are Bayer mosaics, and not grey: the sub-pixels are their four planes.
    """

    kernels: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    gives_noise: bool
    origin: str
    mosaic: bool = False

    @property
    def layers(self) -> int:
        """Number of convolutions."""
        return len(self.kernels)

    @property
    def channels(self) -> int:
        """Channels that the first layer gives."""
        return self.kernels[0].shape[0]

    def for_phase(self, bayer: BayerPhase) -> FfdnetWeights:
        """Return a network of RGGB mosaics for those of another phase.

        A mosaic of another phase is an RGGB one, mirrored. The mirrored network has its kernels
        mirrored and its sub-pixels in another order; it costs nothing more.
        """
        red = bayer.index("R")
        mirrored = [-1] * (red & 1) + [-2] * (red >> 1)
        order = [place ^ red for place in range(SUBPIXELS)]
        kernels = [kernel.flip(mirrored) for kernel in self.kernels]
        biases = list(self.biases)
        kernels[0] = kernels[0][:, [*order, SUBPIXELS]]
        kernels[-1] = kernels[-1][order]
        biases[-1] = biases[-1][order]
        return replace(self, kernels=tuple(kernels), biases=tuple(biases))


class Stage(NamedTuple):
    """One unrolled stage: kernels (C_out, C_in, 3, 3) and biases (C_out,) of its layers;
    log(σ/error) and α, (2,).
    """

    kernels: Sequence[Tensor]
    biases: Sequence[Tensor]
    step: Tensor


def load_ffdnet(path: Path) -> FfdnetWeights:
    """Read FFDNet weights in any known layout.

    Raises
    ------
    WeightsError
        If the file is missing, unreadable, of an unknown layout, of shapes that do not chain, or
        not finite.

    Notes
    -----
    Pickled checkpoints are read with ``weights_only``: a file from elsewhere cannot run code.
    """
    require_regular(path, "a weights file", error=WeightsError)
    if path.suffix == ".safetensors":
        tensors, metadata = _read_safetensors(path)
        with reading(path, "weights", error=WeightsError):
            return check_weights(_from_own(tensors, metadata, path), path)
    tensors = _read_tensors(path)
    read = _from_ipol if any(_IPOL_KEY.fullmatch(key) for key in tensors) else _from_kair
    with reading(
        path, "weights", error=WeightsError
    ):  # tensors of odd kinds: sparse, quantized, without data
        return check_weights(read(tensors, path), path)


def save_ffdnet(
    weights: FfdnetWeights,
    path: Path,
    *,
    about: Mapping[str, str] | None = None,
    kernel_dtype: torch.dtype = torch.float32,
) -> None:
    """Write weights as own safetensors; the metadata keep ``about`` (training data, licence, …) and
    the shape.
    """
    tensors: dict[str, Tensor] = {}
    for n, (kernel, bias) in enumerate(zip(weights.kernels, weights.biases, strict=True)):
        tensors[f"conv.{n}.weight"] = kernel.detach().cpu().to(kernel_dtype).contiguous()
        tensors[f"conv.{n}.bias"] = bias.detach().cpu().contiguous()
    shape = {"layers": str(weights.layers), "channels": str(weights.channels)}
    layout = {"layout": LAYOUT, "output": "noise" if weights.gives_noise else "image", **shape}
    if weights.mosaic:
        layout["frames"] = _MOSAICS
    safetensors.torch.save_file(tensors, path, {**(about or {}), **layout})


def is_unrolled(path: Path) -> bool:
    """Return whether a checkpoint says that it has unrolled stages; raise `WeightsError` if it
    cannot be read.
    """
    return path.suffix == ".safetensors" and read_metadata(path).get("layout") == UNROLLED_LAYOUT


def load_unrolled(path: Path) -> list[Stage]:
    """Read unrolled stages, float32: safetensors with their shape in the metadata.

    Raises `WeightsError` if the file is missing, unreadable, of another network or shape, or not
    finite.
    """
    tensors, metadata = _read_safetensors(path)
    if (layout := metadata.get("layout", "none")) != UNROLLED_LAYOUT:
        hint = "Weights of an FFDNet are for 'ffdnet'."
        raise WeightsError(
            f"Weights file {path} has no unrolled stages",
            expected=UNROLLED_LAYOUT,
            got=layout,
            hint=hint,
        )
    with reading(path, "unrolled stages", error=WeightsError):
        n_stages, n_layers, channels = (
            int(metadata[name]) for name in ("stages", "layers", "channels")
        )
    sizes = [
        STAGE_INPUTS + channels // 2,
        *[channels] * (min(n_layers, len(tensors)) - 1),
        STAGE_OUTPUTS,
    ]
    shapes: dict[str, tuple[int, ...]] = {"step": (2,)}
    for n, (c_in, c_out) in enumerate(itertools.pairwise(sizes)):
        shapes |= {f"conv.{n}.weight": (c_out, c_in, 3, 3), f"conv.{n}.bias": (c_out,)}
    names = [f"stage.{k}." for k in range(min(n_stages, len(tensors)))]
    expected = {stage + name: shape for stage in names for name, shape in shapes.items()}
    if (
        n_layers < 2
        or not expected
        or {name: tuple(tensor.shape) for name, tensor in tensors.items()} != expected
    ):
        raise WeightsError(
            f"The tensors of {path} do not have the shape that its metadata state",
            expected=f"{n_stages} stages of {n_layers} layers and {channels} channels",
            got=_shortened([f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items()]),
        )
    _require_finite(tensors.values(), path)
    values = [[tensors[stage + name].float() for name in shapes] for stage in names]
    return [Stage(layers[::2], layers[1::2], step) for step, *layers in values]


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of an own checkpoint.

    Raises `WeightsError` if it cannot be read.
    """
    return _read_safetensors(path)[1]


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    require_regular(path, "a weights file", error=WeightsError)
    with (
        reading(path, "safetensors weights", error=WeightsError),
        safetensors.safe_open(path, framework="pt", device="cpu") as file,
    ):
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118 - no dict


def read_pickled(
    path: Path,
    what: str,
    *,
    error: type[InputError] = FileFormatError,
    hint: str | None = None,
) -> object:
    """Read a pickled checkpoint without running code from it, or filling the memory with sizes that
    it declares.

    Raises `FileFormatError`, or ``error``, if it is missing, damaged, too large or needs code to be
    read. ``what`` names its kind.
    """
    require_regular(path, what, error=error)
    with reading(path, what, error=error, hint=hint):
        if zipfile.is_zipfile(path):  # it raises for some damaged files
            with zipfile.ZipFile(path) as archive:
                declared = sum(member.file_size for member in archive.infolist())
            _require_plausible(declared, path, error)
        content: object = torch.load(path, map_location="cpu", weights_only=True)
        # Tensors may repeat few stored numbers (strides of 0), which are written out once they are
        # used.
        declared = sum(
            tensor.numel() * max(4, tensor.element_size()) for tensor in _tensors_in(content)
        )
    _require_plausible(declared, path, error)
    return content


def unwrapped(content: object) -> object:
    """Return the tensors by name in a checkpoint, which training scripts commonly wrap."""
    for wrapper in ("state_dict", "params", "model_state_dict", "model", "net", "network"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    return content


def _tensors_in(content: object) -> Iterator[Tensor]:
    """Yield the tensors in nested containers, each container once: a pickle can hold one many
    times, or in itself.
    """
    seen = set[int]()
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (Mapping, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            waiting += value.values() if isinstance(value, Mapping) else value


def _require_plausible(declared_bytes: int, path: Path, error: type[InputError]) -> None:
    require_memory(declared_bytes, path, error=error)
    require_ratio(declared_bytes, path.stat().st_size, path, error=error)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    hint = "Only plain tensor checkpoints are read: a file that needs code to load is refused."
    content = read_pickled(path, "weights", error=WeightsError, hint=hint)
    content = unwrapped(content)
    if not isinstance(content, Mapping) or not content:
        raise WeightsError(
            f"Weights file {path} holds no tensors by name",
            expected=_EXPECTED,
            got=type(content).__name__,
        )
    unknown = [key for key, value in content.items() if not isinstance(value, Tensor)]
    if unknown:
        raise _unknown_layout(path, [str(key) for key in unknown])
    return {str(key): value for key, value in content.items()}


def _from_own(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], path: Path
) -> FfdnetWeights:
    if metadata.get("layout") != LAYOUT:
        raise WeightsError(
            f"Weights file {path} is of an unknown layout",
            expected=f"layout {LAYOUT!r} in its metadata",
            got=repr(metadata.get("layout", "none")),
            hint="Choose the denoiser 'unrolled'."
            if metadata.get("layout") == UNROLLED_LAYOUT
            else None,
        )
    output = metadata.get("output")
    if output not in ("image", "noise"):
        raise WeightsError(
            f"Weights file {path} does not state the output of its last layer",
            expected="image or noise",
            got=output,
        )
    layers = _by_layer(tensors, _OWN_KEY, path)
    weights = _assembled(layers.values(), gives_noise=output == "noise", origin="own", path=path)
    return replace(weights, mosaic=metadata.get("frames") == _MOSAICS)


def _from_kair(tensors: Mapping[str, Tensor], path: Path) -> FfdnetWeights:
    layers = _by_layer(tensors, _KAIR_KEY, path)
    return _assembled(layers.values(), gives_noise=False, origin="kair", path=path)


def _from_ipol(tensors: Mapping[str, Tensor], path: Path) -> FfdnetWeights:
    layers = _by_layer(tensors, _IPOL_KEY, path)
    convolutions: list[dict[str, Tensor]] = []
    for layer in layers.values():
        if layer["weight"].ndim == 4:
            convolutions.append(layer)
        elif convolutions and "running_var" in layer:
            convolutions[-1] = _folded(convolutions[-1], layer, path)
        else:
            raise _unknown_layout(path, list(tensors))
    if convolutions and convolutions[0]["weight"].shape[1] == FRAME_INPUTS:
        # The σ map comes first there and last here.
        first = convolutions[0]
        convolutions[0] = {**first, "weight": first["weight"].roll(-1, dims=1)}
    return _assembled(convolutions, gives_noise=True, origin="ipol", path=path)


def _folded(
    convolution: Mapping[str, Tensor], norm: Mapping[str, Tensor], path: Path
) -> dict[str, Tensor]:
    """Fold a batch normalisation into the convolution before it: w ← s·w, b ← β + s·(b − μ), s =
    γ/√(var + ε).
    """
    kernel = convolution["weight"].double()
    try:
        gamma, beta, mean, var = (
            norm[key].double() for key in ("weight", "bias", "running_mean", "running_var")
        )
        scale = gamma / torch.sqrt(var + _BN_EPS)
        bias = beta - mean * scale
        if "bias" in convolution:
            bias = bias + convolution["bias"].double() * scale
        return {"weight": kernel * scale[:, None, None, None], "bias": bias}
    except (KeyError, RuntimeError) as error:
        raise WeightsError(
            f"Weights file {path} has a broken batch normalisation",
            expected=f"weight, bias, running_mean and running_var of {kernel.shape[0]} channels",
            got=", ".join(f"{key} {tuple(value.shape)}" for key, value in norm.items()),
        ) from error


def _by_layer(tensors: Mapping[str, Tensor], pattern: re.Pattern[str], path: Path) -> Layers:
    """Group tensors by the layer number in their keys, in ascending order."""
    layers: Layers = {}
    unknown = []
    for key, value in tensors.items():
        match = pattern.fullmatch(key)
        if match is None:
            unknown.append(key)
        else:
            layers.setdefault(int(match[1]), {})[match[2]] = value
    if unknown or not layers or any("weight" not in layer for layer in layers.values()):
        raise _unknown_layout(path, unknown or list(tensors))
    return dict(sorted(layers.items()))


def _assembled(
    layers: Iterable[Mapping[str, Tensor]], *, gives_noise: bool, origin: str, path: Path
) -> FfdnetWeights:
    kernels = []
    biases = []
    for layer in layers:
        kernel = layer["weight"]
        if kernel.ndim != 4:
            raise _wrong_shapes(path, [tuple(kernel.shape)])
        kernels.append(kernel.to(torch.float32).contiguous())
        bias = layer["bias"] if "bias" in layer else kernel.new_zeros(kernel.shape[0])
        biases.append(bias.to(torch.float32).contiguous())
    return FfdnetWeights(tuple(kernels), tuple(biases), gives_noise=gives_noise, origin=origin)


def check_weights(weights: FfdnetWeights, path: Path) -> FfdnetWeights:
    """Return the weights if they chain from 5 to 4 channels by 3×3 kernels and are finite.

    Raises `WeightsError` if not; it names ``path``, the file they came from.
    """
    if not weights.kernels:
        raise _wrong_shapes(path, [])
    shapes = [tuple(kernel.shape) for kernel in weights.kernels]
    inputs = [shape[1] for shape in shapes]
    outputs = [shape[0] for shape in shapes]
    chained = inputs[0] == FRAME_INPUTS and outputs[-1] == SUBPIXELS and inputs[1:] == outputs[:-1]
    biased = all(bias.shape == (n,) for bias, n in zip(weights.biases, outputs, strict=True))
    if not chained or not biased or any(shape[2:] != (3, 3) for shape in shapes):
        raise _wrong_shapes(path, shapes)
    _require_finite((*weights.kernels, *weights.biases), path)
    return weights


def _require_finite(tensors: Iterable[Tensor], path: Path) -> None:
    if not all(bool(t.isfinite().all()) for t in tensors):
        raise WeightsError(
            f"Weights file {path} holds NaN or infinity",
            hint="Training diverged, or it is damaged.",
        )


def _wrong_shapes(path: Path, shapes: list[tuple[int, ...]]) -> WeightsError:
    return WeightsError(
        f"Weights file {path} is not a grey FFDNet",
        expected="3×3 kernels from 5 input channels (4 sub-pixels and σ) to 4, each layer fitting "
        "the next",
        got=f"{len(shapes)} layers of shapes {_shortened(shapes)}" if shapes else "no layers",
        hint="Colour networks take 13 channels: use the grey one.",
    )


def _unknown_layout(path: Path, keys: list[str]) -> WeightsError:
    return WeightsError(
        f"Weights file {path} is of an unknown layout",
        expected=_EXPECTED,
        got=f"keys {_shortened(keys)}",
    )


def _shortened(items: Sequence[object]) -> str:
    """List a few items and the number of further ones."""
    shown = ", ".join(str(item) for item in items[:4])
    return f"{shown} and {len(items) - 4} more" if len(items) > 4 else shown
