"""Study: estimate mask errors from snapshots by generalised least squares. Prints PSNR per snapshot; see real-light.md.

Run with `python research/mask_self_calibration.py shift jitter gain none`; SCI_STREAM_DATA names the data.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import cv2
import numpy as np
import torch
from scipy.ndimage import gaussian_filter, shift

from sci_stream.model import Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.forward import gram_diag, inverse_gram
from sci_stream.recon.algorithms.gap import cold_start
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.initialization.lmmse import LmmseEstimator
from sci_stream.recon.settings import default_settings
from sci_stream.storage.published_data import read_published

DATA = Path(os.environ.get("SCI_STREAM_DATA", "../shared/data"))
CPU = torch.device("cpu")
DENOISER = make_denoiser("ffdnet-lite", CPU)
B, SIZE, SNAPSHOTS = 8, 256, 4
CLIPS = {"davis_car-roundabout": 10, "pymecavideo": 20, "facebookresearch_sam2__05": 20, "libtgowt_foreman": 30}
# Prior standard deviations: shift of all masks, of each mask beside that, px; gain of each mask.
COMMON_PX, JITTER_PX, GAIN = 0.7, 0.15, 0.05
# Information of a direction in units of its prior below which nothing is corrected. The published masks are one pattern
# that moves along a row, so that shifts along the row and gains of neighbouring frames can hardly be told apart; below
# 100 such directions drift and the video is lost, at 400 all scenes improve.
LEAST_INFORMATION = 400.0


def clip(name: str, first: int) -> np.ndarray:
    """Return SNAPSHOTS·B frames of a clip, (n, 256, 256), 0–1."""
    path = next((DATA / "video_train").rglob(name + "*"))
    capture, frames = cv2.VideoCapture(str(path)), []
    for _ in range(first + SNAPSHOTS * B):
        ok, image = capture.read()
        if ok:
            frames.append(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY))
    video = np.stack(frames[first:]).astype(np.float32) / 255
    scale = SIZE / min(video.shape[1:])
    if scale > 1:
        video = np.stack([cv2.resize(frame, None, fx=scale, fy=scale) for frame in video])
    top, left = ((length - SIZE) // 2 for length in video.shape[1:])
    return video[:, top : top + SIZE, left : left + SIZE]


def perturbed(phi: np.ndarray, kind: str) -> np.ndarray:
    """Return the true masks where ``phi`` are the calibrated ones."""
    rng = np.random.default_rng(1)
    if kind == "shift":
        return np.stack([shift(mask, (0.177, 0.177), order=3, mode="nearest") for mask in phi]).clip(0, 1)
    if kind == "jitter":
        moved = [shift(mask, 0.2 * rng.standard_normal(2), order=3, mode="nearest") for mask in phi]
        return np.stack(moved).clip(0, 1)
    if kind == "gain":
        return phi * (1 + 0.05 * rng.standard_normal(B))[:, None, None].astype(np.float32)
    return phi


class SelfCalibration:
    """Errors θ of masks: shifts along rows and columns and gains of each, from y ~ N(Φ(θ)m, Φ(θ)CΦ(θ)ᵀ + νI).

    With J = ∂Φ/∂θ x̂ and A = ΦCΦᵀ + νI, Gauss and Newton's step is (JᵀA⁻¹J)⁻¹JᵀA⁻¹(y − Φm), C being the start's own
    covariance: of frames that are all alike where nothing moves, else of frames that move.
    """

    def __init__(self, phi: np.ndarray) -> None:
        self.calibrated = phi
        self.theta = np.zeros(3 * B)
        shifts = np.eye(B) * JITTER_PX**2 + COMMON_PX**2
        self.prior = np.linalg.cholesky(
            np.kron(np.diag([1.0, 1.0, 0.0]), shifts) + np.kron(np.diag([0, 0, 1.0]), np.eye(B) * GAIN**2)
        )
        self.information, self.vector, self.snapshots = np.zeros((3 * B, 3 * B)), np.zeros(3 * B), 0

    @property
    def phi(self) -> np.ndarray:
        """The corrected masks."""
        down, right, gain = self.theta.reshape(3, B)
        moved = [
            shift(mask, at, order=3, mode="nearest") for mask, *at in zip(self.calibrated, down, right, strict=True)
        ]
        return (np.stack(moved) * (1 + gain)[:, None, None]).astype(np.float32)

    def learn(self, y: np.ndarray, video: np.ndarray) -> None:
        """Correct θ by a snapshot and its reconstruction with today's masks."""
        phi = self.phi
        stack, measured = torch.from_numpy(phi)[None], torch.from_numpy(y)[None]
        r_inv = inverse_gram(gram_diag(stack))
        evidence = LmmseEstimator(stack, r_inv).evidence(measured, r_inv)
        cold = evidence.cold(cold_start(measured, stack, r_inv))
        moves = evidence.moving(cold)
        gradient = [-np.gradient(phi, axis=axis) * video for axis in (1, 2)]
        jacobian = torch.from_numpy(np.concatenate([*gradient, phi * video]).astype(np.float32))
        inner = torch.zeros_like(measured)
        inner[:, 6:-6, 6:-6] = 1.0  # the masks' gradient is not known at the border
        everywhere = evidence._measured
        for model, residual, share in (
            (evidence._alike, evidence._y - evidence._opened * evidence._mean, 1 - moves),
            (evidence._moving, evidence._residual(evidence._mean.unsqueeze(1).expand_as(stack)), moves),
        ):
            dual = model.solve(residual, everywhere, 4).dual
            scale = torch.nn.functional.avg_pool2d(dual**2 / model.expected, 13, 1, 6)
            weight = (share * inner / scale.clamp_min(0.05 * scale.median())).sqrt()
            solved = torch.stack([model.solve(weight * one, everywhere, 4).dual[0] for one in jacobian]).double()
            information = torch.einsum("ihw,jhw->ij", (weight * jacobian).double(), solved).numpy()
            self.information += (information + information.T) / 2
            score = torch.einsum("ihw,hw->i", solved, (weight * residual)[0].double()).numpy()
            self.vector += information @ self.theta + score
        self.snapshots += 1
        values, directions = np.linalg.eigh(self.prior.T @ self.information @ self.prior)
        known = values > LEAST_INFORMATION * self.snapshots
        coefficient = directions.T @ (self.prior.T @ self.vector) / (values + 1) * known
        self.theta = self.prior @ (directions @ coefficient)


def solved(phi: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the reconstruction with these masks, 12 iterations."""
    calibration = Calibration(phi.clip(0, 1))
    engine = Engine(
        calibration, DENOISER, CPU, dataclasses.replace(default_settings(CPU, "ffdnet-lite"), iterations=12)
    )
    return engine.reconstruct(Snapshot(SnapshotId("study", 0, 0), y, calibration.hash, B, 0))[0]


def psnr(video: np.ndarray, truth: np.ndarray) -> float:
    """Return the PSNR, dB."""
    return float(-10 * np.log10(np.mean((video - truth) ** 2)))


def main() -> None:
    """Print, for each perturbation and clip, the PSNR with self-calibrated and with exact masks."""
    mask = read_published(DATA / "benchmark" / "crash32_cacti.mat").mask.astype(np.float32)
    phi = np.stack([gaussian_filter(one, 0.5, mode="nearest") for one in mask])
    for kind in sys.argv[1:] or ["shift", "jitter", "gain", "none"]:
        true = perturbed(phi, kind)
        for name, first in CLIPS.items():
            frames, masks, line = clip(name, first), SelfCalibration(phi), []
            for truth in frames.reshape(-1, B, SIZE, SIZE):
                y = np.einsum("bhw,bhw->hw", true, truth).astype(np.float32)
                video = solved(masks.phi, y)
                line.append(f"{psnr(video, truth):.1f}/{psnr(solved(true, y), truth):.1f}")
                masks.learn(y, video)
            print(f"{kind:8} {name:28} {'  '.join(line)}", flush=True)


if __name__ == "__main__":
    main()
