"""Checkpoints: every known layout gives the same network, and unknown ones are refused with a
reason.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

from sci_stream.errors import WeightsError
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.weights import LAYOUT, load_ffdnet, read_metadata, save_ffdnet

CPU = torch.device("cpu")
IPOL = "module.intermediate_dncnn.itermediate_dncnn"


def _randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return 0.2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _kair() -> dict[str, torch.Tensor]:
    return {
        "model.0.weight": _randn(6, 5, 3, 3, seed=1),
        "model.0.bias": _randn(6, seed=2),
        "model.2.weight": _randn(6, 6, 3, 3, seed=3),
        "model.2.bias": _randn(6, seed=4),
        "model.4.weight": _randn(4, 6, 3, 3, seed=5),
        "model.4.bias": _randn(4, seed=6),
    }


def _ipol() -> dict[str, torch.Tensor]:
    return {
        f"{IPOL}.0.weight": _randn(6, 5, 3, 3, seed=1),
        f"{IPOL}.2.weight": _randn(6, 6, 3, 3, seed=3),
        f"{IPOL}.3.weight": 1 + _randn(6, seed=7),
        f"{IPOL}.3.bias": _randn(6, seed=8),
        f"{IPOL}.3.running_mean": _randn(6, seed=9),
        f"{IPOL}.3.running_var": 1 + _randn(6, seed=10).abs(),
        f"{IPOL}.5.weight": _randn(4, 6, 3, 3, seed=5),
    }


def _write(tensors: object, path: Path) -> Path:
    torch.save(tensors, path)
    return path


def test_kair_layout_is_read_unchanged(tmp_path: Path) -> None:
    weights = load_ffdnet(_write(_kair(), tmp_path / "kair.pth"))
    assert (weights.origin, weights.gives_noise) == ("kair", False)
    assert torch.equal(weights.kernels[0], _kair()["model.0.weight"])
    assert torch.equal(weights.biases[2], _kair()["model.4.bias"])


def test_ipol_layout_folds_normalisation_and_moves_sigma_last(tmp_path: Path) -> None:
    state = _ipol()
    weights = load_ffdnet(_write(state, tmp_path / "ipol.pth"))
    assert (weights.origin, weights.gives_noise) == ("ipol", True)

    # The network as its authors wrote it: σ first, batch normalisation in evaluation, noise out.
    x, sigma = torch.rand(1, 8, 10, generator=torch.Generator().manual_seed(0)), 0.2
    planes = F.pixel_unshuffle(x[:, None], 2)
    h = torch.cat([torch.full_like(planes[:, :1], sigma), planes], dim=1)
    h = F.conv2d(h, state[f"{IPOL}.0.weight"], padding=1).relu()
    h = F.conv2d(h, state[f"{IPOL}.2.weight"], padding=1)
    norm = [state[f"{IPOL}.3.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
    h = F.batch_norm(h, *norm).relu()
    h = F.conv2d(h, state[f"{IPOL}.5.weight"], padding=1)
    expected = F.pixel_shuffle(planes - h, 2)[:, 0]

    torch.testing.assert_close(
        FfdnetDenoiser(weights, CPU)(x, sigma), expected, rtol=1e-4, atol=1e-5
    )


def test_key_without_module_prefix_is_read(tmp_path: Path) -> None:
    bare = {key.removeprefix("module."): value for key, value in _ipol().items()}
    assert load_ffdnet(_write(bare, tmp_path / "bare.pth")).origin == "ipol"


def test_batch_count_of_newer_checkpoints_is_ignored(tmp_path: Path) -> None:
    state = {**_ipol(), f"{IPOL}.3.num_batches_tracked": torch.tensor(100)}
    assert load_ffdnet(_write(state, tmp_path / "tracked.pth")).origin == "ipol"


def test_tensors_in_a_training_checkpoint_are_found(tmp_path: Path) -> None:
    wrapped = {"epoch": 3, "state_dict": _kair()}
    assert load_ffdnet(_write(wrapped, tmp_path / "wrapped.pth")).origin == "kair"


@pytest.mark.parametrize("state", [_kair(), _ipol()], ids=["kair", "ipol"])
def test_own_files_round_trip(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    weights = load_ffdnet(_write(state, tmp_path / "foreign.pth"))
    own = tmp_path / "own.safetensors"
    save_ffdnet(weights, own, about={"trained_on": "nothing"})
    again = load_ffdnet(own)
    assert again.origin == "own"
    assert again.gives_noise == weights.gives_noise
    for a, b in zip(
        (*again.kernels, *again.biases), (*weights.kernels, *weights.biases), strict=True
    ):
        assert torch.equal(a, b)
    metadata = read_metadata(own)
    assert metadata["trained_on"] == "nothing"
    assert (metadata["layers"], metadata["channels"]) == ("3", "6")


def test_published_layouts_are_distinguished(data_dir: Path) -> None:
    for name, origin, gives_noise in [
        ("kair_ffdnet_gray", "kair", False),
        ("ipol_net_gray", "ipol", True),
    ]:
        weights = load_ffdnet(data_dir / "weights" / f"{name}.pth")
        assert (weights.origin, weights.gives_noise, len(weights.kernels)) == (
            origin,
            gives_noise,
            15,
        )


def _without(state: dict[str, torch.Tensor], key: str) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"layer1.weight": torch.zeros(3)}, "unknown layout.*layer1.weight"),
        ({**_kair(), "head.weight": torch.zeros(3)}, "unknown layout.*head.weight"),
        ({}, "holds no tensors by name"),
        ([1, 2, 3], "holds no tensors by name.*list"),
        ({"lr": 0.1}, "unknown layout.*lr"),
        (_without(_kair(), "model.2.weight"), "unknown layout"),
        (
            {**_kair(), "model.0.weight": torch.zeros(6, 13, 3, 3)},
            r"not a grey FFDNet.*\(6, 13, 3, 3\).*Colour",
        ),
        ({**_kair(), "model.2.weight": torch.zeros(6, 7, 3, 3)}, "not a grey FFDNet"),
        ({**_kair(), "model.2.weight": torch.zeros(6, 6, 5, 5)}, "not a grey FFDNet"),
        ({**_kair(), "model.2.weight": torch.zeros(6, 6)}, "not a grey FFDNet"),
        ({**_kair(), "model.0.bias": torch.zeros(7)}, "not a grey FFDNet"),
        ({**_kair(), "model.0.bias": torch.full((6,), float("nan"))}, "NaN or infinity"),
        (_without(_ipol(), f"{IPOL}.3.running_mean"), "broken batch normalisation.*running_mean"),
        (_without(_ipol(), f"{IPOL}.3.running_var"), "unknown layout"),
        ({**_ipol(), f"{IPOL}.3.weight": torch.ones(9)}, "broken batch normalisation"),
    ],
)
def test_unknown_layout_is_refused_with_file_and_reason(
    tmp_path: Path, content: object, said: str
) -> None:
    path = _write(content, tmp_path / "unknown.pth")
    with pytest.raises(WeightsError, match=rf"unknown\.pth.*{said}"):
        load_ffdnet(path)


class Payload:
    """An object whose loading would need code."""


def test_checkpoint_that_needs_code_is_refused(tmp_path: Path) -> None:
    path = _write({"model": Payload()}, tmp_path / "code.pth")
    with pytest.raises(
        WeightsError, match=r"code\.pth cannot be read.*needs code to load is refused"
    ):
        load_ffdnet(path)


@pytest.mark.parametrize("name", ["noise.pth", "noise.safetensors", "noise"])
@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"no weights at all" * 20, b"not a file"])
def test_random_bytes_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="noise"):
        load_ffdnet(path)


def test_archive_said_to_span_several_disks_is_refused(tmp_path: Path) -> None:
    disks = struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 2)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0, 0, 0, 0, 0)
    path = tmp_path / "disks.pth"
    path.write_bytes(bytes(64) + disks + end)
    with pytest.raises(WeightsError, match=r"disks\.pth cannot be read"):
        load_ffdnet(path)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_truncated_file_is_refused(tmp_path: Path, suffix: str) -> None:
    whole = _write(_kair(), tmp_path / "whole.pth")
    if suffix == ".safetensors":
        save_ffdnet(load_ffdnet(whole), whole := tmp_path / "whole.safetensors")
    cut = tmp_path / f"cut{suffix}"
    cut.write_bytes(whole.read_bytes()[:-100])
    with pytest.raises(WeightsError, match=r"cut\..* cannot be read"):
        load_ffdnet(cut)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (None, "unknown layout"),
        ({"layout": "other.9"}, "'other.9'"),
        ({"layout": LAYOUT}, "image or noise"),
    ],
)
def test_own_file_needs_its_metadata(
    tmp_path: Path, metadata: dict[str, str] | None, said: str
) -> None:
    path = tmp_path / "mute.safetensors"
    safetensors.torch.save_file({"conv.0.weight": torch.zeros(4, 5, 3, 3)}, path, metadata)
    with pytest.raises(WeightsError, match=said):
        load_ffdnet(path)


def test_own_file_without_shape_metadata_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.safetensors"
    metadata = {"layout": LAYOUT, "output": "noise"}
    safetensors.torch.save_file({"conv.0.weight": torch.zeros(4, 5, 3, 3)}, path, metadata)
    weights = load_ffdnet(path)
    assert (weights.layers, weights.channels) == (1, 4)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no weights file .*nowhere\.pth"):
        load_ffdnet(tmp_path / "nowhere.pth")
