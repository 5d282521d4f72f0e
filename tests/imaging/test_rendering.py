"""Rendered images have the colours and brightness of the scene."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.imaging.rendering import encode_jpeg, render, render_counts, shrink
from sci_stream.imaging.tone import (
    FalseColour,
    ToneSettings,
    WhiteBalance,
    grey_world_gains,
    palette,
)
from sci_stream.model import BayerPhase
from tests.imaging.mosaics import mosaic_of

LINEAR = ToneSettings(gamma=1.0)


@pytest.mark.parametrize("phase", BayerPhase)
@pytest.mark.parametrize(
    "colour", [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.9, 0.5, 0.1)]
)
def test_uniform_colour_is_unchanged(phase: BayerPhase, colour: tuple[float, float, float]) -> None:
    scene = np.broadcast_to(np.array(colour, np.float32), (2, 16, 20, 3))
    shown = render(mosaic_of(scene, phase), phase, LINEAR)
    assert shown.shape == (2, 16, 20, 3)
    assert shown.dtype == np.uint8
    assert np.abs(shown[:, 2:-2, 2:-2] - np.array(colour) * 255).max() <= 1


@pytest.mark.parametrize("phase", BayerPhase)
def test_smooth_scene_keeps_colours_and_position(phase: BayerPhase) -> None:
    y, x = np.mgrid[0:32, 0:40]
    scene = np.stack([x / 40, y / 32, 1 - x / 40], axis=-1)[None].astype(np.float32)
    shown = render(mosaic_of(scene, phase), phase, LINEAR)
    assert np.abs(shown[:, 2:-2, 2:-2] - scene[:, 2:-2, 2:-2] * 255).max() <= 3


@pytest.mark.parametrize("name", [name for name in FalseColour if name is not FalseColour.NONE])
def test_false_colour_applies_to_mono_in_order_of_levels(name: FalseColour) -> None:
    video = np.linspace(0, 1, 256, dtype=np.float32).reshape(1, 16, 16)
    shown = render(video, None, ToneSettings(gamma=1.0, false_colour=name))
    assert shown.shape == (1, 16, 16, 3)
    assert np.array_equal(shown.reshape(256, 3), palette(name))
    assert len(np.unique(palette(name), axis=0)) > 200
    assert render(video, BayerPhase.RGGB, ToneSettings(false_colour=name)).std(axis=-1).max() < 40


def test_mono_video_is_unchanged() -> None:
    video = np.linspace(0, 1, 2 * 4 * 8, dtype=np.float16).reshape(2, 4, 8)
    shown = render(video, None, LINEAR)
    assert shown.shape == (2, 4, 8)
    assert np.abs(shown - video.astype(np.float32) * 255).max() <= 1


@given(
    ev=st.floats(-3, 3),
    black=st.floats(0, 0.5),
    gamma=st.floats(0.5, 3),
    value=st.floats(-1, 2, width=32) | st.just(float("nan")),
)
def test_tone_is_black_level_exposure_clip_and_gamma(
    ev: float, black: float, gamma: float, value: float
) -> None:
    video = np.full((1, 2, 2), value, np.float32)
    shown = int(
        render(video, None, ToneSettings(exposure_ev=ev, black=black, gamma=gamma))[0, 0, 0]
    )
    lit = ((0.0 if np.isnan(value) else value) - black) / (1 - black) * 2.0**ev
    light = min(max(lit, 0.0), 1.0)
    light = (
        round(light * 65535) / 65535
    )  # the table's resolution, which a steep curve shows near black
    assert abs(shown - 255 * light ** (1 / gamma)) <= 1.5 + (40 if light < 1e-4 else 0)
    assert np.array_equal(video, np.full((1, 2, 2), value, np.float32), equal_nan=True)


@pytest.mark.parametrize("phase", BayerPhase)
def test_grey_world_makes_a_tinted_grey_scene_grey(phase: BayerPhase) -> None:
    tint = np.array([0.8, 0.4, 0.2], np.float32)
    scene = (
        np.random.default_rng(0).random((1, 16, 16, 1), dtype=np.float32).repeat(16, 1)[:, :16]
        * 0.0
        + 0.9 * tint
    )
    mosaic = mosaic_of(np.broadcast_to(scene, (1, 16, 16, 3)), phase)
    assert grey_world_gains(mosaic, phase) == pytest.approx((0.5, 1.0, 2.0), rel=1e-5)
    shown = render(mosaic, phase, ToneSettings(gamma=1.0, white_balance=WhiteBalance.GREY_WORLD))[
        0, 4:-4, 4:-4
    ].astype(int)
    assert np.ptp(shown, axis=-1).max() <= 1


def test_grey_world_keeps_a_black_scene() -> None:
    assert grey_world_gains(np.zeros((1, 4, 4)), BayerPhase.RGGB) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_coded_snapshot_fills_the_range_of_the_screen(dtype) -> None:
    counts = (np.random.default_rng(0).random((64, 64)) * 100 + 64).astype(dtype)
    shown = render_counts(counts)
    assert shown.dtype == np.uint8
    assert shown.min() < 10
    assert shown.max() > 245
    assert render_counts(np.full((8, 8), 64, dtype)).max() == 0


def test_snapshot_of_floats_with_bad_pixels_is_rendered() -> None:
    counts = np.linspace(0, 1, 400, dtype=np.float32).reshape(20, 20)
    counts[3, 3] = np.nan
    shown = render_counts(counts)
    assert shown[3, 3] == 0
    assert shown.max() > 245


@pytest.mark.parametrize("phase", BayerPhase)
def test_different_green_planes_show_no_mesh(phase: BayerPhase) -> None:
    rgb = np.full((1, 16, 16, 3), 0.4, np.float32)
    rgb[:, ::2, :, 1] += 0.05
    rgb[:, 1::2, :, 1] -= 0.05
    shown = render(mosaic_of(rgb, phase), phase, LINEAR)[0, 2:-2, 2:-2].astype(int)
    assert np.ptp(shown, axis=(0, 1)).max() <= 1
    assert abs(shown - round(0.4 * 255)).max() <= 2


def test_shrink_reduces_large_images_only() -> None:
    image = np.zeros((100, 400, 3), np.uint8)
    assert shrink(image, 200).shape == (50, 200, 3)
    assert shrink(image, 400) is image


def test_jpeg_keeps_the_channel_order() -> None:
    image = np.zeros((16, 16, 3), np.uint8)
    image[..., 0] = 255
    decoded = cv2.imdecode(np.frombuffer(encode_jpeg(image, 95), np.uint8), cv2.IMREAD_COLOR)
    blue, _, red = decoded[8, 8]
    assert red > 240
    assert blue < 20
