"""Taps for other programs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import zmq

import sci_stream
from sci_stream.errors import TransportError
from sci_stream.transport.pubsub import TapPublisher, subscribe_status
from sci_stream.wire.messages import Heartbeat
from tests.transport.peers import reconstruction


@pytest.fixture
def endpoint(free_endpoint: Callable[[], str]) -> str:
    return free_endpoint()


class Publishing:
    """Publishes reconstructions, numbered, from a thread until stopped."""

    def __init__(self, context: zmq.Context, endpoint: str) -> None:
        self._tap = TapPublisher(context, endpoint)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        seq = 0
        while not self._stop.wait(0.005):
            self._tap.publish(reconstruction(seq))
            self._tap.publish(Heartbeat(node="sink", status={"seq": seq}))
            seq += 1
        self._tap.close()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_subscribe_yields_video_in_three_lines(context: zmq.Context, endpoint: str) -> None:
    with Publishing(context, endpoint):
        for got in sci_stream.subscribe(endpoint, timeout_s=60.0):
            assert got.video.shape == (2, 4, 6)
            break


def test_slow_subscriber_gets_the_newest_in_order(context: zmq.Context, endpoint: str) -> None:
    with Publishing(context, endpoint):
        seqs = []
        for got in sci_stream.subscribe(endpoint, timeout_s=60.0):
            seqs.append(got.id.seq)
            if len(seqs) == 4:
                break
            time.sleep(0.1)
    assert seqs == sorted(seqs)
    assert seqs[-1] - seqs[0] > 3


def test_every_keeps_all_for_a_slow_caller(context: zmq.Context, endpoint: str) -> None:
    with Publishing(context, endpoint):
        seqs = []
        for got in sci_stream.subscribe(endpoint, timeout_s=60.0, every=True):
            seqs.append(got.id.seq)
            if len(seqs) == 10:
                break
            time.sleep(0.02)
    assert seqs == list(range(seqs[0], seqs[0] + 10))


def test_status_is_published(context: zmq.Context, endpoint: str) -> None:
    with Publishing(context, endpoint):
        report = next(subscribe_status(endpoint, timeout_s=60.0))
    assert report.node == "sink"


def test_timeout_error_names_the_address(endpoint: str) -> None:
    with pytest.raises(TransportError, match=endpoint):
        next(sci_stream.subscribe(endpoint, timeout_s=0.2))
