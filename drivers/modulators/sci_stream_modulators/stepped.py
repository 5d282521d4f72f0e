"""Modulators that show one pattern at a time, such as displays: a thread makes the sequence."""

from __future__ import annotations

import threading
import time

from sci_stream_modulators.base import BaseModulator, OptionsT


class SteppedModulator(BaseModulator[OptionsT]):
    """A modulator without a sequence of its own: a thread shows one pattern after the other.

    Its times are as exact as the operating system. The picture shows the phase, and the rig
    corrects it.
    """

    _thread: threading.Thread | None = None
    _failure: Exception | None = None

    def _run(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._step, name="modulator", daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _halt(self) -> None:
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = self._failure = None

    def _step(self) -> None:
        assert self._timing is not None
        assert self._patterns is not None
        due_s, index = time.monotonic(), 0
        while not self._ended.is_set():
            try:
                self._show(self._patterns[(index + self._first) % len(self._patterns)])
            except Exception as error:
                self._failure = error
                return
            index += 1
            due_s += (
                self._timing.slot_us
                + (self._timing.gap_us if index % len(self._patterns) == 0 else 0)
            ) / 1e6
            late_s = time.monotonic() - due_s
            self.counts["late"] += late_s > 0.1 * self._timing.slot_us / 1e6
            if late_s > self._timing.slot_us / 1e6:
                due_s += late_s  # a pause of the machine is not made up for
            self._ended.wait(max(0.0, -late_s))
