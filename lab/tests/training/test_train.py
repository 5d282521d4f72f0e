"""Training runs: progress, reproducibility, resuming."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from lab.tests.training.pictures import CPU
from sci_stream.errors import ConfigError, FileFormatError, StorageError
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.weights import FfdnetWeights, load_ffdnet, save_ffdnet
from sci_stream_lab.training.checkpoint import checkpoint_path, load_checkpoint, save_checkpoint
from sci_stream_lab.training.curve import curve_path, read_curve
from sci_stream_lab.training.export import export_weights
from sci_stream_lab.training.learner import initial_weights
from sci_stream_lab.training.settings import TrainingSettings, Until
from sci_stream_lab.training.train import TrainingResult, train
from sci_stream_lab.training.variants import VARIANTS

Train = Callable[..., TrainingResult]


@pytest.fixture
def go(photographs: Path) -> Train:
    """Train on the small images, one of them held out."""

    def go(run: Path, settings: TrainingSettings, **options: object) -> TrainingResult:
        until = Until(steps=options.pop("steps", None), minutes=options.pop("minutes", None))  # type: ignore[arg-type]  # as given by the test
        return train(photographs, run, settings, until, device=CPU, held_out=1, **options)  # type: ignore[arg-type]  # likewise

    return go


def _tensors(run: Path) -> list[torch.Tensor]:
    """Return the network, its average and the optimisers of a checkpoint."""
    learner = load_checkpoint(run)["learner"]
    adam = [
        entry[key]
        for entry in learner["adam"]["state"].values()
        for key in ("exp_avg", "exp_avg_sq", "step")
    ]
    return [*learner["parameters"], *learner["averages"], *adam, *learner["muon"]]


def _same(one: Path, other: Path) -> bool:
    return all(torch.equal(a, b) for a, b in zip(_tensors(one), _tensors(other), strict=True))


def _without_time(run: Path) -> list[dict[str, object]]:
    return [
        {key: value for key, value in point.items() if key != "minutes"}
        for point in read_curve(run)
    ]


def _after(calls: int) -> Callable[[], bool]:
    """Return a stop request for the n-th call."""
    counter = itertools.count()
    return lambda: next(counter) >= calls


def test_training_lowers_the_loss_and_improves_validation(
    go: Train, tmp_path: Path, small: TrainingSettings
) -> None:
    settings = dataclasses.replace(small, batch=8, learning_rate=3e-3, validate_every=40)
    result = go(tmp_path / "run", settings, steps=160)
    first, *_, last = read_curve(tmp_path / "run")
    assert last["loss"] < 0.8 * first["loss"]
    assert all(last["psnr_db"][level] > first["psnr_db"][level] for level in ("25", "50"))
    assert (result.step, result.finished) == (160, True)
    assert result.psnr_db == last["psnr_db"]


def test_same_seed_gives_the_same_network(
    go: Train, tmp_path: Path, small: TrainingSettings
) -> None:
    for run, seed in [("a", 1), ("b", 1), ("c", 2)]:
        go(tmp_path / run, dataclasses.replace(small, seed=seed), steps=6)
    assert _same(tmp_path / "a", tmp_path / "b")
    assert _without_time(tmp_path / "a") == _without_time(tmp_path / "b")
    assert not _same(tmp_path / "a", tmp_path / "c")


def test_resumed_training_equals_an_uninterrupted_one(
    go: Train, tmp_path: Path, small: TrainingSettings
) -> None:
    go(tmp_path / "whole", small, steps=14)
    parts = tmp_path / "parts"
    assert go(parts, small, steps=14, stop=_after(6)) == TrainingResult(
        6, False, read_curve(parts)[-1]["psnr_db"], 0, 0
    )
    assert go(parts, small, steps=14, stop=_after(5), resume=True).step == 11
    assert go(parts, small, steps=14, resume=True).finished
    assert _same(tmp_path / "whole", parts)
    assert _without_time(tmp_path / "whole") == _without_time(parts)
    assert [point["step"] for point in read_curve(parts)] == [4, 8, 12, 14]
    assert [session["steps"] for session in load_checkpoint(parts)["sessions"]] == [6, 5, 3]


def test_run_extended_before_the_decay_equals_a_longer_one(
    go: Train, tmp_path: Path, small: TrainingSettings
) -> None:
    go(tmp_path / "whole", small, steps=20)
    go(tmp_path / "parts", small, steps=10, stop=_after(6))
    go(tmp_path / "parts", small, steps=20, resume=True)
    assert _same(tmp_path / "whole", tmp_path / "parts")


def test_points_beyond_the_checkpoint_are_dropped_on_resuming(
    go: Train, tmp_path: Path, small: TrainingSettings
) -> None:
    run = tmp_path / "run"
    go(run, small, steps=12, stop=_after(6))
    with curve_path(run).open("a") as file:
        file.write(
            '{"step": 8, "minutes": 1, "learning_rate": 1, "loss": 1, "psnr_db": {"15": 99.0}}\n'
        )
    go(run, small, steps=12, resume=True)
    assert [point["step"] for point in read_curve(run)] == [4, 8, 12]
    assert read_curve(run)[1]["psnr_db"]["15"] < 90


def test_minutes_only_end_with_a_decay(go: Train, tmp_path: Path, small: TrainingSettings) -> None:
    result = go(tmp_path / "run", dataclasses.replace(small, validate_every=1000), minutes=1 / 60)
    saved = load_checkpoint(tmp_path / "run")
    assert result.finished
    assert saved["steps"] == result.step
    (last,) = read_curve(tmp_path / "run")
    assert last["learning_rate"] < 0.5 * small.learning_rate


def test_minutes_pause_a_run_of_given_steps(
    go: Train, tmp_path: Path, small: TrainingSettings
) -> None:
    settings = dataclasses.replace(small, validate_every=10**6)
    result = go(tmp_path / "run", settings, steps=10**6, minutes=1e-3)
    assert not result.finished
    result = go(tmp_path / "run", settings, minutes=1e-3, resume=True, stop=_after(300))
    assert result.finished
    assert go(tmp_path / "run", settings, steps=result.step + 2, resume=True).finished


def test_new_run_can_start_from_weights(go: Train, tmp_path: Path, small: TrainingSettings) -> None:
    go(tmp_path / "one", small, steps=4)
    weights = tmp_path / "one.safetensors"
    export_weights(tmp_path / "one", weights, data=[], licence="none")
    save_ffdnet(dataclasses.replace(load_ffdnet(weights), gives_noise=False), weights)
    slow = dataclasses.replace(small, learning_rate=1e-8, kernel_rate=1e-8)
    go(tmp_path / "two", slow, steps=1, start_from=weights)
    given = load_ffdnet(weights)
    for start, now in zip(
        (*given.kernels, *given.biases),
        load_checkpoint(tmp_path / "two")["learner"]["parameters"],
        strict=True,
    ):
        torch.testing.assert_close(now, start, rtol=0, atol=1e-6)
    card = export_weights(
        tmp_path / "two", tmp_path / "two.safetensors", data=[], licence="none"
    ).markdown()
    assert (
        f"Begun with the weights of SHA-256 `{hashlib.sha256(weights.read_bytes()).hexdigest()}`"
        in card
    )
    assert "--start-from" in card
    assert not load_ffdnet(tmp_path / "two.safetensors").gives_noise
    assert go(tmp_path / "two", slow, steps=2, resume=True).finished


def test_weights_of_another_network_are_refused(
    go: Train, tmp_path: Path, small: TrainingSettings
) -> None:
    kernels = (torch.zeros(8, 5, 3, 3), torch.zeros(4, 8, 3, 3))
    biases = (torch.zeros(8), torch.zeros(4))
    other = tmp_path / "other.safetensors"
    save_ffdnet(FfdnetWeights(kernels, biases, gives_noise=True, origin="own"), other)
    with pytest.raises(ConfigError, match=r"7 layers of 32 channels.*2 layers of 8"):
        go(tmp_path / "run", small, steps=1, start_from=other)


def test_existing_run_is_not_overwritten(
    go: Train, tmp_path: Path, small: TrainingSettings
) -> None:
    go(tmp_path / "run", small, steps=1)
    with pytest.raises(ConfigError, match=r"There is a training run.*--resume"):
        go(tmp_path / "run", small, steps=1)


def test_resume_needs_equal_settings_and_images(
    go: Train, photographs: Path, tmp_path: Path, small: TrainingSettings
) -> None:
    go(tmp_path / "run", small, steps=2)
    with pytest.raises(ConfigError, match=r"other settings.*'batch': 2.*'batch': 3"):
        go(tmp_path / "run", dataclasses.replace(small, batch=3), steps=4, resume=True)
    (photographs / "4.png").unlink()
    with pytest.raises(ConfigError, match=r"other settings or images.*expected images"):
        go(tmp_path / "run", small, steps=4, resume=True)


def test_finished_run_needs_more_steps(go: Train, tmp_path: Path, small: TrainingSettings) -> None:
    go(tmp_path / "run", small, steps=3)
    with pytest.raises(ConfigError, match="has 3 steps; expected more; got 3"):
        go(tmp_path / "run", small, steps=3, resume=True)


def test_resume_needs_a_run(go: Train, tmp_path: Path, small: TrainingSettings) -> None:
    with pytest.raises(FileFormatError, match="no training run"):
        go(tmp_path / "run", small, steps=3, resume=True)


@pytest.mark.parametrize("content", [b"", b"not a file", None])
def test_damaged_checkpoint_is_refused(
    go: Train, tmp_path: Path, small: TrainingSettings, content: bytes | None
) -> None:
    go(tmp_path / "run", small, steps=1)
    path = checkpoint_path(tmp_path / "run")
    path.write_bytes(path.read_bytes()[:-500] if content is None else content)
    with pytest.raises(FileFormatError, match="cannot be read"):
        go(tmp_path / "run", small, steps=3, resume=True)


def test_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    torch.save({"model.0.weight": torch.zeros(1)}, checkpoint_path(tmp_path))
    with pytest.raises(
        FileFormatError, match=r"not a training checkpoint of this version.*sci_stream\.training\.2"
    ):
        load_checkpoint(tmp_path)


def test_checkpoint_of_another_network_is_refused(
    go: Train, tmp_path: Path, small: TrainingSettings
) -> None:
    go(tmp_path / "run", small, steps=1)
    saved = load_checkpoint(tmp_path / "run")
    saved["learner"]["parameters"][0] = torch.zeros(1)
    save_checkpoint(tmp_path / "run", saved)
    with pytest.raises(
        FileFormatError, match=r"cannot be read as a training of ffdnet-lite.*got expected shape"
    ):
        go(tmp_path / "run", small, steps=3, resume=True)


def test_unwritable_run_fails_before_training(
    go: Train, tmp_path: Path, small: TrainingSettings
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be written"):
        go(tmp_path / "file" / "run", small, steps=1, stop=lambda: pytest.fail("began to learn"))


def test_failed_checkpoint_keeps_the_old_one(
    go: Train, tmp_path: Path, small: TrainingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    go(run, small, steps=2)
    before = checkpoint_path(run).read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(StorageError, match="No space left"):
        save_checkpoint(run, {})
    assert checkpoint_path(run).read_bytes() == before
    assert not list(run.glob(".*"))


def test_curve_points_are_logged_without_a_terminal(
    go: Train, tmp_path: Path, small: TrainingSettings
) -> None:
    text = io.StringIO()
    go(tmp_path / "run", small, steps=8, console=Console(file=text, width=120))
    lines = text.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines if line] == ["step 4", "step 8"]
    assert "dB at σ 15 / 25 / 50" in lines[0]


def test_progress_bar_is_shown_on_a_terminal(
    go: Train, tmp_path: Path, small: TrainingSettings
) -> None:
    text = io.StringIO()
    go(tmp_path / "run", small, steps=4, console=Console(file=text, width=120, force_terminal=True))
    assert "step 4/4" in text.getvalue()


def test_skipped_images_are_counted(
    go: Train, photographs: Path, tmp_path: Path, small: TrainingSettings
) -> None:
    (photographs / "broken.jpg").write_bytes(b"no picture")
    assert go(tmp_path / "run", small, steps=1).unreadable == 1


def test_folder_without_images_is_refused(tmp_path: Path, small: TrainingSettings) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="contains no usable photograph"):
        train(tmp_path / "empty", tmp_path / "run", small, Until(steps=1), device=CPU)


def test_checkpoint_with_settings_of_a_removed_network_goes_on(
    go: Train, tmp_path: Path, small: TrainingSettings
) -> None:
    go(tmp_path / "run", small, steps=2)
    saved = load_checkpoint(tmp_path / "run")
    saved["settings"] |= {"pool": 1200, "noise_steps": 4000}
    save_checkpoint(tmp_path / "run", saved)
    card = export_weights(
        tmp_path / "run", tmp_path / "run.safetensors", data=[], licence="none"
    ).markdown()
    assert "noise_steps" not in card
    assert go(tmp_path / "run", small, steps=3, resume=True).finished


def test_unrolled_network_needs_clips_and_others_a_start(
    go: Train, clips: Path, tmp_path: Path, small: TrainingSettings
) -> None:
    with pytest.raises(ConfigError, match=r"'unrolled' is trained on clips.*--clips"):
        go(tmp_path / "run", dataclasses.replace(small, variant="unrolled"), steps=1)
    with pytest.raises(
        ConfigError, match=r"needs the weights of a denoiser; expected --start-from"
    ):
        go(tmp_path / "run", small, steps=1, clips=clips)


def test_initial_network_leaves_the_image_nearly_unchanged() -> None:

    x = torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(0))
    for shape in VARIANTS.values():
        y = FfdnetDenoiser(initial_weights(shape, 0), CPU)(x, 0.1)
        assert (y - x).abs().mean() < 0.1
