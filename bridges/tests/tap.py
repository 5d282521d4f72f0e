"""A tap that publishes reconstructions, as a running sink does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import zmq

from sci_stream.clock import unix_ns
from sci_stream.model import StageTimes
from sci_stream.security.curve import CurveServer, unencrypted
from sci_stream.security.keys import KeyPair
from sci_stream.transport.pubsub import TapPublisher


@contextmanager
def publishing(series, endpoint: str, keys: KeyPair | None = None) -> Iterator[None]:
    """Publish reconstructions, numbered, from a thread; encrypted if there are keys."""
    context: zmq.Context = zmq.Context()
    stop = threading.Event()
    curve = None if keys is None else CurveServer(context, keys, None)

    def run() -> None:
        tap = TapPublisher(context, endpoint, unencrypted if curve is None else curve.serve)
        seq = 0
        while not stop.wait(0.01):
            times = StageTimes(acquired_ns=unix_ns())
            tap.publish(replace(series.reconstruction(seq), times=times))
            seq += 1
        tap.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if curve is not None:
            curve.close()
        context.term()
