"""The engine: what a reconstruct node holds. Calibration and prior on the device; a snapshot in, a video out."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from sci_stream.errors import CalibrationError, ConfigError, DeviceError
from sci_stream.model import Array, Snapshot, SnapshotId, SolveReport, Start
from sci_stream.optics import mosaic
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.forward import forward, gram_diag, inverse_gram
from sci_stream.ports import Denoiser
from sci_stream.recon.budget import BudgetController
from sci_stream.recon.device import describe_device
from sci_stream.recon.gap import cold_start, gap
from sci_stream.recon.metrics import psnr
from sci_stream.recon.schedule import AnytimeLadder, Budget
from sci_stream.recon.settings import SolverSettings, default_settings

__all__ = ["SOLVERS", "Budget", "BudgetController", "Engine", "SolverSettings", "default_settings"]

SOLVERS = {"gap": gap}
"""The algorithms by name; all take and yield what `gap` does."""

_DARK = 1e-6
"""Root mean square of y, in units of scene brightness, below which a relative residual means nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """A snapshot on the device, by planes P (1, or the mosaic's 4): y, r_inv and exposed are (P, h, w)."""

    y: torch.Tensor
    r_inv: torch.Tensor
    start_r_inv: torch.Tensor
    saturated_fraction: float


@dataclass(frozen=True, slots=True, eq=False)
class _Solved:
    video: torch.Tensor
    iterations: int
    start_reason: str
    residual: float


class Engine:
    """Reconstruct snapshots of one calibration with one prior on one device. Used from one thread.

    Parameters
    ----------
    calibration
        The masks and scale; copied to the device once.
    denoiser
        The prior, already on the device.
    device
        Where to compute.
    settings
        How to solve when no budget says otherwise.

    Raises
    ------
    ConfigError
        If the settings name an unknown solver.
    DeviceError
        If the calibration does not fit into the device's memory.
    """

    def __init__(
        self, calibration: Calibration, denoiser: Denoiser, device: torch.device, settings: SolverSettings
    ) -> None:
        if settings.solver not in SOLVERS:
            raise ConfigError("Unknown solver", expected=f"one of {', '.join(SOLVERS)}", got=repr(settings.solver))
        self.calibration = calibration
        self.settings = settings
        self.device = device
        self._denoiser = denoiser
        self._solve = SOLVERS[settings.solver]
        self._iteration_s: float | None = None
        try:
            # A copy: the calibration's arrays are read-only, which torch does not know.
            self._phi = self._planes(torch.from_numpy(calibration.phi.copy()).to(device))
            good = torch.ones(calibration.shape, dtype=torch.bool)
            if calibration.bad_pixels is not None:
                good = torch.from_numpy(~calibration.bad_pixels)
            self._r_inv = inverse_gram(gram_diag(self._phi), self._planes(good.to(device)))
        except torch.cuda.OutOfMemoryError as error:
            raise self._out_of_memory() from error

    @property
    def description(self) -> str:
        """The device in words."""
        return describe_device(self.device)

    def warm_up(self) -> float:
        """Solve a dark snapshot, so that the first real one finds libraries loaded and memory allocated.

        Returns
        -------
        Seconds that one iteration takes, measured after the first solve.
        """
        dark = Snapshot(
            id=SnapshotId("warm-up", 0, 0),
            counts=np.array(self.calibration.dark),
            calibration_hash=self.calibration.hash,
            n_frames=self.calibration.n_frames,
            host_time_ns=0,
        )
        budget = Budget(self.settings.min_iterations)
        self.reconstruct(dark, budget)
        _, report = self.reconstruct(dark, budget)
        return report.solve_ns / 1e9 / report.iterations

    def reconstruct(
        self, snapshot: Snapshot, budget: Budget | None = None
    ) -> tuple[npt.NDArray[np.float32], SolveReport]:
        """Recover the B frames behind a snapshot.

        Parameters
        ----------
        snapshot
            Must be of the engine's calibration. Where it carries the truth, the report says the PSNR.
        budget
            What it may cost; None for the settings' iterations and no limit of time.

        Returns
        -------
        video, report
            (B, H, W) float32 in host memory, nominally 0–1, not clipped, finite, a Bayer mosaic if the calibration is
            one; owned by the caller.

        Raises
        ------
        CalibrationError
            If the snapshot or its truth does not fit the calibration.
        DeviceError
            If the device runs out of memory.
        """
        self._check(snapshot)
        budget = budget or Budget(self.settings.iterations)
        began_s = time.perf_counter()
        try:
            with torch.inference_mode():
                measured = self._measure(snapshot.counts)
                solved = self._iterate(measured, budget, began_s)
                video = solved.video.cpu().numpy()
        except torch.cuda.OutOfMemoryError as error:
            raise self._out_of_memory() from error
        solve_ns = int((time.perf_counter() - began_s) * 1e9)
        return video, SolveReport(
            iterations=solved.iterations,
            start=Start.COLD,
            start_reason=solved.start_reason,
            budget_limited=solved.iterations < self.settings.iterations,
            solve_ns=solve_ns,
            residual=solved.residual,
            saturated_fraction=measured.saturated_fraction,
            psnr_db=None if snapshot.truth is None else _psnr(video, snapshot.truth),
        )

    def _measure(self, counts: Array) -> _Measured:
        """Bring a snapshot to the device and tell which of its pixels hold."""
        y = torch.from_numpy(self.calibration.measurement(counts)).to(self.device)
        valid = torch.isfinite(y)
        y = torch.where(valid, y, 0.0)
        # Where clipped, y is wrong, and yet the best guess of how bright the start should be there.
        start_r_inv = self._r_inv * self._planes(valid)
        saturated_fraction = 0.0
        if self.calibration.saturation_dn is not None:
            saturated = counts >= self.calibration.saturation_dn
            saturated_fraction = float(np.mean(saturated))
            valid &= torch.from_numpy(~saturated).to(self.device)
        r_inv = self._r_inv * self._planes(valid)
        return _Measured(self._planes(y), r_inv, start_r_inv, saturated_fraction)

    def _iterate(self, measured: _Measured, budget: Budget, began_s: float) -> _Solved:
        """Run the solver from a cold start until the budget is spent."""
        settings = self.settings
        y, r_inv = measured.y, measured.r_inv
        start = cold_start(y, self._phi, measured.start_r_inv)
        began_loop_s = self._clock()
        ladder = AnytimeLadder(
            settings.schedule,
            budget,
            min_iterations=settings.min_iterations,
            iteration_s=self._iteration_s,
            clock=self._clock,
            started_s=began_s,
        )
        iterates = self._solve(
            start,
            y,
            self._phi,
            r_inv,
            denoise=self._denoise,
            sigmas=ladder,
            relaxation=settings.relaxation if settings.accelerate else 0.0,
            momentum=settings.momentum if settings.accelerate else 0.0,
        )
        (estimate,) = deque(iterates, maxlen=1)
        self._iteration_s = (self._clock() - began_loop_s) / ladder.taken
        reason = "no_warm_start"
        if not bool(estimate.isfinite().all()):
            # Better the still image, said to be one, than a frame of NaN or a dead node.
            estimate, reason = start, "diverged"
        return _Solved(self._merged(estimate), ladder.taken, reason, self._residual(estimate, y, r_inv))

    def _denoise(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        """Denoise the frames of all planes as one batch, (P, B, h, w) → the same."""
        return self._denoiser(x.flatten(0, 1), sigma).view(x.shape)

    def _residual(self, v: torch.Tensor, y: torch.Tensor, r_inv: torch.Tensor) -> float:
        """Return ‖y − Φv‖₂/‖y‖₂ over the pixels that take part in the projection."""
        part = r_inv > 0
        difference = torch.linalg.vector_norm((y - forward(self._phi, v)) * part)
        norm = torch.linalg.vector_norm(y * part).clamp_min(_DARK * y.numel() ** 0.5)
        return float(difference / norm)

    def _planes(self, image: torch.Tensor) -> torch.Tensor:
        """Put the plane dimension first: four planes of a mosaic, or the one there is."""
        return image.unsqueeze(0) if self.calibration.bayer is None else mosaic.split(image)

    def _merged(self, planes: torch.Tensor) -> torch.Tensor:
        return planes.squeeze(0) if self.calibration.bayer is None else mosaic.merge(planes)

    def _clock(self) -> float:
        """Read the clock when the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _check(self, snapshot: Snapshot) -> None:
        """Raise if a snapshot is not of this calibration."""
        calibration = self.calibration
        what = f"Snapshot {snapshot.id.seq} of series {snapshot.id.series!r} does not fit the calibration"
        if snapshot.counts.shape != calibration.shape:
            raise CalibrationError(
                what, expected=f"{calibration.shape} pixels, as its masks have", got=snapshot.counts.shape
            )
        if snapshot.n_frames != calibration.n_frames:
            raise CalibrationError(
                what,
                expected=f"{calibration.n_frames} frames per snapshot, one for each of its masks",
                got=f"{snapshot.n_frames} frames",
            )
        if snapshot.calibration_hash != calibration.hash:
            raise CalibrationError(
                what,
                expected=f"hash {calibration.hash} (the engine's)",
                got=f"hash {snapshot.calibration_hash} (the snapshot's)",
                hint="Give the reconstruct node the calibration with which the snapshot was acquired.",
            )
        if snapshot.bayer is not None and snapshot.bayer is not calibration.bayer:
            raise CalibrationError(
                what,
                expected=f"Bayer phase {calibration.bayer or 'none'} (the calibration's)",
                got=f"{snapshot.bayer} (the snapshot's)",
            )
        video_shape = (calibration.n_frames, *calibration.shape)
        if snapshot.truth is not None and snapshot.truth.shape != video_shape:
            raise CalibrationError(
                f"The truth of snapshot {snapshot.id.seq} has a wrong shape",
                expected=video_shape,
                got=snapshot.truth.shape,
            )

    def _out_of_memory(self) -> DeviceError:
        height, width = self.calibration.shape
        return DeviceError(
            f"{self.description} ran out of memory",
            got=f"{self.calibration.n_frames} frames of {height}×{width} pixels",
            hint="Free the device of other work, or choose another in the rig.",
        )


def _psnr(video: npt.NDArray[np.float32], truth: Array) -> float:
    """Return the mean PSNR in dB, the truth given as integers (full range = 1.0) or as floats."""
    peak = float(np.iinfo(truth.dtype).max) if np.issubdtype(truth.dtype, np.integer) else 1.0
    return psnr(torch.from_numpy(video), torch.from_numpy(truth.astype(np.float32) / np.float32(peak)))
