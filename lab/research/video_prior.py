"""Reproduce the tables on flicker and on training clips of video-prior.md.

``python lab/research/video_prior.py flicker`` prints the spectrum along time of the error of a static and of a panning
scene; ``python lab/research/video_prior.py clips`` the gain of the network over the frame network on the clips that it
was trained on, and on others. SCI_STREAM_DATA names the data.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import cv2
import numpy as np
import torch

from sci_stream.optics.calibration import Calibration
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.denoisers.temporal import cosines
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings
from sci_stream_lab.training.video.clips import read_clip

DATA = Path(os.environ.get("SCI_STREAM_DATA", "../shared/data"))
CPU = torch.device("cpu")
PRIORS = ("ffdnet-lite", "video-lite")

# Flicker: snapshots in a row, each started from the one before, of B frames; noise of the sensor, of full scale.
SNAPSHOTS, B, SIZE, NOISE = 4, 8, 128, 0.01
PAN_PX = 1.0
# Upper ends of the bands, in cycles per frame.
BANDS = (1 / 32, 1 / 8, 1 / 4, 1 / 2)

# Clips: frames, and the noise level of the denoising.
FRAMES, SIGMA = 8, 25 / 255


def scene(pan_px: float) -> np.ndarray:
    """Return a photograph that stands still or pans, (SNAPSHOTS · B, SIZE, SIZE), 0–1."""
    photograph = cv2.imread(str(DATA / "test" / "kodak24" / "8.png"), cv2.IMREAD_GRAYSCALE).astype(np.float32) / 255
    frames = [photograph[100 : 100 + SIZE, 100 + round(pan_px * t) :][:, :SIZE] for t in range(SNAPSHOTS * B)]
    return np.ascontiguousarray(np.stack(frames))


def solved(name: str, truth: np.ndarray) -> np.ndarray:
    """Return the video of a series of warm-started snapshots behind binary masks, with noise."""
    rng = np.random.default_rng(0)
    masks = rng.integers(0, 2, (B, SIZE, SIZE)).astype(np.float32)
    calibration = Calibration(phi=masks)
    settings = dataclasses.replace(default_settings(CPU, name), iterations=12, warm_start=True)
    engine = Engine(calibration, make_denoiser(name, CPU), CPU, settings)
    videos = []
    for seq, part in enumerate(truth.reshape(SNAPSHOTS, B, SIZE, SIZE)):
        y = (masks * part).sum(0)
        noisy = (y + NOISE * B / 2 * rng.standard_normal(y.shape)).astype(np.float32)
        videos.append(engine.reconstruct(calibration.snapshot("flicker", seq, noisy))[0])
    return np.concatenate(videos)


def spectrum(error: np.ndarray) -> list[float]:
    """Return the power of an error by band of temporal frequency, dB relative to full scale."""
    transform = cosines(len(error)).numpy()
    power = np.square(np.tensordot(transform, error, axes=1)).mean((1, 2)) / len(error)
    frequency = np.arange(len(error)) / (2 * len(error))
    lower = (-1.0, *BANDS[:-1])
    return [
        10 * np.log10(power[(frequency > low) & (frequency <= high)].sum())
        for low, high in zip(lower, BANDS, strict=True)
    ]


def followed(error: np.ndarray, pan_px: float) -> np.ndarray:
    """Return the error at places of the scene, not of the sensor, as far as all frames show them."""
    most = round(pan_px * (len(error) - 1))
    return np.stack([frame[:, most - round(pan_px * t) :][:, : SIZE - most] for t, frame in enumerate(error)])


def flicker() -> None:
    """Print the spectrum of the error along time, at places of the scene."""
    print("scene     prior        " + "".join(f"  ≤ 1/{round(1 / high)}" for high in BANDS) + "   cycles per frame; dB")
    for kind, pan_px in (("static", 0.0), ("panning", PAN_PX)):
        truth = scene(pan_px)
        for name in PRIORS:
            levels = spectrum(followed(solved(name, truth) - truth, pan_px))
            print(f"{kind:9} {name:12}" + "".join(f"{level:8.1f}" for level in levels))


def gain_db(path: Path) -> float:
    """Return how much better the video network denoises a clip than the frame network, dB."""
    clip = read_clip(path, 2**26)
    top, left = ((length - SIZE) // 2 for length in clip.shape[1:])
    first = (len(clip) - FRAMES) // 2
    truth = torch.from_numpy(
        clip[first : first + FRAMES, top : top + SIZE, left : left + SIZE].astype(np.float32) / 255
    )
    noisy = truth + SIGMA * torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
    frames, video = (make_denoiser(name, CPU) for name in PRIORS)
    with torch.inference_mode():
        by_frame = frames(noisy, SIGMA)
        by_video = video.denoise_video(noisy.unsqueeze(0), SIGMA)[0]
    return float(10 * torch.log10((by_frame - truth).square().mean() / (by_video - truth).square().mean()))


def clips() -> None:
    """Print the gain over the frame network on the clips of the model card, and on all others."""
    card = Path("sci_stream/recon/denoisers/weights_data/video-lite.md").read_text()
    groups: dict[str, list[float]] = {"trained on": [], "others": []}
    for path in sorted((DATA / "video_train").rglob("*.mkv")):
        gain = gain_db(path)
        group = "trained on" if f"`{path.stem}`" in card else "others"
        groups[group].append(gain)
        print(f"{group:11} {path.stem:50} {gain:+.2f} dB")
    for group, gains in groups.items():
        print(f"{group}: {len(gains)} clips, {np.mean(gains):+.2f} dB, standard deviation {np.std(gains):.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"flicker": flicker, "clips": clips}[sys.argv[1]]()
