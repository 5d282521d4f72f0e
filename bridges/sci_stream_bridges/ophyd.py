"""Bluesky: a rig as an ophyd-async detector (extra ``ophyd``).

::

    from bluesky import RunEngine, plans
    from ophyd_async.core import init_devices
    from sci_stream_bridges.ophyd import SciStreamDetector

    RE = RunEngine()
    with init_devices():
        camera = SciStreamDetector("tcp://127.0.0.1:5703")
    RE(plans.count([camera], num=5))
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from sci_stream.errors import ConfigError, TransportError
from sci_stream.model import Reconstruction
from sci_stream.plugins import unix_ns
from sci_stream.security.curve import SocketConfig, unencrypted
from sci_stream.transport.pubsub import DEFAULT_ENDPOINT, subscribe
from sci_stream.web.control_client import RigControl

try:
    from bluesky.protocols import Triggerable
    from ophyd_async.core import (
        AsyncStatus,
        StandardReadable,
        StandardReadableFormat,
        soft_signal_r_and_setter,
    )
except ImportError as missing:
    raise ConfigError(
        "The Bluesky bridge needs the library ophyd_async, which is not installed",
        got=missing,
        hint='Install it: pip install "sci-stream-bridges[ophyd]"',
    ) from None


class SciStreamDetector(StandardReadable, Triggerable):
    """A running rig: `trigger` waits for the next snapshot, the signals then hold its
    reconstruction.

    The rig acquires and records on its own. A trigger gives the first reconstruction of a snapshot
    that was acquired after it, by the clock of this machine: where the rig runs on another one,
    both clocks must agree.

    Signals: ``video`` (B, H, W) float32, ``mean_brightness`` (hinted), ``seq``, ``series``,
    ``residual``, ``acquired_ns``.

    Parameters
    ----------
    taps
        The ``[network] taps`` address of the rig.
    timeout_s
        Longest wait of a trigger.
    name
        Name of the device.
    configure
        Keys of an encrypted rig, as of `sci_stream.transport.pubsub.subscribe`.
    page
        Address of the rig's live page, with or without ``?token=``. With it, a scan in which the
        rig lost snapshots fails: `unstage` raises.
    """

    def __init__(
        self,
        taps: str = DEFAULT_ENDPOINT,
        timeout_s: float = 30.0,
        name: str = "",
        *,
        configure: SocketConfig = unencrypted,
        page: str | None = None,
    ) -> None:
        self._taps = taps
        self._control = None if page is None else RigControl(page)
        self._staged = _Lost("", 0)
        self._timeout_s = timeout_s
        self._configure = configure
        self._stream: Iterator[Reconstruction] | None = None
        with self.add_children_as_readables(StandardReadableFormat.HINTED_SIGNAL):
            self.mean_brightness, self._set_brightness = soft_signal_r_and_setter(float, 0.0)
        with self.add_children_as_readables():
            self.seq, self._set_seq = soft_signal_r_and_setter(int, -1)
            self.series, self._set_series = soft_signal_r_and_setter(str, "")
            self.residual, self._set_residual = soft_signal_r_and_setter(float, 0.0)
            self.acquired_ns, self._set_acquired = soft_signal_r_and_setter(int, 0)
            self.video, self._set_video = soft_signal_r_and_setter(
                np.ndarray, np.zeros((1, 1, 1), np.float32)
            )
        super().__init__(name=name)

    @AsyncStatus.wrap
    async def stage(self) -> None:
        """Note the ledger of the rig, if its page is known."""
        await super().stage()
        self._staged = await asyncio.to_thread(self._lost)

    @AsyncStatus.wrap
    async def trigger(self) -> None:
        """Wait for a snapshot that is acquired from now on.

        Raises
        ------
        TransportError
            If none arrives in time.
        """
        found = await asyncio.to_thread(self._next, unix_ns())
        video = np.asarray(found.video, np.float32)
        self._set_video(video)
        self._set_brightness(float(video.mean()))
        self._set_seq(found.id.seq)
        self._set_series(found.id.series)
        self._set_residual(found.report.residual)
        self._set_acquired(found.times.acquired_ns)

    def _next(self, after_ns: int) -> Reconstruction:
        until_s = time.monotonic() + self._timeout_s
        stream = self._stream or subscribe(
            self._taps, timeout_s=self._timeout_s, configure=self._configure
        )
        self._stream = stream
        try:
            for reconstruction in stream:
                if reconstruction.times.acquired_ns >= after_ns:
                    return reconstruction
                if time.monotonic() > until_s:
                    break
        except TransportError:
            if self._stream is stream:
                self._stream = None  # a generator that has raised is finished
            raise
        finally:
            if self._stream is not stream:  # `unstage` could not close it
                _close(stream)
        raise TransportError(
            f"No snapshot from {self._taps} was acquired after the trigger",
            expected=f"one within {self._timeout_s:g} s",
            hint="Is the camera running, and do the clocks of the machines agree?",
        )

    @AsyncStatus.wrap
    async def unstage(self) -> None:
        """Close the connection to the rig.

        Raises
        ------
        TransportError
            If the rig has lost snapshots since `stage`.
        """
        await super().unstage()
        stream, self._stream = self._stream, None
        if stream is not None:
            await asyncio.to_thread(_close, stream)
        now = await asyncio.to_thread(self._lost)
        before = self._staged.snapshots if now.series == self._staged.series else 0
        if now.snapshots > before:
            raise TransportError(
                f"The rig lost {now.snapshots - before} snapshots during the scan",
                expected="none",
                hint="Its page and its summary say why. Reduce the rate of the camera, or take "
                'policy.mode = "record".',
            )

    def _lost(self) -> _Lost:
        """Return the number of snapshots that the rig's present series has lost."""
        if self._control is None:
            return _Lost("", 0)
        status: dict[str, Any] = self._control.status()
        ledger = status["ledger"]
        return _Lost(
            str(status["series"]), sum(ledger["dropped"].values()) + ledger["camera_missed"]
        )


class _Lost(NamedTuple):
    series: str
    snapshots: int


def _close(stream: Iterator[Reconstruction]) -> None:
    """Close a subscription, unless another thread waits for its data and closes it then."""
    with contextlib.suppress(ValueError):  # generator already executing
        stream.close()  # type: ignore[attr-defined]  # a generator
