"""Frame ids: numbering, and detection of restarts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sci_stream_drivers.harvesters.frame_ids import RestartDetector, frame_ids_of

from sci_stream.model import FrameIds

pytestmark = pytest.mark.rig

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
def test_frame_ids_follow_the_transport_unless_set(transport: str, last: int | None, expected: FrameIds) -> None:
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
    assert restarts(FrameIds(1, None), [(before, None), (after, None), (after + 1, None)]) == [False, True, False]


def test_decreasing_timestamp_distinguishes_restart_from_wrap() -> None:
    assert restarts(GIGE, [(60000, 10_000), (1, 12_000)]) == [False, False]
    assert restarts(GIGE, [(60000, 10_000), (1, 200)]) == [False, True]


def test_camera_without_ids_or_stamps_never_restarts() -> None:
    assert not any(restarts(FrameIds(), [(None, None)] * 3))
