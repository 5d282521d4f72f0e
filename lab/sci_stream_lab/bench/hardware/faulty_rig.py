"""A simulated rig with a fault, and the verdict on its checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np
import torch

from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import Delivered, Guard, GuardedSolver
from sci_stream.recon.settings import default_settings
from sci_stream_drivers.simulated.exposure import Exposure
from sci_stream_drivers.simulated.masks import MaskOptics
from sci_stream_drivers.simulated.options import SimulatedOptions
from sci_stream_drivers.simulated.scenes import make_scene
from sci_stream_drivers.simulated.sensor import Sensor
from sci_stream_lab.bench.datasets import filmed
from sci_stream_lab.bench.hardware.faults import Fault, Moment

PERIOD_S = 0.25
# A fault is to be named, or corrected, within so many snapshots.
SOON = 10
# The PSNR of so many snapshots counts.
_LAST = 6
# A fault that costs less says nothing.
HARMLESS_DB = 1.0


class FaultyRig:
    """Snapshots of a simulated camera, right and with a fault."""

    def __init__(self, options: SimulatedOptions) -> None:
        self._phi = MaskOptics(options, None).stack()
        self._scene = Exposure(make_scene(options), self._phi, options.bayer)
        self._sensor = Sensor(options, self._phi)
        fields = options.model_dump(exclude_unset=True) | {"snapshots": 1}
        self.calibration: Calibration = filmed(options.scene, "simulated", **fields).calibration

    def snapshots(self, fault: Fault, *, onset: int, count: int) -> list[Snapshot]:
        """Return snapshots that have the fault from number ``onset`` on."""
        series = []
        before = np.zeros(self._phi.shape[1:])
        sensor = self._sensor
        for number in range(count):
            frames = self._scene.frames(number)
            moment = Moment(
                number, number - onset, self._scene, sensor, self._phi, frames, before=before
            )
            begun = number >= onset
            if begun and fault.change is not None:
                fault.change(moment)
            counts = sensor.convert(moment.measurement.astype(np.float32), number)
            right = counts.astype(np.float64)
            if begun and fault.of_counts is not None:
                changed = np.rint(fault.of_counts(moment, right)).clip(0, sensor.max_dn)
                counts = changed.astype(counts.dtype)
            before = right - sensor.black_dn
            truth = np.rint(255 * frames.clip(0, 1)).astype(np.uint8)
            series.append(self.calibration.snapshot("faulty", number, counts, truth))
        return series


LIVE = Guard(every=3, live=True)


def solved(
    snapshots: Sequence[Snapshot],
    calibration: Calibration,
    iterations: int,
    guard: Guard = LIVE,
) -> list[Delivered]:
    """Solve snapshots as a live rig does that has time to look at each."""
    cpu = torch.device("cpu")
    settings = replace(default_settings(cpu, "tv"), warm_start=True)
    engine = Engine(calibration, make_denoiser("tv", cpu), cpu, settings)
    solver = GuardedSolver(engine, guard)
    delivered = []
    for snapshot in snapshots:
        with patch("time.monotonic", return_value=PERIOD_S * snapshot.id.seq):
            delivered.append(solver.solve(snapshot, iterations))
    return delivered


@dataclass(frozen=True, slots=True)
class Verdict:
    """Names and losses of a fault.

    Parameters
    ----------
    lost_db
        PSNR that the fault costs in the last snapshots of the first `SOON`.
    unchecked_db
        PSNR that it costs there without checks.
    names
        Each name with the number of snapshots, of the first `SOON`, that have it.
    at_end
        Names that the last two snapshots have.
    right
        Names that are right for the fault.
    """

    lost_db: float
    unchecked_db: float
    names: dict[str, int]
    at_end: frozenset[str]
    right: frozenset[str]

    @property
    def word(self) -> str:
        """The verdict: right, harmless, silent, wrong, or false."""
        if not self.right:
            return "false" if self.names else "right"
        if self.at_end & self.right:
            return "right" if self.at_end <= self.right else "beside"
        if self.at_end:
            return "wrong"
        return "harmless" if self.lost_db <= HARMLESS_DB else "silent"


def verdict(
    fault: Fault,
    right: Sequence[Delivered],
    faulty: Sequence[Delivered],
    unchecked: Sequence[Delivered],
) -> Verdict:
    """Compare results from the onset of a fault on, with and without checks, with those of the same
    snapshots without the fault.
    """
    names: dict[str, int] = {}
    for delivered in faulty:
        for defect in delivered.defects:
            names[defect.name] = names.get(defect.name, 0) + 1
    # Masks that shake are right by chance, for a snapshot.
    at_end = frozenset(defect.name for one in faulty[-2:] for defect in one.defects)
    right_db, faulty_db, unchecked_db = (
        _psnr_db(series[-_LAST:]) for series in (right, faulty, unchecked)
    )
    return Verdict(right_db - faulty_db, right_db - unchecked_db, names, at_end, fault.names)


def _psnr_db(delivered: Sequence[Delivered]) -> float:
    """Return the mean PSNR of the videos that were not withheld, dB; 0 for none."""
    figures = [one.report.psnr_db for one in delivered if one.report.psnr_db is not None]
    return float(np.mean(figures)) if figures else 0.0
