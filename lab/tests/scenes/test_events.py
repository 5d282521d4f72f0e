"""Fast events, and the clips of them that the simulated camera plays."""

from __future__ import annotations

import numpy as np
import pytest

from sci_stream.model import Array
from sci_stream_drivers.simulated.options import CLIPS, SimulatedOptions
from sci_stream_drivers.simulated.scenes import make_scene
from sci_stream_lab.scenes.__main__ import CLIP_FRAMES, as_srgb
from sci_stream_lab.scenes.events import make_event

SIZE_PX = 512
# The film loses colour between neighbours. Another picture of a clip has at most 30 dB.
LEAST_DB = 33.0


def psnr_db(one: Array, other: Array) -> float:
    error = np.mean(np.square(one.astype(float) - other.astype(float)))
    return float(10 * np.log10(255**2 / error))


def test_splash_rises_and_comes_to_rest_again() -> None:
    splash = make_event("splash", (64, 96), 1.0, seed=0)
    resting = splash.render(190.0).copy()
    assert np.abs(splash.render(60.0) - resting).max() > 0.3
    np.testing.assert_array_equal(splash.render(390.0), resting)


@pytest.mark.parametrize("name", CLIPS)
def test_event_is_linear_light_at_any_size(name: str) -> None:
    rgb = make_event(name, (64, 96), 1.0, seed=0).render(13.5)
    assert rgb.shape == (64, 96, 3)
    assert rgb.dtype == np.float32
    assert 0 <= rgb.min() < rgb.max() <= 1


@pytest.mark.parametrize("name", CLIPS)
def test_clip_shows_the_event_at_each_time(name: str) -> None:
    event = make_event(name, (SIZE_PX, SIZE_PX), 1.0, seed=0)
    options = SimulatedOptions(scene=name, width_px=SIZE_PX, height_px=SIZE_PX)
    clip = make_scene(options)
    for time in (0, CLIP_FRAMES[name] // 3, CLIP_FRAMES[name] - 1):
        assert psnr_db(as_srgb(clip.render(time)), as_srgb(event.render(time))) > LEAST_DB


@pytest.mark.parametrize("name", CLIPS)
def test_clip_has_whole_snapshots_of_eight_frames(name: str) -> None:
    small = make_scene(SimulatedOptions(scene=name, width_px=32, height_px=32))
    assert CLIP_FRAMES[name] % 8 == 0
    first = small.render(0.0).copy()
    np.testing.assert_array_equal(small.render(float(CLIP_FRAMES[name])), first)
