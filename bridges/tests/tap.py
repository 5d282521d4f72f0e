"""A tap that publishes reconstructions, as a running sink does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import zmq

from sci_stream.clock import unix_ns
from sci_stream.model import StageTimes
from sci_stream.transport.pubsub import TapPublisher


@contextmanager
def publishing(series, endpoint: str, **changes: object) -> Iterator[None]:
    """Publish reconstructions, numbered, from a thread."""
    context: zmq.Context = zmq.Context()
    stop = threading.Event()

    def run() -> None:
        tap = TapPublisher(context, endpoint)
        seq = 0
        while not stop.wait(0.01):
            times = StageTimes(acquired_ns=unix_ns())
            tap.publish(replace(series.reconstruction(seq, **changes), times=times))
            seq += 1
        tap.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        context.term()
