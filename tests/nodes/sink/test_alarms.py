"""Alarms: raised and cleared by the status, acknowledged for everybody, sent to a webhook."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue
from socketserver import BaseRequestHandler, TCPServer
from typing import Any

import pytest

from sci_stream.config import Rig
from sci_stream.config.loader import parse_rig
from sci_stream.errors import ConfigError, InputError
from sci_stream.nodes.sink.alarms import (
    MAX_ALARMS,
    QUIET_NS,
    SATURATED_FRACTION,
    Alarms,
    retry_after_s,
)
from sci_stream.nodes.sink.series_session import SeriesSession
from sci_stream.nodes.sink.status import SeriesStatus, SinkStatus
from tests.series_fixtures import Series

S = 1_000_000_000


@pytest.fixture
def series(series: Series, tmp_path: Path) -> Iterator[SeriesStatus]:
    rig = Rig.model_validate({"record": {"enabled": False, "folder": str(tmp_path)}})
    session = SeriesSession.open(series.info, series.calibration, rig)
    session.receive(b"node", series.reconstruction(0, redelivered=0), 0.0)
    yield session.status(0.0)
    session.abandon()


def status(series: SeriesStatus | None = None, **changes: Any) -> SinkStatus:
    node = {"name": "reconstruct-0", "kind": "reconstruct", "state": changes.pop("node", "up")}
    return SinkStatus(state="running", rig="rig", nodes=(node,), series=series, **changes)


def texts(alarms: Alarms) -> list[str]:
    return [str(alarm["text"]) for alarm in alarms.to_json()]


def test_alarm_has_the_times_at_which_it_began_and_cleared() -> None:
    alarms = Alarms("rig")
    alarms.update(status(node="lost"), 1 * S)
    alarms.update(status(node="lost"), 2 * S)
    alarms.update(status(), 3 * S)
    (alarm,) = alarms.to_json()
    assert alarm["text"] == "reconstruct-0 does not answer"
    assert (alarm["began_ns"], alarm["cleared_ns"]) == (1 * S, 3 * S)
    alarms.update(status(node="lost"), 4 * S)
    assert [alarm["began_ns"] for alarm in alarms.to_json()] == [4 * S, 1 * S]


def test_growing_count_is_one_alarm_until_a_minute_of_quiet() -> None:
    alarms = Alarms("rig")
    alarms.update(status(wire_errors={"identity": 1}), 0)
    alarms.acknowledge(1, "eva")
    alarms.update(status(wire_errors={"identity": 2}), S)
    assert texts(alarms) == ["2 messages refused: identity"]
    assert alarms.to_json()[0]["acknowledged_by"] == "eva"
    alarms.update(status(wire_errors={"identity": 3}), S + QUIET_NS + 1)
    assert alarms.to_json()[0]["acknowledged_by"] == ""


def test_figures_in_a_text_do_not_make_another_alarm(series: SeriesStatus) -> None:
    alarms = Alarms("rig")
    for px in ("-0.18", "+0.01"):
        alarms.update(
            status(replace(series, calibration_alerts=[f"the masks have moved by {px} px"])), S
        )
    assert texts(alarms) == ["the masks have moved by +0.01 px"]


def test_faults_of_frames_are_alarms(series: SeriesStatus) -> None:
    alarms = Alarms("rig")
    alarms.update(status(replace(series, frame_faults={"identical": 3, "trigger_early": 2})), S)
    assert sorted(text.split(":")[0] for text in texts(alarms)) == [
        "2 frames come early",
        "3 frames repeat the frame before",
    ]
    alarms.update(status(replace(series, frame_faults={"identical": 9})), 2 * S)
    assert any(text.startswith("9 frames repeat") for text in texts(alarms))


def test_saturation_clears_at_half_of_its_threshold(series: SeriesStatus) -> None:
    report = series.report
    assert report is not None
    alarms = Alarms("rig")

    def count_active(fraction: float) -> int:
        alarms.update(
            status(replace(series, report=replace(report, saturated_fraction=fraction))), S
        )
        return len(alarms.active())

    fractions = [0.9, 2.0, 0.9, 0.4]
    assert [count_active(fraction * SATURATED_FRACTION) for fraction in fractions] == [0, 1, 1, 0]


def test_dark_snapshots_raise_an_alarm(series: SeriesStatus) -> None:
    alarms = Alarms("rig")
    alarms.update(status(replace(series, brightness=0.001)), S)
    assert "0.1% of full scale" in texts(alarms)[0]
    alarms.update(status(replace(series, brightness=0.2)), S)
    assert alarms.active() == set()


def test_list_is_bounded_and_an_unknown_number_is_refused() -> None:
    alarms = Alarms("rig")
    for i in range(MAX_ALARMS + 5):
        alarms.update(status(node="lost"), 2 * i)
        alarms.update(status(), 2 * i + 1)
    assert len(alarms.to_json()) == MAX_ALARMS
    with pytest.raises(InputError, match="no alarm 1"):
        alarms.acknowledge(1, "eva")


class Server(HTTPServer):
    """Answers each alarm with a status, which a test sets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = 204
        self.headers: dict[str, str] = {}
        self.received: Queue[dict[str, Any]] = Queue()
        self.address = f"http://127.0.0.1:{self.server_port}/TOKEN"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.received.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()

    def do_GET(self) -> None:
        self.server.received.put({"followed": self.path})
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def webhook() -> Iterator[Server]:
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_webhook_is_sent_each_alarm_when_it_begins_and_clears(webhook) -> None:
    alarms = Alarms("bench 3", webhook.address)
    received = webhook.received
    alarms.update(status(node="lost"), 1 * S)
    alarms.update(status(), 2 * S)
    began, cleared = received.get(timeout=60), received.get(timeout=60)
    assert (began["rig"], began["text"], began["cleared"]) == (
        "bench 3",
        "reconstruct-0 does not answer",
        False,
    )
    assert (cleared["number"], cleared["cleared"], cleared["cleared_ns"]) == (
        began["number"],
        True,
        2 * S,
    )


def test_unreachable_webhook_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    alarms = Alarms("rig", "http://127.0.0.1:1/alarm")
    alarms.update(status(node="lost"), 1 * S)
    alarms.close()
    assert "cannot be sent to the webhook" in caplog.text


def test_malformed_answer_does_not_end_the_webhook(caplog: pytest.LogCaptureFixture) -> None:
    class Nonsense(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            self.request.sendall(b"nonsense\r\n\r\n")

    with TCPServer(("127.0.0.1", 0), Nonsense) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        alarms = Alarms("rig", f"http://127.0.0.1:{server.server_address[1]}")
        alarms.update(status(node="lost"), 1 * S)
        alarms.update(status(), 2 * S)
        alarms.close()
        server.shutdown()
    assert caplog.text.count("cannot be sent to the webhook (BadStatusLine)") == 2


@pytest.mark.parametrize(
    ("status_code", "tries"), [(302, 1), (307, 1), (404, 1), (408, 3), (429, 3), (500, 3), (503, 3)]
)
def test_webhook_is_tried_again_where_it_may_pass(
    webhook: Server, status_code: int, tries: int, caplog: pytest.LogCaptureFixture
) -> None:
    webhook.status = status_code
    webhook.headers = {"Location": "/elsewhere", "Retry-After": "30"}
    alarms = Alarms("rig", webhook.address)
    alarms.update(status(node="lost"), 1 * S)
    alarms.close()  # without the pauses
    assert [alarm["text"] for alarm in webhook.received.queue] == [
        "reconstruct-0 does not answer"
    ] * tries
    assert f"it answered with status {status_code}" in caplog.text


@pytest.mark.parametrize(
    ("header", "pause_s"),
    [("7", 7), ("3600", 60), ("Wed, 21 Oct 2015 07:28:00 GMT", 0), ("soon", 0), ("", 0)],
)
def test_retry_after_is_followed_for_a_minute(header: str, pause_s: float) -> None:
    assert retry_after_s(header) == pause_s


@pytest.mark.parametrize(
    "address",
    [
        "http://TOKEN.invalid/TOKEN",
        "http://127.0.0.1:TOKEN/",
        "http://user:TOKEN@127.0.0.1:1/",
        "http://127.0.0.1:1/TOKEN\x7f",
        "http://127.0.0.1:1/TOKEN\u00e9",
    ],
)
def test_address_of_the_webhook_is_not_logged(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    alarms = Alarms("rig", address)
    alarms.update(status(node="lost"), 1 * S)
    alarms.close()
    assert "cannot be sent to the webhook" in caplog.text
    assert "TOKEN" not in caplog.text


def test_address_of_the_webhook_is_a_secret_of_the_rig() -> None:
    rig = Rig.model_validate({"health": {"webhook": "https://alerts.example.org/TOKEN"}})
    assert rig.health.webhook.endswith("TOKEN")
    assert "TOKEN" not in rig.to_toml() + repr(rig)
    with pytest.raises(ConfigError, match="webhook") as refused:
        parse_rig('[health]\nwebhook = "ftp://example.org/TOKEN"', overrides={})
    assert "TOKEN" not in str(refused.value)


def test_saturation_behind_half_open_masks_asks_for_sparser_ones(series: SeriesStatus) -> None:
    report = series.report
    assert report is not None
    alarms = Alarms("rig")
    alarms.update(
        status(replace(series, report=replace(report, saturated_fraction=0.15), open_share=0.5)), S
    )
    assert "masks 35% open instead of 50% are worth about 2.5 dB" in texts(alarms)[0]
