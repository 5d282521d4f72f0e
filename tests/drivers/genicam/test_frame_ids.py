"""Frame ids: numbering, and detection of restarts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.model import FrameIds
from sci_stream_drivers.genicam.frame_ids import CameraClock, RestartDetector, frame_ids_of

GIGE = FrameIds(1, 65535)


class NoFeatures:
    """A node map without any feature."""

    def get_node(self, name: str) -> object:
        raise AttributeError(name)


@pytest.mark.parametrize(
    ("transport", "last", "expected"),
    [
        ("GEV", None, GIGE),
        ("U3V", None, FrameIds(0, None)),
        ("CXP", None, FrameIds(0, None)),
        ("CXP", 255, FrameIds(1, 255)),
    ],
)
def test_frame_ids_follow_the_transport_unless_set(
    transport: str, last: int | None, expected: FrameIds
) -> None:
    pytest.importorskip("genicam", reason="genicam is not installed: pip install '.[genicam]'")
    assert frame_ids_of(transport, NoFeatures(), last) == expected


def restarts(ids: FrameIds, frames: list[tuple[int | None, int | None]]) -> list[bool]:
    watch = RestartDetector(ids)
    return [watch.restarted(*frame) for frame in frames]


@given(st.integers(1, 65535), st.lists(st.integers(0, 300), min_size=1, max_size=50))
def test_gaps_wraps_and_repeats_are_not_restarts(start: int, steps: list[int]) -> None:
    ids, at = [start], start - 1
    for step in steps:
        at = (at + step) % 65535
        ids.append(at + 1)
    assert not any(restarts(GIGE, [(each, None) for each in ids]))


@given(st.integers(2, 2**63), st.integers(1, 1000))
def test_decreasing_id_is_a_restart(before: int, after: int) -> None:
    after = min(after, before - 1)
    assert restarts(FrameIds(1, None), [(before, None), (after, None), (after + 1, None)]) == [
        False,
        True,
        False,
    ]


def test_decreasing_timestamp_distinguishes_restart_from_wrap() -> None:
    assert restarts(GIGE, [(60000, 10_000), (1, 12_000)]) == [False, False]
    assert restarts(GIGE, [(60000, 10_000), (1, 200)]) == [False, True]


def test_camera_without_ids_or_stamps_never_restarts() -> None:
    assert not any(restarts(FrameIds(), [(None, None)] * 3))


def test_timestamp_that_goes_back_alone_is_no_restart() -> None:
    assert restarts(GIGE, [(1, 10_000), (2, 200)]) == [False, False]


@pytest.mark.parametrize("ticks_per_s", [1_000_000, 125_000_000])
def test_clock_of_32_bits_goes_on_when_it_wraps(ticks_per_s: int) -> None:
    clock, host_ns, ticks = CameraClock(), 1_700_000_000_000_000_000, 2**32 - 3 * ticks_per_s
    times = []
    for _ in range(7):
        times.append(clock.unwrapped(ticks % 2**32 * 1_000_000_000 // ticks_per_s, host_ns))
        ticks, host_ns = ticks + ticks_per_s, host_ns + 1_000_020_000
    assert [b - a for a, b in pairwise(times)] == pytest.approx([1e9] * 6, abs=2)


def test_clock_that_is_set_back_is_passed_on() -> None:
    clock = CameraClock()
    assert clock.unwrapped(900_000_000_000, 0) == 900_000_000_000
    assert clock.unwrapped(100_000_000_000, 1_000_000_000) == 100_000_000_000
