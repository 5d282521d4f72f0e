"""Share of the errors of a reconstruction within the estimate of
`sci_stream.imaging.estimated_error`.

``SCI_STREAM_DATA=FOLDER python lab/research/error_estimate.py`` prints a line for each snapshot:
Traffic, Crash and three films behind random binary masks, 256 × 256, B = 8, `unrolled`, with noise
of 2 and 20 DN of 12 bits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import torch

import sci_stream
from sci_stream.imaging.estimated_error import error_estimate
from sci_stream.model import Array, Reconstruction, StageTimes
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.registry import named_prior
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings

B, SIZE_PX, FULL_SCALE_DN = 8, 256, 4000.0 / 8
# Name, first frames, and left upper corners.
FILMS = {
    "flower.mp4": ((0, 100, 100), (60, 400, 200)),
    "bigbuckbunny.mp4": ((0, 200, 100), (50, 600, 300), (100, 900, 200)),
    "tears-of-steel-battle-clip-medium.webm": tuple(
        (start, 250, 40) for start in (100, 400, 900, 1300)
    ),
}


def scenes(folder: Path) -> Iterator[tuple[str, Array]]:
    """Yield scenes by name, (B, H, W), 0–1."""
    for name in ("traffic48", "crash32"):
        truth = np.asarray(
            sci_stream.load_measurement(folder / "benchmark" / f"{name}_cacti.mat").truth,
            np.float32,
        )
        for shot, x in enumerate(truth.reshape(-1, B, SIZE_PX, SIZE_PX)):
            yield f"{name} {shot}", x / (255 if truth.max() > 2 else 1)
    for name, places in FILMS.items():
        for start, x, y in places:
            film = cv2.VideoCapture(str(folder / "video" / name))
            film.set(cv2.CAP_PROP_POS_FRAMES, start)
            frames = [cv2.cvtColor(film.read()[1], cv2.COLOR_BGR2GRAY) for _ in range(B)]
            part = np.stack(frames)[:, y : y + SIZE_PX, x : x + SIZE_PX]
            yield f"{name} {start}", part.astype(np.float32) / 255


def main() -> None:
    """Print the table."""
    device, random = torch.device("cpu"), np.random.default_rng(0)
    masks = (random.random((B, SIZE_PX, SIZE_PX)) < 0.5).astype(np.float32)
    denoiser = named_prior("unrolled", device, None, Precision.AUTO)
    for noise_dn in (2.0, 20.0):
        calibration = Calibration(
            masks,
            full_scale_dn=FULL_SCALE_DN,
            bit_depth=12,
            read_noise_dn=noise_dn,
            gain_e_per_dn=1e6,
        )
        for name, x in scenes(Path(os.environ["SCI_STREAM_DATA"])):
            clean = (masks * x).sum(0) * FULL_SCALE_DN
            counts = np.rint(
                np.clip(clean + random.normal(0, noise_dn, clean.shape), 0, 4095)
            ).astype(np.uint16)
            snapshot = calibration.snapshot("scene", 0, counts)
            began_s = time.perf_counter()
            video, report = Engine(
                calibration, denoiser, device, default_settings(device, "unrolled")
            ).reconstruct(snapshot)
            solved_s = time.perf_counter()
            shown = Reconstruction(
                snapshot.id,
                video,
                calibration.hash,
                report,
                StageTimes(),
                "lab",
                "cpu",
                counts=counts,
            )
            estimate = error_estimate(shown, calibration)
            cost = (time.perf_counter() - solved_s) / (solved_s - began_s)
            estimate = estimate.repeat(SIZE_PX // estimate.shape[1], 1).repeat(
                SIZE_PX // estimate.shape[2], 2
            )
            errors = np.abs(video - x)
            rms = float(np.sqrt(np.mean(errors**2) / np.mean(estimate**2)))
            print(
                f"{noise_dn:4.0f} DN  {name:44} within {np.mean(errors < estimate):.2f}, twice "
                f"{np.mean(errors < 2 * estimate):.2f}, rms {rms:.2f}, {cost:.2%} of the solve"
            )


if __name__ == "__main__":
    main()
