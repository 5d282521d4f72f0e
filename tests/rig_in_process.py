"""A whole rig in threads of this process, with real sockets and files, whose camera exposes when a
test says so.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from unittest import mock

from sci_stream.config import Rig
from sci_stream.delivery.ledger import Ledger, LedgerCounts
from sci_stream.devices.modulated_camera import ModulatedCamera
from sci_stream.devices.modulators import make_coded_camera
from sci_stream.nodes.acquire import series_loop
from sci_stream.nodes.reconstruct.node import ReconstructNode
from sci_stream.nodes.reconstruct.solver_thread import SolverThread
from sci_stream.nodes.runtime.process import StopRequest
from sci_stream.nodes.sink import node as sink_module
from sci_stream.nodes.sink.node import SinkNode
from sci_stream.nodes.sink.series_session import SeriesSession
from sci_stream.ports import Camera
from sci_stream.recording.calibration_file import load_calibration
from sci_stream_drivers.simulated import SimulatedCamera
from tests.e2e.kit import PATIENCE_S, RigFiles, RunningRig, Tables, merged

_POLL_S = 0.002
# Twice a second suits a person; a test would wait for it.
_STATUS_S = 0.02


class NodeThread:
    """A node that runs in a thread until it is stopped, and keeps its exception."""

    def __init__(self, name: str, run: Callable[[], None], stop: StopRequest) -> None:
        self.error: BaseException | None = None
        self._run = run
        self._stop = stop
        self._thread = threading.Thread(target=self._run_and_note, name=name, daemon=True)
        self._thread.start()

    def _run_and_note(self) -> None:
        try:
            self._run()
        except BaseException as error:  # raised again by `join`, in the test
            self.error = error

    @property
    def running(self) -> bool:
        """Whether the node has not ended."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ask the node to drain and end, and wait for it."""
        self._stop.set()
        self.join()

    def join(self) -> None:
        """Wait for the end of the node; raise its exception."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self._thread.name} still runs after {PATIENCE_S:g} s"
        error, self.error = self.error, None
        if error is not None:
            raise error


def start_reconstruct(rig: Rig, index: int = 0) -> NodeThread:
    """Start a reconstruct node of a rig."""
    stop = StopRequest()
    solver = SolverThread(rig.reconstruct, "cpu", rig.calibration, rig.modulator.frame_s)
    return NodeThread(
        f"reconstruct-{index}", ReconstructNode(rig, solver, stop, index=index).run, stop
    )


class RunningRigSolvedHere(RunningRig):
    """A rig of processes whose reconstruct node is a thread: a process would import torch for
    seconds.
    """

    def __init__(
        self, folder: Path, changes: Tables | None = None, *arguments: str, **options: Any
    ) -> None:
        super().__init__(
            folder, merged(changes or {}, {"reconstruct": {"nodes": 0}}), *arguments, **options
        )
        self._reconstruct = start_reconstruct(self.rig)

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._reconstruct.stop()


class RigInProcess(RigFiles):
    """Acquire, reconstruct and sink nodes of a rig in threads; a context manager that stops them.

    The simulated camera of `tests.e2e.kit.small_rig` waits for `expose`, unless ``changes`` set its
    ``trigger`` to ``free``; nothing waits for time, so a test is as fast as the machine.

    Parameters
    ----------
    folder
        Where the rig file, the summary, the recordings and the spool go.
    changes
        Changes to `small_rig`.
    snapshots
        End each series after this many snapshots; 0 for no limit.
    camera
        Class in place of that of the simulated camera: one with faults.
    """

    def __init__(
        self,
        folder: Path,
        changes: Tables | None = None,
        *,
        snapshots: int = 0,
        camera: type[SimulatedCamera] | None = None,
    ) -> None:
        simulated = (changes or {}).get("camera", {}).get("driver", "simulated") == "simulated"
        fast = {
            "camera": {"options": {"trigger": "software", "snapshot_rate_hz": 0.0}}
            if simulated
            else {},
            "policy": {"spool": str(folder / "spool")},
            "record": {"folder": str(folder / "recordings")},
        }
        super().__init__(folder, fast, changes)
        self.camera: Camera = make_coded_camera(self.rig)
        if camera is not None:
            self.camera = camera(camera.Options.model_validate(self.rig.camera.options))
        self.nodes: dict[str, NodeThread] = {}
        self._snapshots = snapshots
        self._patches = contextlib.ExitStack()
        self._patches.enter_context(mock.patch.object(sink_module, "_STATUS_S", _STATUS_S))
        self.start_sink()
        for index in range(self.rig.reconstruct.nodes):
            self.start_reconstruct(index)
        self.start_acquire()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in reversed(self.nodes.values()):
            with contextlib.suppress(Exception):  # the test has failed already, or has read it
                node.stop()
        self._patches.close()

    # --- nodes

    def start_acquire(self) -> None:
        """Start the acquire node, with the calibration file of the rig if it names one."""
        stop = StopRequest()
        file = self.rig.calibration.file
        calibration = None if file is None else load_calibration(file)
        self.nodes["acquire"] = NodeThread(
            "acquire",
            lambda: series_loop.acquire_series(
                self.rig, self.camera, calibration, stop, snapshots=self._snapshots
            ),
            stop,
        )

    def start_reconstruct(self, index: int = 0) -> None:
        """Start a reconstruct node."""
        self.nodes[f"reconstruct-{index}"] = start_reconstruct(self.rig, index)

    def start_sink(self) -> None:
        """Start the sink node."""
        stop = StopRequest()
        self.sink = SinkNode(self.rig, stop, summary=self._summary)
        self.nodes["sink"] = NodeThread("sink", self.sink.run, stop)

    # --- the camera

    def expose(self, snapshots: int = 1) -> None:
        """Let the camera take this many snapshots."""
        camera = self.camera.camera if isinstance(self.camera, ModulatedCamera) else self.camera
        assert isinstance(camera, SimulatedCamera)
        for _ in range(snapshots):
            camera.trigger()

    def reconstruct(self, snapshots: int = 1) -> None:
        """Let the camera take this many snapshots, and wait until they are reconstructed."""
        self.wait_for_reconstructed(snapshots, since=lambda: self.expose(snapshots))

    def wait_for_reconstructed(
        self, snapshots: int, since: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until this many more snapshots are reconstructed than before ``since`` is called."""
        least = self.counts()["reconstructed"] + snapshots
        ended = len(self.sink._ended)
        since()
        self.wait_for(
            # The last snapshots of a series may end it before anyone looks.
            lambda: len(self.sink._ended) > ended or self.counts()["reconstructed"] >= least,
            f"{snapshots} more snapshots reconstructed",
        )

    # --- state

    @property
    def series(self) -> SeriesSession | None:
        """The running series at the sink."""
        return self.sink._series

    def counts(self) -> LedgerCounts:
        """Return the ledger of the running series; all 0 without one."""
        series = self.series
        return Ledger().counts() if series is None else series.ledger.counts()

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition holds; fail with a description on timeout or when a node has
        failed.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            for node in self.nodes.values():
                if node.error is not None:
                    node.join()
            assert time.monotonic() < deadline_s, f"not within {PATIENCE_S:g} s: {what}"
            time.sleep(_POLL_S)

    def finish(self) -> dict[str, Any]:
        """Stop the rig in the order of a supervisor, unless it has a limit,
        and return the summary.
        """
        acquire = self.nodes["acquire"]
        if self._snapshots:
            acquire.join()
        else:
            acquire.stop()
        for name in reversed(self.nodes):
            self.nodes[name].stop()
        return self.summary()
