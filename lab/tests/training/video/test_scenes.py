"""Videos and masks drawn for training."""

from __future__ import annotations

import numpy as np
import pytest

from lab.tests.training.pictures import picture
from sci_stream_lab.training.video.scenes import Scenes, disturb_masks, draw_masks, sensed

CLIP = np.random.default_rng(0).integers(0, 256, (10, 40, 44)).astype(np.uint8)


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return Scenes([CLIP], [picture(n, 90, 110) for n in range(3)])


@pytest.mark.parametrize("n_frames", [1, 8, 20])
def test_videos_have_the_wanted_size_and_range(scenes: Scenes, n_frames: int) -> None:
    for seed in range(12):
        video = scenes.draw(np.random.default_rng(seed), n_frames, 32)
        assert (video.shape, video.dtype) == ((n_frames, 32, 32), np.float32)
        assert video.min() >= 0
        assert video.max() <= 1


def test_video_depends_on_the_generator_only(scenes: Scenes) -> None:
    for seed in range(4):
        one, other = (scenes.draw(np.random.default_rng(seed), 8, 32) for _ in range(2))
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(one, scenes.draw(np.random.default_rng(99), 8, 32))


def test_photographs_move_smoothly(scenes: Scenes) -> None:
    """Frames that are neighbours resemble each other more than frames far apart."""
    near, far = [], []
    for seed in range(30):
        video = scenes.draw(
            np.random.default_rng(seed), 12, 32
        )  # longer than the clip: photographs only
        near.append(np.abs(np.diff(video, axis=0)).mean())
        far.append(np.abs(video[-1] - video[0]).mean())
    assert 0 < np.mean(near) < 0.5 * np.mean(far)


def test_masks_are_transmissions_of_several_kinds() -> None:
    drawn = [draw_masks(np.random.default_rng(seed), 4, 32) for seed in range(30)]
    assert all(
        masks.shape == (4, 32, 32) and masks.min() >= 0 and masks.max() <= 1 for masks in drawn
    )
    binary = [np.isin(masks, (0, 1)).all() for masks in drawn]
    moving = [
        any(np.array_equal(masks[0][:, n:], masks[1][:, :-n]) for n in (1, 2)) for masks in drawn
    ]
    assert 0 < sum(binary) < 30
    assert 0 < sum(moving) < 30


def test_disturb_masks_changes_them_a_little() -> None:
    masks = draw_masks(np.random.default_rng(0), 6, 48)
    for seed in range(20):
        disturbed = disturb_masks(np.random.default_rng(seed), masks)
        assert disturbed.shape == masks.shape
        assert disturbed.dtype == np.float32
        assert disturbed.min() >= 0
        assert 0 < np.abs(disturbed - masks).mean() < 0.35  # of unrelated masks 0.5
        np.testing.assert_array_equal(disturbed, disturb_masks(np.random.default_rng(seed), masks))


def test_drawn_measurements_are_whole_numbers_of_a_sensor() -> None:
    y = np.linspace(0, 5, 64 * 64, dtype=np.float32).reshape(64, 64)
    drawn = [sensed(np.random.default_rng(seed), y) for seed in range(20)]
    assert {len(np.unique(each)) < 300 for each in drawn} == {True, False}  # 8 bits, and more
    for each in drawn:
        assert abs(float((each - y).mean())) < 0.02
        assert 1e-3 < float((each - y).std()) < 0.3
