"""The hub of the live page: viewers, their messages, and the state without viewers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sci_stream.web.archive import CODED_EVERY_NS, PictureArchive
from sci_stream.web.hub import HEARTBEAT_S, Hub, Viewer
from sci_stream.web.message import H264, JPEG, Picture


def picture(number: int, published_ns: int | None = None) -> Picture:
    header = {
        "number": number,
        "series": "run-1",
        "seq": number,
        "published_ns": published_ns or 10**9 * number,
    }
    return Picture(header, "jpeg", (b"frame",), b"coded")


class Clock:
    """A monotonic clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr("sci_stream.web.hub.time.monotonic", lambda: self.now_s)


MakeHub = Callable[..., Hub]


@pytest.fixture
def joined() -> list[Viewer]:
    return []


@pytest.fixture
def make_hub(joined: list[Viewer]) -> MakeHub:
    def make(**options: Any) -> Hub:
        return Hub(
            **{
                "archive": PictureArchive(1 << 20),
                "max_viewers": 2,
                "stale_s": 3.0,
                "offers_h264": True,
                "on_join": joined.append,
                "counters": lambda: {"encoded": 7},
                **options,
            }
        )

    return make


@pytest.fixture
def hub(make_hub: MakeHub) -> Hub:
    return make_hub()


def test_viewers_join_up_to_the_limit_and_leave_room(hub: Hub, joined: list[Viewer]) -> None:
    one, two = hub.join(), hub.join()
    assert joined == [one, two]
    assert hub.join() is None
    assert one is not None
    hub.leave(one)
    hub.leave(one)
    assert hub.join() is not None


def test_no_viewer_joins_a_closing_hub(hub: Hub) -> None:
    hub.closing = True
    assert hub.join() is None


@pytest.mark.parametrize(
    ("asked", "offered", "codec"),
    [(H264, True, H264), (H264, False, JPEG), ("vp9", True, JPEG), (JPEG, True, JPEG)],
)
def test_viewer_gets_a_codec_that_both_sides_know(
    make_hub: MakeHub, asked: str, offered: bool, codec: str
) -> None:
    hub = make_hub(offers_h264=offered)
    viewer = hub.join(asked)
    assert viewer is not None
    assert viewer.codec == codec
    assert hub.wants(codec)


def test_picture_for_viewer_falls_back_to_jpeg(hub: Hub) -> None:
    viewer = hub.join(H264)
    assert viewer is not None
    assert hub.picture_for(viewer) is None
    jpeg, h264 = picture(1), picture(1)
    hub.show({JPEG: jpeg})
    assert hub.picture_for(viewer) is jpeg
    hub.show({JPEG: jpeg, H264: h264})
    assert hub.picture_for(viewer) is h264


def test_picture_is_not_kept_without_viewers(hub: Hub) -> None:
    hub.show({JPEG: picture(1)})
    assert hub.latest == {}
    viewer = hub.join()
    assert viewer is not None
    hub.show({JPEG: picture(2)})
    assert hub.latest[JPEG].number == 2
    hub.leave(viewer)
    assert hub.latest == {}


def test_interval_follows_the_pace_of_snapshots_only(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    hub.join()
    hub.show({JPEG: picture(1)})
    assert hub.interval_s == HEARTBEAT_S, "one picture has no pace"
    for number in range(2, 40):
        clock.now_s += 0.1
        hub.show({JPEG: picture(number)})
    assert hub.interval_s == pytest.approx(0.1, abs=0.001)
    clock.now_s += 5.0
    hub.show({JPEG: picture(40, published_ns=39 * 10**9)})
    assert hub.interval_s == pytest.approx(0.1, abs=0.001), "the same snapshot in another tone"
    clock.now_s += 1000.0
    hub.show({JPEG: picture(41)})
    assert hub.interval_s < 4.0, "an outage counts as ten seconds"


def test_viewer_is_ready_while_two_pictures_are_on_their_way(hub: Hub) -> None:
    viewer = hub.join()
    assert viewer is not None
    viewer.take(picture(1))
    assert viewer.ready
    viewer.take(picture(2))
    assert not viewer.ready
    viewer.acknowledge(0)
    assert not viewer.ready, "the acknowledgement of an earlier picture"
    viewer.wake.clear()
    viewer.acknowledge(2)
    assert viewer.ready
    assert viewer.wake.is_set()


def test_coded_snapshot_comes_with_jpeg_and_sometimes_with_h264(hub: Hub) -> None:
    jpeg, h264 = hub.join(JPEG), hub.join(H264)
    assert jpeg is not None
    assert h264 is not None
    start_ns, step_ns = 10**18, CODED_EVERY_NS // 4
    shown = [picture(n, start_ns + n * step_ns) for n in range(9)]
    assert all(jpeg.take(each) == each.message for each in shown)
    assert [h264.take(each) == each.message for each in shown] == [n % 4 == 0 for n in range(9)]


def test_history_takes_its_memory_once_though_sent(hub: Hub) -> None:
    viewer = Viewer(H264)
    tracemalloc.start()
    for number in range(1, 9):
        shown = replace(picture(number), frames=(bytes(100_000),))
        hub.archive.add(shown)
        assert len(viewer.take(shown)) > 100_000
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 1.1 * hub.archive.n_bytes


def test_wake_all_wakes_every_viewer(hub: Hub) -> None:
    viewers = [hub.join(), hub.join()]
    for viewer in viewers:
        assert viewer is not None
        viewer.wake.clear()
    hub.wake_all()
    assert all(viewer is not None and viewer.wake.is_set() for viewer in viewers)


def test_report_is_json_with_the_counts_of_the_page(hub: Hub) -> None:
    hub.join()
    hub.status = {"state": "running", "recording": {"file": Path("/data/run-1.h5")}}
    report = hub.report()
    assert report["state"] == "running"
    assert report["recording"] == {"file": "/data/run-1.h5"}
    preview = report["preview"]
    assert (preview["viewers"], preview["max_viewers"], preview["stale_s"], preview["encoded"]) == (
        1,
        2,
        3.0,
        7,
    )


@pytest.mark.parametrize(
    ("recording", "name"),
    [
        (None, ""),
        ({"enabled": False}, ""),
        ({"state": "recording", "file": "/data/run-1.h5"}, "run-1.h5"),
        ({"state": "closing", "file": "/data/run-1.h5"}, "run-1.h5"),
        ({"state": "off", "file": "/data/run-1.h5"}, ""),
    ],
)
def test_open_recording_is_the_file_that_is_being_written(
    hub: Hub, recording: object, name: str
) -> None:
    hub.status = {"recording": recording}
    assert hub.open_recording == name
