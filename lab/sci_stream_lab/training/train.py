"""``sci-stream train``: train a network on photographs, or on clips and photographs; resumable and
reproducible.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sci_stream.errors import ConfigError
from sci_stream.file_guard import reading
from sci_stream.files.calibration_import import ImportOptions, import_masks
from sci_stream.recon.backend.device import describe_device
from sci_stream.recon.denoisers.weights import (
    FfdnetWeights,
    Stage,
    is_unrolled,
    load_ffdnet,
    load_unrolled,
)
from sci_stream_lab.training.checkpoint import (
    Checkpoint,
    SessionRecord,
    checkpoint_path,
    load_checkpoint,
    save_checkpoint,
)
from sci_stream_lab.training.curve import CurvePoint, read_curve, write_curve
from sci_stream_lab.training.data import SamplesT, TrainingData, WeightsT
from sci_stream_lab.training.images import load_images
from sci_stream_lab.training.in_loop import LoopData, LoopLearner
from sci_stream_lab.training.learner import FfdnetLearner, Learner, LearnerState, initial_weights
from sci_stream_lab.training.patches import PhotographData, least_image_px
from sci_stream_lab.training.settings import DEFAULTS, TrainingSettings, Until
from sci_stream_lab.training.unrolled.data import UnrolledData
from sci_stream_lab.training.unrolled.learner import UnrolledLearner
from sci_stream_lab.training.unrolled.network import UnrolledShape, grown, initial_stages
from sci_stream_lab.training.variants import NetworkShape, variant_shape
from sci_stream_lab.training.video.clips import load_clips


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """End of a session.

    ``step`` steps have been taken in total, ``finished`` if that is all of them; ``psnr_db`` is the
    last point of the curve, by noise level on the 0–255 scale; ``unreadable`` and ``too_small``
    count skipped images and clips.
    """

    step: int
    finished: bool
    psnr_db: dict[str, float]
    unreadable: int
    too_small: int


def train(
    data: Path,
    run: Path,
    settings: TrainingSettings,
    until: Until,
    *,
    device: torch.device,
    clips: Path | None = None,
    masks: Sequence[Path] = (),
    resume: bool = False,
    start_from: Path | None = None,
    held_out: int | None = None,
    memory_mib: int = 4096,
    stop: Callable[[], bool] = lambda: False,
    console: Console | None = None,
) -> TrainingResult:
    """Train a network, or resume its training.

    Parameters
    ----------
    data
        Folder of photographs. Where there are clips, the photographs are set moving.
    run
        Folder for the run's checkpoint and curve; created if missing.
    settings, until
        Settings that determine the result and the end.
    clips
        Folder of clips, for an unrolled network. A denoiser is trained on them in the loop, see
        `sci_stream_lab.training.in_loop`.
    masks
        Files with measured masks, as `sci_stream.files.calibration_import.import_masks` reads them:
        solves learn behind parts of them too.
    resume
        Resume the run in the folder; its settings must be these.
    start_from
        Weights of the same variant for a new run to start from, instead of random ones. For an
        unrolled network, those of a frame network of half as many channels, or other stages, which
        are repeated where there are fewer.
    held_out
        Number of images, or of clips where there are some, held out for validation; None for the
        variant's default.
    memory_mib
        Memory limit for decoded images, and for decoded clips.
    stop
        Called before every step; once it returns true, the session ends with a checkpoint.
    console
        Console for the progress bar; None for no bar.

    Raises
    ------
    ConfigError
        If a folder contains nothing to train on, clips are missing or not needed, or the run has
        other settings or data.
    FileFormatError, WeightsError
        If the checkpoint, or the weights to start from, are unusable.
    StorageError
        If a checkpoint cannot be written.

    Notes
    -----
    Deterministic: equal photographs, clips, settings, number of threads and kind of device give
    bit-identical weights, in one session or in many. The data of a step depends only on the seed
    and the number of the step.
    """
    least_px = settings.clip_px if settings.is_unrolled else least_image_px(settings)
    held_out = DEFAULTS[settings.variant].held_out if held_out is None else held_out
    _require_clips_if_needed(settings, clips)
    images = load_images(data, least_px=least_px, memory_bytes=memory_mib * 2**20)
    unreadable, too_small = len(images.unreadable), len(images.too_small)
    session: _Session[Any, Any]
    if clips is None:
        photographs = PhotographData(images, held_out, settings, device)
        session = _Session(
            run, settings, until, photographs, partial(ffdnet_learner, settings, device), device
        )
    else:
        videos = load_clips(clips, least_px=least_px, memory_bytes=memory_mib * 2**20)
        unreadable, too_small = (
            unreadable + len(videos.unreadable),
            too_small + len(videos.too_small),
        )
        stacks = [import_masks(path, ImportOptions()).phi for path in masks]
        if settings.is_unrolled:
            coded = UnrolledData(videos, images, stacks, settings, device, held_out=held_out)
            session = _Session(
                run, settings, until, coded, partial(unrolled_learner, settings, device), device
            )
        else:
            if start_from is None and not resume:
                raise ConfigError(
                    "Training in the loop needs the weights of a denoiser",
                    expected="--start-from WEIGHTS",
                )
            loop = LoopData(videos, images, stacks, settings, device, held_out=held_out)
            session = _Session(
                run, settings, until, loop, partial(loop_learner, settings, device), device
            )
    if resume:
        session.resume()
    elif checkpoint_path(run).exists():
        hint = "Resume it with --resume, or name another folder."
        raise ConfigError(f"There is a training run in {run}", hint=hint)
    else:
        session.begin(start_from)
    with _deterministic(device), _progress(console) as bar:
        finished = session.go(stop, bar, console)
    psnr_db = session.curve[-1]["psnr_db"] if session.curve else {}
    return TrainingResult(session.learner.step, finished, psnr_db, unreadable, too_small)


def _require_clips_if_needed(settings: TrainingSettings, clips: Path | None) -> None:
    if settings.is_unrolled and clips is None:
        raise ConfigError(
            f"The network {settings.variant!r} is trained on clips",
            expected="a folder of clips (--clips)",
            got="photographs only",
        )


def ffdnet_learner(
    settings: TrainingSettings, device: torch.device, start_from: Path | None
) -> FfdnetLearner:
    """Return an FFDNet in training, from weights or, for None, from random ones."""
    return FfdnetLearner(_frame_network(settings, start_from), device, settings.ema_decay)


def loop_learner(
    settings: TrainingSettings, device: torch.device, start_from: Path | None
) -> LoopLearner:
    """Return an FFDNet in training in the loop; ``start_from`` as of `ffdnet_learner`."""
    return LoopLearner(_frame_network(settings, start_from), device, settings.ema_decay)


def _frame_network(settings: TrainingSettings, start_from: Path | None) -> FfdnetWeights:
    shape = variant_shape(settings.variant)
    return (
        initial_weights(shape, settings.seed) if start_from is None else _start(start_from, shape)
    )


def unrolled_learner(
    settings: TrainingSettings, device: torch.device, start_from: Path | None
) -> UnrolledLearner:
    """Return stages in training; ``start_from`` as of `train`."""
    shape = UnrolledShape(settings.stages, settings.layers, settings.channels)
    if start_from is None:
        start = initial_stages(shape, settings.seed)
    elif is_unrolled(start_from):
        start = grown(_stages(start_from, shape), shape.stages)
    else:
        frame_network = _start(start_from, NetworkShape(shape.layers, shape.channels // 2))
        start = initial_stages(shape, settings.seed, frame_network)
    return UnrolledLearner(start, device, settings.ema_decay)


def _stages(path: Path, shape: UnrolledShape) -> list[Stage]:
    """Return the stages of a weights file; their layers must have this shape."""
    stages = load_unrolled(path)
    theirs = UnrolledShape.of(stages)
    if (theirs.layers, theirs.channels) != (shape.layers, shape.channels):
        raise ConfigError("The stages to start from have another shape", expected=shape, got=theirs)
    return stages


@dataclass
class _Session(Generic[SamplesT, WeightsT]):
    """One session of a run: from its checkpoint, or a new start, to the next checkpoint.

    ``learner_from`` makes the learner, from weights or, for None, from random ones.
    """

    run: Path
    settings: TrainingSettings
    until: Until
    data: TrainingData[SamplesT, WeightsT]
    learner_from: Callable[[Path | None], Learner[SamplesT, WeightsT]]
    device: torch.device
    elapsed_before_s: float = 0.0
    sessions: list[SessionRecord] = field(default_factory=list)
    begun_with: str = ""
    curve: list[CurvePoint] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.steps = self.until.steps

    def begin(self, start_from: Path | None) -> None:
        if start_from is not None:
            self.begun_with = hashlib.sha256(start_from.read_bytes()).hexdigest()
        self._start_learner(start_from)
        write_curve(self.run, [])

    def resume(self) -> None:
        saved = load_checkpoint(self.run)
        mine = dataclasses.asdict(self.settings)
        differing = {
            name: value for name, value in saved["settings"].items() if mine.get(name) != value
        }
        if differing or saved["data_id"] != self.data.id:
            raise ConfigError(
                f"The run in {self.run} was started with other settings or images",
                expected=differing or f"images {saved['data_id']}",
                got={name: mine.get(name) for name in differing} or f"images {self.data.id}",
                hint="Use the same ones, or start a new run in another folder.",
            )
        with reading(checkpoint_path(self.run), f"a training of {self.settings.variant}"):
            self._start_learner(None, saved["learner"])
        step = self.learner.step
        if self.until.steps is not None and self.until.steps <= step:
            raise ConfigError(
                f"The run in {self.run} has {step} steps", expected="more", got=self.until.steps
            )
        planned = saved["steps"]
        # A decay that has begun is completed; before it, the minutes set the steps.
        if (
            self.until.steps is None
            and planned
            and self.settings.decay_begins(planned) <= step < planned
        ):
            self.steps = planned
        self.elapsed_before_s = saved["elapsed_s"]
        self.sessions = saved["sessions"]
        self.begun_with = saved["begun_with"]
        # Points beyond the checkpoint belong to steps that will be repeated.
        self.curve = [point for point in read_curve(self.run) if point["step"] <= step]

    def _start_learner(self, start_from: Path | None, state: LearnerState | None = None) -> None:
        self.learner = self.learner_from(start_from)
        if state is not None:
            self.learner.restore(state)
        self._first_step = self.learner.step
        self._began_s = time.monotonic()

    def go(self, stop: Callable[[], bool], bar: Progress, console: Console | None) -> bool:
        """Take steps until the session ends; return whether the run is complete."""
        task = bar.add_task("", total=1.0)
        learner, settings = self.learner, self.settings
        with self.data.batches(learner.step) as batches:
            while not self._finished and not self._until_now(stop):
                share = settings.share(learner.step, self.steps)
                rate = share * settings.learning_rate
                kernel_rate = share * settings.kernel_rate
                learner.learn(next(batches), rate=rate, kernel_rate=kernel_rate)
                # After the step, so that its time counts in the pace that the plan assumes.
                self._plan()
                if learner.step % settings.validate_every == 0 or self._finished:
                    self._validate(rate, console)
                    self._save()
                bar.update(task, completed=self._fraction, description=self._description)
        self._save()
        return self._finished

    @property
    def _spent_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def _finished(self) -> bool:
        return self.steps is not None and self.learner.step >= self.steps

    def _until_now(self, stop: Callable[[], bool]) -> bool:
        # Once minutes have fixed the number of steps, all are taken: a decay cut short would waste
        # the run.
        timed = self.until.steps is not None or self.steps is None
        return stop() or (timed and self.until.out_of_time(self._spent_s))

    def _plan(self) -> None:
        """Fix the number of steps once the remaining time requires it."""
        if self.steps is None:
            step_s = self._spent_s / (self.learner.step - self._first_step)
            self.steps = self.until.planned_steps(
                self.settings, step=self.learner.step, step_s=step_s, spent_s=self._spent_s
            )

    @property
    def _fraction(self) -> float:
        if self.steps is not None:
            return self.learner.step / self.steps
        return self._spent_s / (60 * (self.until.minutes or 1.0))

    @property
    def _description(self) -> str:
        of = f"/{self.steps}" if self.steps is not None else ""
        return f"step {self.learner.step}{of}" + (
            f"  {_in_words(self.curve[-1])}" if self.curve else ""
        )

    def _validate(self, rate: float, console: Console | None) -> None:
        elapsed_s = self.elapsed_before_s + self._spent_s
        point: CurvePoint = {
            "step": self.learner.step,
            "minutes": round(elapsed_s / 60, 3),
            "learning_rate": rate,
            "loss": self.learner.take_loss(),
            "psnr_db": self.data.psnr_db(self.learner.weights()),
        }
        self.curve.append(point)
        # Before the checkpoint: a surplus point is dropped on resuming, a missing one would be
        # lost.
        write_curve(self.run, self.curve)
        if console is not None and not console.is_terminal:
            console.print(
                f"step {point['step']}, {point['minutes']:.1f} min: {_in_words(point)}",
                highlight=False,
            )

    def _save(self) -> None:
        session: SessionRecord = {
            "device": describe_device(self.device),
            "torch": str(
                torch.__version__
            ),  # a str subclass, which weights_only loading would refuse
            "steps": self.learner.step - self._first_step,
            "minutes": round(self._spent_s / 60, 2),
        }
        content: Checkpoint = {
            "settings": dataclasses.asdict(self.settings),
            "data_id": self.data.id,
            "n_images": self.data.n_images,
            "clips": list(self.data.clips),
            "steps": self.steps,
            "elapsed_s": self.elapsed_before_s + self._spent_s,
            "sessions": [*self.sessions, session],
            "begun_with": self.begun_with,
            "learner": self.learner.state(),
        }
        save_checkpoint(self.run, content)


def _in_words(point: CurvePoint) -> str:
    psnr_db = point["psnr_db"]
    levels = [name for name in psnr_db if name.isdigit()]
    others = "".join(f", {name} {db:.2f} dB" for name, db in psnr_db.items() if name not in levels)
    at_levels = " / ".join(f"{psnr_db[level]:.2f}" for level in levels)
    by_level = f", {at_levels} dB at σ {' / '.join(levels)}" if levels else ""
    return f"loss {point['loss']:.5f}{by_level}{others}"


def _start(path: Path, shape: NetworkShape) -> FfdnetWeights:
    weights = load_ffdnet(path)
    if (given := NetworkShape.of(weights)) != shape:
        raise ConfigError(
            f"The weights {path} to start from have another shape",
            expected=f"{shape.layers} layers of {shape.channels} channels",
            got=f"{given.layers} layers of {given.channels}",
        )
    return weights


def _deterministic(device: torch.device) -> AbstractContextManager[None]:
    """Keep cuDNN from choosing algorithms by measured time, which would differ between runs."""
    if device.type != "cuda":
        return nullcontext()
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True
    )
    return flags


def _progress(console: Console | None) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    shown = console is not None and console.is_terminal
    return Progress(*columns, console=console or Console(quiet=True), disable=not shown)
