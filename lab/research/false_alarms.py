"""Study how often masks that are a little wrong are taken for others.

The results are in real-light.md.

``python lab/research/false_alarms.py COUNT [SIZE] [FIRST]`` films so many series of three
snapshots, of scenes of both halves of `bench reality` and four rigs in turn, SIZE × SIZE pixels, 96
by default, seeds from FIRST on, with jitter up to 0.3 px, shifts up to 0.7 px, gains of 7 %, or all
three. It prints each false alarm. SCI_STREAM_DATA names the data.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import torch

from sci_stream.calibration.diagnosis import is_withheld
from sci_stream.calibration.monitor import CalibrationMonitor
from sci_stream.optics.calibration import Calibration
from sci_stream_lab.bench.reality.optics import PatternOptics
from sci_stream_lab.bench.reality.rigs import OpticalSetup
from sci_stream_lab.bench.reality.scenes import SCENES, SceneFormat, SceneUnavailableError

RIGS = (
    OpticalSetup("published", 0.5, 8),
    OpticalSetup("random", 0.5, 8),
    OpticalSetup("random", 0.5, 14),
    OpticalSetup("moving", 0.6, 14),
)
SNAPSHOTS = 3
JITTER, SHIFT, GAIN, ALL = range(4)


def perturbed(optics: PatternOptics, rng: np.random.Generator) -> PatternOptics:
    """Return optics with errors of one kind, or of all."""
    kind, jitter = rng.integers(4), min(rng.uniform(0.05, 0.35), 0.3)
    angle, shift = rng.uniform(0, 2 * math.pi), rng.uniform(0.1, 0.7)
    if kind in {JITTER, ALL}:
        optics = optics.jittered(jitter, rng)
    if kind in {SHIFT, ALL}:
        optics = optics.shifted(shift * math.cos(angle), shift * math.sin(angle))
    return optics.with_gains(0.07, rng) if kind in {GAIN, ALL} else optics


def main() -> None:
    """Print the false alarms, and the counts."""
    torch.set_num_threads(1)
    # Denormal numbers of dark scenes made a series take ten times as long.
    torch.set_flush_denormal(True)
    count, size, first = (
        int(value) for value in [*sys.argv[1:], *("96", "1")[len(sys.argv) - 2 :]]
    )
    videos: dict[int, list[tuple[str, np.ndarray]]] = {8: [], 14: []}
    for B, films in videos.items():
        for scene in SCENES:
            try:
                films.append((scene.name, scene.frames(SceneFormat(size, B, False, SNAPSHOTS))))
            except SceneUnavailableError as error:
                print(error)
    false = 0
    for seed in range(first, first + count):
        rng, rig = np.random.default_rng(seed), RIGS[seed % len(RIGS)]
        name, frames = videos[rig.n_frames][seed % len(videos[rig.n_frames])]
        optics = rig.optics(size)
        true, known = perturbed(optics, rng).masks().clip(0), optics.masks()
        calibration = Calibration(phi=(known / max(1, known.max())).clip(0, 1))
        monitor = CalibrationMonitor(calibration, torch.device("cpu"), every=1, correct=True)
        health = None
        for seq, video in enumerate(frames):
            y = (true * video).sum(0).astype(np.float32)
            health = monitor.check(
                calibration.snapshot("study", seq, y), np.zeros((rig.n_frames, 8, 8), np.float32)
            )
        if health is not None and is_withheld(health):
            false += 1
            print(f"false alarm: seed {seed}, {rig.name}, {name}: match {health.match}")
    print(f"{false} false alarms in {count} series")


if __name__ == "__main__":
    main()
