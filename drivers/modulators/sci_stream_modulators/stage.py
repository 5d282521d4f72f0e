"""A mask that a piezo or motor moves along the waveform of a function generator.

Needs the extra ``stage`` and VISA.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from sci_stream.errors import CameraError, require_optional
from sci_stream.plugins import Array, MaskTiming, ModulatorCapabilities
from sci_stream_drivers.fields import DriverOptions
from sci_stream_modulators.base import BaseModulator


class StageOptions(DriverOptions):
    """Options of the driver.

    The commands are those of SCPI generators such as Keysight's 33500 series.
    """

    resource: str = Field(
        min_length=1, description="VISA resource.", examples=["USB0::0x0957::0x2807::MY123::INSTR"]
    )
    backend: str = Field(
        default="", description='VISA library: "" for the maker\'s, "@py" for PyVISA-py.'
    )
    waveform: Literal["RAMP", "TRI", "SIN"] = Field(
        default="RAMP",
        description="RAMP: there in B masks, back in the gap; TRI, SIN: back as slowly.",
    )
    amplitude_v: float = Field(gt=0, le=20, description="Voltage from end to end of the travel, V.")
    offset_v: float = Field(default=0.0, description="Voltage in the middle of the travel, V.")
    return_us: float = Field(default=2000.0, ge=0, description="Shortest time to move back, µs.")
    min_pattern_us: float = Field(default=100.0, gt=0, description="Shortest time of one mask, µs.")
    setup: list[str] = Field(default=["*RST", "OUTP:SYNC ON"], description="Commands sent first.")


class StageModulator(BaseModulator[StageOptions]):
    """A moving mask; the generator's sync output gives a pulse at the begin of each period."""

    Options: ClassVar[type[StageOptions]] = StageOptions

    def _connect(self) -> ModulatorCapabilities:
        visa = require_optional(
            "pyvisa", "stage", "The modulator driver stage", "sci-stream-modulators"
        )
        self._manager = visa.ResourceManager(self.options.backend)
        self._device = self._manager.open_resource(
            self.options.resource, read_termination="\n", write_termination="\n", timeout=5000
        )
        identity: str = self._device.query("*IDN?").strip()
        for command in self.options.setup:
            self._device.write(command)
        self._device.write(f"VOLT {self.options.amplitude_v:g}")
        self._device.write(f"VOLT:OFFS {self.options.offset_v:g}")
        self._check()
        maker, model, serial, *_ = (*identity.split(","), "", "", "")
        return ModulatorCapabilities(
            model=f"mask moved by {maker} {model}".strip(),
            serial=serial.strip(),
            height_px=1,
            width_px=1,
            max_patterns=256,
            min_pattern_us=self.options.min_pattern_us,
            step_us=0.0,
            gap=True,
            min_gap_us=self.options.return_us if self.options.waveform == "RAMP" else 0.0,
            holds=False,
        )

    def _apply(self, timing: MaskTiming) -> MaskTiming:
        there_us = timing.n_patterns * timing.slot_us
        # Back as slowly as there: the camera films one way only.
        back_us = timing.gap_us if self.options.waveform == "RAMP" else max(there_us, timing.gap_us)
        period_us = there_us + back_us
        self._device.write(f"FUNC {self.options.waveform}")
        if self.options.waveform == "RAMP":
            self._device.write(f"FUNC:RAMP:SYMM {100 * there_us / period_us:.4f}")
        self._device.write(f"FREQ {1e6 / period_us:.9g}")
        kept_us = 1e6 / float(self._device.query("FREQ?"))
        self._check()
        scale = kept_us / period_us
        return MaskTiming(
            pattern_us=timing.pattern_us * scale,
            dark_us=timing.dark_us * scale,
            gap_us=back_us * scale,
            n_patterns=timing.n_patterns,
            pulse_width_us=timing.pulse_width_us,
        )

    def _run(self) -> None:
        self._device.write("OUTP ON")
        self._check()

    def _halt(self) -> None:
        self._device.write("OUTP OFF")

    def _shift(self, steps: int, _patterns: Array, timing: MaskTiming) -> None:
        # Of the waveform against its sync pulse.
        before = float(self._device.query("PHAS?"))
        self._device.write(
            f"PHAS {(before + 360 * steps * timing.slot_us / timing.cycle_us) % 360:.4f}"
        )
        self._check()

    def _poll(self) -> None:
        # A generator that was switched off answers with its output off.
        if self._running and self._device.query("OUTP?").strip() not in ("1", "ON"):
            self.counts["restarts"] += 1

    def _disconnect(self) -> None:
        self._device.close()
        self._manager.close()

    def _check(self) -> None:
        """Raise if the generator refused a command."""
        answer = self._device.query("SYST:ERR?").strip()
        if not answer.lstrip("+").startswith("0"):
            raise CameraError("The function generator refused a command", got=answer)
