"""``sci-stream bench quality``: PSNR and SSIM on published measurements, next to the paper's
figures.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from sci_stream.config import ReconstructSection
from sci_stream.devices.solver import make_prior
from sci_stream.errors import FileFormatError
from sci_stream.model import Snapshot
from sci_stream.optics.mask_errors import NO_CORRECTION
from sci_stream.recon.backend.device import describe_device, pick_device
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import NO_GUARD, Guard, GuardedSolver
from sci_stream.recon.metrics import psnr
from sci_stream_lab.bench.datasets import Footage, published, truth_of
from sci_stream_lab.bench.environment import environment
from sci_stream_lab.bench.quality.mismatch import mismatch_table
from sci_stream_lab.bench.quality.similarity import ssim
from sci_stream_lab.bench.result import (
    BenchResult,
    Progress,
    ResultColumn,
    ResultTable,
    figure_file,
    mean,
    require_plot_format,
    solver_settings,
)
from sci_stream_lab.paper.printed import SOURCES, paper_row, published_db, published_mean_db

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Image = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ShotQuality:
    """Quality of one shot.

    PSNR is the mean over frames with peak 1.0, not clipped; SSIM is Wang 2004's.
    """

    psnr_db: float
    ssim: float
    iterations: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SetQuality:
    """Means over the shots of a set, each shot, and published PSNR, dB, for it if there is any."""

    name: str
    psnr_db: float
    ssim: float
    iterations: float
    seconds_per_shot: float
    pnp_ffdnet_db: float | None
    pnp_fastdvdnet_db: float | None
    gap_net_db: float | None
    efficientsci_db: float | None
    per_shot: tuple[ShotQuality, ...]

    @property
    def shots(self) -> int:
        """Number of shots."""
        return len(self.per_shot)


_COLUMNS = (
    ResultColumn("name", "set", left=True),
    ResultColumn("shots", "shots"),
    ResultColumn("psnr_db", "PSNR dB", ".2f", "dB"),
    ResultColumn("ssim", "SSIM", ".4f"),
    ResultColumn("iterations", "iterations", ".0f"),
    ResultColumn("seconds_per_shot", "s/shot", ".2f", "s"),
    ResultColumn("pnp_ffdnet_db", "PnP-\nFFDNet", ".2f", "dB"),
    ResultColumn("pnp_fastdvdnet_db", "PnP-Fast\nDVDnet", ".2f", "dB"),
    ResultColumn("gap_net_db", "GAP-net", ".2f", "dB"),
    ResultColumn("efficientsci_db", "Efficient\nSCI", ".2f", "dB"),
)


@dataclass(frozen=True, slots=True)
class PriorQuality:
    """Means over the sets with one prior; ``gain_db`` is its gain over the first one."""

    prior: str
    psnr_db: float
    ssim: float
    seconds_per_shot: float
    gain_db: float
    sets: tuple[SetQuality, ...]


_PRIOR_COLUMNS = (
    ResultColumn("prior", "prior", left=True),
    ResultColumn("psnr_db", "PSNR dB", ".2f", "dB"),
    ResultColumn("gain_db", "gain dB", "+.2f", "dB"),
    ResultColumn("ssim", "SSIM", ".4f"),
    ResultColumn("seconds_per_shot", "s/shot", ".2f", "s"),
)


@dataclass(frozen=True)
class QualityResult(BenchResult):
    """Figures of each set, with the first prior where there are several; ``priors`` has all of
    them.
    """

    sets: tuple[SetQuality, ...] = ()
    priors: tuple[PriorQuality, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Example:
    """One shot of a set to plot.

    ``psnr_db`` after each iteration; ``truth`` and ``ours`` one frame of the video, 0–1, and
    ``coded`` its coded measurement, any scale, (H, W) each; ``paper_db`` the paper's figure for the
    set, if it has one.
    """

    name: str
    psnr_db: tuple[float, ...]
    truth: Image
    ours: Image
    coded: Image
    paper_db: float | None


def bench(
    data: Path,
    section: ReconstructSection,
    device_name: str,
    progress: Progress,
    plot: Path | None = None,
    *,
    full_scale_dn: float | None = None,
    bare: bool = False,
    mismatch: bool = False,
) -> QualityResult:
    """Reconstruct every shot of every published-layout ``.mat`` file in a folder.

    Each shot is solved by itself, cold, through the guarded solver of all users.

    Parameters
    ----------
    data
        The folder, searched recursively; files without ground truth are skipped with a message.
    section
        Denoiser, weights, iterations and the rest, as in a rig.
    plot
        File to plot the first shot of each set into; that shot is solved once more, outside the
        measured time.
    full_scale_dn
        Counts of one white frame through an open mask. Without it, it follows from truth and masks,
        which must explain the measurement: files with masks that are a little wrong can be measured
        with it only.
    bare
        Solve with the engine alone, without the guard.
    mismatch
        Add the table of masks that are a little off.

    Raises
    ------
    FileFormatError
        If there is nothing to measure.
    ConfigError
        If a requested plot cannot be drawn.
    """
    if plot is not None:
        require_plot_format(plot)
    device = pick_device(device_name)
    prior, settings = make_prior(section, device)
    sets, examples = list[SetQuality](), list[_Example]()
    footages = list(published(data, progress, full_scale_dn=full_scale_dn))
    for footage in footages:
        engine = Engine(footage.calibration, prior, device, settings)
        engine.warm_up()
        sets.append(_measure_set(engine, footage, progress, NO_GUARD if bare else Guard()))
        if plot is not None:
            examples.append(_example(engine, footage))
    if not sets:
        raise FileFormatError(
            f"Nothing to measure in {data}",
            expected="published .mat files with meas, mask and orig",
            got="none",
            hint="--data names their folder, which is searched recursively. A file whose masks do "
            "not explain its "
            "measurement can be measured with --full-scale-dn.",
        )
    if plot is not None:
        _plot(examples, f"{prior.name} on {describe_device(device)}", plot)
    door = "engine alone" if bare else "guarded, as users get it"
    title = f"{prior.name} on {describe_device(device)}, {door}"
    tables: list[ResultTable[Any]] = [ResultTable(title, _COLUMNS, (*sets, _mean_of(sets)))]
    if mismatch:
        tables.append(mismatch_table(footages, prior, device, settings, progress))
    return QualityResult(
        name="quality",
        environment=environment(describe_device(device)),
        tables=tuple(tables),
        notes=SOURCES,
        settings=solver_settings(prior.name, section.weights, settings),
        sets=tuple(sets),
    )


def bench_priors(
    data: Path,
    sections: Sequence[ReconstructSection],
    device_name: str,
    progress: Progress,
    *,
    full_scale_dn: float | None = None,
    bare: bool = False,
) -> QualityResult:
    """Reconstruct all sets with one prior after the other, and compare the means over the sets; see
    `bench`.
    """
    results = [
        bench(data, section, device_name, progress, full_scale_dn=full_scale_dn, bare=bare)
        for section in sections
    ]
    first_db = mean(one.psnr_db for one in results[0].sets)
    priors = tuple(
        PriorQuality(
            prior=str(result.settings["denoiser"]),
            psnr_db=(psnr_db := mean(one.psnr_db for one in result.sets)),
            ssim=mean(one.ssim for one in result.sets),
            seconds_per_shot=mean(one.seconds_per_shot for one in result.sets),
            gain_db=psnr_db - first_db,
            sets=result.sets,
        )
        for result in results
    )
    title = f"mean over sets: {len(results[0].sets)}, prior by prior"
    tables = [table for result in results for table in result.tables]
    return dataclasses.replace(
        results[0], tables=(*tables, ResultTable(title, _PRIOR_COLUMNS, priors)), priors=priors
    )


def _measure_set(engine: Engine, footage: Footage, progress: Progress, guard: Guard) -> SetQuality:
    per_shot = []
    for number, snapshot in enumerate(footage.snapshots, start=1):
        engine.forget()
        engine.correct_masks(NO_CORRECTION)
        shot = _measure(GuardedSolver(engine, guard), snapshot)
        per_shot.append(shot)
        progress(
            f"{footage.name} {number}/{len(footage.snapshots)}: {shot.psnr_db:.2f} dB in "
            f"{shot.seconds:.2f} s"
        )
    return _summary(footage.name, per_shot)


def _measure(solver: GuardedSolver, snapshot: Snapshot) -> ShotQuality:
    began_s = time.perf_counter()
    video, report, *_ = solver.solve(snapshot, solver.engine.settings.iterations)
    seconds = time.perf_counter() - began_s
    solved = torch.from_numpy(video)
    truth = torch.from_numpy(truth_of(snapshot))
    return ShotQuality(psnr(solved, truth), ssim(solved, truth), report.iterations, seconds)


def _mean_of(sets: Sequence[SetQuality]) -> SetQuality:
    """Return the mean over the sets, each of the same weight."""
    names = [one.name for one in sets]
    return SetQuality(
        name="mean",
        psnr_db=mean(one.psnr_db for one in sets),
        ssim=mean(one.ssim for one in sets),
        iterations=mean(one.iterations for one in sets),
        seconds_per_shot=mean(one.seconds_per_shot for one in sets),
        pnp_ffdnet_db=published_mean_db("PnP-FFDNet", names),
        pnp_fastdvdnet_db=published_mean_db("PnP-FastDVDnet", names),
        gap_net_db=published_mean_db("GAP-net", names),
        efficientsci_db=published_mean_db("EfficientSCI", names),
        per_shot=tuple(shot for one in sets for shot in one.per_shot),
    )


def _example(engine: Engine, footage: Footage) -> _Example:
    """Solve the first shot once more and score every iteration."""
    shot, course = footage.snapshots[0], list[float]()
    truth = torch.from_numpy(truth_of(shot))
    video, _ = engine.reconstruct(
        shot,
        engine.settings.iterations,
        watch=lambda estimate: course.append(psnr(estimate.cpu(), truth)),
    )
    middle = len(video) // 2
    paper = paper_row(footage.name).get("PnP-FFDNet")
    return _Example(
        name=footage.name,
        psnr_db=tuple(course),
        truth=truth[middle].numpy(),
        ours=video[middle],
        coded=shot.counts.astype(np.float32),
        paper_db=paper[0] if paper else None,
    )


def _summary(name: str, per_shot: Sequence[ShotQuality]) -> SetQuality:
    return SetQuality(
        name=name,
        psnr_db=mean(shot.psnr_db for shot in per_shot),
        ssim=mean(shot.ssim for shot in per_shot),
        iterations=mean(shot.iterations for shot in per_shot),
        seconds_per_shot=mean(shot.seconds for shot in per_shot),
        pnp_ffdnet_db=published_db("PnP-FFDNet", name),
        pnp_fastdvdnet_db=published_db("PnP-FastDVDnet", name),
        gap_net_db=published_db("GAP-net", name),
        efficientsci_db=published_db("EfficientSCI", name),
        per_shot=tuple(per_shot),
    )


def _plot(examples: list[_Example], title: str, path: Path) -> None:
    """Plot a row for each set: PSNR over iterations, ground truth, reconstruction and coded
    measurement.
    """
    with figure_file(path, (15, 3.4 * len(examples))) as figure:
        figure.suptitle(title)
        rows = figure.subplots(len(examples), 4, squeeze=False, width_ratios=[1.5, 1, 1, 1])
        for example, axes in zip(examples, rows, strict=True):
            _plot_psnr(axes[0], example)
            ours = f"ours, {example.psnr_db[-1]:.2f} dB"
            images = {"truth": example.truth, ours: example.ours, "coded": example.coded}
            for axis, (label, image) in zip(axes[1:], images.items(), strict=True):
                top = float(image.max()) if label == "coded" else 1.0
                axis.imshow(
                    image, cmap="gray", vmin=0.0, vmax=max(top, 1e-6), interpolation="nearest"
                )
                axis.set_title(label)
                axis.set_axis_off()


def _plot_psnr(axis: Axes, example: _Example) -> None:
    iterations = range(1, len(example.psnr_db) + 1)
    axis.plot(iterations, example.psnr_db, marker=".", label="first shot")
    best = int(np.argmax(example.psnr_db))
    axis.plot(
        [best + 1],
        [example.psnr_db[best]],
        "o",
        fillstyle="none",
        label=f"best, {example.psnr_db[best]:.2f} dB",
    )
    if example.paper_db is not None:
        axis.axhline(
            example.paper_db, linestyle="--", color="gray", label="paper's PnP-FFDNet, all shots"
        )
    axis.set(title=example.name, xlabel="iteration", ylabel="PSNR / dB")
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
