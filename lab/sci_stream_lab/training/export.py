"""Export a training run as safetensors weights with a model card."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sci_stream.errors import ConfigError, WeightsError
from sci_stream.file_guard import reading
from sci_stream.recon.denoisers.weights import FfdnetWeights, Stage, load_ffdnet
from sci_stream_lab.training.card import ModelCard
from sci_stream_lab.training.checkpoint import (
    Checkpoint,
    checkpoint_path,
    load_checkpoint,
    write_atomically,
)
from sci_stream_lab.training.convert import file_sha256, read_any, write_own
from sci_stream_lab.training.curve import read_curve
from sci_stream_lab.training.evaluation import evaluate
from sci_stream_lab.training.settings import TrainingSettings
from sci_stream_lab.training.train import ffdnet_learner, unrolled_learner
from sci_stream_lab.training.unrolled.network import UnrolledShape
from sci_stream_lab.training.variants import NetworkShape

_KERNELS_IN = torch.float16


@dataclass(frozen=True, slots=True)
class TestPlan:
    """Evaluation for the model card: folders of images, checkpoints to compare with, and device.

    The card names folders and checkpoints by their file names.
    """

    __test__ = False  # pytest would collect the class by its name

    folders: Sequence[Path] = ()
    beside: Sequence[Path] = ()
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cpu"))


def export_weights(
    run: Path,
    path: Path,
    *,
    data: Sequence[str],
    licence: str,
    clip_data: Sequence[str] = (),
    mixed_with: Path | None = None,
    share: float = 0.5,
    plan: TestPlan | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> ModelCard:
    """Write the averaged weights of a run, and the model card next to it as ``.md``.

    Kernels are rounded to float16, which halves the file and costs less than a thousandth of a
    decibel; the figures of the card include it.

    Parameters
    ----------
    run
        Folder of the run, which may still be running.
    path
        Output file, ``.safetensors``; an existing one is replaced.
    data, licence
        Source and licence of the photographs, one line each, and the licence of the weights.
    clip_data
        Source and licence of the clips, one line each.
    mixed_with, share
        Weights that the run began with: those written have this share of the run's, and the rest of
        these. Halfway a network learns the new task and forgets little of the old one
        (`sci_stream_lab.training.in_loop`).
    plan
        Evaluation for the card; None to skip it.

    Returns
    -------
    The content of the card.

    Raises
    ------
    ConfigError
        If the path does not end in ``.safetensors`` or a folder of test images is unusable.
    FileFormatError, WeightsError
        If the run's checkpoint, or one to compare with, is unusable.
    StorageError
        If a file cannot be written.
    """
    if path.suffix != ".safetensors":
        raise ConfigError(
            "Weights are exported as safetensors",
            expected="a name ending in .safetensors",
            got=path,
        )
    saved = load_checkpoint(run)
    weights = _averaged(saved, run)
    if mixed_with is not None:
        weights = _mixed(load_ffdnet(mixed_with), weights, share)
    settings = saved["settings"]
    step = saved["learner"]["step"]
    trained_on = "; ".join((*data, *clip_data))
    about = {
        "variant": settings["variant"],
        "licence": licence,
        "trained_on": trained_on,
        "steps": str(step),
    }
    plan, scores = plan or TestPlan(), {}
    if isinstance(weights, FfdnetWeights):
        scores = _measured(weights, settings["variant"], plan, progress)
    elif plan.folders or plan.beside:
        raise ConfigError(
            "An unrolled network denoises no images",
            expected="no --test-on and no --beside",
            hint="`sci-stream bench classes OUT.safetensors` measures it.",
        )
    write_own(weights, path, about, kernel_dtype=_KERNELS_IN)
    card = ModelCard(
        variant=settings["variant"],
        shape=NetworkShape.of(weights)
        if isinstance(weights, FfdnetWeights)
        else UnrolledShape.of(weights),
        sha256=file_sha256(path),
        licence=licence,
        data=data,
        n_images=saved["n_images"],
        clip_data=clip_data,
        clips=saved["clips"],
        settings=settings,
        sessions=saved["sessions"],
        begun_with=saved["begun_with"],
        step=step,
        steps=saved["steps"],
        minutes=saved["elapsed_s"] / 60,
        curve=[point for point in read_curve(run) if point["step"] <= step],
        scores=scores,
        mixed_with=""
        if mixed_with is None
        else f"{share:g} of them and {1 - share:g} of `{file_sha256(mixed_with)}`",
    )
    write_atomically(path.with_suffix(".md"), lambda file: file.write(card.markdown().encode()))
    return card


def _averaged(saved: Checkpoint, run: Path) -> FfdnetWeights | list[Stage]:
    """Return the averaged weights of a checkpoint, as they will be read back."""
    with reading(checkpoint_path(run), "a training of this project"):
        settings = TrainingSettings(**saved["settings"])
        make = unrolled_learner if settings.is_unrolled else ffdnet_learner
        learner = make(settings, torch.device("cpu"), None)
        learner.restore(saved["learner"])
    weights = learner.weights()
    networks = [weights] if isinstance(weights, FfdnetWeights) else weights
    if not all(
        bool(t.isfinite().all())
        for network in networks
        for t in (*network.kernels, *network.biases)
    ):
        raise WeightsError(
            f"The training in {run} diverged",
            got="NaN or infinity",
            hint="Lower the learning rate.",
        )
    if isinstance(weights, FfdnetWeights):
        kernels = _rounded(weights.kernels)
        return dataclasses.replace(weights, kernels=kernels, mosaic=settings.is_mosaic)
    return [stage._replace(kernels=_rounded(stage.kernels)) for stage in weights]


def _mixed(start: FfdnetWeights, end: FfdnetWeights | list[Stage], share: float) -> FfdnetWeights:
    if not isinstance(end, FfdnetWeights) or (NetworkShape.of(start), start.gives_noise) != (
        NetworkShape.of(end),
        end.gives_noise,
    ):
        raise ConfigError(
            "Weights are mixed with those that their run began with", got="those of another network"
        )
    kernels, biases = (
        tuple(one.lerp(other, share) for one, other in zip(*pair, strict=True))
        for pair in ((start.kernels, end.kernels), (start.biases, end.biases))
    )
    return dataclasses.replace(end, kernels=_rounded(kernels), biases=biases)


def _rounded(kernels: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(kernel.to(_KERNELS_IN).to(kernel.dtype) for kernel in kernels)


def _measured(
    weights: FfdnetWeights, name: str, plan: TestPlan, progress: Callable[[str], None]
) -> dict[str, dict[str, dict[str, float]]]:
    networks = {name: weights, **{path.name: read_any(path) for path in plan.beside}}
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for folder in plan.folders:
        for network, its_weights in networks.items():
            psnr_db = evaluate(its_weights, folder, plan.device, mosaic=weights.mosaic)
            progress(
                f"{folder.name}, {network}: "
                + ", ".join(f"σ {k} {v:.2f} dB" for k, v in psnr_db.items())
            )
            scores.setdefault(folder.name, {})[network] = psnr_db
    return scores
