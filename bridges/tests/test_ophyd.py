"""Bluesky plans read a rig, with the installed ophyd-async."""

from __future__ import annotations

import asyncio
import importlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bridges.tests.tap import publishing
from sci_stream.clock import unix_ns
from sci_stream.delivery.ledger import LedgerCounts
from sci_stream.errors import TransportError
from sci_stream.security.curve import client_config
from sci_stream.security.keys import read_key_pair
from tests.conftest import RigMaker
from tests.slow_denoiser import SLOW

pytestmark = pytest.mark.filterwarnings("ignore")  # of Bluesky's own dependencies
core = pytest.importorskip("ophyd_async.core", exc_type=ModuleNotFoundError)
bluesky = pytest.importorskip("bluesky", exc_type=ModuleNotFoundError)
plans = pytest.importorskip("bluesky.plans", exc_type=ModuleNotFoundError)
bridge = importlib.import_module("sci_stream_bridges.ophyd")


def test_count_reads_snapshots_acquired_after_each_trigger(series, taps: str, key: Path) -> None:
    keys = read_key_pair(key)
    engine = bluesky.RunEngine(context_managers=[])
    documents: list[tuple[str, dict[str, Any]]] = []
    with core.init_devices():
        camera = bridge.SciStreamDetector(
            taps, timeout_s=60.0, configure=client_config(keys, keys.public.decode())
        )
    began_ns = unix_ns()
    with publishing(series, taps, keys):
        engine(
            plans.count([camera], num=2), lambda name, document: documents.append((name, document))
        )
    descriptor = next(document for name, document in documents if name == "descriptor")
    assert descriptor["hints"]["camera"]["fields"] == ["camera-mean_brightness"]
    events = [document["data"] for name, document in documents if name == "event"]
    assert len(events) == 2
    assert began_ns < events[0]["camera-acquired_ns"] < events[1]["camera-acquired_ns"]
    seq = events[1]["camera-seq"]
    video = series.video(seq).astype(np.float32)
    np.testing.assert_array_equal(events[1]["camera-video"], video)
    assert events[1]["camera-mean_brightness"] == pytest.approx(video.mean())
    assert events[1]["camera-series"] == series.info.series


def test_trigger_without_a_rig_is_one_clear_error(taps: str) -> None:
    async def trigger() -> None:
        camera = bridge.SciStreamDetector(taps, timeout_s=0.2, name="camera")
        await camera.connect()
        await camera.trigger()

    with pytest.raises(TransportError, match="No data from"):
        asyncio.run(trigger())


def test_unstage_during_a_trigger_ends_the_subscription(series, taps: str) -> None:
    async def unstage_first() -> None:
        camera = bridge.SciStreamDetector(taps, timeout_s=60.0, name="camera")
        await camera.connect()
        status = camera.trigger()
        await asyncio.sleep(0.2)
        await camera.unstage()
        with publishing(series, taps):
            await status

    asyncio.run(unstage_first())
    assert "tap" not in {thread.name for thread in threading.enumerate()}


def test_scan_fails_if_the_rig_lost_snapshots(rig_in_process: RigMaker) -> None:
    rig = rig_in_process(
        {
            "camera": {"options": {"width_px": 64, "height_px": 64, "n_frames": 4}},
            "policy": {"queue_snapshots": 1},
            "reconstruct": SLOW,
            "preview": {"enabled": True},
        }
    )
    rig.reconstruct()

    async def scan(snapshots: int) -> None:
        camera = bridge.SciStreamDetector(
            rig.rig.network.taps,
            name="camera",
            page=f"http://127.0.0.1:{rig.rig.preview.port}",
        )
        await camera.connect()
        await camera.stage()
        await asyncio.to_thread(expose, snapshots)
        await camera.unstage()

    def expose(snapshots: int) -> None:
        acquired = rig.counts()["acquired"] + snapshots
        rig.expose(snapshots)
        rig.wait_for(lambda: ended(rig.counts()) == acquired, "all snapshots end")

    def ended(counts: LedgerCounts) -> int:
        return counts["reconstructed"] + sum(counts["dropped"].values())

    asyncio.run(scan(1))
    with pytest.raises(TransportError, match=r"lost \d+ snapshots during the scan"):
        asyncio.run(scan(30))
