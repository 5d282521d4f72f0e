"""Networks of others as solvers: how they are named, called, loaded and checked."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import sci_stream
from sci_stream.config import ReconstructSection
from sci_stream.devices.solver import describe_solver, make_prior
from sci_stream.errors import ConfigError, InputError, WeightsError
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.denoisers.external import as_solver
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import SolverSettings
from tests.recon.networks_of_others.families import (
    B,
    StackedUnet,
    UnrolledConv3d,
    WindowTransformer,
)

CPU = torch.device("cpu")
HEIGHT, WIDTH = 32, 40
FAMILIES = (StackedUnet, UnrolledConv3d, WindowTransformer)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def masks() -> np.ndarray:
    return (np.random.default_rng(0).random((B, HEIGHT, WIDTH)) < 0.5).astype(np.float32)


@pytest.fixture(scope="module")
def film() -> np.ndarray:
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    frames = [0.5 + 0.3 * np.sin((columns - b) / 5) * np.cos(rows / 7) for b in range(B)]
    return np.stack(frames).astype(np.float32)


@pytest.fixture(scope="module")
def y(masks: np.ndarray, film: np.ndarray) -> np.ndarray:
    return np.asarray((masks * film).sum(0))


def solve(y: np.ndarray, masks: np.ndarray, solver: object, **options: object) -> np.ndarray:
    options = {"white": 1.0, "device": "cpu", "check_masks": False, **options}
    return sci_stream.reconstruct(y, masks, solver=solver, **options).video


def called(network: nn.Module, y: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Call a network as its authors do."""
    phi = torch.from_numpy(masks)[None]
    total = phi.sum(1)
    total[total == 0] = 1
    image = torch.from_numpy(y)[None]
    if isinstance(network, WindowTransformer):
        image, total = image[:, None], total[:, None]
    with torch.no_grad():
        result = network(image, phi, total)
    return (result[-1] if isinstance(result, list) else result)[0].numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_network_is_called_as_its_authors_call_it(family, y, masks) -> None:
    network = family()
    ours = solve(y, masks, sci_stream.Network(network, data_step=False))
    np.testing.assert_allclose(ours, called(network, y, masks), atol=1e-5)


@pytest.mark.parametrize("error", [0.0, 0.02, 0.1])
def test_data_step_corrects_errors_and_not_the_noise(y, masks, film, error: float) -> None:
    rng = np.random.default_rng(1)
    noisy = y + 0.05 * rng.standard_normal(y.shape).astype(np.float32)
    wrong = torch.from_numpy(film + error * rng.standard_normal(film.shape).astype(np.float32))
    before, after = (
        sci_stream.reconstruct(
            noisy,
            masks,
            solver=sci_stream.Network(lambda _y, _phi, _s: wrong[None], data_step=step),
            truth=film,
            white=1.0,
            noise=0.05,
            check_masks=False,
        )
        for step in (False, True)
    )
    if error == 0.1:
        assert after.psnr_db > before.psnr_db + 0.4
        assert after.report.residual < 0.3 * before.report.residual
    else:
        squared = [float(np.square(one.video - film).mean()) for one in (before, after)]
        assert squared[1] < squared[0] + 1e-5, "at the noise the video stays as it is"


def test_network_of_a_file_loads_its_weights(tmp_path: Path, y, masks) -> None:
    network = StackedUnet(channels=8)
    expected = solve(y, masks, network)
    file = tmp_path / "mine.py"
    file.write_text(
        "from tests.recon.networks_of_others.families import StackedUnet\n"
        "def Net():\n    return StackedUnet(channels=8)\n"
    )
    state = network.state_dict()
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}},
               tmp_path / "wrapped.pth")  # fmt: skip
    torch.save(state, tmp_path / "plain.pth")
    safetensors.torch.save_file(state, tmp_path / "plain.safetensors")
    for name in ("wrapped.pth", "plain.pth", "plain.safetensors"):
        video = solve(y, masks, f"{file}:Net", weights=tmp_path / name)
        np.testing.assert_allclose(video, expected, atol=1e-6)


def test_pickled_weights_need_the_word_of_the_user(tmp_path: Path, y, masks) -> None:
    network = StackedUnet()
    path = tmp_path / "whole.pth"
    torch.save(network, path)  # a pickled module, as some authors publish it
    with pytest.raises(WeightsError, match=r"cannot be read as weights.*pickled=True"):
        solve(y, masks, sci_stream.Network(StackedUnet), weights=path)
    trusted = sci_stream.Network(StackedUnet, pickled=True)
    video = solve(y, masks, trusted, weights=path)
    np.testing.assert_allclose(video, solve(y, masks, network), atol=1e-6)


def test_weights_of_another_network_are_refused(tmp_path: Path, y, masks) -> None:
    torch.save(UnrolledConv3d().state_dict(), tmp_path / "other.pth")
    with pytest.raises(WeightsError, match="do not fit the network; expected the tensors of Stack"):
        solve(y, masks, sci_stream.Network(StackedUnet), weights=tmp_path / "other.pth")


def example(height: int = HEIGHT, width: int = WIDTH) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.rand(1, height, width),
        torch.rand(1, B, height, width),
        torch.ones(1, height, width),
    )


def test_torchscript_is_a_solver_by_its_file(tmp_path: Path, y, masks) -> None:
    network = StackedUnet().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(network, example()).save(tmp_path / "net.pt")
    video = solve(y, masks, str(tmp_path / "net.pt"))
    np.testing.assert_allclose(video, solve(y, masks, network), atol=1e-6)


def test_exported_program_is_a_solver_by_its_file(tmp_path: Path, y, masks) -> None:
    network = StackedUnet().eval()
    torch.export.save(torch.export.export(network, example()), tmp_path / "net.pt2")
    video = solve(y, masks, str(tmp_path / "net.pt2"))
    np.testing.assert_allclose(video, solve(y, masks, network), atol=1e-6)


def test_onnx_of_one_size_is_cut_into_tiles(tmp_path: Path, y, masks) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    network = StackedUnet().eval()
    path = tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, example(32, 32), path, dynamo=True, verbose=False)
    video = solve(y, masks, str(path))
    whole = solve(y, masks, network)
    tiled = solve(y, masks, sci_stream.Network(network, tile=32))
    np.testing.assert_allclose(video, tiled, atol=1e-5)
    assert np.abs(video - whole).mean() < 0.01, "tiles fade into each other"


@pytest.mark.parametrize("suffix", [".pt", ".pt2", ".onnx"])
def test_damaged_file_of_a_network_is_refused(tmp_path: Path, y, masks, suffix: str) -> None:
    if suffix == ".onnx":
        pytest.importorskip("onnxruntime")
    path = tmp_path / f"net{suffix}"
    path.write_bytes(b"no network")
    with pytest.raises(ConfigError, match=r"cannot be read; expected TorchScript"):
        solve(y, masks, str(path))


class Birnat(nn.Module):
    """Take the masks first, the normalised measurement in 0–255, and more arguments."""

    def forward(self, mask: Tensor, meas_re: Tensor, side: int, rate: int) -> tuple[Tensor, str]:
        assert mask.shape == (rate, side, WIDTH)
        assert meas_re.shape == (1, 1, side, WIDTH)
        return (meas_re * torch.ones_like(mask))[None], "a loss"


def test_declaration_names_inputs_scale_and_output(y, masks) -> None:
    declared = sci_stream.Network(
        Birnat(), inputs=("mask", "mean", HEIGHT, B), output=0,
        y_scale=255.0, white=255.0, data_step=False,
    )  # fmt: skip
    video = solve(y, masks, declared)
    open_to_light = np.maximum(masks.sum(0), 1)
    np.testing.assert_allclose(video, np.broadcast_to(y / open_to_light, video.shape), atol=1e-5)


def test_declaration_takes_functions_for_the_rest(y, masks) -> None:
    declared = sci_stream.Network(
        lambda data: {"video": data["y"].permute(0, 2, 3, 1)},
        inputs=lambda problem: [{"y": problem.y.unsqueeze(1).expand_as(problem.phi)}],
        output=lambda result: result["video"].permute(0, 3, 1, 2),
        data_step=False,
    )
    np.testing.assert_allclose(solve(y, masks, declared)[3], y, atol=1e-5)


def test_network_with_a_start_gets_the_linear_estimate(y, masks, film) -> None:
    kept = sci_stream.Network(lambda start: start, inputs=("start",), data_step=False)
    still = sci_stream.Network(lambda _y, Phi, _s: 0 * Phi + 0.5, data_step=False)
    errors = [float(np.square(solve(y, masks, one) - film).mean()) for one in (kept, still)]
    assert errors[0] < 0.5 * errors[1]


def test_network_that_fails_is_named_with_its_remedy(y, masks) -> None:
    with pytest.raises(InputError, match=r"'Tall' failed; expected a video \(1, 8, 32, 40\)"):
        solve(y, masks, Tall())
    few = sci_stream.Network(StackedUnet, frames=4)
    with pytest.raises(InputError, match=r"another number of frames; expected 4 masks, .*; got 8"):
        solve(y, masks, few)


class Tall(nn.Module):
    def forward(self, y: Tensor, Phi: Tensor, _total: Tensor) -> Tensor:
        return y[:, None, :5] * Phi[:, :, :5]


def test_bad_pixels_reach_a_network_filled_in(y, masks) -> None:
    seen: list[Tensor] = []

    def network(y: Tensor, Phi: Tensor, Phi_s: Tensor) -> Tensor:
        seen.append(y)
        return (y / Phi_s)[:, None].expand_as(Phi)

    bad = np.zeros((HEIGHT, WIDTH), np.bool_)
    bad[10, 12] = True
    hot = y.copy()
    hot[10, 12] = 1e5
    solve(hot, Calibration(masks, bad_pixels=bad), network, white=None)
    assert abs(float(seen[0][0, 10, 12]) - y[10, 12]) < 0.5


def test_less_memory_means_smaller_tiles(masks) -> None:
    phi = np.tile(masks, (1, 8, 8))[:, :256, :256]
    engine = Engine(Calibration(phi), as_solver(StackedUnet(), CPU, None), CPU, SolverSettings())
    snapshot = engine.calibration.snapshot("s", 0, 0.5 * phi.sum(0))
    whole, _ = engine.reconstruct(snapshot)
    assert engine.reduce_memory()
    parts, _ = engine.reconstruct(snapshot)
    assert 0 < np.abs(parts - whole).mean() < 0.01
    while engine.reduce_memory():
        pass
    engine.reconstruct(snapshot)


@pytest.mark.parametrize("order", ["right", "reversed"])
def test_network_for_other_masks_is_named(y, masks, film, order: str) -> None:
    def network(y: Tensor, Phi: Tensor, Phi_s: Tensor) -> Tensor:
        video = torch.from_numpy(film)[None]
        return video if order == "right" else 0.3 * video

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sci_stream.DataWarning)
        result = sci_stream.reconstruct(y, masks, solver=network, white=1.0, device="cpu")
    texts = [defect.text for defect in result.defects if defect.name == "network_misfit"]
    assert bool(texts) == (order == "reversed")
    if texts:
        assert "trained for another mask" in texts[0]


def test_recorded_settings_name_the_code_of_a_network(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from tests.recon.networks_of_others.families import StackedUnet as Net\n")
    section = ReconstructSection(solver=f"{file}:Net")
    network, settings = make_prior(section, CPU)
    described = describe_solver(section, network.name, settings)
    assert described["denoiser"] == f"{file}:Net"
    assert len(str(described["code_sha256"])) == 64


@pytest.mark.parametrize("key", ["solver", "denoiser"])
def test_earlier_key_of_a_rig_is_read(key: str) -> None:
    assert ReconstructSection.model_validate({key: "tv"}).solver == "tv"


def test_planes_of_a_mosaic_are_recovered_apart_or_together(y, masks) -> None:
    network = StackedUnet()
    apart, together = (
        solve(y, masks, sci_stream.Network(network, planes=planes), bayer="RGGB")
        for planes in (False, True)
    )
    np.testing.assert_allclose(apart, together, atol=1e-5)


def test_half_precision_is_used_where_it_is_declared(y, masks, monkeypatch) -> None:
    monkeypatch.setattr("sci_stream.recon.networks.network.half_dtype", lambda _: torch.bfloat16)
    network = UnrolledConv3d()
    exact, half = (
        solve(y, masks, sci_stream.Network(network, half=half, data_step=False))
        for half in (False, True)
    )
    assert 0 < np.abs(exact - half).max() < 0.05
