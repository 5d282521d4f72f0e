"""Compare solvers on one measurement: films side by side in step, figures, a figure for a paper."""

from __future__ import annotations

import base64
import html
import json
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from pydantic import JsonValue

import sci_stream
from sci_stream.arrays.inputs import AnyArray, real_array, true_frames
from sci_stream.arrays.solver import AnySolver
from sci_stream.errors import InputError
from sci_stream.field_types import finite_or_none
from sci_stream.file_guard import complete_output
from sci_stream.imaging.rendering import encode_jpeg, render, render_counts
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import F32, Array, BayerPhase
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.metrics import psnr
from sci_stream_lab.bench.quality.similarity import ssim
from sci_stream_lab.bench.result import mean

# Side of the SSIM window: smaller frames have no SSIM.
_SSIM_PX = 11
_PAGE = Path(__file__).with_name("solvers.html")
# Frames of a film in a figure: more are too small to be seen in a column of a paper.
_SHOWN = 4


@dataclass(frozen=True, eq=False)
class SolverResult:
    """Video and figures of one solver; means over the snapshots, None without truth."""

    name: str
    video: F32
    """(N·B, H, W), 0–1."""
    seconds: float
    """Of a snapshot, on this device, when everything is loaded."""
    residual: float
    psnr_db: float | None
    ssim: float | None
    faults: tuple[str, ...]

    @property
    def caption(self) -> str:
        """Name and figures in one line."""
        quality = [
            f"{value:{form}}"
            for value, form in ((self.psnr_db, ".2f"), (self.ssim, ".4f"))
            if value is not None
        ]
        units = [f"{text}{unit}" for text, unit in zip(quality, (" dB", " SSIM"), strict=False)]
        parts = [*units, f"{self.seconds:.2f} s", f"residual {self.residual:.1%}"]
        return f"{self.name}: {', '.join(parts)}"


@dataclass(frozen=True, eq=False)
class SolverComparison:
    """Results of some solvers on the same snapshots; ``truth`` (N·B, H, W) or None."""

    name: str
    snapshots: Array
    truth: F32 | None
    bayer: BayerPhase | None
    results: tuple[SolverResult, ...]

    def to_json(self) -> dict[str, JsonValue]:
        """Return the figures as plain values."""
        return {
            "name": self.name,
            "snapshots": len(self.snapshots),
            "solvers": [
                {
                    "solver": one.name,
                    "psnr_db": finite_or_none(one.psnr_db),
                    "ssim": one.ssim,
                    "seconds": one.seconds,
                    "residual": one.residual,
                    "faults": list(one.faults),
                }
                for one in self.results
            ],
        }

    def save(self, out: str | Path, *, gamma: float = 1.0, replace: bool = False) -> list[Path]:
        """Write the page, and the figure beside it as PNG and PDF; or one of them, by its suffix.

        Raises `InputError` for another suffix, `StorageError` if a file exists and is not to be
        replaced.
        """
        path = Path(out)
        writers: dict[str, Callable[[Path], object]] = {
            ".html": lambda partial: partial.write_text(self._page(gamma), encoding="utf-8"),
            ".png": lambda partial: self._figure(gamma).savefig(partial, dpi=200, format="png"),
            ".pdf": lambda partial: self._figure(gamma).savefig(partial, dpi=200, format="pdf"),
        }
        if path.suffix not in writers:
            raise InputError(
                f"The comparison {path} has an unknown suffix",
                expected=", ".join(writers),
                got=path.suffix,
            )
        suffixes = list(writers) if path.suffix == ".html" else [path.suffix]
        written = []
        for suffix in suffixes:
            target = path.with_suffix(suffix)
            with complete_output(target, replace=replace) as partial:
                writers[suffix](partial)
            written.append(target)
        return written

    def _films(self, gamma: float) -> dict[str, Array]:
        """Return the pictures of each film by its caption, the truth first."""
        tone = ToneSettings().changed({"gamma": gamma})
        films = {} if self.truth is None else {"truth": self.truth}
        films |= {one.caption: one.video for one in self.results}
        return {caption: render(film, self.bayer, tone) for caption, film in films.items()}

    def _page(self, gamma: float) -> str:
        films = [
            {"caption": caption, "frames": [_jpeg(picture) for picture in pictures]}
            for caption, pictures in self._films(gamma).items()
        ]
        faults = [f"{one.name}: {fault}" for one in self.results for fault in one.faults]
        return Template(_PAGE.read_text(encoding="utf-8")).substitute(
            title=html.escape(self.name),
            faults="".join(f"<li>{html.escape(fault)}</li>" for fault in faults),
            coded=json.dumps([_jpeg(render_counts(one, gamma)) for one in self.snapshots]),
            films=json.dumps(films).replace("</", "<\\/"),
        )

    def _figure(self, gamma: float) -> Figure:
        films = self._films(gamma)
        count = len(next(iter(films.values()))) // len(self.snapshots)
        shown = np.linspace(0, count - 1, min(_SHOWN, count)).round().astype(int)
        height, width = self.snapshots.shape[-2:]
        size_in = 1.8 * (len(shown) + 1), 1.8 * height / width * len(films) + 0.3 * len(films)
        figure = Figure(figsize=size_in)
        figure.subplots_adjust(0.01, 0.01, 0.99, 0.95, wspace=0.03, hspace=0.2)
        rows = figure.subplots(len(films), len(shown) + 1, squeeze=False)
        for axes, (caption, pictures) in zip(rows, films.items(), strict=True):
            for axis in axes:
                axis.set_axis_off()
            axes[1].set_title(caption, loc="left", fontsize=7)
            for axis, b in zip(axes[1:], shown, strict=True):
                axis.imshow(pictures[b], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
                axis.text(2, 2, f"{b + 1}", color="yellow", va="top", fontsize=6)
        rows[0][0].imshow(render_counts(self.snapshots[0], gamma), cmap="gray")
        rows[0][0].set_title("snapshot", loc="left", fontsize=7)
        return figure


def compare_solvers(
    y: AnyArray | Sequence[Array],
    masks: AnyArray | Calibration,
    solvers: Sequence[AnySolver],
    *,
    truth: AnyArray | None = None,
    first: int | None = None,
    name: str = "comparison",
    bayer: BayerPhase | str | None = None,
    white: float | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    **options: Any,
) -> SolverComparison:
    """Solve the same snapshots with each solver, on the scale that the first one determines.

    ``solvers`` are those of `sci_stream.reconstruct`, which takes the ``options``; a name may end
    in ``@PATH`` of weights. ``first`` snapshots alone are solved; None for all. ``progress`` is
    called with the number of solvers done and the total.

    Raises as `sci_stream.reconstruct`.
    """
    if not isinstance(y, np.ndarray | torch.Tensor):  # snapshots of a recording
        y = np.stack([y[n] for n in range(min(first or len(y), len(y)))])
    if first is not None and y.ndim > 2:
        if truth is not None:
            frames = real_array(truth, "truth").reshape(-1, *truth.shape[-2:])
            truth = frames[: len(frames) * first // max(first, len(y))]
        y = y[:first]
    results = []
    for done, solver in enumerate(solvers, 1):
        solved, seconds = _solved(
            y, masks, solver, truth=truth, bayer=bayer, white=white, **options
        )
        if not isinstance(masks, Calibration):
            white = solved.white
        frames = solved.video.reshape(-1, *solved.video.shape[-2:])
        results.append(_result(_name(solver), frames, solved, seconds, truth))
        progress(done, len(solvers))
    true = None if truth is None else _true(truth, results[0].video)
    return SolverComparison(name, solved.snapshots, true, solved.bayer, tuple(results))


def _name(solver: AnySolver) -> str:
    if isinstance(solver, sci_stream.Network):
        return _name(solver.model)
    if isinstance(solver, str | Path):
        return Path(solver).name
    return getattr(solver, "__name__", type(solver).__name__)


def _solved(
    y: AnyArray, masks: AnyArray | Calibration, solver: AnySolver, **options: Any
) -> tuple[Any, float]:
    """Return the result of a solver, and the seconds of a snapshot when everything is loaded."""
    if isinstance(solver, str) and "@" in solver:
        solver, _, options["weights"] = solver.rpartition("@")
    y = np.asarray(y.cpu() if isinstance(y, torch.Tensor) else y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sci_stream.DataWarning)  # the result has them
        solved = sci_stream.reconstruct(y, masks, solver=solver, on_mismatch="snapshot", **options)
        if len(solved.reports) > 1:
            return solved, mean(report.solve_ns / 1e9 for report in solved.reports[1:])
        began_s = time.perf_counter()
        again = sci_stream.reconstruct(y, masks, solver=solver, on_mismatch="snapshot", **options)
    return solved, min(again.report.solve_ns / 1e9, time.perf_counter() - began_s)


def _true(truth: AnyArray, video: F32) -> F32:
    """Return the truth as frames of the video, of which it may have fewer."""
    frames = real_array(truth, "truth")
    size = video.shape[-2:]
    count = frames.size // math.prod(size)
    frames_of_one: F32 = true_frames(truth, 1, (count, *size))[0]
    return frames_of_one


def _result(
    name: str, video: F32, solved: Any, seconds: float, truth: AnyArray | None
) -> SolverResult:
    quality = None
    similarity = None
    if truth is not None:
        true = torch.from_numpy(_true(truth, video))
        ours = torch.from_numpy(video[: len(true)])
        quality = psnr(ours, true)
        similarity = ssim(ours, true) if min(true.shape[-2:]) >= _SSIM_PX else None
    residual = mean(report.residual for report in solved.reports)
    return SolverResult(name, video, seconds, residual, quality, similarity, solved.faults)


def _jpeg(picture: Array) -> str:
    return base64.b64encode(encode_jpeg(picture, 92)).decode()
