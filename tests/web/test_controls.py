"""Operator controls of the live page, and refusal of invalid or foreign requests."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cv2
import httpx
import numpy as np
import pytest
from websockets.sync.client import connect

from sci_stream.config import PreviewSection
from sci_stream.errors import InputError, StorageError
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import BayerPhase
from sci_stream.parameters import ControlAnswer
from sci_stream.web import controls as preview_controls
from sci_stream.web.display import Display
from sci_stream.web.preview import WebPreview
from sci_stream.wire.codec import payload_bytes
from tests import plain_http
from tests.page_messages import split_message
from tests.series_fixtures import Series

WAIT_S = 60.0


class SwitchBoard:
    """A sink that records requests and gives prepared answers."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, object], str]] = []
        self.answers = True
        self.refuses: Exception | None = None

    def ask(
        self, node: str, action: str, parameters: Mapping[str, Any], who: str
    ) -> Future[ControlAnswer]:
        self.requests.append((node, action, dict(parameters), who))
        answer: Future[ControlAnswer] = Future()
        if self.refuses is not None:
            answer.set_exception(self.refuses)
        elif self.answers:
            answer.set_result(
                ControlAnswer(
                    {node: dict(parameters)}, "run-1.h5" if "recording" in parameters else ""
                )
            )
        return answer


@pytest.fixture
def board() -> SwitchBoard:
    return SwitchBoard()


@pytest.fixture
def preview(board: SwitchBoard, tmp_path: Path) -> Iterator[WebPreview]:
    preview = WebPreview(PreviewSection(port=0), tmp_path, ask=board.ask)
    yield preview
    preview.close()


@pytest.fixture(scope="module")
def open_page(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, WebPreview, SwitchBoard]]:
    """Return a page for all requests that are refused: they have no effect on each other."""
    board = SwitchBoard()
    preview = WebPreview(
        PreviewSection(port=0), tmp_path_factory.mktemp("recordings"), ask=board.ask
    )
    yield preview.start(), preview, board
    preview.close()


def post(url: str, name: str, body: object, **headers: str) -> httpx.Response:
    return plain_http.post(f"{url}control/{name}", json=body, headers=headers, timeout=WAIT_S)


def grey(
    series: Series, level: float = 0.5, tint: tuple[float, float, float] = (1, 1, 1)
) -> object:
    video = np.empty((3, 16, 24), np.float32)
    for index, colour in enumerate(BayerPhase.RGGB):
        video[:, index // 2 :: 2, index % 2 :: 2] = level * tint["RGB".index(colour)]
    return series.reconstruction(0, video=video, bayer=BayerPhase.RGGB)


def test_new_tone_is_shown_to_every_viewer_at_once(preview: WebPreview, series) -> None:
    url = preview.start()
    preview.publish(grey(series))
    ws = f"ws://{urlsplit(url).netloc}/live"
    with connect(ws, open_timeout=WAIT_S) as one, connect(ws, open_timeout=WAIT_S) as other:
        before = [next_picture(viewer) for viewer in (one, other)]
        answer = post(url, "tone", {"exposure_ev": -2.0})
        after = [
            next_other_picture(viewer, level)
            for viewer, (_, level) in zip((one, other), before, strict=True)
        ]
    assert answer.json()["tone"]["exposure_ev"] == -2.0
    for (old, old_level), (new, new_level) in zip(before, after, strict=True):
        assert new["number"] > old["number"]
        assert (new["seq"], new["published_ns"]) == (old["seq"], old["published_ns"]), (
            "the age of the video is unchanged"
        )
        # Two stops less light, through a gamma of 2.2.
        assert new_level == pytest.approx(old_level * 0.25 ** (1 / 2.2), abs=3)
    assert plain_http.get(f"{url}status").json()["preview"]["tone"]["exposure_ev"] == -2.0


def next_other_picture(viewer, level: float) -> tuple[dict, float]:
    """Return the next image that differs: the last one is sent again to a new viewer."""
    while abs((found := next_picture(viewer))[1] - level) <= 3:
        pass
    return found


def next_picture(viewer) -> tuple[dict, float]:
    while True:
        message = viewer.recv(WAIT_S)
        if isinstance(message, bytes):
            header, images = split_message(message)
            viewer.send(json.dumps({"ack": header["number"]}))
            return header, float(
                cv2.imdecode(np.frombuffer(images[0], np.uint8), cv2.IMREAD_COLOR).mean()
            )


def test_shown_snapshots_are_kept_in_bounded_memory(series) -> None:
    display = Display(ToneSettings(), lambda: True, 2 * payload_bytes(series.reconstruction(0)))
    for seq in range(5):
        display.keep(series.reconstruction(seq))
    with pytest.raises(InputError, match="no longer in memory"):
        display.find_shown("run-1", 0)
    assert display.find_shown("run-1", 4).id.seq == 4


def test_recorded_snapshots_do_not_displace_live_ones(series) -> None:
    live = series.reconstruction(0)
    display = Display(ToneSettings(), lambda: True, payload_bytes(live))
    display.keep(live)
    for seq in range(1, 5):
        display.keep(series.reconstruction(seq), live=False)
    assert display.find_shown("run-1", 0) is live


def record(on: bool) -> dict[str, object]:
    return {"node": "sink", "parameters": {"recording": on}}


def test_recording_is_switched_by_the_sink(preview: WebPreview, board: SwitchBoard) -> None:
    url = preview.start()
    answer = post(url, "set", record(True))
    assert answer.json() == {
        "ok": True,
        "values": {"sink": {"recording": True}},
        "text": "run-1.h5",
    }
    assert board.requests == [("sink", "set", {"recording": True}, "unknown from 127.0.0.1")]
    board.refuses = StorageError("The disk is full")
    answer = post(url, "set", record(True))
    assert (answer.status_code, answer.json()) == (503, {"ok": False, "error": "The disk is full."})
    board.refuses = InputError("sink has no parameter 'recording'")
    assert post(url, "set", record(True)).status_code == 400


def test_requests_to_nodes_carry_the_operator(preview: WebPreview, board: SwitchBoard) -> None:
    url = preview.start()
    changes = {"iterations": 12, "adapt_budget": False}
    answer = post(url, "set", {"node": "reconstruct-0", "parameters": changes, "who": "eva"})
    assert answer.json() == {"ok": True, "values": {"reconstruct-0": changes}, "text": ""}
    post(url, "do", {"node": "acquire", "action": "next_series"})
    assert board.requests == [
        ("reconstruct-0", "set", changes, "eva from 127.0.0.1"),
        ("acquire", "next_series", {}, "unknown from 127.0.0.1"),
    ]
    board.refuses = InputError(
        "iterations cannot be set to that", expected="an integer from 1 to 100", got=0
    )
    answer = post(url, "set", {"node": "reconstruct-0", "parameters": {"iterations": 0}})
    assert (answer.status_code, "from 1 to 100" in answer.json()["error"]) == (400, True)


def test_unanswered_request_may_still_take_effect(
    preview: WebPreview, board: SwitchBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview_controls, "_TIMEOUT_S", 0.2)
    board.answers = False
    answer = post(preview.start(), "do", {"node": "acquire", "action": "stop_series"})
    assert answer.status_code == 504
    assert "may still take effect" in answer.json()["error"]


def test_unavailable_recording_is_refused(tmp_path: Path) -> None:
    preview = WebPreview(PreviewSection(port=0), tmp_path)
    url = preview.start()
    try:
        assert plain_http.get(f"{url}status").json()["preview"]["can_record"] is False
        assert (
            "Neither the recording nor the nodes" in post(url, "set", record(True)).json()["error"]
        )
    finally:
        preview.close()


@pytest.mark.parametrize(
    ("name", "body", "word"),
    [
        ("tone", {"brightness": 1}, "exposure_ev"),
        ("tone", {"exposure_ev": 1e9}, "less than or equal to 10"),
        ("tone", [1], "object"),
        ("recording", {"on": True}, "a parameter of the sink: set"),
        ("reboot", {}, "tone, replay, note, set or do"),
        ("set", {"node": "acquire"}, "parameters is missing"),
        ("set", {"node": "acquire", "parameters": [1]}, "parameters is wrong"),
        ("set", {"node": "acquire", "parameters": {f"p{i}": 1 for i in range(17)}}, "at most 16"),
        ("set", {"node": 5, "parameters": {"a": 1}}, "node is wrong; expected a string"),
        ("do", {"node": "acquire"}, "action is missing"),
        ("do", {"node": "x" * 65, "action": "stop"}, "at most 64"),
        (
            "do",
            {"node": "acquire", "action": "stop", "who": "a\nb"},
            "who: expected printable characters",
        ),
    ],
)
def test_invalid_request_is_refused_without_effect(
    open_page, name: str, body: object, word: str
) -> None:
    url, preview, board = open_page
    before = preview.display.tone
    answer = post(url, name, body)
    assert answer.status_code == 400
    assert word in answer.json()["error"]
    assert (preview.display.tone, board.requests) == (before, [])


def test_invalid_json_or_long_body_is_refused(preview: WebPreview) -> None:
    url = f"{preview.start()}control/tone"
    form = plain_http.post(url, data={"exposure_ev": "1"})
    assert (form.status_code, "Content-Type" in form.json()["error"]) == (400, True)
    json_type = {"Content-Type": "application/json"}
    assert "not valid JSON" in plain_http.post(url, content=b"{", headers=json_type).json()["error"]
    assert (
        "too long"
        in plain_http.post(url, content=b" " * 100_000, headers=json_type).json()["error"]
    )
    assert plain_http.get(url).status_code == 405


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 16_000,
        b'{"a":' * 3000,
        b'{"exposure_ev": 1' + b"0" * 400 + b"}",
        b'{"exposure_ev": 1e999}',
        b'{"exposure_ev": NaN}',
        b'{"gamma": -Infinity}',
        b'{"demosaic": "\\ud800"}',
        b'{"\\ud800": 1}',
        b"\xff\xfe",
    ],
    ids=lambda body: ascii(body[:20]),
)
def test_json_that_means_nothing_here_is_refused(open_page, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = plain_http.post(
        f"{open_page[0]}control/tone", content=body, headers=headers, timeout=30
    )
    assert answer.status_code == 400
    assert "not valid JSON" in answer.json()["error"]


def test_page_of_another_origin_can_change_nothing(preview: WebPreview, board: SwitchBoard) -> None:
    url = preview.start()
    assert post(url, "set", record(True), Origin="http://elsewhere.example").status_code == 403
    assert post(url, "set", record(True), Origin="null").status_code == 403
    assert board.requests == []
    assert post(url, "set", record(True), Origin=url.rstrip("/")).status_code == 200


def test_control_needs_the_token(board: SwitchBoard, tmp_path: Path) -> None:
    preview = WebPreview(PreviewSection(port=0, token="s3cret"), tmp_path, ask=board.ask)
    base = preview.start().partition("?")[0]
    try:
        assert post(base, "set", record(True)).status_code == 403
        assert post(base, "set", record(True), Authorization="Bearer wrong").status_code == 403
        assert board.requests == []
        assert post(base, "set", record(True), Authorization="Bearer s3cret").status_code == 200
    finally:
        preview.close()


def test_endless_request_blocks_no_one(preview: WebPreview) -> None:
    url = preview.start()
    host, port = urlsplit(url).hostname, urlsplit(url).port
    with socket.create_connection((host, port)) as stuck:
        head = (
            f"POST /control/tone HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: "
            "application/json\r\n"
        )
        stuck.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        assert post(url, "tone", {"exposure_ev": 1.0}).status_code == 200
