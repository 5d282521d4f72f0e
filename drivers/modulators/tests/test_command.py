"""The modulator driver `command`: any program shows the patterns."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from sci_stream.errors import CameraError
from sci_stream.model import Array
from sci_stream.modulation.timing import MaskTiming
from sci_stream_modulators.command import CommandModulator, CommandOptions
from sci_stream_testing.modulators import ModulatorContract

CYCLE = MaskTiming(pattern_us=1000.0, pulse="per_cycle", pulse_width_us=50.0, n_patterns=4)


def some(n: int, height: int, width: int) -> Array:
    return ((np.random.default_rng(3).random((n, height, width)) < 0.5) * 255).astype(np.uint8)


PROGRAM = """
import pathlib, sys
with open({log!r}, "a") as log:
    print(*sys.argv[1:], file=log)
sys.exit("broken" in sys.argv)
"""


class TestCommand(ModulatorContract):
    @pytest.fixture(autouse=True)
    def _program(self, tmp_path: Path) -> None:
        self.log = tmp_path / "log.txt"
        self.program = tmp_path / "my dmd.py"
        self.program.write_text(PROGRAM.format(log=str(self.log)))

    def make(self, **more: str) -> CommandModulator:
        program = f"'{sys.executable}' '{self.program}'"
        commands = {
            "show": f"{program} show {{index}} {{file}}",
            "load": f"{program} load {{file}}",
            "arm": f"{program} arm {{pattern_us}} {{pulse}}",
            "start": f"{program} start",
            "stop": f"{program} stop",
        }
        sizes = {"height_px": 6, "width_px": 8, "min_pattern_us": 100.0}
        return CommandModulator(CommandOptions.model_validate({**commands, **sizes, **more}))

    def test_program_is_called_with_index_and_times(self) -> None:
        with self._made() as modulator:
            modulator.open()
            modulator.load(some(3, 6, 8))
            for pattern in (2, "white", "dark"):
                modulator.hold(pattern)
            modulator.arm(CYCLE)
            modulator.start()
            modulator.stop()
        words = [line.split()[:2] for line in self.log.read_text().splitlines()]
        assert [word[0] for word in words if word[0] != "stop"] == [
            "load",
            "show",
            "show",
            "show",
            "arm",
            "start",
        ]
        assert [word[1] for word in words if word[0] in {"show", "arm"}] == [
            "2",
            "white",
            "dark",
            "1000.0",
        ]

    def test_counts_are_those_that_the_program_prints(self) -> None:
        modulator = self.make(counters="printf 'restarts 2\\nunderruns 1\\n'")
        modulator.open()
        assert modulator.counters() == {"restarts": 2, "underruns": 1}
        modulator.close()

    def test_failing_program_is_a_camera_error(self) -> None:
        modulator = self.make(load=f"'{sys.executable}' '{self.program}' broken")
        modulator.open()
        with pytest.raises(CameraError, match="exit status 0; got 1"):
            modulator.load(some(3, 6, 8))
        modulator.close()
