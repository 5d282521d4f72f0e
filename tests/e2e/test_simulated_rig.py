"""The fixture for other people's tests starts a rig that streams, records and closes its ledger."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import sci_stream
from sci_stream_testing.rigs import SimulatedRig, simulated_rig

pytestmark = pytest.mark.rig(seconds=8)

__all__ = ["simulated_rig"]


def test_simulated_rig_streams_and_closes_its_ledger(
    simulated_rig: Callable[..., SimulatedRig],
) -> None:
    rig = simulated_rig(width_px=32, height_px=32)
    reconstruction = next(iter(sci_stream.subscribe(rig.taps)))
    assert reconstruction.video.shape == (4, 32, 32)
    summary = rig.finish()
    assert summary["ledger"]["closed"]
    assert list(rig.recordings.glob("*.h5"))
