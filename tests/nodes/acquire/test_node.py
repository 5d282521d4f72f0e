"""The acquire node against a sink that is driven by the test."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from unittest import mock

import pytest
import zmq

from sci_stream.config import Rig, load_rig
from sci_stream.devices.camera_drivers import make_camera
from sci_stream.errors import CameraError
from sci_stream.model import SeriesInfo
from sci_stream.nodes.acquire.managed_camera import ManagedCamera
from sci_stream.nodes.acquire.node import AcquireNode, series_info
from sci_stream.nodes.acquire.spool import Spool
from sci_stream.nodes.runtime.process import StopRequest
from sci_stream.transport.results_server import ResultsServer
from sci_stream.wire.messages import Accepted, Dropped, SeriesEnd, Welcome, acknowledgement_of
from tests.e2e.kit import PATIENCE_S, write_rig


def test_next_series_waits_for_the_camera(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = load_rig(write_rig(tmp_path))
    stop, released = StopRequest(), threading.Event()
    camera = ManagedCamera(make_camera(rig), "simulated")
    results = [CameraError("not there yet"), camera.open()]
    monkeypatch.setattr(camera, "open", mock.Mock(side_effect=results))
    busy = camera.user = threading.Thread(target=released.wait, args=(PATIENCE_S,))
    busy.start()
    thread = threading.Thread(target=AcquireNode(rig, camera, None, stop).run)
    thread.start()
    time.sleep(0.2)
    assert camera.user is busy, "the camera has another thread already"
    released.set()
    deadline_s = time.monotonic() + PATIENCE_S
    while camera.open.call_count < 2:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    stop.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def ends_of(rig: Rig, node: AcquireNode, stop: StopRequest) -> list[SeriesEnd]:
    """Run a node that is stopped when it announces its series,
    and return the ends that it sends.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server = ResultsServer(
        context, rig.network.results, Welcome("sink", "s", rig.network.heartbeat_s)
    )
    thread = threading.Thread(target=node.run, daemon=True)
    thread.start()
    ends: list[SeriesEnd] = []
    deadline_s = time.monotonic() + PATIENCE_S
    try:
        while thread.is_alive() and time.monotonic() < deadline_s:
            now_s = time.monotonic()
            for identity, message in server.receive(now_s):
                if isinstance(message, SeriesInfo):
                    stop.set()  # the confirmation is still on its way
                    if ends:
                        server.reply(identity, Accepted(message.series, 0, "series_start"))
                elif isinstance(message, Dropped):
                    server.reply(identity, acknowledgement_of(message))
                elif isinstance(message, SeriesEnd):
                    ends.append(message)
                    server.reply(identity, Accepted(message.series, 0, "series_start"))
                    server.reply(identity, Accepted(message.series, 0, "series_end"))
            server.tick(now_s)
            time.sleep(0.005)
    finally:
        stop.set()
        thread.join(PATIENCE_S)
        server.close()
        context.term()
    assert not thread.is_alive()
    return ends


def test_series_announced_but_not_confirmed_is_ended_on_a_stop(tmp_path: Path) -> None:
    rig = load_rig(write_rig(tmp_path, {"reconstruct": {"nodes": 1}}))
    stop = StopRequest()
    node = AcquireNode(rig, ManagedCamera(make_camera(rig), "simulated"), None, stop)
    assert {end.acquired for end in ends_of(rig, node, stop)} == {
        0
    }  # it is sent again to a busy sink


def test_series_stopped_before_a_crash_acquires_nothing_more(tmp_path: Path) -> None:
    rig = load_rig(write_rig(tmp_path, {"policy": {"spool": str(tmp_path)}}))
    camera = make_camera(rig)
    capabilities, calibration = camera.open(), camera.calibration()
    assert calibration is not None
    spool = Spool(tmp_path, "test")
    spool.begin(series_info("s-1", rig, capabilities, calibration), limit_bytes=1 << 20)
    spool.number(2, 0, 0)
    spool.close(over=False)
    node = AcquireNode(
        rig, ManagedCamera(camera, "simulated"), None, StopRequest(), waits=lambda: True
    )
    ends = ends_of(rig, node, StopRequest())
    assert {(end.series, end.acquired, end.reason) for end in ends} == {("s-1", 3, "stopped")}
    assert node.was_ending_already, "the next series waits for a request"
