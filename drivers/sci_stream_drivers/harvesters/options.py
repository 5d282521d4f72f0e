"""What can be set on a GenICam camera: the ``[camera.options]`` of a rig."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Value = bool | int | float | str
"""A feature's value as TOML has it."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Selector(_Table):
    """Which camera: all that is given must hold, and for exactly one camera."""

    serial: str | None = Field(default=None, min_length=1, description="Serial number.", examples=["12345678"])
    user_defined_name: str | None = Field(
        default=None, min_length=1, description="Name that a user gave the camera (DeviceUserID).", examples=["left"]
    )
    model: str | None = Field(default=None, min_length=1, description="Model name.", examples=["acA1920-40um"])
    vendor: str | None = Field(default=None, min_length=1, description="Maker.", examples=["Basler"])
    id: str | None = Field(
        default=None, min_length=1, description="Identifier that the producer gives the camera; unique within it."
    )

    @property
    def given(self) -> dict[str, str]:
        """Return what is given, by name."""
        return self.model_dump(exclude_none=True)


class Setting(_Table):
    """One step of the configuration: a feature gets a value, or a command is executed."""

    feature: str = Field(min_length=1, description="Name of the feature.")
    value: Value | None = Field(default=None, description="Its value; none for a command.")
    optional: bool = Field(
        default=False, description="Pass over it, saying so, if this camera does not have it or refuses it."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_a_pair(cls, given: Any) -> Any:
        if not isinstance(given, list | tuple):
            return given
        if not 1 <= len(given) <= 2:
            raise ValueError('a feature is written ["Name", value], a command ["Name"]')
        return dict(zip(("feature", "value"), given, strict=False))

    def __str__(self) -> str:
        return self.feature if self.value is None else f"{self.feature} = {self.value}"


class TriggerOptions(_Table):
    """Who starts an exposure. For an SCI camera this is usually the mask modulator, through a line."""

    source: str = Field(min_length=1, description="TriggerSource: Line0, Line1, …, or Software.", examples=["Line0"])
    selector: str = Field(default="FrameStart", min_length=1, description="TriggerSelector: what a trigger starts.")
    activation: str | None = Field(
        default=None, min_length=1, description="TriggerActivation of a line.", examples=["RisingEdge"]
    )
    delay_us: float | None = Field(default=None, ge=0, description="TriggerDelay, µs.", examples=[0.0])
    exposure_mode: str | None = Field(
        default=None,
        min_length=1,
        description="ExposureMode: Timed (ExposureTime decides) or TriggerWidth (the line does).",
        examples=["TriggerWidth"],
    )
    output_line: str | None = Field(
        default=None, min_length=1, description="A line made an output (LineSelector).", examples=["Line1"]
    )
    output_signal: str = Field(
        default="ExposureActive", min_length=1, description="What that line shows (LineSource): to start the modulator."
    )
    software_rate_hz: float = Field(
        default=0.0,
        ge=0,
        le=10_000,
        description="With source Software: triggers that the driver itself gives per second; 0: none, a program does.",
    )

    @model_validator(mode="after")
    def _rate_is_for_software(self) -> TriggerOptions:
        if self.software_rate_hz and self.source != "Software":
            raise ValueError(f"software_rate_hz needs source = 'Software', not {self.source!r}")
        return self


def _one_is_a_list(value: Any) -> Any:
    return [value] if isinstance(value, str | Path) else value


class HarvestersOptions(_Table):
    """Options of GenICam cameras. They are applied in the order in which they stand here."""

    cti: Annotated[list[Path], BeforeValidator(_one_is_a_list)] = Field(
        default_factory=list,
        description="GenTL producers: .cti files, or folders of them, ~ and $NAME expanded; [] for those that "
        "GENICAM_GENTL64_PATH leads to.",
    )
    selector: Selector = Field(default=Selector(), description="Which camera; must match exactly one.")
    user_set: str = Field(
        default="", description='User set that is loaded first: "Default", "UserSet1", …; "" for none.'
    )
    features: list[Setting] = Field(
        default_factory=list,
        description="What is then set, in this order: ['Name', value], ['Command'], or "
        "{ feature = 'Name', value = …, optional = true }.",
    )
    trigger: TriggerOptions | None = Field(
        default=None,
        description="Who starts an exposure; unset: as the camera, its user set and the features say.",
        examples=[{"source": "Line0"}],
    )
    chunks: list[str] = Field(
        default_factory=list,
        max_length=16,
        description="What the camera shall add to each frame (ChunkSelector): FrameID, Timestamp, ExposureTime, …",
    )
    ptp: Literal["off", "try", "on"] = Field(
        default="off",
        description="Have the camera's clock follow IEEE 1588: on, an error if it cannot; try, if it can.",
    )
    ptp_timeout_s: float = Field(default=30.0, gt=0, le=600, description="How long its clock may take to settle, s.")
    buffers: int = Field(
        default=16, ge=4, le=4096, description="Frames that the producer may hold while this machine is busy."
    )
    discovery_timeout_s: float = Field(default=1.0, gt=0, le=60, description="How long to look for cameras, s.")
    silence_s: float = Field(
        default=1.0,
        gt=0,
        le=3600,
        description="After so long without a frame the camera is asked whether it is still there, s.",
    )
    frame_id_last: int | None = Field(
        default=None,
        ge=1,
        description="Highest frame id of this camera, followed by the first; unset: 65535 for GigE Vision without "
        "extended ids, else they never wrap.",
        examples=[65535],
    )
