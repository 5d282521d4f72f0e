"""Studies of the estimated noise on the scenes of `bench reality`; see lab/research/real-light.md.

``python lab/research/noise_studies.py border 0.5``: masks that are displaced in proportion to the
distance from the centre, by so many pixels at the middle of an edge; PSNR of the defaults, 12
iterations, 128 × 128, third snapshot, solved cold, with one b for the whole image / with the
estimate by place / with the true variance around each pixel. ``python lab/research/noise_studies.py
tracked 4``: the same of the last of six snapshots with its own noise / with the mean of the series,
of so many scenes of each half. SCI_STREAM_DATA names the data.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

import numpy as np
import torch
from ablation import CPU, PRIOR, PUBLISHED, SETTINGS, SIZE, videos
from scipy.ndimage import gaussian_filter, map_coordinates

from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.recon import engine
from sci_stream.recon.engine import Engine
from sci_stream.recon.noise_estimation import CodedWindows, NoiseEstimate, estimate_noise
from sci_stream_lab.bench.reality.perturbations import parse_perturbation
from sci_stream_lab.bench.reality.rigs import Series, film
from sci_stream_lab.bench.reality.scenes import SCENES, SceneFormat

Estimator = Callable[[torch.Tensor, CodedWindows | None, torch.Tensor], NoiseEstimate]
# The true variance of a pixel is the mean around it.
AROUND_PX = 6


def series(
    half: str, perturbation: str, snapshots: int, scenes: int = 99
) -> list[tuple[str, Series]]:
    """Return the first scenes of a half behind the published masks, blurred by 0.5 px."""
    films = []
    for scene in [scene for scene in SCENES if scene.half == half][:scenes]:
        frames = videos(scene, SceneFormat(SIZE, PUBLISHED.n_frames, False, snapshots))
        if frames is not None:
            filmed = film(
                PUBLISHED, PUBLISHED.optics(SIZE), frames, parse_perturbation(perturbation)
            )
            films.append((scene.name, filmed))
    return films


def solved(
    calibration: Calibration, snapshots: tuple[Snapshot, ...], estimator: Estimator
) -> float:
    """Return the PSNR of the last snapshot, dB; the estimator sees all of them."""
    engine.estimate_noise = estimator
    solver = Engine(calibration, PRIOR, CPU, SETTINGS)
    for snapshot in snapshots:
        solver.forget()
        _, report = solver.reconstruct(snapshot, 12)
    assert report.psnr_db is not None
    return report.psnr_db


def displaced(
    calibration: Calibration, snapshot: Snapshot, edge_px: float
) -> tuple[Snapshot, np.ndarray]:
    """Return the snapshot through masks of another scale, and the true variance of the calibrated
    ones' residual.
    """
    phi, truth = np.asarray(calibration.phi, np.float32), np.asarray(snapshot.truth, np.float32)
    unit = (
        calibration.measurement(snapshot.counts).mean()
        / np.einsum("bhw,bhw->hw", phi, truth).mean()
    )
    rows, columns = (axis - (SIZE - 1) / 2 for axis in np.mgrid[:SIZE, :SIZE].astype(float))
    at = [axis * (1 + 2 * edge_px / SIZE) + (SIZE - 1) / 2 for axis in (rows, columns)]
    real = np.stack([map_coordinates(mask, at, order=3, mode="nearest") for mask in phi]).clip(0, 1)
    y = np.einsum("bhw,bhw->hw", real, truth) * unit
    left = y - np.einsum("bhw,bhw->hw", phi, truth) * unit
    counts = np.asarray(calibration.dark + calibration.full_scale_dn * y, np.float32)
    return dataclasses.replace(snapshot, counts=counts), gaussian_filter(left**2, AROUND_PX)


def compare_border(edge_px: float) -> None:
    """Print the PSNR with one b, with b by place, and with the true variance, by scene and in the
    mean.
    """
    for half in ("tuning", "reporting"):
        rows = []
        for name, filmed in series(half, "none", 3):
            snapshot, variance = displaced(filmed.assumed, filmed.snapshots[-1], edge_px)
            true = torch.from_numpy(variance.astype(np.float32))

            def uniform(
                y: torch.Tensor, masks: CodedWindows | None, r_inv: torch.Tensor
            ) -> NoiseEstimate:
                estimate = estimate_noise(y, masks, r_inv)
                slope = estimate.slope.mean()
                offset = (estimate.variance - estimate.slope * y.clamp_min(0.0)).mean()
                return NoiseEstimate(
                    y.clamp_min(0.0) * slope + offset, slope.expand_as(estimate.slope)
                )

            def exact(
                y: torch.Tensor,
                masks: CodedWindows | None,
                r_inv: torch.Tensor,
                true: torch.Tensor = true,
            ) -> NoiseEstimate:
                return NoiseEstimate(true.expand_as(y), estimate_noise(y, masks, r_inv).slope)

            rows.append(
                [
                    solved(filmed.assumed, (snapshot,), each)
                    for each in (uniform, estimate_noise, exact)
                ]
            )
            print(f"{half:10} {name:18}", *(f"{value:6.2f}" for value in rows[-1]), flush=True)
        print(
            f"{half:10} {'mean':18}",
            *(f"{value:6.2f}" for value in np.mean(rows, axis=0)),
            flush=True,
        )


class Tracked:
    """The mean of a and b over the snapshots so far."""

    def __init__(self) -> None:
        self.estimates: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(
        self, y: torch.Tensor, masks: CodedWindows | None, r_inv: torch.Tensor
    ) -> NoiseEstimate:
        """Estimate the noise of one more snapshot."""
        estimate = estimate_noise(y, masks, r_inv)
        self.estimates.append(
            ((estimate.variance - estimate.slope * y.clamp_min(0.0)).mean(), estimate.slope)
        )
        offset, slope = (torch.stack(part).mean(0) for part in zip(*self.estimates, strict=True))
        return NoiseEstimate(y.clamp_min(0.0) * slope + offset, slope)


def compare_tracked(scenes: int) -> None:
    """Print the PSNR of the last snapshot with its own noise and with that of the series."""
    for half in ("tuning", "reporting"):
        for perturbation in ("none", "noise", "shift", "all"):
            gains = []
            for name, filmed in series(half, perturbation, 6, scenes):
                alone, tracked = (
                    solved(filmed.assumed, filmed.snapshots, each)
                    for each in (estimate_noise, Tracked())
                )
                gains.append(tracked - alone)
                print(
                    f"{half:10} {perturbation:6} {name:18} {alone:6.2f} {tracked:6.2f}", flush=True
                )
            print(f"{half:10} {perturbation:6} {'mean gain':18} {np.mean(gains):+.3f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "border":
        compare_border(float(sys.argv[2]))
    else:
        compare_tracked(int(sys.argv[2]))
