"""The table ``[reconstruct]`` of a rig file: solver, iterations, devices."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from sci_stream.config.fields import Device, OptionalPath, Rare, Section, SolverName
from sci_stream.delivery.reaction import Reaction


def _reactions(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(Reaction.parse(text).text for text in texts)


class ReconstructSection(Section):
    """How video is reconstructed from snapshots, and on which devices."""

    nodes: int = Field(1, ge=0, le=64)
    """Reconstruct nodes that `sci-stream run` starts; 0: they run on other machines."""
    devices: tuple[Device, ...] = Field(("auto",), strict=False, min_length=1)
    """Devices of the nodes: auto, cpu, cuda or cuda:N; node i uses devices[i mod length], and with
    auto the GPUs in turn, if there are any."""
    solver: SolverName = "auto"
    """auto, tv, ffdnet-lite, ffdnet, unrolled; a denoiser or a network of yours by its name, as
    module:Class, as file.py:Class, or as a file .pt, .pt2 or .onnx."""
    weights: OptionalPath = Field(None, examples=["ffdnet_gray.pth"])
    """Checkpoint (.safetensors, .pth); its layout is detected, and with solver = auto its
    network."""
    iterations: int | None = Field(None, ge=1, le=10_000, examples=[20])
    """Iterations per snapshot; unset: chosen for the device and the solver."""
    analyses: tuple[str, ...] = Field((), strict=False, max_length=8)
    """Analyses of each video, by the names of their plug-ins."""
    reactions: Rare[Annotated[tuple[str, ...], AfterValidator(_reactions)]] = Field(
        (),
        strict=False,
        max_length=16,
        examples=[
            ["chunk_moving_objects > 3, hold-off 5 s, at most 20: acquire exposure_us = 500"]
        ],
    )
    """Figures of a video that set a parameter of a node, or ask for an action
    (how-to/analysis.md)."""
    adapt_budget: bool = True
    """Reduce the iterations while snapshots are queued, before any snapshot is dropped."""
    warm_start: bool = True
    """Start each snapshot from the preceding video where that predicts it."""
    min_iterations: Rare[int | None] = Field(None, ge=1, le=10_000, examples=[4])
    """Fewest iterations that adapt_budget may choose; unset: chosen for the solver."""
    precision: Rare[Literal["auto", "float32", "half"]] = "auto"
    """Arithmetic of networks. auto: 16 bits where the device is faster with them and the loss is
    negligible; float32; half: always 16 bits."""
    video_dtype: Rare[Literal["float16", "float32"]] = "float16"
    """Type of the reconstructed video in messages and in the recording."""
    sigma_first: Rare[float | None] = Field(None, gt=0, le=1, examples=[0.2])
    """Highest noise level σ of the first iteration, on the 0–1 scale: the closer the initial
    estimate, the lower σ. Unset: chosen for the solver."""
    sigma_last: Rare[float | None] = Field(None, gt=0, le=1, examples=[0.03])
    """Highest noise level σ of the last iteration, on the 0–1 scale, for 16 or more iterations with
    the denoiser; K < 16 end at √(16/K) times it. Unset: chosen for the solver."""
    cuda_graphs: Rare[bool] = True
    """On a GPU, record the work of a solve once and replay it; false: launch every operation, which
    is slower for small snapshots."""
    credit: Rare[int] = Field(2, ge=1, le=1024)
    """Snapshots that a node may hold: one being solved, the others in flight."""
    solve_timeout_s: Rare[float] = Field(600.0, gt=0, le=86_400)
    """A node that holds snapshots and returns no result for this time is considered lost, s."""
    block_snapshots: Rare[int] = Field(8, ge=1, le=100_000)
    """Consecutive snapshots that are sent to the same node, so that it can start them warm."""
    threads: Rare[int] = Field(0, ge=0, le=1024)
    """CPU threads of a node; 0: chosen by torch."""

    @model_validator(mode="before")
    @classmethod
    def _earlier_name(cls, table: object) -> object:
        """Read ``denoiser``, the name of ``solver`` before it could be a network."""
        if isinstance(table, dict) and "denoiser" in table and "solver" not in table:
            return {"solver" if key == "denoiser" else key: table[key] for key in table}
        return table

    @model_validator(mode="after")
    def _limits_are_consistent(self) -> Self:
        if self.iterations and self.min_iterations and self.min_iterations > self.iterations:
            raise ValueError(
                f"min_iterations ({self.min_iterations}) is more than iterations "
                f"({self.iterations})"
            )
        if self.sigma_first and self.sigma_last and self.sigma_last > self.sigma_first:
            raise ValueError(
                f"sigma_last ({self.sigma_last:g}) is more than sigma_first ({self.sigma_first:g})"
            )
        return self
