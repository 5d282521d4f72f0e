"""Any modulator with a program: ``show = "my-dmd --pattern {index}"``. Needs that program."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from sci_stream.errors import CameraError
from sci_stream.plugins import Array, MaskTiming, Master, ModulatorCapabilities, Pulse
from sci_stream_drivers.fields import DriverOptions
from sci_stream_modulators.base import BaseModulator


class CommandOptions(DriverOptions):
    """Options of the driver. A command is no shell script: words, quotes, and names in braces."""

    show: str = Field(
        min_length=1, description="Shows one pattern; {file} is an image (.npy), {index} 0, 1, …"
    )
    load: str = Field(
        default="",
        description='Loads the masks of {file}, .npy of (B, H, W) uint8; "": nothing to do.',
    )
    arm: str = Field(
        default="",
        description="Sets the times {pattern_us}, {dark_us}, {gap_us}, {pulse_delay_us}, "
        "{pulse_width_us}.",
    )
    start: str = Field(default="", description="Starts the cycle.")
    stop: str = Field(default="", description="Stops it.")
    counters: str = Field(
        default="",
        description="Prints counts, a name and a number per line, as restarts 1; underruns are "
        "noticed, too.",
    )
    height_px: int = Field(ge=1, description="Height of a pattern, mirrors.")
    width_px: int = Field(ge=1, description="Width of a pattern, mirrors.")
    bits: Literal[1, 8] = Field(default=1, description="1: binary patterns; 8: grey ones.")
    min_pattern_us: float = Field(default=0.0, ge=0, description="Shortest time of a pattern, µs.")
    pulse: Literal["per_cycle", "per_pattern", "none"] = Field(
        default="per_cycle", description="Pulses that it gives."
    )
    masters: list[Master] = Field(
        default=["modulator"], description="Devices that may start a cycle."
    )
    timeout_s: float = Field(
        default=30.0, gt=0, le=3600, description="Longest time of a command, s."
    )


class CommandModulator(BaseModulator[CommandOptions]):
    """A modulator that a program commands; the program ends when the command is carried out."""

    Options: ClassVar[type[CommandOptions]] = CommandOptions

    def _connect(self) -> ModulatorCapabilities:
        o = self.options
        self._folder = tempfile.TemporaryDirectory(prefix="sci-stream-patterns-")
        pulses: tuple[Pulse, ...] = () if o.pulse == "none" else (o.pulse,)
        return ModulatorCapabilities(
            model=shlex.split(o.show)[0],
            serial="",
            height_px=o.height_px,
            width_px=o.width_px,
            bits=o.bits,
            min_pattern_us=o.min_pattern_us,
            pulses=pulses,
            masters=tuple(o.masters),
        )

    def _upload(self, patterns: Array) -> None:
        self._do(self.options.load, file=self._file(patterns))

    def _apply(self, timing: MaskTiming) -> MaskTiming:
        names = (
            "pattern_us",
            "dark_us",
            "gap_us",
            "pulse_delay_us",
            "pulse_width_us",
            "pulse",
            "master",
        )
        self._do(self.options.arm, **{name: getattr(timing, name) for name in names})
        return timing

    def _run(self) -> None:
        self._do(self.options.start)

    def _halt(self) -> None:
        self._do(self.options.stop)

    def _show(self, image: Array) -> None:
        same = (
            []
            if self._patterns is None
            else [b for b, mask in enumerate(self._patterns) if (mask == image).all()]
        )
        index = same[0] if same else "white" if image.any() else "dark"
        self._do(self.options.show, index=index, file=self._file(image))

    def _poll(self) -> None:
        lines = (line.split() for line in self._do(self.options.counters).splitlines() if line)
        self.counts = Counter({name: int(count) for name, count in lines})

    def _disconnect(self) -> None:
        self._folder.cleanup()

    def _file(self, patterns: Array) -> Path:
        path = Path(self._folder.name) / ("masks.npy" if patterns.ndim == 3 else "pattern.npy")
        np.save(path, patterns)
        return path

    def _do(self, command: str, **values: object) -> str:
        """Run a command and return its output."""
        words = [word.format(**values) for word in shlex.split(command, posix=os.name == "posix")]
        if not words:
            return ""
        try:
            done = subprocess.run(
                words,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=self.options.timeout_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CameraError(f"The modulator's command {words[0]} failed", got=error) from error
        if done.returncode:
            raise CameraError(
                f"The modulator's command failed: {shlex.join(words)}",
                expected="exit status 0",
                got=f"{done.returncode}: {done.stderr.strip()[-200:]}",
            )
        return done.stdout
