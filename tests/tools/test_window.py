"""Content and timing of the window; tests/e2e/test_window.py opens it on a virtual screen."""

from __future__ import annotations

import contextlib
import re

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.errors import EnvironmentFault
from sci_stream.tools.window import FrameClock, compose, require_screen


def test_window_without_screen_error_names_the_page() -> None:
    with pytest.raises(EnvironmentFault, match="live page"):
        require_screen({"DISPLAY": ""})
    require_screen({"DISPLAY": ":0"})
    require_screen({"WAYLAND_DISPLAY": "wayland-0"})


@pytest.mark.parametrize("installed", ["QT5", "GTK3", "COCOA", "NONE"])
def test_headless_opencv_error_names_the_other_build(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As opencv-python and opencv-python-headless 5.0.0 describe themselves.
    own = cv2.getBuildInformation()
    described, n = re.subn(r"(?m)^(  GUI: +)\w+", rf"\g<1>{installed}", own)
    assert n == 1, own
    monkeypatch.setattr(cv2, "getBuildInformation", lambda: described)
    expected = pytest.raises(
        EnvironmentFault, match=r"live page.*pip install --force-reinstall --no-deps opencv-python"
    )
    with expected if installed == "NONE" else contextlib.nullcontext():
        require_screen({"DISPLAY": ":0"})


def test_frames_fill_the_time_until_the_next_snapshot() -> None:
    clock = FrameClock()
    for n in range(10):
        clock.arrived(8, 0.4 * n)
    assert [clock.index(3.6 + 0.05 * k + 0.01) for k in range(8)] == list(range(8))
    assert clock.index(100.0) == 7, "the last stays when nothing comes"


@given(times=st.lists(st.floats(0, 30), min_size=1, max_size=20), n=st.integers(1, 32), later=st.floats(0, 60))
def test_index_is_always_a_frame(times: list[float], n: int, later: float) -> None:
    clock = FrameClock()
    assert clock.index(0.0) <= 0
    for now_s in sorted(times):
        clock.arrived(n, now_s)
    assert 0 <= clock.index(max(times) + later) < n


def test_pause_and_step_stay_within_the_snapshot() -> None:
    clock = FrameClock()
    clock.arrived(3, 0.0)
    clock.toggle_pause(0.0)
    assert (clock.paused_at, clock.index(50.0)) == (0, 0)
    clock.step(5, 50.0)
    assert clock.index(51.0) == 2
    clock.step(-9, 51.0)
    assert clock.index(52.0) == 0
    clock.toggle_pause(52.0)
    assert clock.index(52.0) == 2


def test_frame_and_coded_snapshot_are_side_by_side() -> None:
    frame = np.zeros((256, 128, 3), np.uint8)
    frame[..., 0] = 255
    coded = np.full((256, 128), 77, np.uint8)
    image = compose(frame, coded, "words")
    assert image.shape == (512 + 30, 2 * 256, 3)
    assert image[10, 10].tolist() == [0, 0, 255], "BGR"
    assert image[10, 300].tolist() == [77, 77, 77]
    assert image[512:].max() > 150
    assert compose(frame, None, "words").shape == (542, 256, 3)


def test_alarm_covers_the_picture() -> None:
    frame = np.full((256, 256), 240, np.uint8)
    calm, alarmed = compose(frame, None, "x"), compose(frame, None, "x", "NO DATA")
    assert alarmed[:512].mean() < calm[:512].mean() / 2
    assert (alarmed[:512, :, 2].astype(int) - alarmed[:512, :, 0]).max() > 150, "in red"
