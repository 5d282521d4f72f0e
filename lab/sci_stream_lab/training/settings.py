"""Settings that determine the result of a training run, and its end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sci_stream.errors import ConfigError
from sci_stream.recon.denoisers.variants import MOSAIC

UNROLLED = "unrolled"


@dataclass(frozen=True, slots=True)
class VariantDefaults:
    """Settings that suit a variant; ``held_out`` counts photographs, or clips for an unrolled
    network.
    """

    learning_rate: float
    kernel_rate: float = 0.01
    batch: int = 16
    held_out: int = 8


# Rates for batches of 16. Measured for ffdnet-lite, PSNR at σ 25 on held-out photographs after 600
# steps: 27.95 dB with 1e-3, 28.10 with 2e-3, 28.46 with 4e-3; the rate of ffdnet is that of its
# paper. Those of unrolled:
# lab/research/unrolled.md.
DEFAULTS = {
    "ffdnet": VariantDefaults(1e-3),
    "ffdnet-lite": VariantDefaults(3e-3),
    "ffdnet-mosaic": VariantDefaults(1e-3),
    "ffdnet-lite-mosaic": VariantDefaults(3e-3),
    UNROLLED: VariantDefaults(3e-4, 3e-3, batch=32, held_out=2),
}


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """All settings that a result depends on, except data, steps and machine.

    They are fixed during a run.

    Parameters
    ----------
    variant
        A key of `sci_stream_lab.training.variants.VARIANTS`, or ``"unrolled"``: a solve trained as
        a whole.
    seed
        Seed of the initial weights and of all patches and noise.
    batch, patch_px
        Patches per step, and their height and width; even. Of an unrolled network: frames per step.
    learning_rate
        Rate of Adam, for biases and the first and last layer, between warm-up and decay.
    kernel_rate
        Rate of Muon, for the kernels between, likewise; see `sci_stream_lab.training.muon`.
    warmup_steps
        Steps during which the rates rise from zero.
    decay_share
        Fraction of the steps, at the end, during which the rates fall to zero.
    ema_decay
        Decay of the running average of the weights, which is validated and exported.
    sigma_most
        Noise levels are uniform from 0 to this, 0–1 scale.
    bayer_share
        Fraction of patches taken from an aliased plane of the Bayer mosaic; the others are
        luminance. Photographs only.
    clip_px
        Unrolled only: height and width of the videos that patches are taken from, even and at least
        ``patch_px``.
    taught_share
        Unrolled only: fraction of the draws whose steps also learn from the result of 40 iterations
        with FFDNet. On a CPU such a draw takes ten times as long.
    stages, layers, channels
        Unrolled only: see `sci_stream_lab.training.unrolled.network.UnrolledShape`.
    validate_every
        Steps between points of the curve, each with a checkpoint.

    Raises
    ------
    ConfigError
        If a value is out of range.

    Notes
    -----
    The rates are constant for most of a run and fall at its end, not along a cosine: until then
    nothing depends on the number of steps, so that a run can be extended or end after a given time.
    """

    variant: str = "ffdnet-lite"
    seed: int = 0
    batch: int = 16
    patch_px: int = 64
    learning_rate: float = DEFAULTS["ffdnet-lite"].learning_rate
    kernel_rate: float = DEFAULTS["ffdnet-lite"].kernel_rate
    warmup_steps: int = 200
    decay_share: float = 0.3
    ema_decay: float = 0.999
    sigma_most: float = 75 / 255
    bayer_share: float = 0.25
    clip_px: int = 128
    taught_share: float = 0.3
    stages: int = 4
    layers: int = 7
    channels: int = 64
    validate_every: int = 1000

    def __post_init__(self) -> None:
        _require_variant(self.variant)
        ranges = {
            "seed": (0, self.seed, 2**63 - 1),
            "batch": (1, self.batch, 2**16),
            "patch_px": (8, self.patch_px, 1024),
            "learning_rate": (1e-8, self.learning_rate, 1.0),
            "kernel_rate": (1e-8, self.kernel_rate, 1.0),
            "warmup_steps": (0, self.warmup_steps, 10**9),
            "decay_share": (0.0, self.decay_share, 1.0),
            "ema_decay": (0.0, self.ema_decay, 1 - 1e-9),
            "sigma_most": (0.0, self.sigma_most, 1.0),
            "bayer_share": (0.0, self.bayer_share, 1.0),
            "clip_px": (self.patch_px, self.clip_px, 1024),
            "taught_share": (0.0, self.taught_share, 1.0),
            "stages": (1, self.stages, 64),
            "layers": (2, self.layers, 64),
            "channels": (2, self.channels, 1024),
            "validate_every": (1, self.validate_every, 10**9),
        }
        if not self.is_unrolled:
            del ranges["clip_px"]
        for name, (least, value, most) in ranges.items():
            if not least <= value <= most:
                raise ConfigError(
                    f"The training's {name} is out of range",
                    expected=f"{least} to {most}",
                    got=value,
                )
        for name, size in (
            ("patch_px", self.patch_px),
            ("clip_px", self.clip_px),
            ("channels", self.channels),
        ):
            if size % 2:
                raise ConfigError(
                    f"The training's {name} must be even", expected="an even number", got=size
                )

    @property
    def is_unrolled(self) -> bool:
        """Whether a solve is trained as a whole, and not a denoiser."""
        return self.variant == UNROLLED

    @property
    def is_mosaic(self) -> bool:
        """Whether a denoiser of Bayer mosaics is trained."""
        return self.variant.endswith(MOSAIC)

    @property
    def denoiser(self) -> str:
        """Name of the denoiser that uses the weights."""
        return self.variant.removesuffix(MOSAIC)

    def decay_begins(self, steps: int) -> int:
        """Return the step from which the rates fall, in a run of ``steps``."""
        return steps - round(self.decay_share * steps)

    def share(self, step: int, steps: int | None) -> float:
        """Return the fraction of the rates used in a step, counted from 0; ``steps`` is None while
        unknown.
        """
        share = min(1.0, (step + 1) / (self.warmup_steps + 1))
        if steps is None or step < (begins := self.decay_begins(steps)):
            return share
        return share * max(0.0, (steps - step) / (steps - begins + 1))


def _require_variant(name: str) -> None:
    if name not in DEFAULTS:
        raise ConfigError(
            "Unknown network", expected=f"one of {', '.join(DEFAULTS)}", got=repr(name)
        )


def settings_for(variant: str, **given: float | None) -> TrainingSettings:
    """Return the settings of a variant: these values, its defaults where they are None.

    Raises
    ------
    ConfigError
        If the variant is unknown or a value is out of range.
    """
    _require_variant(variant)
    own = {
        name: getattr(DEFAULTS[variant], name) for name in ("learning_rate", "kernel_rate", "batch")
    }
    chosen: dict[str, Any] = {
        **own,
        **{name: value for name, value in given.items() if value is not None},
    }
    return TrainingSettings(variant, **chosen)


@dataclass(frozen=True, slots=True)
class Until:
    """End of a training: after ``steps`` in total, after ``minutes`` of this session, or whichever
    comes first.

    With minutes only, the number of steps is fixed once the remaining time is needed for the decay
    of the learning rate at the pace so far. A run with that number as ``steps`` gives the same
    weights.

    Raises
    ------
    ConfigError
        If neither is given or one is not positive.
    """

    steps: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None:
            raise ConfigError(
                "No end of the training is given",
                expected="--steps, --minutes or both",
                got="neither",
            )
        if self.steps is not None and self.steps < 1:
            raise ConfigError(
                "The training's steps are out of range", expected="at least 1", got=self.steps
            )
        if self.minutes is not None and not (self.minutes > 0 and math.isfinite(self.minutes)):
            raise ConfigError(
                "The training's minutes are out of range", expected="more than 0", got=self.minutes
            )

    def out_of_time(self, spent_s: float) -> bool:
        """Return whether a session of this duration has used its minutes."""
        return self.minutes is not None and spent_s >= 60 * self.minutes

    def planned_steps(
        self, settings: TrainingSettings, *, step: int, step_s: float, spent_s: float
    ) -> int | None:
        """Return the total number of steps once it must be fixed, else None.

        ``step`` and ``spent_s`` are the steps so far and the seconds of this session so far,
        ``step_s`` those per step.
        """
        if self.steps is not None or self.minutes is None:
            return None
        total = step + max(1, int((60 * self.minutes - spent_s) / step_s))
        return total if settings.decay_begins(total) <= step else None
