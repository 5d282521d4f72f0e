"""LCoS modulators of ten makers through slmsuite.

Needs the extra ``slmsuite`` and the maker's library.
"""

from __future__ import annotations

import importlib
from typing import ClassVar

from pydantic import Field, JsonValue

from sci_stream.errors import ConfigError, require_optional
from sci_stream.plugins import Array, ModulatorCapabilities
from sci_stream_drivers.fields import DriverOptions
from sci_stream_modulators.stepped import SteppedModulator


class SlmsuiteOptions(DriverOptions):
    """Options of the driver."""

    slm: str = Field(
        min_length=3,
        pattern=r"^\w+\.\w+$",
        description="Module and class in slmsuite.hardware.slms, as simulated.SimulatedSLM or "
        "santec.Santec.",
    )
    arguments: dict[str, JsonValue] = Field(
        default_factory=dict, description="Arguments of that class."
    )
    open_level: int = Field(
        default=-1, ge=-1, description="Grey level that is open; -1: the highest."
    )
    closed_level: int = Field(default=0, ge=0, description="Grey level that is closed.")
    settle_us: float = Field(default=16_700.0, ge=0, description="Shortest time of a pattern, µs.")


class SlmsuiteModulator(SteppedModulator[SlmsuiteOptions]):
    """An LCoS between polarizers, whose grey level sets the transmission."""

    Options: ClassVar[type[SlmsuiteOptions]] = SlmsuiteOptions

    def _connect(self) -> ModulatorCapabilities:
        require_optional(
            "slmsuite", "slmsuite", "The modulator driver slmsuite", "sci-stream-modulators"
        )
        module, _, name = self.options.slm.partition(".")
        try:
            made = getattr(importlib.import_module(f"slmsuite.hardware.slms.{module}"), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"slmsuite has no {self.options.slm}", got=error) from error
        self._slm = made(**self.options.arguments)
        height_px, width_px = self._slm.shape
        return ModulatorCapabilities(
            model=f"slmsuite {self._slm.name or name}",
            serial="",
            height_px=height_px,
            width_px=width_px,
            bits=8,
            max_patterns=256,
            min_pattern_us=self.options.settle_us,
            pulses=(),
            gap=True,
        )

    def _show(self, image: Array) -> None:
        o, slm = self.options, self._slm
        top = slm.bitresolution - 1 if o.open_level < 0 else o.open_level
        levels = o.closed_level + (top - o.closed_level) * (image.astype(float) / 255)
        slm.set_phase(levels.round().astype(slm.dtype))

    def _disconnect(self) -> None:
        self._slm.close()
