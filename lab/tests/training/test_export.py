"""Export of a run with its model card, and import of foreign weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from lab.tests.training.pictures import CPU
from sci_stream.errors import ConfigError, FileFormatError, StorageError, WeightsError
from sci_stream.recon.denoisers.weights import (
    FfdnetWeights,
    load_ffdnet,
    read_metadata,
    save_ffdnet,
)
from sci_stream_lab.training.checkpoint import load_checkpoint, save_checkpoint
from sci_stream_lab.training.convert import describe_weights, import_weights, read_any
from sci_stream_lab.training.export import TestPlan, export_weights
from sci_stream_lab.training.settings import TrainingSettings, Until
from sci_stream_lab.training.train import train

DATA = ("Pictures made by the test, free to use",)


@pytest.fixture
def run(photographs: Path, tmp_path: Path, small: TrainingSettings) -> Path:
    train(photographs, tmp_path / "run", small, Until(steps=6), device=CPU, held_out=1)
    return tmp_path / "run"


def _export(run: Path, path: Path, plan: TestPlan | None = None) -> str:
    export_weights(run, path, data=DATA, licence="Apache-2.0", plan=plan)
    return path.with_suffix(".md").read_text()


def test_running_average_is_exported_with_float16_kernels(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "out" / "lite.safetensors"
    _export(run, path)
    weights = load_ffdnet(path)
    averages = load_checkpoint(run)["learner"]["averages"]
    assert weights.gives_noise
    kernels, biases = averages[: weights.layers], averages[weights.layers :]
    for mine, saved in zip(weights.kernels, kernels, strict=True):
        assert torch.equal(mine, saved.half().float())
    for mine, saved in zip(weights.biases, biases, strict=True):
        assert torch.equal(mine, saved)
    assert path.stat().st_size < 1.3 * 2 * sum(kernel.numel() for kernel in kernels)


def test_file_contains_metadata(run: Path, tmp_path: Path) -> None:
    _export(run, tmp_path / "lite.safetensors")
    metadata = read_metadata(tmp_path / "lite.safetensors")
    assert metadata["variant"] == "ffdnet-lite"
    assert (metadata["layers"], metadata["channels"], metadata["output"]) == ("7", "32", "noise")
    assert (metadata["licence"], metadata["trained_on"], metadata["steps"]) == (
        "Apache-2.0",
        DATA[0],
        "6",
    )


def test_card_names_data_licence_settings_machine_curve_and_hash(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "lite.safetensors"
    card = _export(run, path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() in card
    for said in (
        "# ffdnet-lite",
        "7 layers and 32 channels",
        "24.3 kFLOP a pixel",
        "Licence of the weights: Apache-2.0",
        DATA[0],
        "4 photographs",
        "6 steps in",
        "| seed | 0 |",
        "## Validation curve",
        "| 4 |",
        "Not measured",
        "--steps 6",
    ):
        assert said in card


def test_card_compares_other_networks(run: Path, photographs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    zeros = FfdnetWeights(
        (torch.zeros(4, 5, 3, 3),), (torch.zeros(4),), gives_noise=True, origin="own"
    )
    save_ffdnet(zeros, other)
    card = _export(run, tmp_path / "lite.safetensors", TestPlan((photographs,), (other,)))
    assert "| photographs | σ 15 | σ 25 | σ 50 |" in card
    assert "| ffdnet-lite | " in card
    assert "| other.safetensors | 24." in card  # 20 log10(255/15), by the noise alone


def test_card_marks_an_unfinished_run(
    photographs: Path, tmp_path: Path, small: TrainingSettings
) -> None:
    calls = iter([False, False, True])
    run = tmp_path / "run"
    train(photographs, run, small, Until(steps=9), device=CPU, held_out=1, stop=lambda: next(calls))
    card = _export(run, tmp_path / "lite.safetensors")
    assert "2 steps in" in card
    assert "not complete (of 9 steps)" in card
    assert "## Validation curve" not in card


def test_diverged_run_is_not_exported(run: Path, tmp_path: Path) -> None:
    saved = load_checkpoint(run)
    saved["learner"]["averages"][0].fill_(float("nan"))
    save_checkpoint(run, saved)
    with pytest.raises(WeightsError, match=r"diverged.*learning rate"):
        _export(run, tmp_path / "lite.safetensors")


def test_checkpoint_without_network_is_not_exported(run: Path, tmp_path: Path) -> None:
    saved = load_checkpoint(run)
    del saved["learner"]["averages"]
    save_checkpoint(run, saved)
    with pytest.raises(
        FileFormatError, match=r"checkpoint.*cannot be read as a training of this project"
    ):
        _export(run, tmp_path / "lite.safetensors")


def test_export_needs_a_safetensors_path(run: Path, tmp_path: Path) -> None:
    for write in (
        lambda path: _export(run, path),
        lambda path: import_weights(tmp_path / "x.pth", path),
    ):
        with pytest.raises(ConfigError, match=r"ending in \.safetensors"):
            write(tmp_path / "lite.pth")


def test_unwritable_output_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"lite\.safetensors cannot be written"):
        _export(run, tmp_path / "file" / "lite.safetensors")


def test_published_weights_are_imported_with_source_and_hash(
    data_dir: Path, tmp_path: Path
) -> None:
    for file, layout, gives in [
        ("kair_ffdnet_gray.pth", "kair", "image"),
        ("ipol_net_gray.pth", "ipol", "noise"),
        ("FFDNet_gray.mat", "matconvnet", "image"),
    ]:
        source, path = data_dir / "weights" / file, tmp_path / f"{layout}.safetensors"
        description = import_weights(source, path, licence="MIT")
        rows = dict(description.rows())
        assert len(rows) == len(description.rows())
        assert rows["network"] == "ffdnet: 15 layers of 64 channels"
        assert (rows["gives"], rows["licence"], rows["imported_layout"]) == (gives, "MIT", layout)
        assert rows["imported_sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
        for mine, theirs in zip(load_ffdnet(path).kernels, read_any(source).kernels, strict=True):
            assert torch.equal(mine, theirs)


def test_foreign_checkpoint_is_described(data_dir: Path) -> None:
    rows = dict(describe_weights(data_dir / "weights" / "ipol_net_gray.pth").rows())
    assert rows["layout"] == "ipol"
    assert rows["work"] == "242.2 kFLOP a pixel"


def test_import_replaces_a_file_only_on_request(tmp_path: Path) -> None:
    source, path = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    zeros = FfdnetWeights(
        (torch.zeros(4, 5, 3, 3),), (torch.zeros(4),), gives_noise=True, origin="own"
    )
    save_ffdnet(zeros, source)
    path.write_bytes(b"to be kept")
    with pytest.raises(ConfigError, match=r"exists.*--force"):
        import_weights(source, path)
    assert import_weights(source, path, force=True).variant is None


def test_unreadable_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"There is no weights file .*nothing\.pth"):
        describe_weights(tmp_path / "nothing.pth")
    with pytest.raises(WeightsError, match=r"There is no weights file .*nothing\.mat"):
        import_weights(tmp_path / "nothing.mat", tmp_path / "out.safetensors")
