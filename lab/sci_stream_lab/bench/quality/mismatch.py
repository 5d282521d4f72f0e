"""``sci-stream bench quality --mismatch``: masks that are a little off, as measured ones are.

The first shot of each set is coded behind masks that are displaced, turned and brighter than those
that the solver gets. It is solved with the masks as given, corrected by the guard, and true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import cv2
import numpy as np
import numpy.typing as npt
import torch

from sci_stream.optics.calibration import Calibration
from sci_stream.ports import Solver
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import NO_GUARD, Guard, GuardedSolver
from sci_stream.recon.metrics import psnr
from sci_stream.recon.settings import SolverSettings
from sci_stream_lab.bench.datasets import Footage, truth_of
from sci_stream_lab.bench.result import Progress, ResultColumn, ResultTable, mean

Masks = npt.NDArray[np.float32]

_SHIFT_PX = (0.5, 0.3)
_GAIN = 1.02
_NOISE = 0.01
"""Standard deviation of the noise of y, where a white frame through an open mask adds 1."""


@dataclass(frozen=True, slots=True)
class MismatchQuality:
    """PSNR of a first shot, dB: masks as given, corrected by the guard, and true ones."""

    name: str
    degrees: float
    as_given_db: float
    corrected_db: float
    true_db: float


_COLUMNS = (
    ResultColumn("name", "set", left=True),
    ResultColumn("degrees", "turn °", ".1f", "°"),
    ResultColumn("as_given_db", "as given dB", ".2f", "dB"),
    ResultColumn("corrected_db", "corrected dB", ".2f", "dB"),
    ResultColumn("true_db", "true masks dB", ".2f", "dB"),
)


def mismatch_table(
    sets: Iterable[Footage],
    prior: Solver,
    device: torch.device,
    settings: SolverSettings,
    progress: Progress,
) -> ResultTable[MismatchQuality]:
    """Return a row for each set and turn, and the mean of the sets for each turn."""
    rows: list[MismatchQuality] = []
    for footage in sets:
        for degrees in (0.0, 0.1):
            row = _row(footage, degrees, prior, device, settings)
            progress(
                f"{row.name}, turned by {degrees}°: as given {row.as_given_db:.2f}, "
                f"corrected {row.corrected_db:.2f}, true masks {row.true_db:.2f} dB"
            )
            rows.append(row)
    for degrees in sorted({row.degrees for row in rows}):
        turned = [row for row in rows if row.degrees == degrees and row.name != "mean"]
        rows.append(
            MismatchQuality(
                "mean",
                degrees,
                mean(row.as_given_db for row in turned),
                mean(row.corrected_db for row in turned),
                mean(row.true_db for row in turned),
            )
        )
    title = f"masks off by {_SHIFT_PX} px, gain {_GAIN}, noise {_NOISE:.0%}; first shots"
    return ResultTable(title, _COLUMNS, tuple(rows))


def _row(
    footage: Footage,
    degrees: float,
    prior: Solver,
    device: torch.device,
    settings: SolverSettings,
) -> MismatchQuality:
    truth = truth_of(footage.snapshots[0])
    given = Calibration(phi=footage.calibration.phi)
    true = Calibration(phi=displaced(given.phi, degrees))
    noise = _NOISE * np.random.default_rng(0).standard_normal(given.shape)
    y = (_GAIN * (true.phi * truth).sum(0) + noise).astype(np.float32)

    def score(calibration: Calibration, guard: Guard) -> float:
        engine = Engine(calibration, prior, device, replace(settings, warm_start=False))
        solver = GuardedSolver(engine, guard)
        video = solver.solve(calibration.snapshot("mismatch", 0, y)).video
        return psnr(torch.from_numpy(video), torch.from_numpy(truth))

    return MismatchQuality(
        footage.name,
        degrees,
        score(given, NO_GUARD),
        score(given, Guard()),
        score(true, NO_GUARD),
    )


def displaced(masks: Masks, degrees: float) -> Masks:
    """Return masks, (B, H, W), turned around their middle and displaced by (0.5, 0.3) px."""
    height, width = masks.shape[1:]
    turn = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, 1.0)
    turn[:, 2] += np.array(_SHIFT_PX)
    return np.stack(
        [
            cv2.warpAffine(mask, turn, (width, height), borderMode=cv2.BORDER_REPLICATE)
            for mask in np.array(masks)
        ]
    ).astype(np.float32)
