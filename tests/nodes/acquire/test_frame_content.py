from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sci_stream.model import Array
from sci_stream.nodes.acquire.frame_content import FrameContent

H, W = 200, 150


def noisy(seed: int, level: float = 800.0) -> Array:
    return np.random.default_rng(seed).normal(level, 5.0, (H, W)).astype(np.uint16)


def faults(*frames: Array) -> list[str]:
    content = FrameContent()
    return [content.check(frame) for frame in frames]


def half(frame: Array, other: Array) -> Array:
    return np.concatenate([frame[: H // 2], other[H // 2 :]])


def test_noisy_frames_have_no_fault() -> None:
    assert set(faults(*(noisy(seed) for seed in range(20)))) == {""}


def test_frame_that_repeats_the_one_before_is_identical() -> None:
    assert faults(noisy(0), noisy(1), noisy(1), noisy(2)) == ["", "", "identical", ""]


def test_frame_with_rows_of_the_one_before_is_torn() -> None:
    first, second = noisy(0), noisy(1)
    assert faults(first, second, half(noisy(2), second)) == ["", "", "torn"]


def test_frame_with_rows_of_an_earlier_one_is_torn() -> None:
    frames = [noisy(seed) for seed in range(5)]
    assert faults(*frames, half(noisy(5), frames[1])) == [*[""] * 5, "torn"]


def test_loop_of_frames_has_no_fault() -> None:
    assert set(faults(*(noisy(seed % 3) for seed in range(12)))) == {""}


@pytest.mark.parametrize("fill", [0, 7])
def test_frame_without_its_lower_half_lacks_rows(fill: int) -> None:
    empty = np.full((H, W), fill, np.uint16)
    assert faults(noisy(0), half(noisy(1), empty), half(noisy(2), empty)) == [
        *("", "rows_missing", "rows_missing")
    ]


def test_dark_and_saturated_frames_have_no_fault() -> None:
    dark, bright = np.zeros((H, W), np.uint16), np.full((H, W), 4095, np.uint16)
    assert faults(noisy(0), dark, dark, noisy(1), bright, half(noisy(2), bright)) == [""] * 6


def test_scene_that_darkens_gradually_downwards_has_no_fault() -> None:
    fall = np.clip(np.linspace(1.0, -0.5, H), 0, 1)[:, np.newaxis]
    frames = (np.rint(noisy(seed) * fall).astype(np.uint16) for seed in range(1, 6))
    assert set(faults(noisy(0), *frames)) == {""}


def film() -> Iterator[Array]:
    """Return frames without noise: a square that moves, and rests, before a textured background."""
    background = noisy(0)
    for place in (0, 10, 20, 20, 20, 30):
        frame = background.copy()
        frame[50:80, place : place + 30] = 3000
        yield frame


def test_film_without_noise_has_no_fault() -> None:
    assert set(faults(*film())) == {""}
