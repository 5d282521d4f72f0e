"""Measure how well the guarded solve of a rig corrects faults of the sensor.

``python lab/research/sensor_errors.py SCENE… [--faults taps stray lag dust gains]`` prints the PSNR
of the last eight of some snapshots of the simulated camera, in dB: of a right sensor, of a faulty
one, and of a faulty one that is corrected, with the snapshot from which on it is corrected. The
clock is pretended: each snapshot is looked at.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import torch

from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.optics.sensor_errors import SensorErrors, Speck
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import Delivered, Guard, GuardedSolver
from sci_stream.recon.settings import default_settings
from sci_stream_drivers.simulated.options import SCENES
from sci_stream_lab.bench.datasets import filmed_scene

TAP_DN = 60
STRAY_DN = 160
LAG = 0.1
GAINS = 0.05
# Three specks take 70 % of the light.
SPECKS = (
    Speck(50, 40, 5, 0.3, 0.67),
    Speck(80, 90, 8, 0.3, 0.67),
    Speck(20, 70, 3, 0.3, 0.67),
)
PERIOD_S = 0.25
# Snapshots whose PSNR counts.
LAST = 8


def with_taps(light: np.ndarray, _before: np.ndarray) -> np.ndarray:
    """Return light, DN, with an offset of the left half."""
    light = light.copy()
    light[:, : light.shape[1] // 2] += TAP_DN
    return light


def with_stray_light(light: np.ndarray, _before: np.ndarray) -> np.ndarray:
    """Return light with stray light that falls from the right edge to the left one."""
    place = np.linspace(0, 1, light.shape[1])
    return light + STRAY_DN * place**2


def with_lag(light: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return light with a part of the exposure before."""
    return light + LAG * before


def with_gains(light: np.ndarray, _before: np.ndarray) -> np.ndarray:
    """Return light with other gains of the pixels."""
    return light * (1 + GAINS * np.random.default_rng(8).standard_normal(light.shape))


def with_dust(light: np.ndarray, _before: np.ndarray) -> np.ndarray:
    """Return light behind dust."""
    return light * SensorErrors(specks=SPECKS).transmission(light.shape)


FAULTS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "taps": with_taps,
    "stray": with_stray_light,
    "lag": with_lag,
    "gains": with_gains,
    "dust": with_dust,
}


def faulty(snapshots: Sequence[Snapshot], calibration: Calibration, fault: str) -> list[Snapshot]:
    """Return the snapshots of a sensor with a fault."""
    before = np.zeros(calibration.shape)
    series = []
    for snapshot in snapshots:
        light = snapshot.counts - calibration.dark.astype(np.float64)
        counts = np.rint(FAULTS[fault](light, before) + calibration.dark).clip(0, 4095)
        series.append(replace(snapshot, counts=counts.astype(np.uint16)))
        before = light
    return series


def solved(
    snapshots: Sequence[Snapshot], calibration: Calibration, *, corrects: bool
) -> list[Delivered]:
    """Solve snapshots as a rig does."""
    cpu = torch.device("cpu")
    settings = replace(default_settings(cpu, "tv"), warm_start=True)
    engine = Engine(calibration, make_denoiser("tv", cpu), cpu, settings)
    solver = GuardedSolver(engine, Guard(live=True, correct_sensor=corrects))
    delivered = []
    for snapshot in snapshots:
        with patch("time.monotonic", return_value=PERIOD_S * snapshot.id.seq):
            delivered.append(solver.solve(snapshot, arguments.iterations))
    return delivered


def psnr_db(delivered: Sequence[Delivered]) -> float:
    """Return the mean PSNR of the last snapshots."""
    return float(np.mean([one.report.psnr_db or 0.0 for one in delivered[-LAST:]]))


def main() -> None:
    """Print a line for each scene and fault."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    options = {
        "height_px": arguments.size,
        "width_px": arguments.size,
        "n_frames": 8,
        "mask": arguments.mask,
        "bayer": None,
        "seed": arguments.seed,
    }
    for scene in arguments.scenes:
        footage = filmed_scene(scene, snapshots=arguments.snapshots, **options)
        calibration = footage.calibration
        right_db = psnr_db(solved(footage.snapshots, calibration, corrects=True))
        for fault in arguments.faults:
            series = faulty(footage.snapshots, calibration, fault)
            named = solved(series[-LAST:], calibration, corrects=False)
            corrected = solved(series, calibration, corrects=True)
            texts = [one.report.masks_at for one in corrected]
            since = next((seq for seq, text in enumerate(texts) if "^" in text), None)
            words = MaskCorrection.from_text(texts[-1]).sensor.words
            print(
                f"{scene} {fault}: right {right_db:.2f}, faulty {psnr_db(named):.2f}, "
                f"corrected {psnr_db(corrected):.2f} dB, since {since}: {words}",
                flush=True,
            )


parser = argparse.ArgumentParser()
parser.add_argument("scenes", nargs="+", choices=SCENES)
parser.add_argument("--faults", nargs="+", choices=FAULTS, default=["taps", "lag", "dust"])
parser.add_argument("--snapshots", type=int, default=28)
parser.add_argument("--iterations", type=int, default=8)
parser.add_argument("--size", type=int, default=128)
parser.add_argument("--mask", default="random")
parser.add_argument("--seed", type=int, default=5)

if __name__ == "__main__":
    arguments = parser.parse_args()
    main()
