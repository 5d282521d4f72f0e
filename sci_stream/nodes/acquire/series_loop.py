"""Consecutive series in one acquire node, requested from the page,
a program or the command line.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from sci_stream.config import Rig
from sci_stream.errors import InputError
from sci_stream.nodes.acquire.managed_camera import managed
from sci_stream.nodes.acquire.node import AcquireNode
from sci_stream.nodes.acquire.spool import done_path, spool_path
from sci_stream.nodes.runtime.process import CLOSE_VARIABLE, StopRequest
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import Camera

log = logging.getLogger(__name__)


def acquire_series(
    rig: Rig,
    camera: Camera,
    calibration: Calibration | None,
    stop: StopRequest,
    *,
    snapshots: int = 0,
    duration_s: float = 0.0,
) -> None:
    """Acquire one series, and another for each request.

    Each series is complete: its snapshots are delivered and its ledger closes at the sink; the next
    one starts with seq 0 in epoch 0. The camera stays open in between.

    Parameters and errors are those of `AcquireNode`; the limits hold for each series. After
    ``stop`` no other follows.
    """
    requests = SeriesRequests(stop, done_path() or spool_path(rig.policy.spool, rig.rig.name))
    allowed = rig.calibration.other_camera
    with managed(camera, rig.camera.driver, other_camera=allowed) as managed_camera:
        if os.environ.get(CLOSE_VARIABLE):
            stop.set()
        while True:
            node = AcquireNode(
                rig,
                managed_camera,
                calibration,
                requests.current,
                snapshots=snapshots,
                duration_s=duration_s,
                actions=requests.actions,
                waits=lambda: requests.held,
            )
            node.run()
            if node.was_ending_already and not requests.current:
                continue  # the next series has not begun
            if not requests.renew():
                return
            if (done := done_path()) is not None:
                done.unlink(missing_ok=True)


class SeriesRequests:
    """Operator requests about series: end the running one and start the next at once or on request.

    A file beside ``path`` notes that the next one waits for a request, for a process that replaces
    this one.
    """

    def __init__(self, stop: StopRequest, path: Path | None = None) -> None:
        self._stop = stop
        self._follows = False
        self._marker = None if path is None else path.with_suffix(".held")
        self.held = self._marker is not None and self._marker.exists()
        """Whether the next series waits for a request."""
        if self.held:
            log.warning(
                "a stop of the last series still holds: waiting for start_series (noted in %s)",
                self._marker,
            )
        self.current = StopRequest()
        """Ends the running series, or the wait for its start."""
        stop.call_on_stop(lambda: self.current.set(gentle=stop.gentle))

    @property
    def actions(self) -> Mapping[str, Callable[[], str]]:
        """Actions of an operator, by name."""
        return {
            "next_series": self.next_series,
            "stop_series": self.stop_series,
            "start_series": self.next_series,
        }

    def next_series(self) -> str:
        """End the running series and start another.

        Raises `InputError` while the rig is stopping.
        """
        self._refuse_if_stopping()
        if not self._follows:
            log.warning("another series follows")
        if self._follows or not self.held:
            self._follows = True
            self.current.set()
        self._hold(False)  # a node that waits begins its series
        return "another series follows"

    def stop_series(self) -> str:
        """End the series; the next one waits for a request.

        Raises `InputError` while the rig is stopping.
        """
        self._refuse_if_stopping()
        log.warning("series ends; the next one waits for a request")
        self._follows = True
        self._hold(True)
        self.current.set()
        return "the series ends; start_series begins another"

    def _hold(self, held: bool) -> None:
        self.held = held
        if self._marker is not None:
            with contextlib.suppress(OSError):
                self._marker.touch() if held else self._marker.unlink(missing_ok=True)

    def _refuse_if_stopping(self) -> None:
        if self._stop:
            raise InputError("The rig is stopping")

    def renew(self) -> bool:
        """Prepare for the next series; return whether one follows."""
        if self._follows and not self._stop:
            self.current = StopRequest()
            self._follows = False
            if not self._stop:  # it may have arrived meanwhile
                return True
        self._hold(False)
        return False
