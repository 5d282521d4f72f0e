"""``sci-stream bench colour``: colour accuracy on photographs, on scenes behind masks, and on a
chart filmed by the simulated camera.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from sci_stream.config import ReconstructSection
from sci_stream.devices.solver import make_prior
from sci_stream.errors import FileFormatError
from sci_stream.imaging.demosaic import Demosaic, demosaic
from sci_stream.imaging.rendering import render
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import BayerPhase
from sci_stream.optics.bayer import sample_colours
from sci_stream.recon.backend.device import describe_device, pick_device
from sci_stream.recon.engine import Engine
from sci_stream_lab.bench.datasets import filmed_scene
from sci_stream_lab.bench.environment import environment
from sci_stream_lab.bench.quality import mosaics
from sci_stream_lab.bench.quality.colour_difference import delta_e_2000, lab
from sci_stream_lab.bench.result import BenchResult, Progress, ResultColumn, ResultTable, mean
from sci_stream_lab.training.images import PHOTOGRAPHS, read_rgb

_RIM_PX = 4
_PATCH_PX = 32
_CHART_FRAMES = 8

CHART_SRGB = (
    (
        (115, 82, 68),
        (194, 150, 130),
        (98, 122, 157),
        (87, 108, 67),
        (133, 128, 177),
        (103, 189, 170),
    ),
    ((214, 126, 44), (80, 91, 166), (193, 90, 99), (94, 60, 108), (157, 188, 64), (224, 163, 46)),
    ((56, 61, 150), (70, 148, 73), (175, 54, 60), (231, 199, 31), (187, 86, 149), (8, 133, 161)),
    (
        (243, 243, 242),
        (200, 200, 200),
        (160, 160, 160),
        (122, 122, 121),
        (85, 85, 85),
        (52, 52, 52),
    ),
)
"""The 24 patches of the usual colour chart as sRGB, rows from the top (McCamy, Marcus, Davidson
1976)."""


@dataclass(frozen=True, slots=True)
class DemosaicQuality:
    """Accuracy of one method: PSNR over all photographs and phases, its lead over the bilinear one,
    and by phase.
    """

    method: str
    psnr_db: float
    lead_db: float
    rggb_db: float
    grbg_db: float
    gbrg_db: float
    bggr_db: float
    ms_per_megapixel: float


@dataclass(frozen=True, slots=True)
class ChartQuality:
    """CIEDE2000 of the chart's patches with one phase: its mean and largest."""

    phase: str
    mean: float
    largest: float


@dataclass(frozen=True)
class ColourResult(BenchResult):
    """Demosaicing of photographs, reconstruction of scenes, and the colour chart."""

    images: int = 0
    demosaic: tuple[DemosaicQuality, ...] = ()
    chart: tuple[ChartQuality, ...] = ()
    scenes: tuple[mosaics.MosaicQuality, ...] = ()


_DEMOSAIC_COLUMNS = (
    ResultColumn("method", "method", left=True),
    ResultColumn("psnr_db", "PSNR dB", ".2f", "dB"),
    ResultColumn("lead_db", "vs bilinear", "+.2f", "dB"),
    *(ResultColumn(f"{phase.value.lower()}_db", phase.value, ".2f", "dB") for phase in BayerPhase),
    ResultColumn("ms_per_megapixel", "ms/megapixel", ".1f", "ms"),
)
_CHART_COLUMNS = (
    ResultColumn("phase", "phase", left=True),
    ResultColumn("mean", "mean", ".2f", "ΔE₀₀"),
    ResultColumn("largest", "largest", ".2f", "ΔE₀₀"),
)


def bench(
    folder: Path,
    section: ReconstructSection,
    device: str,
    progress: Progress,
    *,
    scenes: Sequence[str] = mosaics.SCENES,
) -> ColourResult:
    """Measure demosaicing on photographs, reconstruction of scenes, and a colour chart filmed by
    the simulated camera.

    Each photograph is turned into mosaics of all four phases. ``section`` names the prior that
    reconstructs the chart, some of the photographs as they pan behind masks, and simulated
    ``scenes``.

    Returns
    -------
    PSNR is over all three colours at the photographs' own (sRGB) levels, as in the literature,
    without a border of 4 pixels, averaged over images and phases; the chart's ΔE is CIEDE2000 of
    the patches' means.

    Raises
    ------
    FileFormatError
        If the folder holds no photographs.
    """
    psnr_db: dict[Demosaic, dict[BayerPhase, list[float]]] = {
        method: defaultdict(list) for method in Demosaic
    }
    seconds = dict.fromkeys(Demosaic, 0.0)
    megapixels = 0.0
    images = 0
    large: list[Path] = []
    for path in PHOTOGRAPHS.paths(folder):
        try:
            picture = read_rgb(path)
        except FileFormatError as error:
            progress(f"skipped: {error}")
            continue
        if min(picture.shape[:2]) <= 2 * _RIM_PX + 8:
            progress(f"skipped: {path.name}")
            continue
        height, width = (n // 2 * 2 for n in picture.shape[:2])
        rgb = picture[:height, :width].astype(np.uint16) * 257
        images += 1
        megapixels += len(BayerPhase) * height * width / 1e6
        for phase in BayerPhase:
            _measure(rgb, phase, psnr_db, seconds)
        if min(picture.shape[:2]) >= mosaics.LEAST_PX:
            large.append(path)
        progress(path.name)
    if not images:
        raise FileFormatError(
            f"No photographs in {folder}",
            expected=f"images ({', '.join(sorted(PHOTOGRAPHS.suffixes))})",
        )
    methods = _demosaic_rows(
        psnr_db, {method: 1e3 * seconds[method] / megapixels for method in Demosaic}
    )
    chart = tuple(_chart_row(phase, section, device) for phase in BayerPhase)
    coded = tuple(mosaics.bench(large, scenes, section, device, progress))
    return ColourResult(
        name="colour",
        environment=environment(describe_device(pick_device(device))),
        tables=(
            ResultTable(
                f"demosaicing, {images} photographs, all four phases", _DEMOSAIC_COLUMNS, methods
            ),
            ResultTable(
                "colour chart through the simulated Bayer camera and back, ΔE (CIEDE2000)",
                _CHART_COLUMNS,
                chart,
            ),
            ResultTable(
                "PSNR of colour scenes behind masks: mosaics, and their planes apart",
                mosaics.PSNR_COLUMNS,
                coded,
            ),
            ResultTable(
                "colour errors of the same scenes, CIEDE2000 and at edges",
                mosaics.COLOUR_COLUMNS,
                coded,
            ),
        ),
        images=images,
        demosaic=methods,
        chart=chart,
        scenes=coded,
    )


def _demosaic_rows(
    psnr_db: dict[Demosaic, dict[BayerPhase, list[float]]], ms_per_megapixel: dict[Demosaic, float]
) -> tuple[DemosaicQuality, ...]:
    means = {
        method: mean(itertools.chain(*by_phase.values())) for method, by_phase in psnr_db.items()
    }
    return tuple(
        DemosaicQuality(
            method=str(method),
            psnr_db=means[method],
            lead_db=means[method] - means[Demosaic.BILINEAR],
            ms_per_megapixel=ms_per_megapixel[method],
            **{f"{phase.lower()}_db": mean(by_phase[phase]) for phase in BayerPhase},
        )
        for method, by_phase in psnr_db.items()
    )


def _chart_row(phase: BayerPhase, section: ReconstructSection, device: str) -> ChartQuality:
    difference = chart_delta_e(phase, section, device)
    return ChartQuality(str(phase), float(difference.mean()), float(difference.max()))


def _measure(
    rgb: npt.NDArray[np.uint16],
    phase: BayerPhase,
    psnr_db: dict[Demosaic, dict[BayerPhase, list[float]]],
    seconds: dict[Demosaic, float],
) -> None:
    mosaic = sample_colours(rgb, phase)[np.newaxis]
    for method in Demosaic:
        started = time.perf_counter()
        colours = demosaic(mosaic, phase, method)[0]
        seconds[method] += time.perf_counter() - started
        inner = (slice(_RIM_PX, -_RIM_PX), slice(_RIM_PX, -_RIM_PX))
        error = (colours[inner].astype(np.float64) - rgb[inner]) / 65535
        psnr_db[method][phase].append(float(-10 * np.log10(max(float((error**2).mean()), 1e-12))))


def chart_delta_e(
    phase: BayerPhase, section: ReconstructSection, device: str, tone: ToneSettings | None = None
) -> npt.NDArray[np.float64]:
    """Film a colour chart with the simulated Bayer camera, reconstruct and render it, and compare.

    Returns
    -------
    (4, 6) CIEDE2000 between each patch's mean on the screen and its nominal colour.
    """
    # Without gaps between the patches: (4·p, 6·p, 3), sRGB.
    chart = np.asarray(np.kron(CHART_SRGB, np.ones((_PATCH_PX, _PATCH_PX, 1))), np.uint8)
    height, width = chart.shape[:2]
    with tempfile.TemporaryDirectory(prefix="sci-stream-chart-") as folder:
        path = Path(folder) / "chart.png"
        cv2.imwrite(str(path), chart[..., ::-1])
        footage = filmed_scene(
            path, snapshots=1, height_px=height, width_px=width, n_frames=_CHART_FRAMES, bayer=phase
        )
    on = pick_device(device)
    prior, settings = make_prior(section, on)
    video, _ = Engine(footage.calibration, prior, on, settings).reconstruct(footage.snapshots[0])
    shown = render(video, phase, tone).astype(np.float64).mean(axis=0)
    patches = shown.reshape(4, _PATCH_PX, 6, _PATCH_PX, 3)[:, _RIM_PX:-_RIM_PX, :, _RIM_PX:-_RIM_PX]
    return delta_e_2000(lab(patches.mean(axis=(1, 3))), lab(CHART_SRGB))
