"""An optical table: a scene, a DMD that a program commands over a socket, and its pulses to the
input of a camera.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sci_stream.modulation.timing import CameraTrigger, MaskTiming
from sci_stream.ports import Pattern
from sci_stream_drivers.simulated.bench import Bench
from sci_stream_drivers.simulated.options import ModulatorFaultOptions

DARK_DN, WHITE_DN, NOISE_DN = 1000, 41_000, 20
CLOSED, OPEN = 0.05, 0.95
"""Transmission of a mirror that is turned away, and of one that is turned to the sensor."""
FAULTS = "faults.json"
"""File of `Faults`; cycles are counted from 0 when it is read."""
EXPOSURES = "exposures.txt"
"""Frame id and number of the cycle of each exposure to the running masks."""


def transmission(patterns: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Return the transmission of patterns."""
    return CLOSED + (OPEN - CLOSED) * (patterns / 255)


class Faults(ModulatorFaultOptions):
    """Faults by the number of the cycle, also a pulse that is late by patterns from then on, and
    one that is lost.
    """

    slips: dict[int, int] = Field(default_factory=dict)
    lost: list[int] = Field(default_factory=list)


class OpticalTable:
    """The table in ``folder``: ``scene.npy``, (T, H, W) of 0–1, one for the time of each pattern;
    the socket ``dmd``.

    ``pulse`` is called in real time for each pulse on the cable to the camera, and returns whether
    the camera is armed. While a pattern is held, a white card covers the scene, which is at rest.
    From the command ``step`` on the scene moves, and the clock of the DMD stands still: each
    further ``step`` lets one cycle pass.
    """

    def __init__(self, folder: Path, pulse: Callable[[], bool]) -> None:
        self._folder = folder
        self._pulse = pulse
        self._scene = np.load(folder / "scene.npy")
        self._bench = Bench()
        self._bench.attach("", 0, 0.0)
        self._faults = Faults()
        self._slip = self._cycle = 0
        self._steps: threading.Semaphore | None = None
        self._rng = np.random.default_rng(0)
        self._phi = transmission(np.zeros((1, *self._scene.shape[1:]), np.uint8))
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(folder / "dmd"))
        self._socket.listen()
        for work in (self._serve, self._pulses):
            threading.Thread(target=work, daemon=True).start()

    def image(self, frame_id: int, trigger: CameraTrigger) -> npt.NDArray[np.uint16]:
        """Return the counts of an exposure that begins now, (H, W)."""
        bench = self._bench
        with bench.lock:
            if bench.shown is not None:
                masks = trigger.exposure_us / bench.timing.pattern_us * self._held(bench.shown)
            else:
                slots = bench.expose(self._cycle, trigger) if bench.playing else []
                begin = 0 if self._steps is None else self._cycle * bench.n_patterns
                times = [begin + int(slot.time + 1e-6) for slot in slots]
                seen = [
                    slot.weight * self._phi[int(slot.mask)] * self._scene[at % len(self._scene)]
                    for slot, at in zip(slots, times, strict=True)
                ]
                masks = np.sum(seen, 0) if seen else np.zeros(self._scene.shape[1:])
                with (self._folder / EXPOSURES).open("a") as log:
                    log.write(f"{frame_id} {self._cycle}\n")
            light = (WHITE_DN - DARK_DN) / max(1, bench.n_patterns)
        counts = DARK_DN + light * masks + self._rng.normal(0, NOISE_DN, masks.shape)
        return np.clip(np.rint(counts), 0, 65535).astype(np.uint16)

    def _held(self, pattern: Pattern) -> npt.NDArray[np.float64]:
        if isinstance(pattern, int):
            return self._phi[pattern]
        return np.full(self._scene.shape[1:], float(pattern == "white"))

    def _pulses(self) -> None:
        """Pulse at the begin of each cycle."""
        while True:
            if self._steps is not None:
                self._steps.acquire()
            with self._bench.lock:
                wait_s = self._cycle_begins() if self._bench.playing else 0.01
            time.sleep(wait_s)

    def _cycle_begins(self) -> float:
        """Inject the faults of the cycle, give its pulse and return its duration, s."""
        bench, file = self._bench, self._folder / FAULTS
        self._cycle += 1
        if file.exists():
            self._faults = Faults.model_validate_json(file.read_text())
            file.unlink()
            self._cycle = 0
            bench.plan_faults(self._faults)
        late = self._faults.slips.get(self._cycle, 0)
        self._slip += late
        bench.phase += late
        if self._cycle not in self._faults.lost and not self._pulse():
            bench.phase -= self._slip  # no camera counts: it will begin again
            self._slip = 0
        return bench.timing.cycle_us / 1e6

    def _serve(self) -> None:
        while True:
            line, _ = self._socket.accept()
            with line:
                words = line.makefile().read().split("\0")
                line.sendall(self._carry_out(words[0], words[1:]).encode())

    def _carry_out(self, command: str, words: list[str]) -> str:
        bench = self._bench
        with bench.lock:
            match command:
                case "load":
                    patterns = np.load(words[0])
                    bench.load(patterns)
                    self._phi = transmission(patterns)
                case "show":
                    bench.playing = False
                    bench.shown = (
                        int(words[0])
                        if words[0].isdigit()
                        else "white"
                        if words[0] == "white"
                        else "dark"
                    )
                case "arm":
                    pattern_us, dark_us, gap_us = map(float, words)
                    bench.timing = replace(
                        MaskTiming(),
                        pattern_us=pattern_us,
                        dark_us=dark_us,
                        gap_us=gap_us,
                        n_patterns=bench.n_patterns,
                    )
                case "start":
                    bench.run()
                    bench.phase += self._slip
                case "stop":
                    bench.playing, bench.shown = False, None
                case "step":
                    self._steps = self._steps or threading.Semaphore(0)
                    self._steps.release()
            counts = Counter(bench.counts)
        return "\n".join(f"{name} {count}" for name, count in counts.items())
