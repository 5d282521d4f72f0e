"""Networks for other runtimes: ONNX models of any layout's weights, for any number and size of
frames.
"""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path

from sci_stream.errors import ConfigError, require_optional
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import FfdnetWeights, read_metadata
from sci_stream_lab.training.checkpoint import write_atomically
from sci_stream_lab.training.convert import file_sha256, read_any

# Frames of odd height or width are mirrored by a row or column, as in
# `sci_stream.recon.denoisers.ffdnet`.
_MODEL = """
<ir_version: 8, opset_import: ["": 17]>
ffdnet (float[n, 1, height, width] frames, float[levels, 1, level_rows, level_columns] sigma)
    => (float[n, 1, height, width] denoised)
{{
    size = Shape<start = 2>(frames)
    two = Constant<value_ints = [2]>()
    odd = Mod(size, two)
    nothing = Constant<value_ints = [0, 0, 0, 0, 0, 0]>()
    pads = Concat<axis = 0>(nothing, odd)
    even = Pad<mode = "reflect">(frames, pads)
    image = SpaceToDepth<blocksize = 2>(even)
    count = Shape<start = 0, end = 1>(image)
    one = Constant<value_ints = [1]>()
    halved = Shape<start = 2>(image)
    shape = Concat<axis = 0>(count, one, halved)
    levels = Expand(sigma, shape)
    h0 = Concat<axis = 1>(image, levels)
    {layers}
    blocks = {output}
    padded = DepthToSpace<blocksize = 2>(blocks)
    origin = Constant<value_ints = [0, 0]>()
    axes = Constant<value_ints = [2, 3]>()
    denoised = Slice(padded, origin, size, axes)
}}
"""


def export_onnx(source: str, path: Path, *, force: bool = False) -> None:
    """Write a network as an ONNX model in float32, with the metadata of its weights, the licence
    included.

    Its inputs are ``frames``, (N, 1, H, W), 0–1, and ``sigma`` on the same scale: (1, 1, 1, 1), (N,
    1, 1, 1), or by 2×2 pixels (N, 1, ⌈H/2⌉, ⌈W/2⌉). The output is ``denoised``, (N, 1, H, W).

    Parameters
    ----------
    source
        A shipped network by name, or the path of a checkpoint in any known layout.
    path
        Output file, ``.onnx``.
    force
        Replace an existing file.

    Raises
    ------
    ConfigError
        If onnx is not installed, there is no such network, or the path does not end in ``.onnx`` or
        exists and is not to be replaced.
    WeightsError
        If the source is unusable.
    StorageError
        If the file cannot be written.
    """
    if path.suffix != ".onnx":
        raise ConfigError(
            "A network for other runtimes is an ONNX model",
            expected="a name ending in .onnx",
            got=path,
        )
    if path.exists() and not force:
        raise ConfigError(
            f"{path} exists", hint="Choose another name, or use --force to replace it."
        )
    checkpoint = Path(source) if Path(source).exists() else shipped_weights(source)
    about = {"weights_sha256": file_sha256(checkpoint)}
    if checkpoint.suffix == ".safetensors":
        about |= read_metadata(checkpoint)
    model = _model(read_any(checkpoint), about)
    write_atomically(path, lambda file: file.write(model))


def _model(weights: FfdnetWeights, about: dict[str, str]) -> bytes:
    """Return the serialised model of a network."""
    onnx = require_optional("onnx", "onnx", "Export to ONNX", "sci-stream-lab")
    layers = [
        f"c{n} = Conv<pads = [1, 1, 1, 1]>(h{n}, kernel{n}, bias{n})" for n in range(weights.layers)
    ]
    # ReLU follows all layers but the last.
    relus = [f"h{n} = Relu(c{n - 1})" for n in range(1, weights.layers)]
    text = _MODEL.format(
        layers="\n    ".join(
            line for pair in itertools.zip_longest(layers, relus, fillvalue="") for line in pair
        ),
        output=f"{'Sub(image, ' if weights.gives_noise else 'Identity('}c{weights.layers - 1})",
    )
    model = importlib.import_module("onnx.parser").parse_model(text)
    model.producer_name = "sci-stream-lab"
    for n, layer in enumerate(zip(weights.kernels, weights.biases, strict=True)):
        for name, value in zip(("kernel", "bias"), layer, strict=True):
            model.graph.initializer.append(
                onnx.numpy_helper.from_array(value.numpy(), f"{name}{n}")
            )
    onnx.helper.set_model_props(model, about)
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())
