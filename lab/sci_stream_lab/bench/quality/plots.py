"""Plots of `bench quality`: PSNR over iterations, and frames side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sci_stream_lab.bench.result import figure_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Image = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One shot of a set to plot.

    ``psnr_db`` after each iteration; ``truth`` and ``ours`` one frame of the video, 0–1, and ``coded`` its coded
    measurement, any scale, (H, W) each; ``paper_db`` the paper's figure for the set, if it has one.
    """

    name: str
    psnr_db: tuple[float, ...]
    truth: Image
    ours: Image
    coded: Image
    paper_db: float | None


def plot_quality(examples: list[Example], title: str, path: Path) -> None:
    """Plot a row for each set: PSNR over iterations, ground truth, reconstruction and coded measurement."""
    with figure_file(path, (15, 3.4 * len(examples))) as figure:
        figure.suptitle(title)
        rows = figure.subplots(len(examples), 4, squeeze=False, width_ratios=[1.5, 1, 1, 1])
        for example, axes in zip(examples, rows, strict=True):
            _plot_psnr(axes[0], example)
            ours = f"ours, {example.psnr_db[-1]:.2f} dB"
            images = {"truth": example.truth, ours: example.ours, "coded": example.coded}
            for axis, (label, image) in zip(axes[1:], images.items(), strict=True):
                top = float(image.max()) if label == "coded" else 1.0
                axis.imshow(image, cmap="gray", vmin=0.0, vmax=max(top, 1e-6), interpolation="nearest")
                axis.set_title(label)
                axis.set_axis_off()


def _plot_psnr(axis: Axes, example: Example) -> None:
    iterations = range(1, len(example.psnr_db) + 1)
    axis.plot(iterations, example.psnr_db, marker=".", label="first shot")
    best = int(np.argmax(example.psnr_db))
    axis.plot([best + 1], [example.psnr_db[best]], "o", fillstyle="none", label=f"best, {example.psnr_db[best]:.2f} dB")
    if example.paper_db is not None:
        axis.axhline(example.paper_db, linestyle="--", color="gray", label="paper's PnP-FFDNet, all shots")
    axis.set(title=example.name, xlabel="iteration", ylabel="PSNR / dB")
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
