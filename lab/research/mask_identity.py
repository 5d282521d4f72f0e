"""Study thresholds for masks that do not belong on clips that nothing was tuned on.

The results are in real-light.md.

``python lab/research/mask_identity.py [CLIPS]`` takes the first so many clips below
``video_train/research`` of SCI_STREAM_DATA, all by default, through three rigs, without errors and
with all perturbations of `bench reality`, 128 × 128 pixels, up to six snapshots. It prints a line
for each series and rig, then how many series with right masks were taken for shuffled or for other
masks, and how many of those with shuffled masks, flipped masks and another pattern were found. Of
those not found, and of the false alarms, the evidence is in the line.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import torch

from sci_stream.calibration.monitor import CalibrationMonitor
from sci_stream.optics.calibration import Calibration
from sci_stream_lab.bench.reality.perturbations import parse_perturbation
from sci_stream_lab.bench.reality.rigs import OpticalSetup, Series, film
from sci_stream_lab.bench.reality.scenes import SceneFormat, _clip, data_folder

RIGS = (
    OpticalSetup("shift", 0.3, 14),
    OpticalSetup("published", 0.0, 8),
    OpticalSetup("random", 0.5, 24),
)
SIZE, SNAPSHOTS = 128, 6
CPU = torch.device("cpu")


def watched(
    series: Series, phi: np.ndarray, snapshots: int
) -> tuple[bool, float, tuple[float, float]]:
    """Return whether these masks are taken for shuffled, the largest match, and the evidence for
    another order.
    """
    calibration: Calibration = replace(series.assumed, phi=phi)
    monitor = CalibrationMonitor(calibration, CPU, every=1, shuffled=True)
    video = np.zeros(phi.shape, np.float32)
    matches = []
    for snapshot in series.of(calibration)[:snapshots]:
        health = monitor.check(snapshot, video)
        assert health is not None
        matches.append(health.match or 0.0)
    assert monitor.shuffle is not None
    return monitor.shuffle.order is not None, max(matches), monitor.shuffle.evidence


def main() -> None:
    """Print a line for each series, and the counts."""
    torch.set_num_threads(1)
    clips = sorted((data_folder() / "video_train" / "research").iterdir())
    counts: Counter[str] = Counter()
    largest = [0.0, 0.0]
    for clip in clips[: int(sys.argv[1]) if sys.argv[1:] else None]:
        for rig in RIGS:
            frames = _clip(f"video_train/research/{clip.name}")(
                SceneFormat(SIZE, rig.n_frames, False, SNAPSHOTS)
            )
            count = min(len(frames) // rig.n_frames, SNAPSHOTS)
            if count < 3:  # fewer snapshots decide nothing
                continue
            videos = np.ascontiguousarray(frames[: count * rig.n_frames]).reshape(
                count, rig.n_frames, SIZE, SIZE
            )
            order = np.random.default_rng(5).permutation(rig.n_frames)
            for name in ("none", "all"):
                series = film(rig, rig.optics(SIZE), videos, parse_perturbation(name))
                phi = series.assumed.phi
                alarm, match, right = watched(series, phi, count)
                found, _, shuffled = watched(series, phi[order], count)
                _, flipped, _ = watched(series, np.ascontiguousarray(phi[:, ::-1]), 1)
                _, other, _ = watched(
                    series, np.ascontiguousarray(np.roll(phi, (37, 53), (1, 2))), 1
                )
                key = f"{rig.name} {name}"
                seen = {
                    "series": 1,
                    "taken for shuffled": alarm,
                    "right masks with match 0": match == 0,
                }
                seen |= {
                    "shuffled found": found,
                    "flipped found": flipped == 0,
                    "another place found": other == 0,
                }
                for what, hit in seen.items():
                    counts[f"{key}: {what}"] += hit
                if right[0] > largest[0]:
                    largest = list(right)
                print(
                    f"{clip.stem} {key}: match {match:.2f}, flipped {flipped:.2f}, elsewhere "
                    f"{other:.2f}; evidence "
                    f"right {right[0]:.0f} ({right[1]:.1f}), shuffled {shuffled[0]:.0f} "
                    f"({shuffled[1]:.1f})",
                    flush=True,
                )
    for what, number in counts.items():
        print(f"{what}: {number}")
    print(
        f"strongest evidence against right masks: {largest[0]:.0f}, {largest[1]:.1f} standard "
        "errors"
    )


if __name__ == "__main__":
    main()
