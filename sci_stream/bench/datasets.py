"""Benchmark sequences: coded snapshots with ground truth, read through the instrument's own camera drivers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sci_stream.errors import FileFormatError
from sci_stream.model import Array, Snapshot, SnapshotId
from sci_stream.nodes.runtime.camera_drivers import load_driver
from sci_stream.optics.calibration import Calibration


@dataclass(frozen=True, slots=True, eq=False)
class Footage:
    """Consecutive snapshots of one calibration, each with its ground truth; numbered from 0."""

    name: str
    calibration: Calibration
    snapshots: tuple[Snapshot, ...]

    def cut(self) -> Snapshot:
        """Return a snapshot after a scene cut: the first scene rotated by 180°, numbered directly after the last."""
        first = self.snapshots[0]
        assert first.truth is not None
        truth = unit_scale(first.truth)[:, ::-1, ::-1].copy()
        calibration = self.calibration
        counts = calibration.dark + calibration.full_scale_dn * np.einsum("bhw,bhw->hw", calibration.phi, truth)
        return _snapshot(len(self.snapshots), counts.astype(np.float32), truth, calibration)


def unit_scale(truth: Array) -> npt.NDArray[np.float32]:
    """Return a ground-truth video, given as bytes or as fractions, on the 0–1 scale."""
    scale = 255.0 if truth.dtype == np.uint8 else 1.0
    return np.asarray(truth, np.float32) / np.float32(scale)


def published(folder: Path) -> Iterator[Footage | str]:
    """Yield every published-layout ``.mat`` file below a folder; for an unusable one, a line with the reason."""
    for path in sorted(folder.rglob("*.mat")):
        try:
            yield filmed(path.stem, "replay", path=path)
        except FileFormatError as error:
            yield f"skipped: {error}"


def filmed(name: str, driver: str, /, **options: object) -> Footage:
    """Return every snapshot of a camera that ends by itself.

    Parameters
    ----------
    name
        Name in the tables.
    driver, options
        The camera's driver and options; the camera must end by itself and deliver ground truth.

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
            raise FileFormatError(f"{name} has no ground truth", expected="a camera or file that delivers it")
        camera.start()
        snapshots: list[Snapshot] = []
        while not camera.exhausted:
            frame = camera.read(10.0)
            if frame is not None and frame.truth is not None:
                snapshots.append(_snapshot(len(snapshots), frame.counts, frame.truth, calibration))
    finally:
        camera.close()
    if not snapshots:
        raise FileFormatError(f"{name} delivered no snapshot")
    return Footage(name, calibration, tuple(snapshots))


def _snapshot(seq: int, counts: Array, truth: Array, calibration: Calibration) -> Snapshot:
    return Snapshot(
        id=SnapshotId("bench", 0, seq),
        counts=counts,
        calibration_hash=calibration.hash,
        n_frames=calibration.n_frames,
        host_time_ns=0,
        bayer=calibration.bayer,
        truth=truth,
    )
