"""Motion estimation: known motion is found, and none in a static scene."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from hypothesis import given, settings
from hypothesis import strategies as st

from sci_stream.recon.initialization.optical_flow import (
    Trajectory,
    box_mean,
    gradient,
    solve_2x2,
    velocity,
)

PX_PER_FRAME = st.floats(-1.5, 1.5)


def texture(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return a smooth pattern without a period that could be mistaken, at any real position."""
    waves = (
        (0.31, 0.12, 0.0),
        (-0.14, 0.27, 1.0),
        (0.07, -0.22, 2.0),
        (0.19, 0.05, 4.0),
        (-0.05, 0.09, 5.0),
    )
    return 0.5 + 0.09 * sum(torch.sin(a * rows + b * columns + c) for a, b, c in waves)


def moving(
    dy: float, dx: float, n_frames: int = 8, height: int = 64, width: int = 72
) -> torch.Tensor:
    """Return (B, H, W) of the texture moving by (dy, dx) pixels a frame."""
    rows, columns = torch.meshgrid(
        torch.arange(float(height)), torch.arange(float(width)), indexing="ij"
    )
    return torch.stack([texture(rows - b * dy, columns - b * dx) for b in range(n_frames)])


@pytest.mark.parametrize("radius", [1, 3, 8])
@pytest.mark.parametrize("shape", [(2, 31, 40), (1, 7, 64), (3, 1, 9), (2, 150, 193)])
def test_box_mean_equals_average_pooling_twice(radius: int, shape: tuple[int, int, int]) -> None:
    images = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    expected = images.unsqueeze(1)
    _, height, width = shape
    for _ in range(2):
        padded = F.pad(torch.cat((expected, torch.ones_like(expected)), 1), (radius,) * 4)
        total, count = F.avg_pool2d(padded, 2 * radius + 1, stride=1, divisor_override=1).unbind(1)
        expected = (total / count).unsqueeze(1)
    assert expected.shape[-2:] == (height, width)
    torch.testing.assert_close(box_mean(images, radius), expected.squeeze(1))


def test_sampling_interpolates_and_clamps() -> None:
    image = torch.arange(12.0).view(1, 1, 3, 4)
    back = torch.tensor([[-1.0, -1.0, -0.5, 4.0], [-2.0, -1.5, 2.0, -6.0]]).unsqueeze(1)
    here = torch.tensor([[6.0, 6.5, 2.0, 3.0]])
    warped = Trajectory.of(back, image.shape[-2:]).carry(image, torch.ones(1))
    torch.testing.assert_close(warped, here.view(1, 1, 1, 4))
    part = Trajectory.of(back[:, :, :2], image.shape[-2:])
    one, other = part.carry(image.expand(2, -1, -1, -1), torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(one, here[:, :2].unsqueeze(0))
    torch.testing.assert_close(other, image[0, :, :1, :2])


def test_warp_to_many_times_equals_single_warps() -> None:
    image = torch.rand(1, 3, 11, 8, generator=torch.Generator().manual_seed(1))
    flow = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(2))
    times = torch.tensor([0.0, 1.5, -2.0])
    course = Trajectory.of(flow, image.shape[-2:], stride=2)
    for cubic in (False, True):
        at_once = course.carry(image, times, cubic=cubic)
        each = torch.cat([course.carry(image, time.view(1), cubic=cubic) for time in times])
        torch.testing.assert_close(at_once, each)
    torch.testing.assert_close(at_once[0], image[0, :, ::2, ::2])


def test_gradient_of_plane_is_its_slopes() -> None:
    rows, columns = torch.meshgrid(torch.arange(6.0), torch.arange(7.0), indexing="ij")
    down, right = gradient((3 * rows - 2 * columns).unsqueeze(0))
    torch.testing.assert_close(down[:, 1:-1, 1:-1], torch.full((1, 4, 5), 3.0))
    torch.testing.assert_close(right[:, 1:-1, 1:-1], torch.full((1, 4, 5), -2.0))


@given(rows=st.floats(-2, 2), columns=st.floats(-2, 2))
def test_normal_equations_recover_the_step(rows: float, columns: float) -> None:
    a, b = torch.randn(2, 12, 12, generator=torch.Generator().manual_seed(2))
    error = rows * a + columns * b
    derivatives = torch.stack((a, b, -error))
    step = solve_2x2(derivatives[:2].unsqueeze(1) * derivatives, 1e-6, 2)
    torch.testing.assert_close(
        step, torch.tensor([rows, columns]).view(2, 1, 1).expand(2, 12, 12), atol=1e-3, rtol=0
    )


@settings(max_examples=6)
@given(dy=PX_PER_FRAME, dx=PX_PER_FRAME)
def test_steady_motion_is_found(dy: float, dx: float) -> None:
    found = velocity(moving(dy, dx), finest=1, rounds=3) - torch.tensor([dy, dx]).view(2, 1, 1)
    inside = found[:, 14:-14, 14:-14]
    assert float(inside.abs().median()) < 0.06
    assert float(inside.abs().max()) < 0.5


def test_motion_is_found_in_noise() -> None:
    noise = 0.05 * torch.randn(8, 64, 72, generator=torch.Generator().manual_seed(3))
    found = velocity(moving(0.8, -0.5) + noise, finest=1, rounds=3)[:, 14:-14, 14:-14]
    torch.testing.assert_close(
        found.flatten(1).median(1).values, torch.tensor([0.8, -0.5]), atol=0.1, rtol=0
    )


@pytest.mark.parametrize(("dy", "dx"), [(8.0, 0.0), (4.0, -6.0)])
def test_small_fast_object_is_found(dy: float, dx: float) -> None:
    rows, columns = torch.meshgrid(torch.arange(96.0), torch.arange(96.0), indexing="ij")
    last = torch.tensor([64.0, 40.0])
    away = [
        torch.hypot(rows - last[0] + dy * age, columns - last[1] + dx * age)
        for age in range(7, -1, -1)
    ]
    video = 0.1 + 0.6 * torch.stack([torch.sigmoid(7 - distance) for distance in away])
    found = velocity(video, finest=2, rounds=2)[:, away[-1] < 6]
    torch.testing.assert_close(found.mean(1), torch.tensor([dy, dx]), atol=0.8, rtol=0)


def test_two_opposite_motions_are_found() -> None:
    video = torch.cat(
        (moving(0.0, 0.8, width=64)[..., :64], moving(0.0, -0.8, width=64)[..., :64]), dim=-1
    )
    found = velocity(video, finest=1, rounds=3)[1, 14:-14]
    assert float(found[:, 14:48].median()) == pytest.approx(0.8, abs=0.1)
    assert float(found[:, 80:114].median()) == pytest.approx(-0.8, abs=0.1)


@pytest.mark.parametrize(
    "video", [moving(0, 0), torch.full((8, 32, 32), 0.3), torch.zeros(4, 9, 50)]
)
def test_static_scene_has_no_velocity(video: torch.Tensor) -> None:
    assert float(velocity(video, finest=1, rounds=3).abs().max()) < 1e-3


@pytest.mark.parametrize("shape", [(1, 20, 24), (2, 3, 5), (3, 31, 17), (5, 12, 200), (2, 1, 1)])
def test_any_size_works(shape: tuple[int, int, int]) -> None:
    found = velocity(
        torch.rand(shape, generator=torch.Generator().manual_seed(4)), finest=1, rounds=3
    )
    assert found.shape == (2, *shape[1:])
    assert bool(found.isfinite().all())
