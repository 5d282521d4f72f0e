"""Plot a calibration: masks, Σφ², bad pixels, dark or white frame, distribution of φ, and the quality figures."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sci_stream.calibration.measurement import Measured, PixelFlag
from sci_stream.calibration.quality import QualityFigure, Verdict
from sci_stream.errors import ConfigError, StorageError, require_optional
from sci_stream.optics.calibration import Calibration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

_LOG = logging.getLogger(__name__)

_WIDTH_IN = 13.0
_MASKS_SHOWN, _MASK_COLUMNS = 16, 8
# Single mask elements are visible in a detail of this size; in a whole mask they are smaller than a dot of the plot.
_DETAIL_PX = 24
_LINE_IN = 0.24
# A scatter plot of more bad pixels than this is a solid area that takes seconds to draw.
_MAX_MARKED = 20_000
_VERDICT_COLOURS = {Verdict.OK: "#288c46", Verdict.WARN: "#dc8214", Verdict.BAD: "#c82828"}
_FLAG_COLOURS = {PixelFlag.HOT: "#dc2828", PixelFlag.DEAD: "#0078c8", PixelFlag.NOISY: "#e6a000"}


def write_report(
    path: Path, name: str, calibration: Calibration, figures: Sequence[QualityFigure], measured: Measured | None = None
) -> bool:
    """Write the report as an image in the format of the suffix; return False, with a warning, without matplotlib.

    Raises
    ------
    StorageError
        If the format is not supported or the file cannot be written.
    """
    try:
        require_optional("matplotlib.figure", "plot", "The calibration report")
    except ConfigError as error:
        # A calibration may have taken half an hour: a missing plot must not make it fail.
        _LOG.warning("No calibration report %s: %s", path, error)
        return False
    page = _draw(name, calibration, figures, measured)
    try:
        page.savefig(path, dpi=110)
    except ValueError as error:
        raise StorageError(f"Unknown format of the report {path}", expected="such as .png or .pdf", got=error) from None
    except OSError as error:
        raise StorageError(f"The report {path} cannot be written", got=error.strerror) from error
    return True


def _draw(name: str, calibration: Calibration, figures: Sequence[QualityFigure], measured: Measured | None) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional; without pyplot, which needs a display

    shown = min(calibration.n_frames, _MASKS_SHOWN)
    columns = min(shown, _MASK_COLUMNS)
    rows = 2 * math.ceil(shown / columns)
    heights = [rows * _WIDTH_IN / _MASK_COLUMNS + 0.3, 3.6, _LINE_IN * (len(figures) + 1)]
    page = Figure(figsize=(_WIDTH_IN, sum(heights) + 0.8), layout="constrained")
    page.suptitle(_heading(name, calibration), x=0.01, ha="left", fontsize=10)
    grid = page.add_gridspec(3, 1, height_ratios=heights)
    _plot_masks(page.add_subfigure(grid[0]), calibration, shown, columns)
    _plot_maps(page.add_subfigure(grid[1]), calibration, measured)
    _plot_figures(page.add_subfigure(grid[2]), figures)
    return page


def _heading(name: str, calibration: Calibration) -> str:
    height, width = calibration.shape
    facts = [f"{calibration.n_frames} masks of {height}×{width}", f"hash {calibration.hash[:16]}"]
    facts += [f"camera {calibration.camera_serial}"] if calibration.camera_serial else []
    facts += [f"Bayer {calibration.bayer}"] if calibration.bayer else []
    facts += [calibration.created] if calibration.created else []
    return f"Calibration {name}\n" + "   ".join(facts) + f"\n{calibration.source[:160]}"


def _plot_masks(part: SubFigure, calibration: Calibration, shown: int, columns: int) -> None:
    """Plot each mask, and below it a detail of its centre."""
    rows = 2 * math.ceil(shown / columns)
    axes = part.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    top, left = ((side - min(side, _DETAIL_PX)) // 2 for side in calibration.shape)
    for b in range(shown):
        row, column = 2 * (b // columns), b % columns
        mask = calibration.phi[b]
        detail = mask[top : top + _DETAIL_PX, left : left + _DETAIL_PX]
        axes[row, column].set_title(f"φ {b}", fontsize=8)
        axes[row, column].imshow(mask, cmap="gray", vmin=0, vmax=1)
        axes[row + 1, column].imshow(detail, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    if shown < calibration.n_frames:
        part.supxlabel(f"the first {shown} of {calibration.n_frames} masks", fontsize=8)


def _plot_maps(part: SubFigure, calibration: Calibration, measured: Measured | None) -> None:
    axes = part.subplots(1, 4)
    _plot_map(part, axes[0], calibration.gram_diag, "Σφ² (0: not measured)")
    _plot_bad_pixels(axes[1], calibration, measured)
    if measured is None:
        _plot_map(part, axes[2], calibration.dark, "dark frame, DN")
    else:
        _plot_map(part, axes[2], measured.white, "white field, DN")
    axes[3].hist(calibration.phi.ravel(), bins=120, range=(0, 1), log=True)
    axes[3].set_title("transmissions φ", fontsize=9)


def _plot_map(part: SubFigure, axis: Axes, image: npt.NDArray[np.float32], title: str) -> None:
    low, high = (float(limit) for limit in np.percentile(image, (0.5, 99.5)))
    drawn = axis.imshow(image, cmap="viridis", vmin=low, vmax=max(high, low + 1e-6))
    axis.set_title(title, fontsize=9)
    axis.set_axis_off()
    part.colorbar(drawn, ax=axis, location="bottom", shrink=0.8)


def _plot_bad_pixels(axis: Axes, calibration: Calibration, measured: Measured | None) -> None:
    bad = np.zeros(calibration.shape, np.bool_) if calibration.bad_pixels is None else calibration.bad_pixels
    flags = measured.flags if measured is not None else np.where(bad, np.uint8(PixelFlag.DEAD), np.uint8(0))
    for flag, colour in _FLAG_COLOURS.items():
        y, x = np.nonzero(flags & flag)
        label = f"{len(y)} {str(flag.name).lower()}" if measured is not None else None
        axis.scatter(x[:_MAX_MARKED], y[:_MAX_MARKED], s=4, color=colour, label=label)
    height, width = calibration.shape
    axis.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), aspect="equal", xticks=[], yticks=[])
    axis.set_title(f"bad pixels: {int(bad.sum())}", fontsize=9)
    if measured is not None:
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=3, fontsize=8, frameon=False)


def _plot_figures(part: SubFigure, figures: Sequence[QualityFigure]) -> None:
    """Write the quality figures, one per line, with the verdict in its colour."""
    for i, figure in enumerate(figures):
        height = 1 - (i + 0.5) / max(1, len(figures))
        part.text(0.01, height, figure.verdict.value, color=_VERDICT_COLOURS[figure.verdict], fontsize=9)
        part.text(0.06, height, figure.name, fontsize=9)
        part.text(0.2, height, figure.text, fontsize=9)
