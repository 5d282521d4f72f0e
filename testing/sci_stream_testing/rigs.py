"""A simulated rig for the tests of other programs: all nodes as processes, on free ports of this
machine.

A pytest fixture; import it in a test module or ``conftest.py``::

    from sci_stream_testing.rigs import simulated_rig


    def test_my_program(simulated_rig):
        rig = simulated_rig(snapshot_rate_hz=5.0)
        reconstruction = next(iter(sci_stream.subscribe(rig.taps)))
        assert rig.finish()["ledger"]["closed"]
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sci_stream.config.toml_text import table_text
from sci_stream.nodes.launcher.demo import free_port

_PATIENCE_S = 120.0


class SimulatedRig:
    """A running rig in ``folder``; ``camera`` are options of the simulated camera.

    ``taps`` is the address for `sci_stream.subscribe`, ``page`` that of the live page and of
    `sci_stream.control`, ``recordings`` the folder of the recordings.
    """

    def __init__(self, folder: Path, camera: Mapping[str, str | float | bool]) -> None:
        taken = set[int]()
        ports = [free_port(taken) for _ in range(7)]
        dispatch, results, self.taps = (f"tcp://127.0.0.1:{port}" for port in ports[:3])
        self.page, self.recordings = f"http://127.0.0.1:{ports[3]}", folder / "recordings"
        options = {
            "width_px": 64,
            "height_px": 64,
            "n_frames": 4,
            "snapshot_rate_hz": 5.0,
            "truth": True,
            **camera,
        }
        tables = (
            table_text("rig", {"name": "simulated"}),
            table_text("camera", {"driver": "simulated", "options": options}),
            table_text(
                "reconstruct", {"solver": "tv", "devices": ["cpu"], "iterations": 4, "threads": 1}
            ),
            table_text("network", {"dispatch": dispatch, "results": results, "taps": self.taps}),
            table_text("record", {"enabled": True, "folder": self.recordings}),
            table_text("preview", {"port": ports[3]}),
            table_text(
                "health",
                dict(
                    zip(("acquire_port", "sink_port", "reconstruct_port"), ports[4:], strict=True)
                ),
            ),
        )
        self._summary, rig = folder / "summary.json", folder / "rig.toml"
        rig.write_text("\n".join(tables), "utf-8")
        command = [
            sys.executable,
            "-m",
            "sci_stream",
            "run",
            str(rig),
            "--summary",
            str(self._summary),
        ]
        self._log = (folder / "log.txt").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            command, cwd=folder, stdout=self._log, stderr=subprocess.STDOUT
        )

    def stop(self) -> None:
        """Stop the rig, if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(_PATIENCE_S)
        self._log.close()

    def finish(self) -> Any:
        """Stop the rig as with Ctrl-C, and return its summary (docs/architecture.md); fails with
        its log.
        """
        self._process.send_signal(signal.SIGINT)
        status = self._process.wait(_PATIENCE_S)
        self._log.seek(0)
        assert status == 0, f"the rig ended with status {status}:\n{self._log.read()}"
        return json.loads(self._summary.read_text("utf-8"))


@pytest.fixture
def simulated_rig(tmp_path: Path) -> Iterator[Callable[..., SimulatedRig]]:
    """Return a function that starts a `SimulatedRig` with these options of its camera; all stop
    after the test.
    """
    with ExitStack() as stack:

        def start(**camera: str | float | bool) -> SimulatedRig:
            rig = SimulatedRig(tmp_path, camera)
            stack.callback(rig.stop)
            return rig

        yield start
