"""EPICS clients see the live video, with the installed p4p."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import numpy as np
import pytest

from bridges.tests.tap import publishing
from sci_stream.security.keys import read_key_pair
from sci_stream_bridges import epics
from sci_stream_bridges.epics import PvaServer, serve

pytest.importorskip("p4p", exc_type=ModuleNotFoundError)
client = pytest.importorskip("p4p.client.thread", exc_type=ModuleNotFoundError)


@pytest.fixture
def served():
    """Return a server that only its own client finds, and that client."""
    with (
        PvaServer("SCI:", isolated=True) as server,
        client.Context("pva", conf=server.conf, useenv=False) as context,
    ):
        yield server, context


def test_client_gets_the_newest_reconstruction(served, series) -> None:
    server, context = served
    assert context.get("SCI:SEQ") == -1
    for seq in (3, 4):
        server.post(series.reconstruction(seq))
    video = context.get("SCI:VIDEO")
    np.testing.assert_array_equal(np.asarray(video), series.video(4).astype(np.float32))
    assert video.dtype == np.float32
    assert video.timestamp == pytest.approx((10_000 + 4) / 1e9)
    np.testing.assert_array_equal(
        np.asarray(context.get("SCI:FRAME")), series.video(4)[-1].astype(np.float32)
    )
    np.testing.assert_array_equal(np.asarray(context.get("SCI:SNAPSHOT")), series.counts(4))
    assert (context.get("SCI:SEQ"), context.get("SCI:RESIDUAL")) == (4, pytest.approx(0.02))


def test_live_video_of_an_encrypted_rig_is_served(
    served, series, taps: str, key: Path, monkeypatch
) -> None:
    server, context = served
    keys = read_key_pair(key)

    def serve_three(reconstructions, _server) -> None:
        serve(itertools.islice(reconstructions, 3), server)
        raise KeyboardInterrupt

    monkeypatch.setattr(epics, "PvaServer", lambda _prefix: contextlib.nullcontext())
    monkeypatch.setattr(epics, "serve", serve_three)
    with publishing(series, taps, keys):
        epics.main(["SCI:", "--taps", taps, "--key", str(key), "--sink-key", keys.public.decode()])
    seq = int(context.get("SCI:SEQ"))
    assert seq >= 2
    np.testing.assert_array_equal(
        np.asarray(context.get("SCI:VIDEO")), series.video(seq).astype(np.float32)
    )


def test_silent_rig_is_named(taps: str, monkeypatch, capsys) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def serve_once(*given) -> None:
        monkeypatch.setattr(epics, "serve", interrupted)
        serve(*given)

    monkeypatch.setattr(epics, "PvaServer", lambda _prefix: contextlib.nullcontext())
    monkeypatch.setattr(epics, "serve", serve_once)
    monkeypatch.setattr(epics, "_SILENCE_S", 0.1)
    epics.main(["SCI:", "--taps", taps])
    assert f"No data from {taps} within 0.1 s" in capsys.readouterr().err


def test_server_stops_on_request(served, series) -> None:
    server, context = served
    serve((series.reconstruction(seq) for seq in itertools.count()), server, stop=lambda: True)
    assert context.get("SCI:SEQ") == 0
