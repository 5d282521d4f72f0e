from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sci_stream.model import Array
from sci_stream_drivers.simulated.options import CLIPS, SCENES, SimulatedOptions
from sci_stream_drivers.simulated.scenes import Scene, make_scene


def scene(name: str, **options: Any) -> Scene:
    small = {"scene": name, "width_px": 96, "height_px": 64, "n_frames": 4}
    return make_scene(SimulatedOptions.model_validate({**small, **options}))


def image(of: Scene, t: float) -> Array:
    return of.render(t).copy()


def change(of: Scene, t: float, dt: float = 1.0) -> float:
    return float(np.abs(image(of, t + dt) - image(of, t)).mean())


@pytest.mark.parametrize("name", SCENES)
def test_image_is_linear_light_in_colour(name: str) -> None:
    rgb = image(scene(name), 13.5)
    assert rgb.shape == (64, 96, 3)
    assert rgb.dtype == np.float32
    assert rgb.min() >= 0
    assert rgb.max() <= 1
    assert np.ptp(rgb, axis=-1).mean() > 0.05


@pytest.mark.parametrize("name", SCENES)
def test_image_depends_on_time_and_seed_only(name: str) -> None:
    one, other = scene(name), scene(name)
    image(other, 99.0)
    np.testing.assert_array_equal(image(one, 7.25), image(other, 7.25))
    if name not in CLIPS:
        assert not np.array_equal(image(one, 7.25), image(scene(name, seed=1), 7.25))


# The room behind the splash is dark.
@pytest.mark.parametrize("name", [name for name in SCENES if name != "splash"])
def test_scene_has_texture_everywhere(name: str) -> None:
    grey = image(scene(name), 0.0).mean(axis=-1)
    blocks = grey.reshape(8, 8, 12, 8).std(axis=(1, 3))
    assert (blocks > 0.005).mean() > 0.9


def test_fast_moves_more_than_slow_and_static_not_at_all() -> None:
    fast, slow = change(scene("fast"), 5.0), change(scene("slow"), 5.0)
    assert fast > 2 * slow > 0
    assert change(scene("static"), 5.0, dt=1000.0) == 0


def test_motion_is_smooth_across_snapshots() -> None:
    of = scene("fast")
    steps = [change(of, t) for t in range(40)]
    assert max(steps) < 2.0 * np.median(steps)


def test_half_a_step_moves_less_than_a_whole_one() -> None:
    of = scene("fast")
    assert 0 < change(of, 5.0, dt=0.25) < change(of, 5.0, dt=1.0)


def test_speed_scales_time() -> None:
    np.testing.assert_allclose(
        image(scene("fast", speed=2.0), 6.0), image(scene("fast"), 12.0), atol=0.02
    )


@pytest.mark.parametrize(("width", "height"), [(16, 16), (16, 200), (200, 18)])
def test_scene_fills_any_sensor_shape(width: int, height: int) -> None:
    of = scene("fast", width_px=width, height_px=height)
    for t in (0.0, 50.0, 1e6):
        assert image(of, t).shape == (height, width, 3)
        assert np.isfinite(image(of, t)).all()
