"""The three reconstructions that `bench reality` compares.

All that it needs of the solver is in this module.

A series is solved as a reconstruct node solves it: by the guarded solver, with a rig's defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sci_stream.config import ReconstructSection
from sci_stream.devices.solver import make_prior
from sci_stream.errors import ConfigError
from sci_stream.model import Snapshot
from sci_stream.optics import bayer
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import Denoiser
from sci_stream.recon.algorithms.unrolled import UnrolledSolver
from sci_stream.recon.backend.device import describe_device, pick_device
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import GuardedSolver
from sci_stream.recon.metrics import psnr
from sci_stream_lab.bench.datasets import truth_of
from sci_stream_lab.paper.published_code import plain_gap


@dataclass(frozen=True, slots=True)
class SolverSpec:
    """How to reconstruct, in a form that processes can hand to each other.

    ``section`` is ``[reconstruct]`` of a rig, ``iterations`` those of every solve but the plain
    loop's.
    """

    section: ReconstructSection
    device: str = "auto"
    iterations: int = 12

    @property
    def description(self) -> str:
        """Denoiser, iterations and device in words."""
        device = pick_device(self.device)
        return (
            f"{make_prior(self.section, device)[0].name}, {self.iterations} iterations, on "
            f"{describe_device(device)}"
        )

    @property
    def on_gpu(self) -> bool:
        """Whether it computes on a GPU, which processes should not share."""
        return pick_device(self.device).type != "cpu"


class Reconstructor:
    """One prior on one device, with a rig's settings."""

    def __init__(self, spec: SolverSpec) -> None:
        self._device = pick_device(spec.device)
        self._prior, self._settings = make_prior(spec.section, self._device)
        # The plain loop is that of a denoiser alone.
        plain = self._prior.before if isinstance(self._prior, UnrolledSolver) else self._prior
        if not isinstance(plain, Denoiser):
            raise ConfigError("The plain loop needs a denoiser", got=self._prior.name)
        self._plain_prior = plain
        self._budget = spec.iterations

    def series(self, calibration: Calibration, snapshots: Sequence[Snapshot]) -> float:
        """Solve a series with the defaults; return the PSNR of its last snapshot, dB."""
        engine = Engine(calibration, self._prior, self._device, self._settings)
        solver = GuardedSolver(engine)
        last_db = float("nan")
        for snapshot in snapshots:
            video = solver.solve(snapshot, self._budget).video
            last_db = psnr(torch.from_numpy(video), torch.from_numpy(truth_of(snapshot)))
        return last_db

    @torch.inference_mode()
    def plain(self, calibration: Calibration, snapshot: Snapshot) -> float:
        """Solve a snapshot with the paper's loop, cold, in 40 iterations; return the PSNR, dB."""
        y = torch.from_numpy(calibration.measurement(snapshot.counts)).to(self._device)
        phi = torch.from_numpy(calibration.phi.copy()).to(self._device)
        if calibration.bayer is None:
            video = self._plain(y, phi)
        else:
            planes = zip(bayer.split(y), bayer.split(phi), strict=True)
            video = bayer.merge(torch.stack([self._plain(plane, masks) for plane, masks in planes]))
        return psnr(video.cpu(), torch.from_numpy(truth_of(snapshot)))

    def _plain(self, y: torch.Tensor, phi: torch.Tensor) -> torch.Tensor:
        v = phi
        for v in plain_gap(y, phi, self._plain_prior):  # noqa: B007 - the last one is wanted
            pass
        return v
