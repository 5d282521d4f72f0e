"""Snapshots without noise, as a first simulation has them, are solved as well as noisy ones."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import sci_stream

B, SIZE = 8, 96
MASKS = ("half open", "30 %", "12 %", "one-hot", "2 of 8", "balanced", "shifting", "grey")


@pytest.fixture(scope="module")
def film() -> np.ndarray:
    """A textured disc moves over a gradient and over black, whose windows a plane fits exactly."""
    rows, columns = np.mgrid[:SIZE, :SIZE]
    texture = 0.5 + 0.3 * np.sin(rows / 3) * np.cos(columns / 4)
    still = np.clip(0.6 - rows / 80, 0, 1)
    frames = [np.hypot(rows - 40, columns - 30 - 1.5 * b) < 20 for b in range(B)]
    return np.where(frames, texture, still).astype(np.float32)


def masks_of(kind: str) -> np.ndarray:
    rng = np.random.default_rng(1)
    shape = (B, SIZE, SIZE)
    order = rng.random(shape).argsort(axis=0)
    pattern = rng.random((SIZE + B, SIZE)) < 0.5
    masks = {
        "half open": rng.random(shape) < 0.5,
        "30 %": rng.random(shape) < 0.3,
        "12 %": rng.random(shape) < 0.12,
        "one-hot": order == 0,
        "2 of 8": order < 2,
        "balanced": order < B // 2,
        "shifting": np.stack([pattern[b : b + SIZE] for b in range(B)]),
        "grey": rng.random(shape),
    }
    return masks[kind].astype(np.float32)


def psnr_db(y: np.ndarray, masks: np.ndarray, film: np.ndarray) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = sci_stream.reconstruct(
            y, masks, truth=film, solver="tv", iterations=8, device="cpu"
        )
    assert np.isfinite(result.video).all()
    assert result.psnr_db is not None
    return result.psnr_db


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", MASKS)
def test_no_noise_is_no_worse_than_a_little(kind: str, film: np.ndarray) -> None:
    masks = masks_of(kind)
    y = (masks * film).sum(0)
    noise = np.random.default_rng(0).standard_normal(y.shape)
    little = psnr_db((y + 1e-3 * noise).astype(np.float32), masks, film)
    assert psnr_db(y.astype(np.float32), masks, film) > little - 0.1
    assert psnr_db((y + 1e-5 * noise).astype(np.float64), masks, film) > little - 0.1
    assert psnr_db(np.round(255 * y).astype(np.uint16), masks, film) > little - 0.3
    assert psnr_db((y + 0.02 * noise).astype(np.float32), masks, film) > 15
