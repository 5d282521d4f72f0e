"""Read FFDNet in its first published form: a MatConvNet network in a MATLAB 7.3 file, which is
HDF5.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import torch

from sci_stream.errors import WeightsError
from sci_stream.file_guard import reading, require_regular
from sci_stream.model import Array
from sci_stream.recon.denoisers.weights import FfdnetWeights, check_weights
from sci_stream.recording.hdf5 import open_for_reading, place, read_dataset, require_own_data

# MATLAB counts the pixels of a 2×2 cell by columns, torch by rows.
_SUBPIXEL_ORDER = (0, 2, 1, 3)


def read_matconvnet(path: Path) -> FfdnetWeights:
    """Read the convolutions of a MatConvNet FFDNet (grey) into `FfdnetWeights`.

    MATLAB stores kernels as (height, width, in, out); in HDF5 the axes are reversed. The sub-pixel
    channels at the network's input and output are reordered for torch. Batch normalisation is
    merged in the published files.

    Raises
    ------
    WeightsError
        If the file is missing, not HDF5, contains no such network, or its shapes do not chain.
    """
    require_regular(path, "a weights file", error=WeightsError)
    hint = (
        "Expected MATLAB 7.3 with net.layers, each with its type, convolutions with a kernel "
        "and a bias."
    )
    with (
        reading(path, "a MatConvNet network", error=WeightsError, hint=hint),
        open_for_reading(path, "network") as file,
    ):
        layers = [file[reference] for reference in read_dataset(file["net/layers"]).ravel()]
        convolutions = [
            _convolution(file, layer) for layer in layers if _text(layer["type"]) == "conv"
        ]
    kernels = [torch.from_numpy(kernel) for kernel, _ in convolutions]
    biases = [torch.from_numpy(bias) for _, bias in convolutions]
    order = list(_SUBPIXEL_ORDER)
    if (
        convolutions
        and kernels[0].shape[1] == len(order) + 1
        and kernels[-1].shape[0] == len(order)
    ):
        kernels[0] = kernels[0][:, [*order, len(order)]]
        kernels[-1] = kernels[-1][order]
        biases[-1] = biases[-1][order]
    weights = FfdnetWeights(tuple(kernels), tuple(biases), gives_noise=False, origin="matconvnet")
    return check_weights(weights, path)


def _convolution(file: h5py.File, layer: h5py.Group) -> tuple[Array, Array]:
    """Return kernel (out, in, height, width) and bias (out,) of a layer, float32."""
    nodes = [file[reference] for reference in read_dataset(layer["weights"]).ravel()]
    for node in nodes:
        require_own_data(node.id, place(node))
    kernel, bias = (read_dataset(node) for node in nodes)
    if kernel.ndim != 4:
        raise ValueError(f"a kernel of shape {kernel.shape}")
    transposed = np.ascontiguousarray(kernel.transpose(0, 1, 3, 2), dtype=np.float32)
    return transposed, np.ascontiguousarray(bias.ravel(), dtype=np.float32)


def _text(dataset: h5py.Dataset) -> str:
    """Return a MATLAB character array, stored as UTF-16 code units, as a string."""
    return "".join(chr(code) for code in read_dataset(dataset).ravel())
