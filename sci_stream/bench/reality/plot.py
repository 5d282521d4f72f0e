"""The plot of `bench reality`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sci_stream.bench.plots import require_matplotlib, save
from sci_stream.bench.reality.compare import Cell, RealityResult

_WAYS = (
    ("exact_db", "exact calibration", "C2"),
    ("defaults_db", "defaults", "C0"),
    ("plain_db", "plain loop, 40", "C1"),
)


def plot(result: RealityResult, path: Path) -> None:
    """Draw, for each half of the scenes, the mean PSNR of each perturbation with every cell as a dot.

    Raises
    ------
    ConfigError
        If matplotlib is not installed, or does not support the file's suffix.
    StorageError
        If the file cannot be written.
    """
    require_matplotlib(path)
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional extra

    halves = list(dict.fromkeys(cell.half for cell in result.cells))
    figure = Figure(figsize=(11, 4 * len(halves)), layout="constrained")
    figure.suptitle(result.tables[0].title)
    for axis, half in zip(figure.subplots(len(halves), 1, squeeze=False)[:, 0], halves, strict=True):
        cells = [cell for cell in result.cells if cell.half is half]
        names = list(dict.fromkeys(cell.perturbation for cell in cells))
        for offset, (key, label, colour) in enumerate(_WAYS):
            at = np.arange(len(names)) + 0.25 * (offset - 1)
            groups = [_values(cells, name, key) for name in names]
            axis.bar(at, [np.mean(group) for group in groups], 0.23, color=colour, alpha=0.5, label=label)
            for x, group in zip(at, groups, strict=True):
                axis.plot([x] * len(group), group, ".", color=colour, markersize=3)
        axis.set(title=f"{half} scenes", ylabel="PSNR, dB", xticks=range(len(names)), xticklabels=names)
        axis.set_ylim(bottom=min(getattr(cell, key) for cell in cells for key, _, _ in _WAYS) - 1)
        axis.grid(axis="y", alpha=0.3)
        axis.legend(loc="upper right", ncols=3, fontsize="small")
    save(figure, path)


def _values(cells: Sequence[Cell], perturbation: str, key: str) -> list[float]:
    return [getattr(cell, key) for cell in cells if cell.perturbation == perturbation]
