"""Snapshots of the simulated camera, with their truth."""

from __future__ import annotations

from typing import NamedTuple

from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream_drivers.simulated import SimulatedCamera, SimulatedOptions


class Film(NamedTuple):
    """Consecutive snapshots and their calibration."""

    calibration: Calibration
    snapshots: tuple[Snapshot, ...]


def film(scene: str, snapshots: int = 1, **options: object) -> Film:
    """Return snapshots of 64×64 pixels, grey, 8 frames each, of a sensor without noise; ``options``
    change that.
    """
    size = {"width_px": 64, "height_px": 64, "bayer": None, "n_frames": 8, "full_well_e": 1e9}
    camera = SimulatedCamera(
        SimulatedOptions(
            **{**size, "scene": scene, "truth": True, "snapshot_rate_hz": 0.0, **options}
        )
    )
    camera.open()
    calibration = camera.calibration()
    assert calibration is not None
    camera.start()
    taken = []
    while len(taken) < snapshots:
        frame = camera.read(10.0)
        assert frame is not None
        taken.append(calibration.snapshot("film", len(taken), frame.counts, frame.truth))
    camera.close()
    return Film(calibration, tuple(taken))
