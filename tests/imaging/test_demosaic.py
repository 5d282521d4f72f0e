"""All demosaicing methods on all Bayer phases, and their ranking."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import cv2
import numpy as np
import pytest

from sci_stream.imaging.demosaic import Demosaic, demosaic
from sci_stream.model import BayerPhase
from tests.imaging.mosaics import mosaic_of

CASES = [(phase, method) for phase in BayerPhase for method in Demosaic]


@pytest.mark.parametrize(("phase", "method"), CASES)
def test_uniform_colour_is_exact_up_to_the_edge(phase: BayerPhase, method: Demosaic) -> None:
    rgb = np.broadcast_to(np.array([50_000, 20_000, 7_000], np.uint16), (2, 12, 16, 3))
    found = demosaic(mosaic_of(rgb, phase).astype(np.uint16), phase, method)
    assert found.dtype == np.uint16
    assert np.abs(found.astype(int) - rgb).max() <= 1


@pytest.mark.parametrize(("phase", "method"), CASES)
def test_grey_ramp_stays_grey_in_place(phase: BayerPhase, method: Demosaic) -> None:
    y, x = np.mgrid[0:24, 0:32]
    grey = (1000 + 900 * x + 700 * y)[None, ..., None].repeat(3, -1).astype(np.uint16)
    found = demosaic(mosaic_of(grey, phase).astype(np.uint16), phase, method)
    assert np.abs(found.astype(int) - grey)[:, 4:-4, 4:-4].max() <= 2


@pytest.mark.parametrize(("phase", "method"), CASES)
def test_measured_values_are_kept(phase: BayerPhase, method: Demosaic) -> None:
    mosaic = np.random.default_rng(3).integers(0, 65536, (1, 16, 16)).astype(np.uint16)
    found = demosaic(mosaic, phase, method)
    inner = (slice(None), slice(2, -2), slice(2, -2))
    assert np.array_equal(mosaic_of(found, phase).astype(np.uint16)[inner], mosaic[inner])


@pytest.mark.parametrize("phase", BayerPhase)
def test_rotated_sensor_gives_rotated_image(phase: BayerPhase) -> None:
    mosaic = np.random.default_rng(4).integers(0, 65536, (1, 20, 24)).astype(np.uint16)
    turned_phase = BayerPhase(phase[::-1])
    turned = demosaic(
        np.ascontiguousarray(mosaic[:, ::-1, ::-1]), turned_phase, Demosaic.DIRECTIONAL
    )
    straight = demosaic(mosaic, phase, Demosaic.DIRECTIONAL)
    assert np.abs(turned[:, ::-1, ::-1].astype(int) - straight).max() <= 1


def test_clipped_light_does_not_wrap() -> None:
    mosaic = np.zeros((1, 16, 16), np.uint16)
    mosaic[:, :, 8:] = 65535
    for method in Demosaic:
        found = demosaic(mosaic, BayerPhase.RGGB, method)
        assert found[:, :, :5].max() == 0
        assert found[:, :, 11:].min() == 65535


def test_directional_method_is_better_on_photographs(data_dir: Path) -> None:
    psnr_db = defaultdict(list)
    for name in ("1.png", "8.png", "19.png"):
        path = data_dir / "test" / "kodak24" / name
        if not path.exists():
            pytest.skip(f"no {path}")
        rgb = cv2.imread(str(path))[None, 100:356, 100:356, ::-1].astype(np.uint16) * 257
        for phase, method in CASES:
            found = demosaic(mosaic_of(rgb, phase).astype(np.uint16), phase, method)
            error = (found.astype(np.float64) - rgb)[:, 4:-4, 4:-4] / 65535
            psnr_db[method].append(-10 * np.log10((error**2).mean()))
    mean = {method: np.mean(values) for method, values in psnr_db.items()}
    assert mean[Demosaic.DIRECTIONAL] > mean[Demosaic.BILINEAR] + 5.5
