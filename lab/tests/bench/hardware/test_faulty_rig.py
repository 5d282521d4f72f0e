"""The table of faults: each is named rightly within ten snapshots, or costs little."""

from __future__ import annotations

import numpy as np
import pytest

from sci_stream.recon.guarded import NO_GUARD, Delivered
from sci_stream_drivers.simulated.options import SimulatedOptions
from sci_stream_lab.bench.hardware.drawn_rigs import drawn_rig
from sci_stream_lab.bench.hardware.faults import FAULTS
from sci_stream_lab.bench.hardware.faulty_rig import SOON, FaultyRig, solved, verdict

ONSET = 8
ITERATIONS = 3
COUNT = ONSET + SOON
# One of each kind: exposure, light, masks, pixels, counts. The others take minutes.
FAST = {"dwell", "stray", "shift", "dust", "gain"}
# A pan that shows another place hides light that drifts, for longer than ten snapshots. Scenes that
# show it are in tests/calibration/test_brightness_steps.py.
NOT_NAMED = {"none", "drift"}
NAMED = [
    pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
    for name in FAULTS
    if name not in NOT_NAMED
]


@pytest.fixture(scope="module")
def rig() -> FaultyRig:
    return FaultyRig(
        SimulatedOptions(
            scene="pan",
            height_px=96,
            width_px=96,
            n_frames=6,
            mask="random",
            bayer=None,
            truth=True,
            snapshot_rate_hz=0.0,
            seed=1,
        )
    )


@pytest.fixture(scope="module")
def right(rig: FaultyRig) -> list[Delivered]:
    snapshots = rig.snapshots(FAULTS["none"], onset=ONSET, count=COUNT)
    return solved(snapshots, rig.calibration, ITERATIONS)


def test_right_rig_has_no_fault(right: list[Delivered]) -> None:
    assert [defect for one in right for defect in one.defects] == []


@pytest.mark.slow  # 26 looks each
@pytest.mark.parametrize("number", [4028, 4037, 4038, 4053])
def test_right_rig_that_had_an_alarm_has_none(number: int) -> None:
    """Drops in noise, a balloon that bursts, and texture: each had a fault once."""
    rig = FaultyRig(drawn_rig(number))
    snapshots = rig.snapshots(FAULTS["none"], onset=0, count=26)
    results = solved(snapshots, rig.calibration, 4)
    assert [defect for one in results for defect in one.defects] == []


@pytest.mark.parametrize("name", NAMED)
def test_fault_is_named_or_costs_little(rig: FaultyRig, right: list[Delivered], name: str) -> None:
    snapshots = rig.snapshots(FAULTS[name], onset=ONSET, count=COUNT)
    faulty = solved(snapshots, rig.calibration, ITERATIONS)
    result = verdict(FAULTS[name], right[ONSET:], faulty[ONSET:], faulty[ONSET:])
    assert result.word in ("right", "harmless"), result


def test_stage_that_dwells_leaves_the_brightness(rig: FaultyRig, right: list[Delivered]) -> None:
    snapshots = rig.snapshots(FAULTS["dwell"], onset=ONSET, count=COUNT)
    faulty = solved(snapshots, rig.calibration, ITERATIONS)
    result = verdict(FAULTS["dwell"], right[ONSET:], faulty[ONSET:], faulty[ONSET:])
    assert result.lost_db < 2, result


@pytest.mark.parametrize("name", [name for name in FAULTS if name != "none"])
def test_each_fault_begins_at_its_onset(rig: FaultyRig, name: str) -> None:
    same = rig.snapshots(FAULTS["none"], onset=2, count=4)
    other = rig.snapshots(FAULTS[name], onset=2, count=4)
    differs = [not np.array_equal(a.counts, b.counts) for a, b in zip(same, other, strict=True)]
    assert differs == [False, False, True, True]


def test_checks_lower_the_loss(rig: FaultyRig, right: list[Delivered]) -> None:
    fault = FAULTS["short08"]
    snapshots = rig.snapshots(fault, onset=ONSET, count=COUNT)
    checked, unchecked = (
        solved(snapshots, rig.calibration, ITERATIONS, **guard)[ONSET:]
        for guard in ({}, {"guard": NO_GUARD})
    )
    result = verdict(fault, right[ONSET:], checked, unchecked)
    assert result.lost_db < result.unchecked_db - 5


def test_drawn_rigs_differ() -> None:
    drawn = [drawn_rig(number) for number in range(20)]
    assert len({options.scene for options in drawn}) > 4
    assert drawn_rig(3) == drawn[3]
    assert drawn_rig(9).width_px == 192
