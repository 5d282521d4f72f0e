"""A hundred events of a triggered recording, while the sink is killed again and again."""

from __future__ import annotations

import random
import signal
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from sci_stream.errors import SciStreamError
from sci_stream.recording.series import RecordedSeries
from sci_stream.web.control_client import RigControl
from tests.e2e.kit import RunningRig, assert_accounted_for

pytestmark = [pytest.mark.rig, pytest.mark.slow, pytest.mark.timeout(900)]

EVENTS = 100
RATE_HZ, BEFORE_S, AFTER_S = 20.0, 0.5, 0.3
PERIOD_NS = 1e9 / RATE_HZ


def keep(control: RigControl) -> int:
    """Keep an event, as soon as the sink answers; return its number."""
    while True:
        try:
            return int(control.do("sink", "keep_event").split()[-1])
        except SciStreamError:
            time.sleep(0.05)


def test_events_are_kept_through_deaths_of_the_sink(tmp_path: Path) -> None:
    chance = random.Random(39)
    changes = {
        "camera": {"options": {"snapshot_rate_hz": RATE_HZ, "truth": False}},
        "record": {"mode": "triggered", "before_s": BEFORE_S, "after_s": AFTER_S},
        "reconstruct": {"iterations": 2},
        "policy": {"ring_mib": 64, "queue_snapshots": 8, "max_wait_s": 0.0},
        "preview": {"enabled": True},
    }
    answered: set[int] = set()
    kills = 0
    with RunningRig(tmp_path, changes) as rig:
        control = RigControl(f"http://127.0.0.1:{rig.rig.preview.port}", who="test", timeout_s=5.0)
        rig.wait_for_count("acquired", int(2 * BEFORE_S * RATE_HZ))
        for index in range(EVENTS):
            time.sleep(0.1 if index % 5 == 0 else chance.uniform(0.0, 1.5))
            if index % 4 == 0:
                kills += 1
                killer = threading.Timer(chance.uniform(0.0, 0.8), rig.kill, ["sink"])
                killer.start()
                number = keep(control)
                killer.join()
            else:
                number = keep(control)
            assert number not in answered
            answered.add(number)
        time.sleep(1.0)
        rig.process.send_signal(signal.SIGINT)
        ledger = assert_accounted_for(rig.finish())
    print(f"{kills} kills, {max(answered)} events of which {len(answered)} were answered; {ledger}")
    (path,) = [path for path in rig.folder.glob("recordings/*.h5") if "_" not in path.stem]
    with RecordedSeries(path) as recording:
        stored = [seq for segment in recording.segments for seq in segment.raw_seqs]
        assert len(stored) == len(set(stored)) == ledger["reconstructed"] + ledger["raw_only"]
        assert ledger["not_kept"] == ledger["acquired"] - len(stored) - sum(
            ledger["dropped"].values()
        )
        time_of = {
            seq: int(recording.rows["host_time_ns"][seq - recording.first_seq]) for seq in stored
        }
        events = {event.number: event for event in recording.events}
        assert answered <= events.keys()
        assert all(any(event.covers(at) for event in events.values()) for at in time_of.values())
        late_ns = []
        for event in events.values():
            seqs = recording.seqs_of_event(event.number)
            assert all(after == before + 1 for before, after in pairwise(seqs)), (
                "a snapshot is missing"
            )
            late_ns += [time_of[seqs[0]] - event.first_ns, event.last_ns - time_of[seqs[-1]]]
        # On a busy machine the camera pauses.
        pauses_ns = [time_of[seq + 1] - time_of[seq] for seq in stored if seq + 1 in time_of]
        print(
            f"windows are short by at most {max(late_ns) / PERIOD_NS:.2f} periods, the longest "
            "pause of the camera is "
            f"{max(pauses_ns) / PERIOD_NS:.2f}; {len(recording.segments)} segments"
        )
        assert max(late_ns) < max(2.5 * PERIOD_NS, *pauses_ns), (
            "the snapshot at either end is missing"
        )
