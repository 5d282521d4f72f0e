"""The benches solve through the door of all users: equal video, equal figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io

import sci_stream
import sci_stream_lab
from sci_stream.config import ReconstructSection
from sci_stream.tools.solve import SolveOptions, solve_file
from sci_stream_lab.bench.quality.published_sets import bench

B, SIZE, ITERATIONS = 4, 96, 4


def right(y: np.ndarray) -> np.ndarray:
    return y


def with_stuck_pixels(y: np.ndarray) -> np.ndarray:
    changed = y.copy()
    changed[20, 30] = changed[60, 70] = 3 * y.max()
    return changed


def displaced(y: np.ndarray) -> np.ndarray:
    return np.roll(y, 1, 1)


def of_other_masks(y: np.ndarray) -> np.ndarray:
    return np.roll(y, (15, 31), (0, 1))


def scene() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return y, masks and truth of one shot."""
    masks = (np.random.default_rng(0).random((B, SIZE, SIZE)) < 0.5).astype(np.float32)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    frames = [0.5 + 0.3 * np.sin((columns - b) / 5) * np.cos(rows / 7) for b in range(B)]
    truth = np.stack(frames).astype(np.float32)
    return (masks * truth).sum(0), masks, truth


@pytest.mark.filterwarnings("ignore::sci_stream.DataWarning")
@pytest.mark.parametrize("change", [right, with_stuck_pixels, displaced, of_other_masks])
def test_compare_shows_the_video_of_reconstruct(
    change: Callable[[np.ndarray], np.ndarray],
) -> None:
    y, masks, truth = scene()
    options = {"iterations": ITERATIONS, "device": "cpu", "white": 1.0}
    expected = sci_stream.reconstruct(
        change(y), masks, solver="tv", on_mismatch="snapshot", **options
    )
    compared = sci_stream_lab.compare(change(y), masks, ["tv"], truth=truth, **options)
    np.testing.assert_allclose(compared.results[0].video, expected.video, atol=1e-5)


@pytest.mark.parametrize("change", [right, with_stuck_pixels])
def test_bench_has_the_figure_of_solve(
    change: Callable[[np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    y, masks, truth = scene()
    arrays = {"meas": change(y), "mask": masks, "orig": truth}
    turned = {name: np.moveaxis(one, 0, -1) for name, one in arrays.items() if one.ndim == 3}
    scipy.io.savemat(tmp_path / "shot.mat", {**arrays, **turned})
    section = ReconstructSection(solver="tv", iterations=ITERATIONS)
    (row,) = bench(tmp_path, section, "cpu", lambda _line: None, full_scale_dn=1.0).sets
    options = SolveOptions(solver="tv", iterations=ITERATIONS, device="cpu", white=1.0)
    solved = solve_file(sci_stream.load_measurement(tmp_path / "shot.mat"), None, options)
    assert row.psnr_db == pytest.approx(solved.psnr_db, abs=0.05)
