"""Benchmark sequences: coded snapshots with ground truth, read through the instrument's own camera
drivers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sci_stream.devices.camera_drivers import load_driver
from sci_stream.errors import FileFormatError
from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.reports import SolveReport
from sci_stream_lab.bench.result import Progress


@dataclass(frozen=True, slots=True, eq=False)
class Footage:
    """Consecutive snapshots of one calibration, each with its ground truth; numbered from 0."""

    name: str
    calibration: Calibration
    snapshots: tuple[Snapshot, ...]

    def cut(self) -> Snapshot:
        """Return a snapshot after a scene cut: the first scene rotated by 180°, numbered directly
        after the last.
        """
        truth = truth_of(self.snapshots[0])[:, ::-1, ::-1].copy()
        calibration = self.calibration
        counts = calibration.dark + calibration.full_scale_dn * np.einsum(
            "bhw,bhw->hw", calibration.phi, truth
        )
        return calibration.snapshot("bench", len(self.snapshots), counts.astype(np.float32), truth)


def truth_of(snapshot: Snapshot) -> npt.NDArray[np.float32]:
    """Return the ground truth of a snapshot, given as bytes or as fractions, on the 0–1 scale."""
    assert snapshot.truth is not None
    scale = 255.0 if snapshot.truth.dtype == np.uint8 else 1.0
    return np.asarray(snapshot.truth, np.float32) / np.float32(scale)


def psnr_of(report: SolveReport) -> float:
    """Return the PSNR of the solve of a snapshot with ground truth, dB."""
    assert report.psnr_db is not None
    return report.psnr_db


def published(
    folder: Path, progress: Progress, *, full_scale_dn: float | None = None
) -> Iterator[Footage]:
    """Yield every published-layout ``.mat`` file below a folder; report why one is skipped.

    ``full_scale_dn`` is the counts of one white frame through an open mask; None to estimate it.
    """
    for path in sorted(folder.rglob("*.mat")):
        try:
            yield filmed(path.stem, "replay", path=path, full_scale_dn=full_scale_dn)
        except FileFormatError as error:
            progress(f"skipped: {error}")


def filmed_scene(scene: str | Path, *, snapshots: int, **options: object) -> Footage:
    """Return snapshots of the simulated camera, as fast as it renders them; ``scene`` is its own or
    a file.
    """
    driver_options = {
        "scene": str(scene),
        "snapshots": snapshots,
        "truth": True,
        "snapshot_rate_hz": 0.0,
        **options,
    }
    return filmed(Path(scene).stem, "simulated", **driver_options)


def filmed(name: str, driver: str, /, **options: object) -> Footage:
    """Return every snapshot of a camera, which must end by itself and deliver ground truth.

    ``name`` is that of the footage in the tables, ``options`` are those of the driver.

    Raises
    ------
    FileFormatError
        If it delivers nothing, or no ground truth.
    """
    plugin = load_driver(driver)
    camera = plugin(plugin.Options(**options))
    try:
        capabilities = camera.open()
        calibration = camera.calibration()
        if not capabilities.has_truth or calibration is None:
            raise FileFormatError(
                f"{name} has no ground truth",
                expected="a camera that delivers it, or a file with orig, meas and mask",
            )
        camera.start()
        snapshots: list[Snapshot] = []
        while not camera.exhausted:
            frame = camera.read(10.0)
            if frame is not None and frame.truth is not None:
                snapshots.append(
                    calibration.snapshot("bench", len(snapshots), frame.counts, frame.truth)
                )
    finally:
        camera.close()
    if not snapshots:
        raise FileFormatError(f"{name} delivered no snapshot")
    return Footage(name, calibration, tuple(snapshots))
