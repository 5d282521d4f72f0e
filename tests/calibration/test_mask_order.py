from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from sci_stream.calibration.mask_order import MaskOrderDetector, thumbnails

B = 6


def film(snapshots: int, speed: float = 0.5) -> npt.NDArray[np.float32]:
    """Return (snapshots, B, h, w): a blob at constant velocity, with reconstruction noise."""
    random = np.random.default_rng(1)
    rows, columns = np.mgrid[:16, :64]
    times = np.arange(snapshots * B) * speed
    frames = np.stack(
        [np.exp(-(((columns - 8 - t) / 5) ** 2) - ((rows - 8) / 5) ** 2) for t in times]
    )
    frames += 0.01 * random.standard_normal(frames.shape)
    return frames.reshape(snapshots, B, 16, 64).astype(np.float32)


def verdict(order: npt.NDArray[np.intp], speed: float = 0.5) -> tuple[str, int]:
    """Return the order that is detected when calibrated mask b is shown as number ``order[b]``."""
    watch = MaskOrderDetector(B)
    videos = film(9, speed)[:, order]
    for before, after in pairwise(videos):
        watch.add(before, after)
    return watch.order


def test_forward_order_is_recognised() -> None:
    assert verdict(np.arange(B)) == ("forward", 0)


def test_reversed_order_is_recognised() -> None:
    assert verdict(np.arange(B)[::-1]) == ("reversed", B - 1)


@pytest.mark.parametrize("late", range(1, B))
def test_rotated_order_is_recognised(late: int) -> None:
    shown_as = (np.arange(B) - late) % B
    assert verdict(shown_as) == ("rotated", late)


def test_order_of_a_static_scene_is_unknown() -> None:
    assert verdict(np.arange(B)[::-1], speed=0.0) == ("unknown", 0)


def test_errors_of_a_solve_show_no_order() -> None:
    """Frames of a still scene differ by errors, of which a warm start keeps a part."""
    random = np.random.default_rng(4)
    watch = MaskOrderDetector(B)
    before = 0.5 + 0.01 * random.standard_normal((B, 16, 64))
    for _ in range(9):
        after = 0.5 + 0.01 * random.standard_normal((B, 16, 64))
        after[-1] += 0.3 * (before[0] - 0.5)
        watch.add(before.astype(np.float32), after.astype(np.float32))
        before = after
    assert watch.order == ("unknown", 0)


def test_order_after_a_few_snapshots_is_unknown() -> None:
    watch = MaskOrderDetector(B)
    videos = film(3)
    watch.add(videos[0], videos[1])
    watch.add(videos[1], videos[2])
    assert watch.order == ("unknown", 0)


def test_first_mask_shows_in_each_pair() -> None:
    detector = MaskOrderDetector(B)
    seen = []
    for video in film(6)[:, (np.arange(B) - 2) % B]:
        detector.see(video.repeat(8, 1).repeat(8, 2), continues=True)
        seen.append(detector.first_mask)
    assert seen[1:] == [2] * 5


def test_lost_pulse_is_tested_by_cold_starts() -> None:
    """The warm starts after it hide the order: a path that is suddenly long is all that shows."""
    detector = MaskOrderDetector(B)
    videos = film(16)
    hidden = videos[8:12] + 0.3 * (np.roll(videos[8:12], 2, 1) - videos[8:12])
    doubts = []
    for video in [*videos[:8], *hidden]:
        detector.see(video.repeat(8, 1).repeat(8, 2), continues=True)
        doubts.append(detector.in_doubt)
    assert not any(doubts[:8])
    assert doubts[-1]
    for video in videos[12:][:, (np.arange(B) - 1) % B]:
        detector.see(video.repeat(8, 1).repeat(8, 2), continues=True)
    assert detector.first_mask == 1


@pytest.mark.parametrize("began_cold", [False, True])
def test_right_order_after_a_cold_start_is_not_doubted(began_cold: bool) -> None:
    """The scene slows, and noise makes paths long. A cold solve shows the order all the same."""
    detector = MaskOrderDetector(B)
    for video in film(8):
        detector.see(video.repeat(8, 1).repeat(8, 2), continues=True)
    doubts = []
    for n, video in enumerate(film(4, speed=0.15)):
        is_warm = n > 1 or not began_cold
        detector.see(video.repeat(8, 1).repeat(8, 2), continues=n > 0, is_warm=is_warm)
        doubts.append(detector.in_doubt)
    assert any(doubts) is not began_cold


def test_scene_that_comes_to_rest_raises_no_doubt() -> None:
    """Noise makes the path of a pair long that hardly moves."""
    detector = MaskOrderDetector(B)
    for video in [*film(8), *film(6, speed=0.1)]:
        detector.see(video.repeat(8, 1).repeat(8, 2), continues=True)
        assert not detector.in_doubt


def test_thumbnails_are_means_over_cells() -> None:
    video = np.arange(2 * 17 * 24, dtype=np.float16).reshape(2, 17, 24) / 1000
    small = thumbnails(video)
    assert small.shape == (2, 2, 3)
    assert small[1, 1, 2] == pytest.approx(
        video[1, 8:16, 16:24].astype(np.float32).mean(), rel=1e-4
    )
    assert thumbnails(video[:, :4, :4]).shape == (2, 1, 1)


def test_warm_starts_leave_an_order_that_cold_ones_showed() -> None:
    detector = MaskOrderDetector(B)
    videos = film(22)
    *_, is_doubted = (_see(detector, video) for video in videos[:8])
    assert not is_doubted
    hidden = videos[8:12] + 0.3 * (np.roll(videos[8:12], 2, 1) - videos[8:12])
    *_, is_doubted = (_see(detector, video) for video in hidden)
    assert is_doubted
    for video in videos[12:18][:, ::-1]:
        _see(detector, video, is_warm=False)
    assert detector.order == ("reversed", B - 1)
    for video in videos[18:22] + 0.3 * (np.roll(videos[18:22], 2, 1) - videos[18:22]):
        _see(detector, video)
    assert detector.order == ("reversed", B - 1)
    for video in videos[:8]:
        _see(detector, video)
    assert detector.order != ("reversed", B - 1)


def _see(
    detector: MaskOrderDetector, video: npt.NDArray[np.float32], *, is_warm: bool = True
) -> bool:
    detector.see(video.repeat(8, 1).repeat(8, 2), continues=True, is_warm=is_warm)
    return detector.in_doubt
