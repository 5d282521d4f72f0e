"""The outputs of a running rig for other programs: taps and live page, which cannot disturb it."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import pytest
import zmq
from websockets.sync.client import connect

import sci_stream
from sci_stream.wire.codec import decode, encode
from sci_stream.wire.messages import Hello, Welcome
from tests.conftest import RigMaker
from tests.e2e.kit import PATIENCE_S, assert_accounted_for
from tests.hostile_messages import hostile_messages
from tests.page_messages import split_message
from tests.rig_in_process import RigInProcess

LIVE = {
    "preview": {"enabled": True},
    # A busy machine keeps up with so few, and has the time for the rest at the end.
    "camera": {"options": {"trigger": "free", "snapshot_rate_hz": 4.0}},
    "reconstruct": {"solver": "identity", "iterations": 1},
    "drain": {"timeout_s": 100.0},
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RigInProcess]:
    """Yield a rig that runs until it is stopped and has video to show."""
    with RigInProcess(tmp_path_factory.mktemp("live"), LIVE) as rig:
        rig.wait_for_reconstructed(1)
        yield rig


def get(rig: RigInProcess, path: str) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", rig.rig.preview.port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.headers["content-type"], answer.read()
    finally:
        connection.close()


def test_subscribe_yields_video(live: RigInProcess) -> None:
    endpoint = live.rig.network.taps
    videos = []
    for reconstruction in sci_stream.subscribe(endpoint, timeout_s=PATIENCE_S):
        videos.append((reconstruction.id.seq, reconstruction.video))
        if len(videos) == 3:
            break
    seqs = [seq for seq, _ in videos]
    assert seqs == sorted(set(seqs))
    for _, video in videos:
        assert video.shape == (4, 64, 64)
        assert video.dtype == np.float16
        assert 0.05 < video.astype(np.float32).mean() < 1.0


def test_page_and_static_files_are_served(live: RigInProcess) -> None:
    assert get(live, "/healthz") == (200, "text/plain; charset=utf-8", b"ok\n")
    status, kind, page = get(live, "/")
    assert (status, kind.split(";")[0]) == (200, "text/html")
    assert b"<html" in page
    assert get(live, "/nothing")[0] == 404


def test_status_describes_rig(live: RigInProcess) -> None:
    def states() -> dict[str, str]:
        return {
            node["name"]: node["state"] for node in json.loads(get(live, "/status")[2])["nodes"]
        }

    live.wait_for(
        lambda: states() == {"acquire": "up", "reconstruct-0": "up"},
        "no node is late on a busy machine",
    )
    status, kind, body = get(live, "/status")
    assert (status, kind) == (200, "application/json")
    result: dict[str, Any] = json.loads(body)
    ledger = result["ledger"]
    assert ledger["acquired"] == (
        ledger["reconstructed"]
        + ledger["raw_only"]
        + sum(ledger["dropped"].values())
        + ledger["in_flight"]
    )
    assert ledger["reconstructed"] > 0
    assert result["state"] == "running"
    assert result["recording"]["state"] == "recording"


def test_websocket_delivers_pictures_with_metadata(live: RigInProcess) -> None:
    with connect(f"ws://127.0.0.1:{live.rig.preview.port}/live", open_timeout=PATIENCE_S) as socket:
        seqs = []
        while len(seqs) < 3:
            message = socket.recv(timeout=PATIENCE_S)
            if isinstance(message, str):
                assert json.loads(message)["type"] == "status"
                continue
            header, images = split_message(message)
            socket.send(json.dumps({"ack": header["number"]}))
            seqs.append(header["seq"])
            assert header["n_frames"] == 4
            assert len(images) == 5, "the video and the coded snapshot"
            picture = cv2.imdecode(np.frombuffer(images[0], np.uint8), cv2.IMREAD_COLOR)
            assert picture is not None
            assert picture.shape == (64, 64, 3)
    assert seqs == sorted(set(seqs))


def test_hostile_messages_are_refused_and_counted(live: RigInProcess) -> None:
    """Last of this rig, because it ends it: the summary counts the refused ones."""
    corpus = [case for case in hostile_messages() if case.frames]
    for endpoint in (live.rig.network.dispatch, live.rig.network.results):
        with UnknownPeer(endpoint) as unknown:
            # a peer that has sent no HELLO is closed before a busy machine has read them all
            unknown.is_heard()
            for case in corpus:
                unknown.send(case.frames)
            unknown.is_heard()
    live.wait_for_reconstructed(3)
    assert all(node.running for node in live.nodes.values())
    live.wait_for(
        lambda: refused_by_acquire_node(live) == len(corpus),
        "the acquire node reports its refusals",
    )
    summary = live.finish()
    errors = Counter(summary["wire_errors"])
    # A message over the limit closes the connection. A peer that leaves while it connects again
    # is counted, too.
    del errors["handshake"]
    assert errors == Counter(case.reason for case in corpus)
    ledger = assert_accounted_for(summary)
    assert ledger["acquired"] == ledger["reconstructed"]


def refused_by_acquire_node(live: RigInProcess) -> int:
    status = json.loads(get(live, "/status")[2])
    return int(next(node for node in status["nodes"] if node["name"] == "acquire")["wire_errors"])


def test_vanishing_stranger_loses_nothing(rig_in_process: RigMaker) -> None:
    # The existing node is overloaded, so that a second one gets work.
    rig = rig_in_process(snapshots=40)
    rig.reconstruct(1)
    with UnknownPeer(rig.rig.network.dispatch) as unknown:
        unknown.send([bytes(frame) for frame in encode(unknown.hello(credit=4))])
        rig.expose(39)
        unknown.wait_for(b"snapshot")
    ledger = assert_accounted_for(rig.finish())
    assert ledger["acquired"] == ledger["reconstructed"] == 40
    assert ledger["redelivered"] >= 1


class UnknownPeer:
    """A foreign peer: a bare socket."""

    def __init__(self, endpoint: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, b"unknown@1")
        self._socket.connect(endpoint)

    def __enter__(self) -> UnknownPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    @staticmethod
    def hello(credit: int) -> Hello:
        return Hello(node="unknown", kind_of_node="reconstruct", incarnation="1", credit=credit)

    def send(self, frames: list[bytes]) -> None:
        self._socket.send_multipart(frames)

    def is_heard(self) -> None:
        """Return once everything sent so far has been read: the answer to HELLO comes after it."""
        self.send([bytes(frame) for frame in encode(self.hello(credit=0))])
        while not isinstance(decode(self.receive()), Welcome):
            pass

    def wait_for(self, kind: bytes) -> None:
        while self.receive()[0] != kind:
            pass

    def receive(self) -> list[bytes]:
        assert self._socket.poll(PATIENCE_S * 1000), "no answer"
        return self._socket.recv_multipart()
