"""The authors' MATLAB file equals its published port to torch."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
import torch

from sci_stream.errors import WeightsError
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.weights import load_ffdnet
from sci_stream_lab.training.matconvnet import read_matconvnet


def _write(path: Path, shapes: list[tuple[int, ...]], types: list[str] | None = None) -> Path:
    """Write a network in MATLAB's layout: cells of references, text as UTF-16, axes reversed."""
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        layers = []
        for n, shape in enumerate(shapes):
            layer = file.create_group(f"#refs#/layer{n}")
            kind = types[n] if types else "conv"
            layer["type"] = np.array([[ord(letter)] for letter in kind], np.uint16)
            file[f"#refs#/kernel{n}"] = random.standard_normal(shape).astype(np.float32)
            file[f"#refs#/bias{n}"] = random.standard_normal((1, shape[0])).astype(np.float32)
            cell = layer.create_dataset("weights", (2, 1), h5py.ref_dtype)
            cell[0, 0], cell[1, 0] = file[f"#refs#/kernel{n}"].ref, file[f"#refs#/bias{n}"].ref
            layers.append(layer.ref)
        stored = file.create_dataset("net/layers", (len(layers), 1), h5py.ref_dtype)
        for n, reference in enumerate(layers):
            stored[n, 0] = reference
    return path


def test_published_file_equals_the_ported_weights(data_dir: Path) -> None:
    original = read_matconvnet(data_dir / "weights" / "FFDNet_gray.mat")
    port = load_ffdnet(data_dir / "weights" / "kair_ffdnet_gray.pth")
    assert (original.origin, original.gives_noise) == ("matconvnet", False)
    for a, b in zip(
        (*original.kernels, *original.biases), (*port.kernels, *port.biases), strict=True
    ):
        assert torch.equal(a, b)


def test_other_layers_are_skipped(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "net.mat", [(6, 5, 3, 3), (6, 6, 3, 3), (4, 6, 3, 3)], ["conv", "relu", "conv"]
    )
    weights = read_matconvnet(path)
    assert len(weights.kernels) == 2
    cpu = torch.device("cpu")
    assert FfdnetDenoiser(weights, cpu)(torch.rand(1, 8, 8), 0.1).shape == (1, 8, 8)


def test_kernels_and_subpixels_are_reordered(tmp_path: Path) -> None:
    path = _write(tmp_path / "net.mat", [(6, 5, 3, 3), (4, 6, 3, 3)])
    with h5py.File(path) as file:
        stored = [file[f"#refs#/kernel{n}"][()] for n in (0, 1)]
    first, last = read_matconvnet(path).kernels
    np.testing.assert_array_equal(first[:, 1].numpy(), stored[0][:, 2].swapaxes(1, 2))
    np.testing.assert_array_equal(first[:, 4].numpy(), stored[0][:, 4].swapaxes(1, 2))
    np.testing.assert_array_equal(last[2].numpy(), stored[1][1].swapaxes(1, 2))


@pytest.mark.parametrize(
    "shapes", [[(6, 13, 3, 3), (12, 6, 3, 3)], [(6, 5, 3, 3), (4, 7, 3, 3)], []]
)
def test_another_network_is_refused(tmp_path: Path, shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(WeightsError, match=r"net\.mat is not a grey FFDNet"):
        read_matconvnet(_write(tmp_path / "net.mat", shapes))


def test_kernel_of_another_dimension_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"net\.mat cannot be read.*\(4, 5\)"):
        read_matconvnet(_write(tmp_path / "net.mat", [(4, 5)]))


def test_older_matlab_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.mat"
    scipy.io.savemat(path, {"net": 1})
    with pytest.raises(WeightsError, match=r"old\.mat cannot be opened.*MATLAB 7\.3"):
        read_matconvnet(path)


def test_hdf5_file_without_a_network_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.mat", "w") as file:
        file["meas"] = np.zeros(3)
    with pytest.raises(WeightsError, match=r"other\.mat cannot be read"):
        read_matconvnet(tmp_path / "other.mat")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no weights file .*nowhere\.mat"):
        read_matconvnet(tmp_path / "nowhere.mat")
