"""Print the PSNR of two to four frames of still and slow scenes behind binary and grey masks.

``python lab/research/few_frames.py tuning`` or ``reporting``: 128 × 128 pixels,
`sci_stream.reconstruct` with its defaults, without noise and with noise of 4 % of a white frame.
SCI_STREAM_DATA names the data.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from pathlib import Path

import cv2
import numpy as np
import torch

import sci_stream

DATA = Path(os.environ.get("SCI_STREAM_DATA", "../shared/data"))
SIZE = 128
FRAMES = (2, 3, 4)
# Photograph of Kodak's 24 in the order of their names, and pixels a frame.
SCENES = {
    "tuning": ((5, 0.0), (20, 0.0), (3, 0.0), (11, 0.3), (15, 1.0)),
    "reporting": ((8, 0.0), (19, 0.0), (1, 0.0), (23, 0.0), (13, 0.3), (2, 1.0)),
}


def scene(number: int, speed_px: float, n_frames: int) -> np.ndarray:
    """Return frames of a photograph at half its size that moves to the left, (B, H, W)."""
    path = sorted((DATA / "test/kodak24").glob("*.png"))[number - 1]
    image = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE).astype(np.float32) / 255
    image = cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    centres = [(124 + speed_px * b, 124 + speed_px / 2 * b) for b in range(n_frames)]
    return np.stack([cv2.getRectSubPix(image, (SIZE, SIZE), centre) for centre in centres])


def masks(kind: str, n_frames: int) -> np.ndarray:
    """Return random masks, half open, (B, H, W): binary, or blurred by 0.5 px."""
    binary = np.random.default_rng(1).random((n_frames, SIZE, SIZE)) < 0.5
    phi = binary.astype(np.float32)
    if kind == "binary":
        return phi
    return np.stack([cv2.GaussianBlur(mask, (0, 0), 0.5) for mask in phi])


def main(half: str) -> None:
    """Print a line for each kind of masks, noise and number of frames: each scene, and the mean."""
    for kind, noise, n_frames in itertools.product(("binary", "grey"), (0.0, 0.04), FRAMES):
        phi = masks(kind, n_frames)
        scores = []
        for number, speed_px in SCENES[half]:
            truth = scene(number, speed_px, n_frames)
            y = (phi * truth).sum(0)
            y = y + noise * np.random.default_rng(3).standard_normal(y.shape)
            result = sci_stream.reconstruct(y.astype(np.float32), phi, white=1.0)
            scores.append(-10 * np.log10(np.mean((result.video - truth) ** 2)))
        listed = " ".join(f"{score:6.2f}" for score in scores)
        print(f"{kind:6} {noise:g} B = {n_frames} {listed} mean {np.mean(scores):6.2f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    main(sys.argv[1])
