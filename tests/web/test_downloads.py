"""Requests of the live page: kept pictures, pixel values, stills, clips and recordings."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import cv2
import numpy as np
import pytest
from websockets.sync.client import ClientConnection, connect

from sci_stream.config import PreviewSection
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import SnapshotId
from sci_stream.web import h264
from sci_stream.web.archive import PictureArchive
from sci_stream.web.display import Display
from sci_stream.web.message import JPEG, Picture, merge_patch
from sci_stream.web.preview import WebPreview
from sci_stream.wire.codec import payload_bytes
from tests import plain_http
from tests.page_messages import split_message

WAIT_S = 60.0
INTERVAL_NS = 200_000_000


@pytest.fixture
def preview(tmp_path: Path) -> Iterator[WebPreview]:
    preview = WebPreview(PreviewSection(port=0), tmp_path)
    yield preview
    preview.close()


@pytest.fixture(scope="module")
def url_after_one_snapshot(tmp_path_factory: pytest.TempPathFactory, series) -> Iterator[str]:
    """Return the address of a page that has shown a snapshot."""
    preview = WebPreview(PreviewSection(port=0), tmp_path_factory.mktemp("recordings"))
    url = preview.start()
    with watch(url, "jpeg") as viewer:
        show(preview, viewer, series, 0)
    yield url
    preview.close()


def watch(url: str, codec: str) -> ClientConnection:
    return connect(
        f"ws://{urlsplit(url).netloc}/live?codec={codec}", max_size=None, open_timeout=WAIT_S
    )


def show(
    preview: WebPreview, viewer: ClientConnection, series, seq: int
) -> tuple[dict, list[bytes]]:
    """Publish a snapshot of a series at five snapshots a second and return the viewer's message."""
    made = series.reconstruction(seq)
    times = replace(made.times, acquired_ns=1_000_000_000_000 + seq * INTERVAL_NS)
    preview.publish(replace(made, id=SnapshotId("run-1", 0, seq), times=times))
    deadline = time.monotonic() + WAIT_S
    while True:
        message = viewer.recv(max(0.0, deadline - time.monotonic()))
        if isinstance(message, bytes):
            header, parts = split_message(message)
            viewer.send(json.dumps({"ack": header["number"]}))
            return header, parts


def test_values_are_those_of_the_snapshot_not_of_the_screen(preview: WebPreview, series) -> None:
    url = preview.start()
    with watch(url, "jpeg") as viewer:
        for seq in range(3):
            show(preview, viewer, series, seq)
    shown = preview.display.find_shown("run-1", 1)
    region = {"x": 5, "y": 2, "width": 4, "height": 3, "pixels": 1}
    answer = plain_http.get(
        f"{url}values", params={"series": "run-1", "seq": 1, "frame": 2, **region}
    ).json()
    assert np.allclose(answer["pixels"]["video"], shown.video[2, 2:5, 5:9].astype(float), atol=1e-5)
    assert answer["pixels"]["counts"] == shown.counts[2:5, 5:9].tolist()
    assert answer["counts"]["max"] == shown.counts[2:5, 5:9].max()
    whole = plain_http.get(f"{url}values", params={"series": "run-1", "seq": 1, "frame": 0}).json()
    assert np.isclose(whole["video"]["mean"], shown.video[0].astype(float).mean(), rtol=1e-4)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("values?series=run-1&seq=99", "no longer in memory"),
        ("values?series=run-1&seq=0&frame=9", "no such frame"),
        ("values?series=run-1&seq=0&x=999&y=0&width=2&height=2", "outside the picture"),
        ("values?series=run-1&seq=0&x=-2&y=-2&width=1&height=1&pixels=1", "outside the picture"),
        ("values?series=run-1&seq=0&x=0&y=0&width=0&height=2", "width is wrong; expected > 0"),
        ("values?series=run-1&seq=0&width=500&height=500&pixels=1", "Too many pixel values"),
        ("values?series=run-1&seq=none", "expected an integer"),
        ("picture/77", "no longer kept"),
        (f"picture/{'9' * 5000}", "number is wrong"),
        ("picture/one", "number is wrong"),
        ("download/clip?seconds=-1", "seconds is wrong"),
        ("recordings/none.h5", "There is no recording"),
        ("recordings/..%2Fsecret.h5", ""),
    ],
)
def test_requests_that_cannot_be_answered_are_refused_in_words(
    url_after_one_snapshot: str, path: str, words
) -> None:
    answer = plain_http.get(url_after_one_snapshot + path)
    assert answer.status_code in {400, 404}
    assert words in answer.text


@pytest.mark.parametrize("codec", ["jpeg", "h264"])
def test_kept_picture_is_the_one_that_was_shown(preview: WebPreview, series, codec: str) -> None:
    pytest.importorskip("av")
    url = preview.start()
    with watch(url, codec) as viewer:
        sent = [show(preview, viewer, series, seq) for seq in range(3)]
    listed = plain_http.get(f"{url}timeline").json()
    assert [entry[2] for entry in listed["snapshots"]] == [0, 1, 2]
    assert 0 < listed["bytes"] <= listed["max_bytes"]
    header, _ = sent[1]
    fetched, parts = split_message(
        plain_http.get(f"{url}picture/{header['number']}", params={"codec": codec}).content
    )
    assert (fetched["seq"], fetched["counts"]) == (1, header["counts"])
    assert len(parts) == 3 + fetched["coded"]
    if codec == "h264":
        assert fetched["codec"].startswith("avc1.")
        assert parts[:3] == sent[1][1][:3], "it is not encoded twice"
    else:
        assert fetched["codec"] == "jpeg"


def test_h264_shows_the_picture_that_jpeg_shows(preview: WebPreview, series) -> None:
    pytest.importorskip("av")
    url = preview.start()
    with watch(url, "jpeg") as plain, watch(url, "h264") as small:
        _, jpegs = show(preview, plain, series, 4)
        message = b""
        while not message:
            received = small.recv(WAIT_S)
            message = received if isinstance(received, bytes) else b""
    header, units = split_message(message)
    frames = h264.decode(units[:3], 16, 24)
    for frame, jpeg in zip(frames, jpegs[:3], strict=True):
        same = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
        assert np.abs(frame.mean() - same.mean()) < 4
    assert header["shown_px"] == [24, 16]


def test_snapshots_shown_twice_are_kept_once_in_order(series) -> None:
    shown = [series.reconstruction(seq) for seq in (7, 2, 3, 2, 3)]
    display = Display(ToneSettings(), lambda: True, 3 * payload_bytes(shown[0]))
    for each in shown:
        display.keep(each)
    assert [each.id.seq for each in display.shown_after("run-1", -1, 9)] == [2, 3, 7]


def test_still_is_the_snapshot_asked_for(preview: WebPreview, series) -> None:
    url = preview.start()
    with watch(url, "jpeg") as viewer:
        for seq in range(3):
            show(preview, viewer, series, seq)
    answer = plain_http.get(f"{url}download/still", params={"series": "run-1", "seq": 1})
    assert "run-1_000001.zip" in answer.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(answer.content)) as file:
        described = json.loads(file.read("snapshot.json"))
        with np.load(io.BytesIO(file.read("data.npz"))) as data:
            assert np.array_equal(data["video"], preview.display.find_shown("run-1", 1).video)
            assert np.array_equal(data["counts"], series.counts(1))
        coded = cv2.imdecode(np.frombuffer(file.read("coded.png"), np.uint8), cv2.IMREAD_UNCHANGED)
        assert [name for name in file.namelist() if "frame" in name] == [
            f"frame_0{n}.png" for n in range(3)
        ]
    assert np.array_equal(coded, series.counts(1))
    assert (described["seq"], described["calibration_hash"]) == (1, series.calibration.hash)


def test_clip_has_its_frames_at_the_pace_of_filming(series, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    preview = WebPreview(PreviewSection(port=0), tmp_path)
    url = preview.start()
    with watch(url, "h264") as viewer:
        for seq in (0, 1, 2, 3, 6, 7):  # snapshots 4 and 5 were lost
            show(preview, viewer, series, seq)
    answer = plain_http.get(f"{url}download/clip", params={"seconds": 60})
    preview.close()
    assert "run-1_000000-000007.mp4" in answer.headers["content-disposition"]
    with av.open(io.BytesIO(answer.content)) as container:
        times = [frame.time for frame in container.decode(video=0)]
    assert len(times) == 18
    assert times[-1] - times[0] == pytest.approx(1.6, abs=0.15)


def test_clip_of_jpeg_pictures_is_refused_in_words(series, tmp_path: Path) -> None:
    preview = WebPreview(PreviewSection(port=0, h264_mbit_per_s=0.0), tmp_path)
    url = preview.start()
    with watch(url, "jpeg") as viewer:
        show(preview, viewer, series, 0)
    answer = plain_http.get(f"{url}download/clip")
    preview.close()
    assert (answer.status_code, "kept as JPEG; expected H.264" in answer.text) == (400, True)


def test_clip_ends_with_the_picture_asked_for(preview: WebPreview, series) -> None:
    url = preview.start()
    with watch(url, "jpeg") as viewer:
        numbers = [show(preview, viewer, series, seq)[0]["number"] for seq in range(8)]
    pictures = preview.archive.last(0.7, until=numbers[5])
    assert [each.header["seq"] for each in pictures] == [2, 3, 4, 5]


def kept(
    number: int, *, size: int = 1000, published_s: float | None = None, coded: bytes | None = None
) -> Picture:
    time_ns = round((number if published_s is None else published_s) * 1e9) + 10**18
    header = {
        **{"number": number, "published_ns": time_ns, "series": "run", "seq": number},
        **{"acquired_ns": time_ns, "dropped_before": 0},
    }
    return Picture(header, JPEG, (bytes(size),), coded)


def test_archive_stays_within_its_memory_and_five_minutes() -> None:
    archive = PictureArchive(100_000)
    for number in range(200):
        archive.add(kept(number))
        assert archive.n_bytes <= 100_000
    oldest, entries = archive.timeline()
    assert entries[-1].number == 199
    assert 10 < len(entries) < 100
    assert oldest == entries[0].number
    archive.add(kept(1000))
    assert [entry.number for entry in archive.timeline()[1]] == [1000], (
        "the others are older than five minutes"
    )


def test_archive_keeps_coded_snapshots_twice_a_second() -> None:
    archive = PictureArchive(10**9)
    for number in range(20):
        archive.add(kept(number, published_s=number / 10, coded=b"coded"))
    with_coded = [n for n in range(20) if archive.get(n).coded is not None]
    assert with_coded == [0, 5, 10, 15]


def test_another_tone_replaces_the_kept_picture() -> None:
    archive = PictureArchive(10**9)
    archive.add(kept(1, published_s=5))
    archive.add(kept(2, published_s=5))
    assert [entry.number for entry in archive.timeline()[1]] == [2]


def test_recordings_are_listed_with_their_ledger_and_downloaded(
    preview: WebPreview, tmp_path: Path
) -> None:
    (tmp_path / "broken.h5").write_bytes(b"nothing")
    (tmp_path / "film.mp4").write_bytes(b"film")
    (tmp_path / "notes.txt").write_text("no recording")
    url = preview.start()
    preview.set_status({"recording": {"state": "recording", "file": str(tmp_path / "now.h5")}})
    (tmp_path / "now.h5").write_bytes(b"open")
    found = {
        entry["name"]: entry["state"]
        for entry in plain_http.get(f"{url}recordings").json()["recordings"]
    }
    assert found == {"broken.h5": "unreadable", "film.mp4": "movie", "now.h5": "open"}
    assert plain_http.get(f"{url}recordings/film.mp4").content == b"film"
    refused = plain_http.get(f"{url}recordings/now.h5")
    assert (refused.status_code, "still being written" in refused.text) == (400, True)


def test_status_differences_rebuild_the_status() -> None:
    old = {"a": 1, "b": {"c": 1, "d": [1, 2]}, "gone": 3}
    new = {"a": 1, "b": {"c": 2, "d": [1, 2]}, "new": {"x": None}}
    assert merge_patch(old, new) == {"gone": None, "b": {"c": 2}, "new": {"x": None}}
    assert merge_patch(new, new) == {}
