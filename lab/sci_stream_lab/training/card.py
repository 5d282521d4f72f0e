"""The model card of weights, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sci_stream.recon.denoisers.variants import MOSAIC
from sci_stream_lab.training.checkpoint import SessionRecord
from sci_stream_lab.training.curve import CurvePoint
from sci_stream_lab.training.unrolled.network import UnrolledShape
from sci_stream_lab.training.variants import NetworkShape

_POINTS_SHOWN = 16


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Content of a model card.

    Parameters
    ----------
    variant, shape, sha256
        Name of the network, its shape, and the hash of the file.
    licence, data
        Licence of the weights, and one line per source of photographs with its licence.
    n_images
        Number of training photographs.
    clip_data, clips
        One line per source of clips with its licence, and the names of the training clips.
    settings, sessions
        Settings of the run by name, and device, torch, steps and minutes of each session.
    begun_with
        SHA-256 of the weights that the run started from; empty for random weights.
    step, steps, minutes
        Steps taken, planned steps (None if unknown), and total time.
    curve
        Points of the validation curve.
    scores
        PSNR in dB by image set, network and noise level; this network's name is the variant's.
    mixed_with
        Shares of these weights and of those that the run began with; empty for the weights of the
        run.
    """

    variant: str
    shape: NetworkShape | UnrolledShape
    sha256: str
    licence: str
    data: Sequence[str]
    n_images: int
    settings: Mapping[str, Any]
    sessions: Sequence[SessionRecord]
    begun_with: str
    step: int
    steps: int | None
    minutes: float
    curve: Sequence[CurvePoint]
    scores: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    clip_data: Sequence[str] = ()
    clips: Sequence[str] = ()
    mixed_with: str = ""

    def markdown(self) -> str:
        """Return the card."""
        parts = [
            self._network(),
            self._quality(),
            self._data(),
            self._training(),
            self._curve(),
            self._again(),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _network(self) -> str:
        shape = self.shape
        if isinstance(shape, UnrolledShape):
            return (
                f"# {self.variant}: the last iterations of a solve, trained as a whole\n\n"
                f"{shape.stages} stages of {shape.layers} layers and {shape.channels} channels, "
                "each an iteration of "
                f"GAP with a network of its own: {shape.n_parameters / 1e3:.1f} thousand "
                "parameters, "
                f"{shape.flop_per_pixel / 1e3:.1f} kFLOP a pixel. They follow iterations with "
                "`ffdnet-lite`: they take "
                "an estimate of the video, the measurement, the masks, the noise and the error of "
                "the start.\n\n"
                f"SHA-256 `{self.sha256}`. Licence of the weights: {self.licence}."
            )
        image = "a grey image"
        if self.variant.endswith(MOSAIC):
            image = "the four planes of a Bayer mosaic (RGGB; other phases by mirrored kernels)"
        takes = (
            f"It takes {image}, 0–1, with the errors of an iteration of GAP and their "
            "standard deviation, and "
            "gives these errors. It is the prior of a plug-and-play reconstruction, trained in "
            "the loop: on the error "
            "of whole solves behind masks of each class."
            if self._in_loop
            else f"It takes {image}, 0–1, with white Gaussian noise and the noise's standard "
            "deviation, and gives "
            "the noise to be subtracted. It is the prior of a plug-and-play reconstruction and "
            "not trained for other "
            "kinds of noise."
        )
        return (
            f"# {self.variant}: {self._kind} denoiser for a known noise level\n\n"
            f"An FFDNet (Zhang, Zuo, Zhang, IEEE TIP 27, 2018) of {shape.layers} layers and "
            f"{shape.channels} channels: "
            f"{shape.n_parameters / 1e3:.1f} thousand parameters, "
            f"{shape.flop_per_pixel / 1e3:.1f} kFLOP a pixel. "
            f"{takes}\n\n"
            f"SHA-256 `{self.sha256}`. Licence of the weights: {self.licence}."
        )

    def _quality(self) -> str:
        if not self.scores:
            return "## Quality\n\nNot measured on test images."
        blocks = [
            f"## Quality\n\nPSNR in dB, mean over the {self._measured_on} of a set's images, with "
            "the same "
            "white Gaussian noise "
            "for each network (σ on the 0–255 scale), without clipping or rounding."
        ]
        for name, by_network in self.scores.items():
            levels = list(next(iter(by_network.values())))
            rows = [
                f"| {network} | {_decibels(scores, levels)} |"
                for network, scores in by_network.items()
            ]
            head = f"| {name} | {' | '.join(f'σ {level}' for level in levels)} |"
            blocks.append("\n".join([head, "|---" * (len(levels) + 1) + "|", *rows]))
        return "\n\n".join(blocks)

    def _data(self) -> str:
        text = f"## Data\n\n{self.n_images} photographs:\n\n{_listed(self.data)}"
        if self.clips:
            names = ", ".join(f"`{name}`" for name in self.clips)
            text += f"\n\n{len(self.clips)} clips ({names}):\n\n{_listed(self.clip_data)}"
        return text

    def _training(self) -> str:
        whole = self.steps is not None and self.step >= self.steps
        state = (
            "complete" if whole else f"not complete (of {self.steps or 'an open number of'} steps)"
        )
        unused = {"clip_px", "taught_share", "stages", "layers", "channels"}
        if isinstance(self.shape, UnrolledShape):
            unused = {"bayer_share", "sigma_most"}
        if self._in_loop:
            unused |= {"bayer_share", "sigma_most"}
        settings = "\n".join(
            f"| {name} | {_value(value)} |"
            for name, value in self.settings.items()
            if name not in unused
        )
        sessions = "\n".join(
            f"| {s['device']} | {s['torch']} | {s['steps']} | {s['minutes']:.1f} |"
            for s in self.sessions
        )
        begun = (
            f"Begun with the weights of SHA-256 `{self.begun_with}`. " if self.begun_with else ""
        )
        error = "Mean absolute error; new noise in every step; patches turned and mirrored"
        if isinstance(self.shape, UnrolledShape) or self._in_loop:
            error = (
                "Logarithm of the mean squared error, and a part of the error itself; new "
                "masks in every step"
            )
        return (
            f"## Training\n\n{begun}{self.step} steps in {self.minutes:.1f} minutes, {state}. "
            f"{error}. "
            "Muon for the kernels between the first layer and the last, Adam for all else; "
            "constant learning rates "
            "with a linear warm-up and a linear decay at the end; the weights are the running "
            "average"
            f"{f', {self.mixed_with}' if self.mixed_with else ''}.\n\n"
            f"| setting | value |\n|---|---|\n{settings}\n\n"
            f"| device | torch | steps | minutes |\n|---|---|---|---|\n{sessions}"
        )

    def _curve(self) -> str:
        if not self.curve:
            return ""
        levels = list(self.curve[-1]["psnr_db"])
        stride = math.ceil(len(self.curve) / _POINTS_SHOWN)
        shown = list(self.curve)[::-1][::stride][::-1]
        rows = "\n".join(
            f"| {p['step']} | {p['minutes']:.1f} | {p['loss']:.5f} | "
            f"{_decibels(p['psnr_db'], levels)} |"
            for p in shown
        )
        head = (
            "| step | minutes | loss | "
            f"{' | '.join(f'σ {n}' if n.isdigit() else n for n in levels)} |"
        )
        rule = "|---" * (len(levels) + 3) + "|"
        held_out = "photographs"
        if isinstance(self.shape, UnrolledShape) or self._in_loop:
            held_out = "scenes, behind masks of each class"
        return (
            f"## Validation curve\n\nPSNR in dB on held-out {held_out}.\n\n{head}\n{rule}\n{rows}"
        )

    def _again(self) -> str:
        s = self.settings
        whole = isinstance(self.shape, UnrolledShape)
        data = f"--variant {self.variant}" + (f" --stages {s['stages']}" if whole else "")
        data += " --clips CLIPS --masks MASKS" if self.clips else ""
        options = (
            f"{data} --seed {s['seed']} --batch {s['batch']} --patch {s['patch_px']} "
            f"--learning-rate {s['learning_rate']} --kernel-rate {s['kernel_rate']} "
            f"--decay {s['decay_share']} --steps {self.steps or self.step}"
            + (
                f" --clip-size {s['clip_px']} --taught-share {s.get('taught_share', 0)}"
                if whole
                else ""
            )
            + (" --start-from BEGUN_WITH.safetensors" if self.begun_with else "")
        )
        return (
            "## Reproduce or improve it\n\n"
            f"    sci-stream train FOLDER RUN {options}\n"
            f"    sci-stream train FOLDER RUN {data} --minutes 60 "
            f"--start-from {self.variant}.safetensors"
        )

    @property
    def _kind(self) -> str:
        return "mosaic" if self.variant.endswith(MOSAIC) else "grey"

    @property
    def _measured_on(self) -> str:
        return "mosaics" if self.variant.endswith(MOSAIC) else "luminance"

    @property
    def _in_loop(self) -> bool:
        return isinstance(self.shape, NetworkShape) and bool(self.clips)


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "- not stated"


def _decibels(scores: Mapping[str, float], levels: Sequence[str]) -> str:
    return " | ".join(f"{scores[level]:.2f}" for level in levels)


def _value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
