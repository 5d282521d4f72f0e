"""``sci-stream bench quality``: PSNR and SSIM on published measurements, next to the paper's figures."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from sci_stream.bench.environment import environment
from sci_stream.bench.plots import Example, plot_quality, require_matplotlib
from sci_stream.config import ReconstructSection
from sci_stream.errors import FileFormatError
from sci_stream.model import CameraFrame, Snapshot, SnapshotId
from sci_stream.nodes.reconstruct.solver_thread import make_prior
from sci_stream.nodes.runtime.camera_drivers import load_driver
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.backend.device import describe_device, pick_device
from sci_stream.recon.engine import Budget, Engine
from sci_stream.recon.metrics import psnr, ssim

PAPER: dict[str, dict[str, tuple[float, float]]] = {
    "kobe": {"GAP-TV": (26.46, 0.8848), "PnP-FFDNet": (30.50, 0.9256)},
    "traffic": {"GAP-TV": (20.89, 0.7148), "PnP-FFDNet": (24.18, 0.8279)},
    "runner": {"GAP-TV": (28.52, 0.9092), "PnP-FFDNet": (32.15, 0.9332)},
    "drop": {"GAP-TV": (34.63, 0.9704), "PnP-FFDNet": (40.70, 0.9892)},
    "crash": {"GAP-TV": (24.82, 0.8383), "PnP-FFDNet": (25.42, 0.8493)},
    "aerial": {"GAP-TV": (25.05, 0.8281), "PnP-FFDNet": (25.27, 0.8291)},
}
"""PSNR in dB and SSIM printed in the paper's table of the six benchmark sets, means over all shots of a set."""


def paper_row(stem: str) -> dict[str, tuple[float, float]]:
    """Return the paper's figures for a file whose name starts with the set's name; empty if unknown."""
    return next((row for name, row in PAPER.items() if stem.lower().startswith(name)), {})


def bench(
    data: Path,
    section: ReconstructSection,
    device_name: str,
    progress: Callable[[str], None],
    plot: Path | None = None,
) -> dict[str, Any]:
    """Reconstruct every shot of every published-layout ``.mat`` file in a folder.

    Parameters
    ----------
    data
        The folder, searched recursively; files without ground truth are skipped with a message.
    section
        Denoiser, weights, iterations and the rest, as in a rig.
    progress
        Called with a line per shot.
    plot
        File to plot the first shot of each set into; that shot is solved once more, outside the measured time.

    Returns
    -------
    ``{"sets": [{"name", "shots", "psnr_db", "ssim", "iterations", "seconds_per_shot", "per_shot"}], "settings",
    "machine", "device", "versions"}``, ``per_shot`` a list of ``{"psnr_db", "ssim", "iterations", "seconds"}``. PSNR
    is per frame with peak 1.0, not clipped, its mean over frames and shots; SSIM is Wang 2004's with an 11×11 Gaussian
    window of σ 1.5.

    Raises
    ------
    FileFormatError
        If there is nothing to measure.
    ConfigError
        If a requested plot cannot be drawn.
    """
    if plot is not None:
        require_matplotlib(plot)
    device = pick_device(device_name)
    prior, settings = make_prior(section, device)
    sets, examples = [], []
    for path in sorted(data.rglob("*.mat")):
        try:
            shots = list(published_shots(path))
        except FileFormatError as error:
            progress(f"skipped: {error}")
            continue
        calibration = shots[0][1]
        engine = Engine(calibration, prior, device, settings)
        engine.warm_up()
        per_shot = []
        for number, (frame, _) in enumerate(shots):
            shot = _measure(engine, frame, number)
            per_shot.append(shot)
            progress(f"{path.stem} {number + 1}/{len(shots)}: {shot['psnr_db']:.2f} dB in {shot['seconds']:.2f} s")
        sets.append(_summary(path.stem, per_shot))
        if plot is not None:
            examples.append(_example(engine, shots[0][0], path.stem))
    if not sets:
        raise FileFormatError(
            f"Nothing to measure in {data}",
            expected="published .mat files with meas, mask and orig",
            got="none",
            hint="--data names their folder, which is searched recursively.",
        )
    if plot is not None:
        plot_quality(examples, f"{prior.name}, {settings.solver} on {describe_device(device)}", plot)
    settings_used = {"denoiser": prior.name, "weights": str(section.weights or ""), **dataclasses.asdict(settings)}
    return {"sets": sets, "settings": settings_used, **environment(describe_device(device))}


def published_shots(path: Path) -> Iterator[tuple[CameraFrame, Calibration]]:
    """Yield the shots of a file from the replay camera, so that the benchmark measures the instrument's own path."""
    driver = load_driver("replay")
    camera = driver(driver.Options(path=path))
    try:
        capabilities = camera.open()
        calibration = camera.calibration()
        if not capabilities.has_truth or calibration is None:
            raise FileFormatError(f"{path} has no ground truth", expected="the arrays orig, meas and mask")
        camera.start()
        while (frame := camera.read(1.0)) is not None:
            yield frame, calibration
    finally:
        camera.close()


def _measure(engine: Engine, frame: CameraFrame, number: int) -> dict[str, Any]:
    video, report = engine.reconstruct(_snapshot(engine, frame, number), Budget(engine.settings.iterations))
    x, truth = torch.from_numpy(video), _truth(frame)
    return {
        "psnr_db": psnr(x, truth),
        "ssim": ssim(x, truth),
        "iterations": report.iterations,
        "seconds": report.solve_ns / 1e9,
    }


def _snapshot(engine: Engine, frame: CameraFrame, number: int) -> Snapshot:
    return Snapshot(
        id=SnapshotId("bench", 0, number),
        counts=frame.counts,
        calibration_hash=engine.calibration.hash,
        n_frames=engine.calibration.n_frames,
        host_time_ns=frame.host_time_ns,
        bayer=engine.calibration.bayer,
    )


def _truth(frame: CameraFrame) -> torch.Tensor:
    """Return the true video, (B, H, W), 0–1."""
    assert frame.truth is not None
    scale = 255.0 if frame.truth.dtype == np.uint8 else 1.0
    return torch.from_numpy(frame.truth.astype(np.float32) / scale)


def _example(engine: Engine, frame: CameraFrame, name: str) -> Example:
    """Solve a shot once more and score every iteration."""
    truth, course = _truth(frame), list[float]()
    video, _ = engine.reconstruct(
        _snapshot(engine, frame, 0),
        Budget(engine.settings.iterations),
        watch=lambda estimate: course.append(psnr(estimate.cpu(), truth)),
    )
    middle = len(video) // 2
    paper = paper_row(name).get("PnP-FFDNet")
    return Example(
        name=name,
        psnr_db=tuple(course),
        truth=truth[middle].numpy(),
        ours=video[middle],
        coded=frame.counts.astype(np.float32),
        paper_db=paper[0] if paper else None,
    )


def _summary(name: str, per_shot: list[dict[str, Any]]) -> dict[str, Any]:
    def mean(key: str) -> float:
        return float(np.mean([shot[key] for shot in per_shot]))

    return {
        "name": name,
        "shots": len(per_shot),
        "psnr_db": mean("psnr_db"),
        "ssim": mean("ssim"),
        "iterations": mean("iterations"),
        "seconds_per_shot": mean("seconds"),
        "per_shot": per_shot,
    }


def print_figures(figures: dict[str, Any], console: Console, json_path: Path | None) -> None:
    """Print a table next to the paper's figures; write everything as JSON if requested."""
    table = Table(title=f"{figures['settings']['denoiser']} on {figures['device']}")
    for column in ("set", "shots", "PSNR dB", "SSIM", "iterations", "s/shot", "paper GAP-TV", "paper FFDNet"):
        table.add_column(column, justify="left" if column == "set" else "right", no_wrap=True)
    for row in figures["sets"]:
        paper = paper_row(row["name"])
        printed = [f"{paper[key][0]:.2f} {paper[key][1]:.4f}" if paper else "" for key in ("GAP-TV", "PnP-FFDNet")]
        table.add_row(
            row["name"],
            str(row["shots"]),
            f"{row['psnr_db']:.2f}",
            f"{row['ssim']:.4f}",
            f"{row['iterations']:.0f}",
            f"{row['seconds_per_shot']:.2f}",
            *printed,
        )
    console.print(table)
    if json_path is not None:
        json_path.write_text(json.dumps(figures, indent=2) + "\n")
