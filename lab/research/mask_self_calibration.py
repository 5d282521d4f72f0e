"""Study: what self-calibration of masks is worth on the scenes of `bench reality`; see
real-light.md.

Run `python lab/research/mask_self_calibration.py reporting published 0.5 8`: half of the scenes,
masks, blur in pixels, frames per snapshot, and, if not all, names of scenes. It prints the PSNR of
the tenth snapshot of a series without correction, with it, and with exact masks: 12 iterations of
`ffdnet-lite`, 128 × 128 pixels. SCI_STREAM_DATA names the data.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from sci_stream.calibration.monitor import CalibrationMonitor
from sci_stream.config import ReconstructSection
from sci_stream.devices.solver import make_prior
from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.backend.device import pick_device
from sci_stream.recon.engine import Engine
from sci_stream_lab.bench.reality.perturbations import PERTURBATIONS, parse_perturbation
from sci_stream_lab.bench.reality.rigs import OpticalSetup, film
from sci_stream_lab.bench.reality.scenes import SCENES, SceneFormat, SceneUnavailableError

CPU = pick_device("cpu")
PRIOR, SETTINGS = make_prior(ReconstructSection(solver="ffdnet-lite"), CPU)
SIZE, SNAPSHOTS, ITERATIONS = 128, 10, 12


def last_db(calibration: Calibration, snapshots: Sequence[Snapshot], *, correct: bool) -> float:
    """Return the PSNR of the last snapshot, solved with what those before it show of the masks."""
    engine = Engine(calibration, PRIOR, CPU, SETTINGS)
    if correct:
        monitor = CalibrationMonitor(calibration, CPU, every=20, correct=True)
        for snapshot in snapshots[:-1]:
            assert snapshot.truth is not None
            monitor.check(
                snapshot, snapshot.truth
            )  # only the order of the masks is looked for in the video
        engine.correct_masks(monitor.correction)
    _, report = engine.reconstruct(snapshots[-1], ITERATIONS)
    assert report.psnr_db is not None
    return report.psnr_db


def main() -> None:
    """Print PSNR for each perturbation and scene, then the means."""
    half, patterns, blur_px, frames, *names = sys.argv[1:]
    rig = OpticalSetup(patterns, float(blur_px), int(frames))
    means: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for scene in SCENES:
        if scene.half != half or (names and scene.name not in names):
            continue
        try:
            videos = scene.frames(SceneFormat(SIZE, rig.n_frames, rig.colour, SNAPSHOTS))
        except SceneUnavailableError as reason:
            print(f"skipped: {reason}")
            continue
        for name in PERTURBATIONS:
            series = film(rig, rig.optics(SIZE), videos, parse_perturbation(name))
            off, on = (
                last_db(series.assumed, series.snapshots, correct=correct)
                for correct in (False, True)
            )
            exact = last_db(series.exact, series.of(series.exact), correct=False)
            means[name].append((off, on, exact))
            print(
                f"{name:8} {scene.name:18} {len(videos)} snapshots: {off:.2f} {on:.2f} {exact:.2f}",
                flush=True,
            )
    for name, rows in means.items():
        print(f"{name:8} mean: {' '.join(f'{value:.2f}' for value in np.mean(rows, axis=0))}")


if __name__ == "__main__":
    main()
