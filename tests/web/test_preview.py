"""The live page with many viewers, slow viewers and unauthorised clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import cv2
import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from sci_stream.config import PreviewSection
from sci_stream.errors import InputError, TransportError
from sci_stream.transport.http import LimitedConnection
from sci_stream.web import app as preview_app
from sci_stream.web.preview import WebPreview
from tests import plain_http
from tests.page_messages import split_message
from tests.web.path_proxy import path_proxy

WAIT_S = 60.0
WEB = Path(preview_app.__file__).parent / "static"


@pytest.fixture
def preview() -> Iterator[WebPreview]:
    preview = WebPreview(PreviewSection(port=0, stale_after_s=0.3), Path("recordings"))
    yield preview
    preview.close()


def watch(url: str, **options) -> ClientConnection:
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return connect(
        f"ws://{parts.netloc}/live{query}", max_size=None, open_timeout=WAIT_S, **options
    )


def next_picture(viewer: ClientConnection, timeout_s: float = WAIT_S) -> tuple[dict, list[bytes]]:
    deadline = time.monotonic() + timeout_s
    while True:
        message = viewer.recv(max(0.0, deadline - time.monotonic()))
        if isinstance(message, bytes):
            return split_message(message)


def next_status(viewer: ClientConnection) -> dict:
    """Return the next status message; its ``status`` is complete the first time, then what has
    changed.
    """
    while True:
        message = viewer.recv(WAIT_S)
        if isinstance(message, str):
            content = json.loads(message)
            return {**content, "status": content.get("status", content.get("changes"))}


def acknowledge(viewer: ClientConnection, header: dict) -> None:
    viewer.send(json.dumps({"ack": header["number"]}))


def until(url: str, counter: str, least: int) -> None:
    """Wait until a counter of the preview reaches a value."""
    deadline = time.monotonic() + WAIT_S
    while plain_http.get(f"{url}status").json()["preview"][counter] < least:
        assert time.monotonic() < deadline, f"{counter} did not reach {least}"
        time.sleep(0.01)


def test_viewer_receives_frames_and_coded_snapshot(preview: WebPreview, series) -> None:
    with watch(preview.start()) as viewer:
        preview.publish(series.reconstruction(7))
        header, images = next_picture(viewer)
    assert (header["seq"], header["series"], header["iterations"], header["start"]) == (
        7,
        "run-1",
        12,
        "warm",
    )
    assert header["psnr_db"] == 31.5
    assert header["coded"]
    assert len(images) == 4
    shapes = [
        cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR).shape for jpeg in images
    ]
    assert shapes == [(16, 24, 3)] * 4


def test_late_viewer_receives_the_last_image_at_once(preview: WebPreview, series) -> None:
    url = preview.start()
    preview.publish(series.reconstruction(3))
    for _ in range(2):  # also after the last viewer has left
        with watch(url) as viewer:
            assert next_picture(viewer)[0]["seq"] == 3


def test_unknown_numbers_are_null_not_nan(preview: WebPreview, series) -> None:
    report = series.reconstruction(0).report
    unknown = replace(report, residual=float("nan"), psnr_db=None)
    with watch(preview.start()) as viewer:
        preview.publish(series.reconstruction(0, report=unknown, counts=None))
        header, images = next_picture(viewer)
    assert (header["residual"], header["psnr_db"], header["coded"], len(images)) == (
        None,
        None,
        False,
        3,
    )


def test_nothing_is_encoded_without_viewers(preview: WebPreview, series) -> None:
    url = preview.start()
    for seq in range(5):
        preview.publish(series.reconstruction(seq))
    counters = plain_http.get(f"{url}status").json()["preview"]
    assert (counters["published"], counters["encoded"], counters["viewers"]) == (5, 0, 0)


def test_raw_snapshot_is_shown_to_viewers_alone(preview: WebPreview, series) -> None:
    url = preview.start()
    preview.series_started(series.info, series.calibration)
    preview.publish_raw(series.raw_snapshots(0), 0.0)
    assert preview.display.published == 0, "no viewer watches"
    with watch(url) as viewer:
        next_status(viewer)
        preview.publish_raw(series.raw_snapshots(0, 2), 1.0)
        header, _ = next_picture(viewer)
    assert (header["seq"], header["start_reason"]) == (1, "raw_only")


def test_viewer_without_acknowledgements_gets_two_images(preview: WebPreview, series) -> None:
    url = preview.start()
    with watch(url) as viewer:
        numbers = []
        for seq in range(10):
            preview.publish(series.reconstruction(seq))
            until(url, "encoded", seq + 1)
            if seq < 2:
                numbers.append(next_picture(viewer)[0])
        with pytest.raises(TimeoutError):
            next_picture(viewer, 0.2)
        acknowledge(viewer, numbers[-1])
        assert [header["seq"] for header in numbers] == [0, 1]
        assert next_picture(viewer)[0]["seq"] == 9


def test_stuck_viewer_does_not_slow_others_or_fill_memory(preview: WebPreview, series) -> None:
    url = preview.start()
    with watch(url, close_timeout=0.1) as sleeper, watch(url) as viewer:
        until(url, "viewers", 2)
        video = np.random.default_rng(0).random((3, 512, 512)).astype(np.float16)
        for seq in range(12):
            preview.publish(series.reconstruction(seq, video=video, counts=None))
            header, _ = next_picture(viewer)
            assert header["seq"] == seq
            acknowledge(viewer, header)
        # At most two images were queued for it; once awake, it receives the newest.
        assert next_picture(sleeper)[0]["seq"] == 0
        assert next_picture(sleeper)[0]["seq"] < 11
        with pytest.raises(TimeoutError):
            next_picture(sleeper, 0.2)
        acknowledge(sleeper, {"number": 11})
        assert next_picture(sleeper)[0]["seq"] == 11


def test_newest_image_wins_when_encoding_is_slow(preview: WebPreview, series) -> None:
    video = np.random.default_rng(0).random((3, 256, 256)).astype(np.float16)
    with watch(preview.start()) as viewer:
        for seq in range(200):
            preview.publish(series.reconstruction(seq, video=video, counts=None))
        seen = []
        while not seen or seen[-1] < 199:
            header, _ = next_picture(viewer)
            acknowledge(viewer, header)
            seen.append(header["seq"])
    assert seen == sorted(seen)
    assert len(seen) < 200


def test_failed_image_does_not_end_the_preview(preview: WebPreview, series) -> None:
    url = preview.start()
    with watch(url) as viewer:
        preview.publish(series.reconstruction(0, video=np.zeros((3, 0, 0), np.float16)))
        until(url, "failures", 1)
        preview.publish(series.reconstruction(1))
        assert next_picture(viewer)[0]["seq"] == 1


def test_status_reaches_page_and_status_address(preview: WebPreview) -> None:
    url = preview.start()
    with watch(url) as viewer:
        next_status(viewer)
        preview.set_status({"state": "running", "ledger": {"acquired": 5}})
        for _ in range(3):
            message = next_status(viewer)
            if message["status"].get("state") == "running":
                break
        assert message["status"]["ledger"] == {"acquired": 5}
        assert abs(message["now_ns"] - time.time_ns()) < 60e9
    assert plain_http.get(f"{url}status").json()["ledger"] == {"acquired": 5}


def test_invalid_messages_of_a_viewer_are_ignored(preview: WebPreview, series) -> None:
    with watch(preview.start()) as viewer:
        for nonsense in ("", "{", "[]", "null", '{"ack": "all"}', b"\0\1", '{"ack": null}'):
            viewer.send(nonsense)
        preview.publish(series.reconstruction(0))
        assert next_picture(viewer)[0]["seq"] == 0


def test_page_requests_nothing_from_other_hosts(preview: WebPreview) -> None:
    url = preview.start()
    page = plain_http.get(url)
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path in (f"static/{file.name}" for file in sorted(WEB.iterdir())):
        answer = plain_http.get(url + path)
        assert answer.status_code == 200
        assert "https://" not in answer.text
    assert plain_http.get(f"{url}healthz").text == "ok\n"
    assert plain_http.get(f"{url}static/../preview.py").status_code == 404


def test_port_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(TransportError, match=str(port)):
            WebPreview(PreviewSection(port=port), Path("recordings")).start()


def test_host_beyond_loopback_needs_a_token() -> None:
    with pytest.raises(InputError, match="token"):
        WebPreview(PreviewSection(host="0.0.0.0"), Path("recordings"))


@pytest.fixture
def guarded() -> Iterator[str]:
    preview = WebPreview(PreviewSection(port=0, token="s3cret&more"), Path("recordings"))
    yield preview.start()
    preview.close()


def test_nothing_is_shown_without_the_token(guarded: str) -> None:
    parts = urlsplit(guarded)
    base = f"http://{parts.netloc}"
    for path in ("/", "/status", "/static/app.js", "/?token=wrong"):
        assert plain_http.get(base + path).status_code == 403
    assert plain_http.get(f"{base}/healthz").status_code == 200
    with pytest.raises(InvalidStatus):
        connect(f"ws://{parts.netloc}/live")


def test_missing_and_wrong_tokens_are_explained(guarded: str) -> None:
    base = guarded.partition("?")[0].rstrip("/")
    browser = {"Accept": "text/html,application/xhtml+xml"}
    asked = plain_http.get(base + "/", headers=browser)
    assert asked.status_code == 403
    assert "A token is required" in asked.text
    assert '<form action="./" method="get">' in asked.text
    assert "form-action 'self'" in asked.headers["content-security-policy"]
    wrong = plain_http.get(base + "/?token=wrong", headers=browser)
    assert "The token is wrong" in wrong.text
    assert plain_http.get(base + "/status?token=wrong").text.startswith("the token is wrong")
    assert plain_http.get(base + "/status").text.startswith("a token is required")
    with httpx.Client(timeout=WAIT_S, follow_redirects=True, headers=browser) as client:
        assert client.get(base + "/", params={"token": "s3cret&more"}).url.path == "/"
        assert 'id="video"' in client.get(base + "/").text


def test_token_moves_from_the_address_into_a_cookie(guarded: str) -> None:
    base = f"http://{urlsplit(guarded).netloc}"
    with httpx.Client(timeout=WAIT_S, follow_redirects=True) as browser:
        page = browser.get(guarded)
        assert page.status_code == 200
        assert "token" not in str(page.url)
        assert "httponly" in page.history[0].headers["set-cookie"].lower()
        assert browser.get(f"{base}/status").status_code == 200
    assert (
        plain_http.get(
            f"{base}/status", headers={"Authorization": "Bearer s3cret&more"}
        ).status_code
        == 200
    )
    with watch(guarded) as viewer:
        next_status(viewer)


def test_token_and_page_work_behind_a_proxy_with_a_path(guarded: str) -> None:
    parts = urlsplit(guarded)
    with (
        path_proxy(parts.port) as url,
        httpx.Client(timeout=WAIT_S, follow_redirects=True) as browser,
    ):
        refusal = browser.get(url, headers={"Accept": "text/html"})
        assert refusal.status_code == 403
        assert 'action="./"' in refusal.text
        page = browser.get(f"{url}?{parts.query}")
        assert str(page.url) == url
        for address in re.findall(r'(?:href|src)="([^"#]+)"', page.text):
            with browser.stream("GET", urljoin(url, address)) as answer:
                assert answer.status_code == 200, address
        with connect(f"{url.replace('http', 'ws', 1)}live?{parts.query}") as viewer:
            next_status(viewer)


def is_sent_away(viewer: ClientConnection, sends: str = "") -> bool:
    """Receive, and send a text repeatedly, until the connection is closed."""
    deadline = time.monotonic() + WAIT_S
    try:
        while time.monotonic() < deadline:
            # Many at once: on a busy machine a loop that also receives would not be fast enough for
            # a flood.
            for _ in range(1000 if sends else 0):
                viewer.send(sends)
            with contextlib.suppress(TimeoutError):
                viewer.recv(timeout=0 if sends else 0.1)
    except ConnectionClosed:
        return True
    return False


def test_flooding_viewer_is_disconnected(preview: WebPreview) -> None:
    # Of shorter messages a slow machine takes fewer than are a flood: they wait to be read.
    with watch(preview.start()) as viewer:
        assert is_sent_away(viewer, sends='{"ack": 0}' + 500 * " ")


@pytest.mark.parametrize("turns", range(4))
def test_viewer_leaves_though_news_arrive_meanwhile(turns: int) -> None:
    async def leave() -> bool:
        viewer = preview_app.Viewer("jpeg")
        viewer.wake.clear()
        waiting = asyncio.create_task(preview_app._awakened(viewer))
        await asyncio.sleep(0.01)
        viewer.wake.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        accepted = waiting.cancel()
        await asyncio.wait([waiting])
        return waiting.cancelled() is accepted

    assert asyncio.run(leave())


def test_page_of_another_origin_may_not_watch(preview: WebPreview) -> None:
    url = preview.start()
    with pytest.raises(InvalidStatus):
        watch(url, origin="http://elsewhere.example")
    with watch(url, origin=url.rstrip("/")) as viewer:
        next_status(viewer)


def test_rebound_host_name_is_refused(preview: WebPreview) -> None:
    url = preview.start()
    assert plain_http.get(url, headers={"Host": "elsewhere.example"}).status_code == 403
    assert plain_http.get(url, headers={"Host": "[bad"}).status_code == 403
    assert plain_http.get(url, headers={"Host": "localhost:1"}).status_code == 200


def test_number_of_viewers_is_limited() -> None:
    preview = WebPreview(PreviewSection(port=0, max_viewers=1), Path("recordings"))
    url = preview.start()
    try:
        with watch(url) as first:
            next_status(first)
            with (
                watch(url) as second,
                pytest.raises(
                    Exception,
                    match=r"1 viewer is watching, the limit set by \[preview\] max_viewers",
                ),
            ):
                second.recv(WAIT_S)
    finally:
        preview.close()


def test_close_disconnects_viewers_and_ends_threads(preview: WebPreview, series) -> None:
    before = {thread.name for thread in threading.enumerate()}
    url = preview.start()
    with watch(url) as viewer:
        preview.publish(series.reconstruction(0))
        next_picture(viewer)
        preview.close()
        preview.close()
        assert {
            thread.name for thread in threading.enumerate() if thread.name.startswith("preview")
        } <= before
    with pytest.raises(httpx.ConnectError):
        plain_http.get(url)


def trickle(port: int, n: int) -> list[socket.socket]:
    """Open connections that have begun a request and do not complete it."""
    opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(n)]
    for connection in opened:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    return opened


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(WAIT_S)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_slow_requests_are_ended_and_make_room(preview: WebPreview, monkeypatch) -> None:
    monkeypatch.setattr(LimitedConnection, "max_connections", 20)
    port = urlsplit(preview.start()).port
    assert port is not None
    with watch(f"http://127.0.0.1:{port}/") as viewer:
        slow = trickle(port, 40)
        assert all(is_closed(each) for each in slow[:20])
        assert plain_http.get(f"http://127.0.0.1:{port}/healthz", timeout=WAIT_S).status_code == 200
        next_status(viewer)
        monkeypatch.setattr(LimitedConnection, "request_s", 0.2)
        late = trickle(port, 1)
        assert is_closed(late[0])
        for each in [*slow, *late]:
            each.close()


def test_connections_that_arrive_together_are_ended_together(
    preview: WebPreview, monkeypatch
) -> None:
    monkeypatch.setattr(LimitedConnection, "max_connections", 5)
    monkeypatch.setattr(LimitedConnection, "request_s", 10 * WAIT_S)
    port = urlsplit(preview.start()).port
    assert preview._server is not None
    assert preview._server.loop is not None
    together = threading.Event()
    preview._server.loop.call_soon_threadsafe(together.wait, WAIT_S)
    with contextlib.ExitStack() as opened:
        silent = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(25)
        ]
        together.set()
        deadline_s = time.monotonic() + WAIT_S
        while (
            len(select.select(silent, [], [], 0.01)[0]) < 20
        ):  # readable: the other side has closed it
            assert time.monotonic() < deadline_s


def test_trickled_keep_alive_request_is_ended(preview: WebPreview, monkeypatch) -> None:
    monkeypatch.setattr(LimitedConnection, "request_s", 0.3)
    port = urlsplit(preview.start()).port
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: loc")
        assert is_closed(connection)


@pytest.mark.parametrize("opcode", [0x89, 0x8A, 0x00], ids=["pings", "pongs", "fragments"])
def test_viewer_that_sends_frames_without_end_is_disconnected(
    preview: WebPreview, opcode: int
) -> None:
    with watch(preview.start()) as viewer:
        raw = viewer.socket
        payload = b"" if opcode == 0x00 else b"x" * 125
        frame = bytes([opcode, 0x80 | len(payload)]) + b"\0\0\0\0" + payload
        first = bytes([0x01, 0x80]) + b"\0\0\0\0" if opcode == 0x00 else b""
        raw.sendall(first)
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 16 << 20:
                raw.sendall(frame * 1000)
                sent += 1000 * len(frame)
        assert sent < 8 << 20


@pytest.mark.parametrize(
    "frame", [b"\x81\x82\0\0\0\0\xff\xfe", b"\x83\x80\0\0\0\0"], ids=["not UTF-8", "invalid"]
)
def test_viewer_that_breaks_off_leaves_no_traceback(
    preview: WebPreview, series, caplog: pytest.LogCaptureFixture, frame: bytes
) -> None:
    url = preview.start()
    for seq in range(20):
        with watch(url) as viewer:
            viewer.socket.sendall(frame)
            preview.publish(series.reconstruction(seq))
            preview.set_status({"n": seq})
    preview.close()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize(
    "request_line",
    [
        b"POST / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://[::1\r\n\r\n",
        b"POST /control/tone HTTP/1.1\r\nHost: localhost\r\nOrigin: http://[::1\r\n\r\n",
        b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Origin: http://[x\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    ],
)
def test_invalid_origin_is_refused_as_foreign(preview: WebPreview, request_line: bytes) -> None:
    port = urlsplit(preview.start()).port
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        connection.sendall(request_line)
        assert connection.recv(4096).startswith(b"HTTP/1.1 403")
    assert preview.refused["origin"] == 1


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param(
            b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            id="after a request",
        ),
        pytest.param(
            b"POST /control/tone HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: 9\r\n\r\n{",
            id="within a body",
        ),
        pytest.param(
            b"POST /control/tone HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            id="instead of a chunk",
        ),
    ],
)
def test_request_that_ends_in_noise_leaves_no_traceback(
    preview: WebPreview, caplog: pytest.LogCaptureFixture, requests: bytes
) -> None:
    port = urlsplit(preview.start()).port
    for _ in range(5):
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection(("127.0.0.1", port), WAIT_S) as connection,
        ):
            connection.sendall(requests)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_page_is_transferred_in_110_kb_and_its_example_in_60(preview: WebPreview) -> None:
    url = preview.start()
    sent = Counter[bool]()
    for name in ("", *(f"static/{path.name}" for path in WEB.iterdir())):
        with httpx.stream(
            "GET", url + name, headers={"Accept-Encoding": "gzip"}, timeout=WAIT_S, verify=False
        ) as answer:
            answer.read()
            sent[name.endswith(".webp")] += answer.num_bytes_downloaded
    assert sent[False] <= 110_000
    assert sent[True] <= 60_000
