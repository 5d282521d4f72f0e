"""Pixels that the masks hardly open: their errors are not amplified, before and after corrections."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import sci_stream
from sci_stream.optics.calibration import Calibration

B, SIZE = 8, 96
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def film() -> np.ndarray:
    rows, columns = np.mgrid[:SIZE, :SIZE]
    texture = 0.5 + 0.2 * np.sin(rows / 3) * np.cos(columns / 4)
    frames = [np.hypot(rows - 45, columns - 35 - 1.5 * b) < 20 for b in range(B)]
    return np.where(frames, texture, 0.3 + rows / 300).astype(np.float32)


@pytest.fixture(scope="module")
def masks() -> np.ndarray:
    return (np.random.default_rng(1).random((B, SIZE, SIZE)) < 0.5).astype(np.float32)


def solved(
    y: np.ndarray, masks: np.ndarray, film: np.ndarray, *, check: bool
) -> sci_stream.Reconstructed:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sci_stream.DataWarning)
        return sci_stream.reconstruct(
            y.astype(np.float32),
            masks,
            truth=film,
            white=1.0,
            solver="tv",
            iterations=8,
            device="cpu",
            check_masks=check,
        )


def psnr_db(y: np.ndarray, masks: np.ndarray, film: np.ndarray, *, check: bool) -> float:
    psnr_db = solved(y, masks, film, check=check).psnr_db
    assert psnr_db is not None
    return psnr_db


@pytest.mark.parametrize("share", [0.002, 0.02])
@pytest.mark.parametrize("leak", [0.0, 1e-6, 1e-4, 1e-3, 1e-2])
def test_leak_of_closed_pixels_costs_nothing(
    leak: float, share: float, masks: np.ndarray, film: np.ndarray
) -> None:
    closed = np.random.default_rng(2).random((SIZE, SIZE)) < share
    given = np.where(closed, 0, masks)
    true = np.where(closed, leak, given)
    without = psnr_db((given * film).sum(0), given, film, check=False)
    y = (true * film).sum(0)
    assert psnr_db(y, given, film, check=True) > without - 0.05
    assert psnr_db(y, true, film, check=True) > without - 0.05


@pytest.mark.parametrize("leak", [0.0, 1e-6, 1e-2])
@pytest.mark.parametrize("error", ["shift", "blur", "gains"])
def test_leak_after_a_correction_costs_nothing(
    error: str, leak: float, masks: np.ndarray, film: np.ndarray
) -> None:
    """A corrected blur or shift lets closed pixels leak by the light of their neighbours."""
    closed = np.random.default_rng(2).random((SIZE, SIZE)) < 0.02
    given = np.where(closed, 0, masks)
    gains = np.array([1, 1.1, 0.9, 1.05, 0.92, 1.08, 0.95, 1])[:, None, None]
    neighbours = (np.roll(given, 1, 1) + np.roll(given, -1, 1)) / 2
    true = {
        "shift": 0.7 * given + 0.3 * np.roll(given, 1, 2),
        "blur": 0.9 * given + 0.1 * neighbours,
        "gains": gains * given,
    }[error]
    y = (np.where(closed, true + leak, true) * film).sum(0)
    corrected = solved(y, given, film, check=True)
    assert not corrected.correction.is_none
    assert corrected.psnr_db is not None
    assert corrected.psnr_db > psnr_db(y, given, film, check=False) + 1


def test_dark_corners_are_measured_as_far_as_they_are_lit(
    masks: np.ndarray, film: np.ndarray
) -> None:
    rows, columns = np.mgrid[:SIZE, :SIZE] / (SIZE - 1) - 0.5
    field = np.clip(1.2 - 2.2 * np.hypot(rows, columns), 0, 1)
    phi = (masks * field).astype(np.float32)
    calibration = Calibration(phi=phi)
    assert calibration.blind[0, 0]
    assert calibration.blind.mean() < 0.3
    y = (phi * film).sum(0)
    bare = psnr_db(y, phi, film, check=False)
    assert bare > 18
    assert psnr_db(y, phi, film, check=True) > bare - 0.05
