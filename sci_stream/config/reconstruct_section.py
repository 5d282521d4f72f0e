"""The table ``[reconstruct]`` of a rig file: solver, prior, start and budget."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sci_stream.config.fields import (
    DenoiserName,
    Device,
    OptionalPath,
    Section,
)
from sci_stream.recon.algorithms.schedule import LambdaRule, Shape


class ReconstructSection(Section):
    """How video is computed from snapshots, and on what."""

    nodes: int = Field(
        default=1,
        ge=0,
        le=64,
        description="Reconstruct nodes that `sci-stream run` starts; 0: they run on other machines.",
    )
    devices: tuple[Device, ...] = Field(
        default=("auto",),
        strict=False,
        min_length=1,
        description="auto, cpu, cuda or cuda:N, for the nodes in turn: node i uses devices[i mod length].",
    )
    denoiser: DenoiserName = Field(
        default="auto",
        description="Prior: tv, ffdnet-lite, ffdnet, two in sequence (tv+ffdnet-lite), or auto: ffdnet "
        "if weights are given, else ffdnet-lite.",
    )
    weights: OptionalPath = Field(
        default=None,
        description="Checkpoint of the denoiser (.safetensors, .pth); its layout is recognised.",
        examples=["ffdnet_gray.pth"],
    )
    precision: Literal["auto", "float32", "half"] = Field(
        default="auto",
        description="Arithmetic of networks. auto: 16 bits where the device is faster in them and next to nothing is "
        "lost; float32; half: 16 bits always.",
    )
    iterations: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Iterations per snapshot; unset: what suits device and denoiser.",
        examples=[20],
    )
    min_iterations: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Fewest iterations when time is short; unset: what suits the denoiser.",
        examples=[4],
    )
    sigma_first: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Most noise level σ at the first iteration, on the 0–1 scale: a start that is nearer begins lower "
        "(not where linear_start is false); unset: what suits the denoiser.",
        examples=[0.2],
    )
    sigma_last: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Most noise level σ at the last of 16 or more iterations, on the 0–1 scale; K fewer end at "
        "√(16/K) of it (not where linear_start is false); unset: as above.",
        examples=[0.03],
    )
    sigma_shape: Shape | None = Field(
        default=None,
        strict=False,
        description="How σ falls: by a constant factor (unset: that one), or in four plateaus.",
        examples=["geometric"],
    )
    lambda_rule: LambdaRule | None = Field(
        default=None,
        strict=False,
        description="monotone: σ falls with every iteration; adaptive: when the estimate has come to rest; residual: "
        "as monotone, but never far above the error that the residual shows; unset: what suits the denoiser.",
        examples=["residual"],
    )
    xi: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="ξ of the adaptive rule: factor by which σ² falls; unset: 0.7.",
        examples=[0.7],
    )
    eta: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="η of the adaptive rule: σ is held while a step is below η times the last one; unset: 0.9.",
        examples=[0.9],
    )
    switch_at: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="For two priors in sequence: share of the iterations that the first is given; unset: a half.",
        examples=[0.5],
    )
    solver: Literal["gap", "admm"] | None = Field(
        default=None,
        description="gap (unset: that one), or admm, which doubts the measurement by gamma in any case.",
        examples=["gap"],
    )
    gamma: float | None = Field(
        default=None,
        ge=0,
        le=1e6,
        description="γ of admm: how far the measurement is weighted down, compared with Σφ²; unset: 0.3.",
        examples=[0.3],
    )
    accelerate: bool = Field(
        default=True,
        description="Accumulate the residual (accelerated GAP): better in fewer iterations.",
    )
    weigh_noise: bool = Field(
        default=True,
        description="Weight each measured pixel by the noise of the calibration; false: "
        "explain every one exactly. Where the calibration knows no noise there is no difference.",
    )
    correlated: int = Field(
        default=4,
        ge=0,
        le=1000,
        description="How many iterations explain, where something moves, what is left unexplained as errors that "
        "neighbours share (not where linear_start is false); 0: every pixel for itself, as in the paper.",
    )
    local_sigma: bool = Field(
        default=True,
        description="Where it is known how far a start is from the truth, denoise each place by how wrong it is, with "
        "a denoiser that can tell places apart (FFDNet's); false: by the same σ everywhere.",
    )
    restrain: bool = Field(
        default=True,
        description="Where it is known how far a start is from the truth, lower σ if the first denoising takes away "
        "more than that, end early where little is left to correct, and let no pixel end much further from its start; "
        "false: go by the schedule alone.",
    )
    along_time: bool | None = Field(
        default=None,
        description="Denoise every other time what groups of frames have in common and what changes between them, "
        "instead of frame by frame; unset: what suits the denoiser.",
        examples=[True],
    )
    linear_start: bool | None = Field(
        default=None,
        description="Begin a cold solve with the best linear estimate of what moves, not with the still image "
        "everywhere: better in fewer iterations; unset: what suits the denoiser.",
        examples=[True],
    )
    warm_start: bool = Field(
        default=True,
        description="Begin a snapshot from the video of the one before it, where that predicts it: better in fewer "
        "iterations. Each snapshot says how it began, and why.",
    )
    relaxation: float | None = Field(
        default=None,
        ge=0,
        lt=2,
        description="α of accelerated GAP: weight of the residual that is accumulated; unset: what suits the denoiser.",
        examples=[1.0],
    )
    momentum: float | None = Field(
        default=None,
        ge=0,
        le=10,
        description="μ of accelerated GAP: how far the estimate is carried on from those before it, in units of σ on "
        "the 0–1 scale, at most 0.35; unset: what suits the denoiser.",
        examples=[0.0],
    )
    adapt_budget: bool = Field(
        default=True,
        description="Spend fewer iterations when snapshots wait, before any is dropped; reported with each.",
    )
    credit: int = Field(
        default=2,
        ge=1,
        le=1024,
        description="Snapshots that a node may hold: one in work, the others on their way to it.",
    )
    block_snapshots: int = Field(
        default=8,
        ge=1,
        le=100_000,
        description="Consecutive snapshots that go to one node, so that its warm start has a past.",
    )
    threads: int = Field(default=0, ge=0, le=1024, description="CPU threads of a node; 0: torch's choice.")
    video_dtype: Literal["float16", "float32"] = Field(
        default="float16",
        description="Type of the reconstructed video on its way to the sink and in the recording.",
    )

    @model_validator(mode="after")
    def _ladders_descend(self) -> Self:
        if self.iterations and self.min_iterations and self.min_iterations > self.iterations:
            raise ValueError(f"min_iterations ({self.min_iterations}) is more than iterations ({self.iterations})")
        if self.sigma_first and self.sigma_last and self.sigma_last > self.sigma_first:
            raise ValueError(f"sigma_last ({self.sigma_last:g}) is more than sigma_first ({self.sigma_first:g})")
        return self
