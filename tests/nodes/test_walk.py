"""The way of a snapshot through the code is short: docs/architecture.md lists the modules from
camera to recording.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import FrameType

import pytest

from sci_stream.model import CameraFrame, Reconstruction, Snapshot
from tests.e2e.kit import ROOT
from tests.rig_in_process import RigInProcess

BESIDE_THE_WAY = {
    *("model", "optics/calibration", "nodes/reconstruct/solver"),  # types
    *("wire/messages", "wire/kinds", "wire/schema", "wire/payload"),  # parts of the codec
    *(
        "nodes/acquire/series_loop",
        "nodes/acquire/in_flight",
    ),  # the start of a series, accounting of memory
    "nodes/acquire/spool",
    *(
        "nodes/acquire/frame_content",
        "nodes/acquire/trigger_monitor",
        "nodes/reconstruct/calibration_watch",
        "calibration/monitor",
        "calibration/baseline",
        "calibration/sensor/paced",
        "delivery/frame_faults",
    ),  # monitors
    *("calibration/compatibility", "recon/initialization/initializer"),  # parts of the solve
    "recon/warm_up",  # solves before the first snapshot
    *("transport/pubsub", "delivery/reorder_buffer"),  # display
    "nodes/sink/statistics",
}
"""Modules that see a snapshot and pass it no further."""


class Walk:
    """A profiler: the modules on the call stack whenever a function is given a frame, a snapshot or
    a result.
    """

    def __init__(self) -> None:
        self.modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _result: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        names = (*code.co_varnames[: code.co_argcount], *code.co_freevars)
        if not any(
            isinstance(frame.f_locals.get(name), CameraFrame | Snapshot | Reconstruction)
            for name in names
        ):
            return
        caller: FrameType | None = frame
        while caller is not None:
            package, _, module = str(caller.f_globals.get("__name__")).partition(".")
            if package == "sci_stream":
                self.modules.add(module.replace(".", "/"))
            caller = caller.f_back


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """Run a rig of three nodes in this process and follow its snapshots."""
    walk = Walk()
    threading.setprofile(walk)  # for the threads that start from now on
    try:
        with RigInProcess(tmp_path_factory.mktemp("walk"), snapshots=3) as rig:
            rig.expose(3)
            rig.finish()
    finally:
        threading.setprofile(None)
    return walk


def test_snapshot_passes_at_most_twenty_modules(walk: Walk) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text().partition("\nTo follow one snapshot")[2]
    documented = set(re.findall(r"^\|[a-z ]*\| `([a-z_/]+)` \|", text, re.MULTILINE))
    assert walk.modules - BESIDE_THE_WAY == documented
    assert len(documented) <= 20


def test_result_passes_at_most_five_modules_of_sink(walk: Walk) -> None:
    found = {module for module in walk.modules if Path(module).parent == Path("nodes/sink")}
    assert {"nodes/sink/node", "nodes/sink/series_recording"} <= found, (
        "it was followed from the message to the file"
    )
    assert len(found) <= 5, found
