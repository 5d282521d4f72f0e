"""Snapshots without noise, as a first simulation has them, are solved as well as noisy ones."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import sci_stream

B, SIZE = 8, 64
MASKS = (
    "half open",
    "30 %",
    "12 %",
    "one-hot",
    "2 of 8",
    "balanced",
    "shifting",
    "moving",
    "grey",
)
FORMS = {
    "float32": lambda y: y.astype(np.float32),
    "float64": lambda y: y,
    "counts": lambda y: np.round(255 * y.clip(0)).astype(np.uint16),
}


@pytest.fixture(scope="module")
def film() -> np.ndarray:
    """A textured disc moves over a gradient and over black, whose windows a plane fits exactly."""
    rows, columns = np.mgrid[:SIZE, :SIZE]
    texture = 0.5 + 0.3 * np.sin(rows / 3) * np.cos(columns / 4)
    still = np.clip(0.6 - rows / 80, 0, 1)
    frames = [np.hypot(rows - 40, columns - 30 - 1.5 * b) < 20 for b in range(B)]
    return np.where(frames, texture, still).astype(np.float32)


def exposed(pattern: np.ndarray) -> np.ndarray:
    """Return a mask from a pattern three times as fine that moves by an element meanwhile."""
    moved = [pattern[start : start + 3 * SIZE : 3] for start in range(3)]
    return np.mean(moved, axis=0)


def masks_of(kind: str) -> np.ndarray:
    rng = np.random.default_rng(1)
    shape = (B, SIZE, SIZE)
    order = rng.random(shape).argsort(axis=0)
    pattern = rng.random((SIZE + B, SIZE)) < 0.5
    fine = pattern.repeat(3, 0).astype(np.float32)
    masks = {
        "half open": rng.random(shape) < 0.5,
        "30 %": rng.random(shape) < 0.3,
        "12 %": rng.random(shape) < 0.12,
        "one-hot": order == 0,
        "2 of 8": order < 2,
        "balanced": order < B // 2,
        "shifting": np.stack([pattern[b : b + SIZE] for b in range(B)]),
        "moving": np.stack([exposed(fine[b:]) for b in range(0, 3 * B, 3)]),
        "grey": rng.random(shape),
    }
    return masks[kind].astype(np.float32)


def psnr_db(
    y: np.ndarray, masks: np.ndarray, film: np.ndarray, *, solver: str = "tv", iterations: int = 5
) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = sci_stream.reconstruct(
            y, masks, truth=film, solver=solver, iterations=iterations, device="cpu"
        )
    assert np.isfinite(result.video).all()
    assert result.psnr_db is not None
    return result.psnr_db


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", MASKS)
def test_no_noise_is_no_worse_than_a_little(kind: str, form: str, film: np.ndarray) -> None:
    masks = masks_of(kind)
    y = (masks.astype(np.float64) * film).sum(0)
    noise = np.random.default_rng(0).standard_normal(y.shape)
    amounts = (0.0, 1e-5, 1e-3, 0.02)
    none, least, little, much = (
        psnr_db(FORMS[form](y + amount * noise), masks, film) for amount in amounts
    )
    assert min(none, least) > little - 0.1
    assert much > 15


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", MASKS)
def test_default_solver_needs_no_noise(kind: str, film: np.ndarray) -> None:
    masks = masks_of(kind)
    y = (masks.astype(np.float64) * film).sum(0)
    little = 1e-3 * np.random.default_rng(0).standard_normal(y.shape)
    none, some = (
        psnr_db(FORMS["float32"](each), masks, film, solver="unrolled", iterations=12)
        for each in (y, y + little)
    )
    assert none > some - 0.1
