"""ONNX models of the shipped networks, run by the reference of onnx, and by ONNX Runtime where it
is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sci_stream.errors import ConfigError
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import load_ffdnet
from sci_stream_lab.training.onnx_export import export_onnx

CPU = torch.device("cpu")
Run = Callable[[Path, dict[str, npt.NDArray[np.float32]]], npt.NDArray[np.float32]]


def by_reference(path: Path, inputs: dict[str, npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    reference = pytest.importorskip(
        "onnx.reference", reason="onnx is not installed: pip install 'sci-stream-lab[onnx]'"
    )
    return np.asarray(reference.ReferenceEvaluator(str(path)).run(None, inputs)[0])


def by_onnxruntime(
    path: Path, inputs: dict[str, npt.NDArray[np.float32]]
) -> npt.NDArray[np.float32]:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, inputs)[0])


@pytest.fixture(params=[by_reference, by_onnxruntime])
def run(request: pytest.FixtureRequest) -> Run:
    pytest.importorskip("onnx", reason="onnx is not installed: pip install 'sci-stream-lab[onnx]'")
    return request.param


@torch.inference_mode()
@pytest.mark.parametrize("name", ["ffdnet", "ffdnet-lite"])
def test_frame_network_gives_same_frames_of_any_size(run: Run, name: str, tmp_path: Path) -> None:
    path = tmp_path / "network.onnx"
    export_onnx(name, path)
    denoiser = FfdnetDenoiser(load_ffdnet(shipped_weights(name)), CPU)
    generator = torch.Generator().manual_seed(0)
    for shape in ((1, 16, 24), (2, 15, 17)):
        x = torch.rand(shape, generator=generator)
        relative = 0.5 + torch.rand((1, *shape[1:]), generator=generator)
        by_pixel = torch.nn.functional.avg_pool2d(
            torch.nn.functional.pad(
                relative, (0, shape[2] % 2, 0, shape[1] % 2), mode="reflect"
            ).unsqueeze(1),
            2,
        )
        for sigma, wanted in (
            (torch.full((1, 1, 1, 1), 0.1), denoiser(x, 0.1)),
            (0.1 * by_pixel, denoiser(x, 0.1, relative)),
        ):
            found = run(path, {"frames": x.unsqueeze(1).numpy(), "sigma": sigma.numpy()})
            np.testing.assert_allclose(found[:, 0], wanted.numpy(), atol=1e-5)


def test_model_carries_the_licence_of_its_weights(tmp_path: Path) -> None:
    onnx = pytest.importorskip(
        "onnx", reason="onnx is not installed: pip install 'sci-stream-lab[onnx]'"
    )
    export_onnx("ffdnet-lite", tmp_path / "lite.onnx")
    about = {entry.key: entry.value for entry in onnx.load(tmp_path / "lite.onnx").metadata_props}
    assert about["licence"] == "CC-BY-SA-4.0"


def test_export_refuses_other_names_and_existing_files(tmp_path: Path) -> None:
    (tmp_path / "there.onnx").touch()
    for path in ("network.pt", "there.onnx"):
        with pytest.raises(ConfigError):
            export_onnx("ffdnet-lite", tmp_path / path)
    with pytest.raises(ConfigError, match="Unknown network"):
        export_onnx("ffdnet-huge", tmp_path / "network.onnx")
