"""ViALUX DMDs (ALP-4 and 5).

Needs the extra ``alp`` and ViALUX' own ALP library, which comes with the device.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from sci_stream.errors import ConfigError, require_optional
from sci_stream.plugins import Array, MaskTiming, ModulatorCapabilities
from sci_stream_drivers.fields import DriverOptions
from sci_stream_modulators.base import BaseModulator

# Of the ALP's header, where ALP4lib has no names for them.
_MAX_GATE = 16


class _Gate(ctypes.Structure):
    """tAlpDynSynchOutGate: which of the pictures of a period give a pulse."""

    _fields_ = (
        ("period", ctypes.c_ubyte),
        ("polarity", ctypes.c_ubyte),
        ("gate", ctypes.c_ubyte * _MAX_GATE),
    )


class AlpOptions(DriverOptions):
    """Options of the driver."""

    version: Literal["4.1", "4.2", "4.3", "4.4", "5.0", "5.1"] = Field(
        default="4.3", description="Of the ALP API."
    )
    library: str | None = Field(
        default=None,
        description="Folder of ViALUX' library; unset: as its installation says.",
        examples=["C:/ALP"],
    )
    serial: int = Field(
        default=0, ge=0, description="Serial number of the device; 0: the first one."
    )
    min_pattern_us: float = Field(
        default=50.0,
        gt=0,
        description="Shortest time of a pattern, µs: 44 of a V-7000, 105 of a V-9600.",
    )


class AlpModulator(BaseModulator[AlpOptions]):
    """A ViALUX DMD with one-bit patterns in its own memory.

    A pulse per cycle is that of the first pattern, the only one that the dynamic synch output 1
    lets through: up to 16 patterns. More need ``pulse = "per_pattern"`` and a camera that counts.
    It is always master: as slave it shows one pattern per trigger, not a cycle.
    """

    Options: ClassVar[type[AlpOptions]] = AlpOptions

    def _connect(self) -> ModulatorCapabilities:
        self._alp = require_optional(
            "ALP4", "alp", "The modulator driver alp", "sci-stream-modulators"
        )
        with contextlib.redirect_stdout(io.StringIO()):  # it prints each step
            self._device = self._alp.ALP4(version=self.options.version, libDir=self.options.library)
            self._device.Initialize(
                ctypes.c_long(self.options.serial) if self.options.serial else None
            )
        self._device.ProjControl(self._alp.ALP_PROJ_MODE, self._alp.ALP_MASTER)
        self._sequence: ctypes.c_long | None = None
        return ModulatorCapabilities(
            model=f"ViALUX ALP-{self.options.version}",
            serial=str(self._device.DevInquire(self._alp.ALP_DEVICE_NUMBER)),
            height_px=self._device.nSizeY,
            width_px=self._device.nSizeX,
            max_patterns=max(1, self._device.DevInquire(self._alp.ALP_AVAIL_MEMORY)),
            min_pattern_us=self.options.min_pattern_us,
            pulses=("per_cycle", "per_pattern"),
        )

    def _upload(self, patterns: Array) -> None:
        if self._sequence is not None:
            self._device.FreeSeq(self._sequence)
        self._sequence = self._device.SeqAlloc(nbImg=len(patterns), bitDepth=1)
        self._device.SeqPut(patterns.reshape(-1), self._sequence)

    def _apply(self, timing: MaskTiming) -> MaskTiming:
        alp, device = self._alp, self._device
        per_cycle = timing.pulse == "per_cycle"
        if per_cycle and timing.n_patterns > _MAX_GATE:
            raise ConfigError(
                "This DMD marks the first of 16 patterns at most with a pulse",
                got=f"{timing.n_patterns} patterns",
                hint='Set [modulator] pulse = "per_pattern", with a camera that counts pulses.',
            )
        mode = alp.ALP_BIN_NORMAL if timing.dark_us else alp.ALP_BIN_UNINTERRUPTED
        device.SeqControl(alp.ALP_BIN_MODE, mode, self._sequence)
        gate = _Gate(timing.n_patterns if per_cycle else 1, 1, (1,))
        device.DevControlEx(alp.ALP_DEV_DYN_SYNCH_OUT1_GATE, gate)
        # It can delay the picture after the pulse, but not the pulse after the picture, which is
        # the delay of the port.
        device.SetTiming(
            self._sequence,
            illuminationTime=round(timing.pattern_us) if timing.dark_us else None,
            pictureTime=round(timing.slot_us),
            synchDelay=0,
            synchPulseWidth=round(timing.pulse_width_us),
        )
        slot_us = float(device.SeqInquire(alp.ALP_PICTURE_TIME, self._sequence))
        lit_us = (
            float(device.SeqInquire(alp.ALP_ILLUMINATE_TIME, self._sequence))
            if timing.dark_us
            else slot_us
        )
        return replace(timing, pattern_us=lit_us, dark_us=slot_us - lit_us, pulse_delay_us=0.0)

    def _run(self) -> None:
        self._device.Run(self._sequence, loop=True)

    def _halt(self) -> None:
        # At the end of the cycle; ALP4lib's Halt() stops within it, and a camera that counts would
        # lose step.
        if self._device._ALPLib.AlpProjHalt(self._device.ALP_ID) == self._alp.ALP_OK:
            self._device.Wait()
        self._device.Halt()

    def _show(self, image: Array) -> None:
        self._stale = True
        self._upload(image[None])
        self._device.SetTiming(self._sequence, pictureTime=100_000)
        self._device.SeqControl(
            self._alp.ALP_BIN_MODE, self._alp.ALP_BIN_UNINTERRUPTED, self._sequence
        )
        self._device.Run(self._sequence, loop=True)

    def _disconnect(self) -> None:
        self._device.Halt()
        if self._sequence is not None:
            self._device.FreeSeq(self._sequence)
        self._device.Free()
