"""The rows of Table 1: how each is computed here.

Rows in the paper's loop begin with v⁰ = ȳ = y/Σ_b C_b and add nothing to the paper's algorithms.
Rows "with the linear start" are our form of the slow ones, by the instrument's engine: they begin
with the linear estimate, explain the residual of the first iterations by neighbours and denoise
each place by its estimated error, which takes fewer iterations. The last row is the default of a
rig, a different method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import Denoiser, VideoDenoiser
from sci_stream.recon.algorithms.gap import cold_start
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.registry import chosen_denoiser, make_denoiser, named_prior
from sci_stream.recon.engine import Engine
from sci_stream.recon.mask_stack import MaskStack
from sci_stream.recon.settings import SolverSettings, default_settings
from sci_stream_lab.paper.algorithms import Denoise, Sensed, pnp_admm, pnp_gap
from sci_stream_lab.paper.block_matching import BlockMatchingDenoiser
from sci_stream_lab.paper.lambda_rules import AdaptiveRule, LambdaRule, MonotoneRule, equal_ratios
from sci_stream_lab.paper.sequence import SequenceDenoiser
from sci_stream_lab.paper.wnnm import WnnmDenoiser

Watch = Callable[[torch.Tensor], None]
"""Called with the video, (B, H, W), after each iteration; must not write to it."""

Solve = Callable[[Snapshot, Watch], None]
"""Solve a shot, and call the function with the video after each iteration."""

_SLOW = {"wnnm": WnnmDenoiser, "vbm4d": BlockMatchingDenoiser}


class Method(Protocol):
    """A row: its name, and the paper's name for it, empty if it has none."""

    @property
    def name(self) -> str:
        """Name of the row."""
        ...

    @property
    def printed(self) -> str:
        """Name in `printed.PAPER`."""
        ...

    def prepare(
        self, calibration: Calibration, device: torch.device, weights: Path | None
    ) -> tuple[Solve, int]:
        """Return the solve of a shot, and its number of iterations; ``weights`` are those of
        FFDNet.
        """
        ...


# --- the paper's loop


@dataclass(frozen=True, slots=True)
class Stage:
    """Iterations of the paper's loop with one prior, ``each`` of them at each level of σ, of 255.

    ``adaptive``: from the first level to the last by rule b). ``by_frames``: a prior that could see
    all frames sees each by itself.
    """

    prior: str
    levels: tuple[float, ...]
    each: int = 1
    adaptive: bool = False
    by_frames: bool = False

    @property
    def sigmas(self) -> list[float]:
        """σ of each iteration by rule a), 0–1 scale."""
        return [level / 255 for level in self.levels for _ in range(self.each)]

    def rule(self) -> LambdaRule:
        """Return the λ rule for a solve."""
        sigmas = self.sigmas
        return (
            AdaptiveRule(sigmas[0], sigmas[-1], len(sigmas))
            if self.adaptive
            else MonotoneRule(sigmas)
        )

    def denoise(self, device: torch.device, weights: Path | None) -> Denoise:
        """Return D_σ on whole videos."""
        prior = _make(self.prior, device, weights)
        if isinstance(prior, VideoDenoiser) and not self.by_frames:
            return prior.denoise_video
        return lambda x, sigma: prior(x.flatten(0, 1), sigma).view(x.shape)


@dataclass(frozen=True, slots=True)
class PaperMethod:
    """A row in the paper's loop: one stage after the other, each begun with the last video of the
    one before.
    """

    name: str
    printed: str
    stages: tuple[Stage, ...]
    algorithm: Callable[[torch.Tensor, Sensed, Denoise, LambdaRule], Iterator[torch.Tensor]] = (
        pnp_gap
    )

    def prepare(
        self, calibration: Calibration, device: torch.device, weights: Path | None
    ) -> tuple[Solve, int]:
        """Return the solve of a shot, and its number of iterations."""
        masks = MaskStack(calibration, device)
        denoisers = [stage.denoise(device, weights) for stage in self.stages]

        @torch.inference_mode()
        def solve(snapshot: Snapshot, watch: Watch) -> None:
            y = masks.planes(torch.from_numpy(calibration.measurement(snapshot.counts)).to(device))
            sensed = Sensed(y, masks.phi, masks.r_inv)
            v = cold_start(*sensed)
            for stage, denoise in zip(self.stages, denoisers, strict=True):
                for v in self.algorithm(v, sensed, denoise, stage.rule()):  # noqa: B020 - begins with the last
                    watch(masks.merged(v))

        return solve, sum(len(stage.sigmas) for stage in self.stages)


def _make(name: str, device: torch.device, weights: Path | None) -> Denoiser:
    """Return a prior; the weights are FFDNet's."""
    return (
        _SLOW[name]()
        if name in _SLOW
        else make_denoiser(name, device, weights if name == "ffdnet" else None)
    )


# --- the instrument's engine


@dataclass(frozen=True, slots=True)
class LinearStart:
    """Our form of a row; its settings were tried on a crop of Traffic
    (lab/research/paper-table.md).
    """

    name: str
    printed: str
    priors: tuple[str, ...]

    def prepare(
        self, calibration: Calibration, device: torch.device, weights: Path | None
    ) -> tuple[Solve, int]:
        """Return the solve of a shot, and its number of iterations."""
        settings = SolverSettings(
            iterations=48,
            sigma_first=50 / 255,
            sigma_last=6 / 255,
            relaxation=1.5,
            linear_start=True,
            correlated=24,
            local_sigma=True,
        )
        prior, *others = (_make(name, device, weights) for name in self.priors)
        for then in others:
            prior = SequenceDenoiser(
                prior, then, switch_sigma=(settings.sigma_first * settings.sigma_last) ** 0.5
            )
        return _by_engine(Engine(calibration, prior, device, settings))


@dataclass(frozen=True, slots=True)
class Live:
    """A rig's default, cold."""

    name: str = "live, as a rig does it"
    printed: str = ""

    def prepare(
        self, calibration: Calibration, device: torch.device, weights: Path | None
    ) -> tuple[Solve, int]:
        """Return the solve of a shot, and its number of iterations."""
        name = chosen_denoiser("auto", device, weights)
        prior = named_prior(name, device, weights, Precision.FLOAT32)
        return _by_engine(Engine(calibration, prior, device, default_settings(device, name)))


def _by_engine(engine: Engine) -> tuple[Solve, int]:
    def solve(snapshot: Snapshot, watch: Watch) -> None:
        engine.reconstruct(snapshot, engine.settings.iterations, watch=watch)

    return solve, engine.settings.iterations


# --- the rows

# The authors' code (github.com/liuyang12/PnP-SCI) has 60 iterations at each level of WNNM's σ and
# 170 with block matching; these have a third of that, since they cost minutes. WNNM begins with
# single frames: those of ȳ are alike, and groups through all of them would keep what moves as
# blurred as it is.
_TV_STAGE = Stage("tv", (27.5,), each=100)
_FFDNET_STAGE = Stage("ffdnet", (50, 50, 25, 12, 6), each=10)
_VBM4D_STAGE = Stage("vbm4d", (50, 25, 12, 6), each=14)
_WNNM_FRAMES = Stage("wnnm", (50,), each=10, by_frames=True)
_WNNM = partial(Stage, "wnnm", each=20)

_TV = (Stage("tv", equal_ratios(40, 6, 24)),)
_FFDNET = (Stage("ffdnet", equal_ratios(50, 6, 4), each=10),)
_FFDNET_ADAPTIVE = (Stage("ffdnet", equal_ratios(50, 6, 40), adaptive=True),)

METHODS: tuple[Method, ...] = (
    PaperMethod("GAP-TV", "GAP-TV", _TV),
    PaperMethod("ADMM-TV", "", _TV, pnp_admm),
    PaperMethod("DeSCI (GAP-WNNM)", "DeSCI", (_WNNM_FRAMES, _WNNM((25, 12, 6)))),
    PaperMethod("PnP-VBM4D", "PnP-VBM4D", (_VBM4D_STAGE,)),
    PaperMethod("PnP-FFDNet (GAP)", "PnP-FFDNet", _FFDNET),
    PaperMethod("PnP-FFDNet (GAP, adaptive)", "PnP-FFDNet", _FFDNET_ADAPTIVE),
    PaperMethod("PnP-FFDNet (ADMM)", "PnP-FFDNet", _FFDNET, pnp_admm),
    PaperMethod("PnP-WNNM-TV", "PnP-WNNM-TV", (_TV_STAGE, _WNNM((12, 6)))),
    PaperMethod("PnP-WNNM-VBM4D", "PnP-WNNM-VBM4D", (_VBM4D_STAGE, _WNNM((6,)))),
    PaperMethod("PnP-WNNM-FFDNet", "PnP-WNNM-FFDNet", (_FFDNET_STAGE, _WNNM((6,)))),
    LinearStart("DeSCI (GAP-WNNM), with the linear start", "DeSCI", ("wnnm",)),
    LinearStart("PnP-VBM4D, with the linear start", "PnP-VBM4D", ("vbm4d",)),
    LinearStart("PnP-WNNM-TV, with the linear start", "PnP-WNNM-TV", ("tv", "wnnm")),
    LinearStart("PnP-WNNM-VBM4D, with the linear start", "PnP-WNNM-VBM4D", ("vbm4d", "wnnm")),
    LinearStart("PnP-WNNM-FFDNet, with the linear start", "PnP-WNNM-FFDNet", ("ffdnet", "wnnm")),
    Live(),
)
