"""Reproduce the tables and the pictures of real-light.md.

``python lab/research/real_light.py plain`` compares the defaults at 12 iterations with the paper's
plain loop at 40; ``python lab/research/real_light.py perturbed`` has masks that are off; ``python
lab/research/real_light.py capture FOLDER`` solves the real capture and writes pictures to a folder;
``python lab/research/real_light.py light [MASKS]`` compares ``sci_stream.reconstruct`` with a solve
that knows the light, for six clips of ``video_train/research``. MASKS: binary (default), grey or
shifting. SCI_STREAM_DATA names the data.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import sys
from pathlib import Path

import cv2
import numpy as np
import torch
from moving_image import clips
from moving_image import masks as coded_masks
from scipy.ndimage import gaussian_filter, shift

import sci_stream
from sci_stream.files.measurement_file import load_measurement
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import NO_CORRECTION
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.registry import chosen_denoiser, make_denoiser, named_prior
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import NO_GUARD, GuardedSolver
from sci_stream.recon.settings import default_settings
from sci_stream_lab.bench.reality.false_texture import unsupported_texture
from sci_stream_lab.paper.published_code import plain_gap

DATA = Path(os.environ.get("SCI_STREAM_DATA", "../shared/data"))
CPU = torch.device("cpu")
DENOISER = make_denoiser("ffdnet-lite", CPU)
SETTINGS = default_settings(CPU, "ffdnet-lite")
B, SIZE = 8, 256
CAMERA_FPS = 240
LAMP_HZ = 100
# Modulations of the light; 0 is even light.
DEPTHS = (0.0, 0.1, 0.3, 0.6)
MARK_DB = 0.7
GREY_HUE = np.ones(3, np.float32)
# File below the data folder, and the first frame used.
TUNING = {
    "crash": ("benchmark/crash32", 0),
    "car-roundabout": ("video_train/research/davis_car-roundabout", 10),
    "balle1": ("video_train/free/pymecavideo", 20),
    "juggle": ("video_train/free/facebookresearch_sam2__05", 20),
    "foreman": ("video_train/free/libtgowt_foreman", 30),
}
REPORTING = {
    "traffic": ("benchmark/traffic48", 0),
    "dog": ("video_train/research/davis_dog", 0),
    "cockatoo": ("video_train/free/imageio_cockatoo", 0),
    "basketball": ("video_train/research/torchvision_basketball", 0),
    "cups": ("video_train/free/facebookresearch_sam2__02", 0),
    "car-detection": ("video_train/free/intel-iot", 0),
}
PERTURBATIONS = ("none", "jitter", "noise", "shift", "gain", "blur")


def frames(pattern: str, first: int) -> np.ndarray:
    """Return B frames, (B, 256, 256), 0–1."""
    path = next(DATA.glob(pattern + "*"))
    if path.suffix == ".mat":
        orig = load_measurement(path).truth
        assert orig is not None
        return orig[:B].astype(np.float32) / 255
    capture = cv2.VideoCapture(str(path))
    read = [capture.read()[1] for _ in range(first + B)][first:]
    video = (
        np.stack([cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) for image in read]).astype(np.float32)
        / 255
    )
    scale = SIZE / min(video.shape[1:])
    if scale > 1:
        video = np.stack([cv2.resize(frame, None, fx=scale, fy=scale) for frame in video])
    top, left = ((length - SIZE) // 2 for length in video.shape[1:])
    return np.ascontiguousarray(video[:, top : top + SIZE, left : left + SIZE])


def masks(blur_px: float) -> np.ndarray:
    """Return the published masks behind a blur, (B, 256, 256)."""
    mask = load_measurement(next(DATA.glob("benchmark/crash32*"))).masks.astype(np.float32)
    return (
        np.stack([gaussian_filter(one, blur_px, mode="nearest") for one in mask])
        if blur_px
        else mask
    )


def snapshot(blur_px: float, kind: str, video: np.ndarray) -> np.ndarray:
    """Return the measurement of a video behind masks that are off, float32, (256, 256)."""
    phi, rng = masks(blur_px), np.random.default_rng(1)
    if kind == "shift":
        phi = np.stack([shift(mask, (0.177, 0.177), order=3, mode="nearest") for mask in phi]).clip(
            0, 1
        )
    elif kind == "jitter":
        moved = [shift(mask, 0.2 * rng.standard_normal(2), order=3, mode="nearest") for mask in phi]
        phi = np.stack(moved).clip(0, 1)
    elif kind == "gain":
        phi = phi * (1 + 0.05 * rng.standard_normal(B))[:, None, None]
    elif kind == "blur":
        phi = masks(float(np.hypot(blur_px, 0.3)))
    y = np.einsum("bhw,bhw->hw", phi, video)
    if kind == "noise":  # 8 bits, noise of 1 % of the range
        full = y.max() / 0.9
        noisy = y / full + 0.01 * np.random.default_rng(0).standard_normal(y.shape)
        y = np.rint(255 * noisy.clip(0, 1)) / 255 * full
    return y.astype(np.float32)


def defaults(phi: np.ndarray, y: np.ndarray, iterations: int = 12) -> np.ndarray:
    """Return the reconstruction with the default settings."""
    calibration = Calibration(phi.clip(0, 1))
    engine = Engine(
        calibration, DENOISER, CPU, dataclasses.replace(SETTINGS, iterations=iterations)
    )
    return engine.reconstruct(calibration.snapshot("study", 0, y))[0]


@torch.inference_mode()
def plain(phi: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the reconstruction with the paper's loop in 40 iterations."""
    *_, video = plain_gap(torch.from_numpy(y), torch.from_numpy(phi.copy()), DENOISER)
    return video.numpy()


def psnr(video: np.ndarray, truth: np.ndarray) -> float:
    """Return the PSNR, dB."""
    return float(-10 * np.log10(np.mean((video - truth) ** 2)))


def compare_with_plain() -> None:
    """Print defaults / plain loop by scene behind binary and grey masks."""
    for half in (TUNING, REPORTING):
        for blur_px in (0.0, 0.5):
            pairs = []
            for name, at in half.items():
                truth = frames(*at)
                phi, y = masks(blur_px), snapshot(blur_px, "none", truth)
                pairs.append((psnr(defaults(phi, y), truth), psnr(plain(phi, y), truth)))
                print(
                    f"s = {blur_px:g} {name:16} {pairs[-1][0]:6.2f} {pairs[-1][1]:6.2f}", flush=True
                )
            print(
                f"s = {blur_px:g} {'mean':16} "
                f"{' '.join(f'{mean:6.2f}' for mean in np.mean(pairs, axis=0))}"
            )


def compare_perturbations() -> None:
    """Print the PSNR of the defaults by perturbation, s = 0.5 px."""
    for half in (TUNING, REPORTING):
        for kind in PERTURBATIONS:
            scores = []
            for at in half.values():
                truth = frames(*at)
                scores.append(psnr(defaults(masks(0.5), snapshot(0.5, kind, truth)), truth))
            print(
                f"{kind:8} {np.mean(scores):6.2f} | "
                f"{' '.join(f'{value:6.2f}' for value in scores)}",
                flush=True,
            )


def solve_capture(folder: Path) -> None:
    """Solve the real capture, print its unsupported texture and write pictures of five frames."""
    folder.mkdir(parents=True, exist_ok=True)
    capture = load_measurement(next(DATA.glob("real/4fan14*")))
    phi = (capture.masks / capture.masks.max()).astype(np.float32)
    still = capture.y[0] / phi.sum(0).clip(0.5)
    y = (capture.y[0] / np.percentile(still, 99.5)).astype(np.float32)
    more = functools.partial(defaults, iterations=40)
    for name, solve in (("defaults", defaults), ("defaults-40", more), ("plain", plain)):
        video = solve(phi, y)
        print(f"{name:12} unsupported texture {unsupported_texture(torch.from_numpy(video)):.4f}")
        shown = np.hstack([video[frame].clip(0, 1) ** 0.6 for frame in (0, 3, 6, 9, 13)])
        cv2.imwrite(str(folder / f"4fan14-{name}.png"), np.rint(255 * shown).astype(np.uint8))


def measured(phi: np.ndarray, scene: np.ndarray, seed: int) -> np.ndarray:
    """Return y, (H, W), with a Gaussian noise of 0.01."""
    noise = np.random.default_rng(seed).normal(0, 0.01, scene.shape[1:])
    return ((phi * scene).sum(0) + noise).astype(np.float32)


def solved_under(light: np.ndarray, phi: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the default solve of y under a light that is known, (B,)."""
    calibration = Calibration(phi)
    name = chosen_denoiser("auto", CPU, None)
    solver = named_prior(name, CPU, None, Precision.FLOAT32)
    engine = Engine(calibration, solver, CPU, default_settings(CPU, name))
    guarded = GuardedSolver(engine, NO_GUARD)
    engine.correct_masks(NO_CORRECTION.lit(light.tolist()))
    return guarded.solve(calibration.snapshot("study", 0, y)).video


def compare_lights(kind: str = "binary") -> None:
    """Print the loss against a known light, by depth, of clips filmed at 240 frames a second
    under 100 Hz.
    """
    losses: dict[float, list[float]] = {depth: [] for depth in DEPTHS}
    all_clips = clips(DATA / "video_train" / "research", B, GREY_HUE)
    for seed, (name, colours) in enumerate(itertools.islice(all_clips, 2, None, 5)):
        scene = colours[..., 0]
        phi = coded_masks(kind, B, np.random.default_rng(seed))
        phase = np.random.default_rng(seed).uniform(0, 2 * np.pi)
        wave = np.cos(2 * np.pi * LAMP_HZ / CAMERA_FPS * np.arange(B) + phase)
        for depth in DEPTHS:
            light = (1 + depth * wave) / (1 + depth * wave).mean()
            y = measured(phi, scene * light[:, None, None], seed)
            known = psnr(solved_under(light, phi, y), scene)
            found = sci_stream.reconstruct(y, phi, white=1.0, device="cpu")
            losses[depth].append(known - psnr(found.video, scene))
            print(
                f"{name}: {depth:.0%}: known {known:.2f} dB, default {-losses[depth][-1]:+.2f} dB, "
                f"found {found.report.light_depth:.0%}",
                flush=True,
            )
    for depth, lost in losses.items():
        misses = sum(loss > MARK_DB for loss in lost)
        print(
            f"{depth:.0%}: {len(lost)} clips: lost {np.mean(lost):.2f} dB in the mean, "
            f"{max(lost):.2f} at most, more than {MARK_DB} dB in {misses}"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["light"]:
        compare_lights(*sys.argv[2:])
    elif sys.argv[1:2] == ["plain"]:
        compare_with_plain()
    elif sys.argv[1:2] == ["perturbed"]:
        compare_perturbations()
    else:
        solve_capture(Path(sys.argv[2]))
