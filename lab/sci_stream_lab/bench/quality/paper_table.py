"""``sci-stream bench paper``: the paper's table of methods on published sets, ours next to the
printed figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sci_stream.errors import ConfigError, FileFormatError
from sci_stream.model import Snapshot
from sci_stream.recon.backend.device import describe_device, pick_device
from sci_stream.recon.metrics import psnr
from sci_stream_lab.bench.datasets import Footage, truth_of
from sci_stream_lab.bench.environment import environment
from sci_stream_lab.bench.quality.similarity import ssim
from sci_stream_lab.bench.result import (
    BenchResult,
    Progress,
    ResultColumn,
    ResultTable,
    figure_file,
    mean,
)
from sci_stream_lab.paper.methods import METHODS, Method, Solve
from sci_stream_lab.paper.printed import PAPER_MINUTES, paper_row

# Seconds between two lines of progress during a solve.
_REPORT_S = 20.0


@dataclass(frozen=True, slots=True)
class MethodQuality:
    """Means of a method over the shots of a set, and over all of them the quality in dB after each
    iteration.

    ``seconds_at`` are those of the first shot up to the end of each of its iterations, ``psnr_at``
    its quality there: of the processor where one thread computes, so that other work on the machine
    does not count. ``paper_*`` are the printed figures, None or empty where there are none.
    """

    set_name: str
    method: str
    shots: int
    psnr_db: float
    ssim: float
    minutes: float
    iterations: float
    paper_psnr_db: float | None
    paper_ssim: float | None
    paper_minutes: float | None
    seconds_at: tuple[float, ...]
    psnr_at: tuple[float, ...]

    @property
    def difference_db(self) -> float | None:
        """How much better ours is than the printed figure, dB."""
        return None if self.paper_psnr_db is None else self.psnr_db - self.paper_psnr_db


_COLUMNS = (
    ResultColumn("set_name", "set", left=True),
    ResultColumn("method", "method", left=True),
    ResultColumn("shots", "shots"),
    ResultColumn("psnr_db", "PSNR dB", ".2f", "dB"),
    ResultColumn("ssim", "SSIM", ".4f"),
    ResultColumn("minutes", "min/shot", ".2f", "min"),
    ResultColumn("iterations", "iterations", ".0f"),
    ResultColumn("paper_psnr_db", "printed dB", ".2f", "dB"),
    ResultColumn("paper_ssim", "printed SSIM", ".4f"),
    ResultColumn("paper_minutes", "printed min", ".2f", "min"),
    ResultColumn("difference_db", "difference dB", "+.2f", "dB"),
)


@dataclass(frozen=True)
class PaperResult(BenchResult):
    """A row for each set and method."""

    rows: tuple[MethodQuality, ...] = ()


def chosen_methods(names: Sequence[str]) -> tuple[Method, ...]:
    """Return the methods of these names, or whose names begin with one of them; case is ignored.

    All for none.

    Raises
    ------
    ConfigError
        If a name fits none.
    """
    if not names:
        return METHODS
    chosen = []
    for name in names:
        fitting = [method for method in METHODS if method.name.lower() == name.lower()]
        fitting = fitting or [
            method for method in METHODS if method.name.lower().startswith(name.lower())
        ]
        if not fitting:
            raise ConfigError(
                "Unknown method",
                expected=f"a prefix of one of {', '.join(m.name for m in METHODS)}",
                got=repr(name),
            )
        chosen += [method for method in fitting if method not in chosen]
    return tuple(chosen)


def bench(
    sets: Iterable[Footage],
    methods: Sequence[Method],
    device_name: str,
    progress: Progress,
    *,
    weights: Path | None = None,
    shots: int | None = None,
) -> PaperResult:
    """Solve every shot of every set with every method.

    Parameters
    ----------
    progress
        Called with a line per shot, and every 20 s during a solve.
    weights
        FFDNet checkpoint for the rows with FFDNet; None for the one that ships with the product.
    shots
        Most shots of a set; None for all of them.

    Raises
    ------
    FileFormatError
        If there is nothing to measure.
    """
    device = pick_device(device_name)
    rows = [
        _measure(footage, method, device, progress, weights=weights, shots=shots)
        for footage in sets
        for method in methods
    ]
    if not rows:
        raise FileFormatError(
            "Nothing to measure",
            expected="published .mat files with meas, mask and orig",
            got="none",
        )
    table = ResultTable(f"The paper's methods on {describe_device(device)}", _COLUMNS, tuple(rows))
    return PaperResult(
        name="paper",
        environment=environment(describe_device(device)),
        tables=(table,),
        notes=(
            "PSNR and SSIM are means over the shots of a set. Printed values are those of the "
            "paper's Table 1; its "
            "times are of its own machine. Ours are processor time where one thread of a CPU "
            "computes.",
            "Rows with WNNM or VBM4D have a third of the iterations of the paper's code. VBM4D is "
            "block matching "
            "with a 4-D transform, not the published program.",
            "Rows with the linear start are ours, and the live row is a different method: see "
            "docs/algorithm.md.",
        ),
        settings={"weights": str(weights or ""), "shots": shots},
        rows=tuple(rows),
    )


def _measure(
    footage: Footage,
    method: Method,
    device: torch.device,
    progress: Progress,
    *,
    weights: Path | None,
    shots: int | None,
) -> MethodQuality:
    solve, iterations = method.prepare(footage.calibration, device, weights)
    # What else the machine does would change an hour's row many times over.
    clock = (
        time.process_time
        if device.type == "cpu" and torch.get_num_threads() == 1
        else time.perf_counter
    )
    taken = [_Solve(method.name, footage.name, clock, progress) for _ in footage.snapshots[:shots]]
    for number, (solved, snapshot) in enumerate(zip(taken, footage.snapshots, strict=False)):
        solved.run(solve, iterations, snapshot, f"{number + 1}/{len(taken)}")
    printed = paper_row(footage.name).get(method.printed)
    return MethodQuality(
        set_name=footage.name,
        method=method.name,
        shots=len(taken),
        psnr_db=mean(each.psnr_at[-1] for each in taken),
        ssim=mean(each.ssim for each in taken),
        minutes=mean(each.seconds_at[-1] for each in taken) / 60,
        iterations=mean(len(each.psnr_at) for each in taken),
        paper_psnr_db=printed[0] if printed else None,
        paper_ssim=printed[1] if printed else None,
        paper_minutes=PAPER_MINUTES.get(method.printed),
        seconds_at=tuple(taken[0].seconds_at),
        psnr_at=tuple(taken[0].psnr_at),
    )


class _Solve:
    """One shot, watched: quality and time at the end of each iteration, without the time that
    watching takes.
    """

    def __init__(
        self, method: str, set_name: str, clock: Callable[[], float], progress: Progress
    ) -> None:
        self.seconds_at: list[float] = []
        self.psnr_at: list[float] = []
        self.ssim = 0.0
        self._name = f"{set_name}, {method}"
        self._clock, self._progress = clock, progress
        self._watching_s = 0.0
        self._reported_s = 0.0

    def run(self, solve: Solve, iterations: int, snapshot: Snapshot, which: str) -> None:
        """Solve."""
        truth = torch.from_numpy(truth_of(snapshot))
        video = truth
        began_s = self._clock()

        def watch(estimate: torch.Tensor) -> None:
            nonlocal video
            # On a GPU this waits for the estimate: the time is that of its computation.
            video = estimate.cpu()
            now_s = self._clock()
            self.seconds_at.append(now_s - began_s - self._watching_s)
            self.psnr_at.append(psnr(video, truth))
            if self.seconds_at[-1] - self._reported_s > _REPORT_S:
                self._reported_s = self.seconds_at[-1]
                done = len(self.psnr_at)
                left_s = self._reported_s / done * (iterations - done)
                self._progress(
                    f"{self._name}, shot {which}: iteration {done}/{iterations}, "
                    f"{self.psnr_at[-1]:.2f} dB, "
                    f"about {left_s:.0f} s left"
                )
            self._watching_s += self._clock() - now_s

        solve(snapshot, watch)
        self.ssim = ssim(video, truth)
        self._progress(
            f"{self._name}, shot {which}: {self.psnr_at[-1]:.2f} dB, SSIM {self.ssim:.4f}, "
            f"{self.seconds_at[-1]:.1f} s"
        )


def plot(result: PaperResult, path: Path) -> None:
    """Plot quality over time, as the paper's Figure 1: of the first shot of each set, a curve for
    each method.
    """
    names = list(dict.fromkeys(row.set_name for row in result.rows))
    methods = [method.name for method in METHODS]
    with figure_file(path, (9, 4.5 * len(names))) as figure:
        for axis, name in zip(
            figure.subplots(len(names), 1, squeeze=False)[:, 0], names, strict=True
        ):
            for row in result.rows:
                if row.set_name == name:
                    # More methods than the default cycle has colours.
                    number = methods.index(row.method)
                    look = {"color": f"C{number % 10}", "linestyle": "--" if number >= 10 else "-"}
                    axis.plot(row.seconds_at, row.psnr_at, label=row.method, **look)
                    axis.plot(row.seconds_at[-1:], row.psnr_at[-1:], "o", **look)
            axis.set(
                title=f"{name}, first shot", xlabel="seconds", ylabel="PSNR / dB", xscale="log"
            )
            axis.grid(alpha=0.3)
            axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
