"""Options that GenICam cameras of every transport layer have in common."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from sci_stream.parameters import Value
from sci_stream_drivers.fields import DriverOptions, Rare


class CameraSelector(DriverOptions):
    """Selection of a camera: all given values must match, and exactly one camera."""

    serial: str | None = Field(
        default=None, min_length=1, description="Serial number.", examples=["12345678"]
    )
    user_defined_name: str | None = Field(
        default=None,
        min_length=1,
        description="Name that a user gave the camera (DeviceUserID).",
        examples=["left"],
    )
    model: str | None = Field(
        default=None, min_length=1, description="Model name.", examples=["acA1920-40um"]
    )
    vendor: str | None = Field(
        default=None, min_length=1, description="Maker.", examples=["Basler"]
    )
    id: str | None = Field(
        default=None,
        min_length=1,
        description="Identifier of the camera in its transport layer; unique within it.",
    )

    @property
    def given(self) -> dict[str, str]:
        """Return the given values by name."""
        return self.model_dump(exclude_none=True)


class FeatureSetting(DriverOptions):
    """One step of the configuration: set a feature, or execute a command."""

    feature: str = Field(min_length=1, description="Name of the feature.")
    value: Value | None = Field(
        default=None, description="Value of the feature; none for a command."
    )
    optional: bool = Field(
        default=False,
        description="Pass over it, saying so, if this camera does not have it or refuses it.",
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


class TriggerOptions(DriverOptions):
    """Start of an exposure; for an SCI camera usually by the mask modulator, through a line."""

    source: str = Field(
        min_length=1, description="TriggerSource: Line0, Line1, …, or Software.", examples=["Line0"]
    )
    selector: str = Field(
        default="FrameStart",
        min_length=1,
        description="TriggerSelector: the action that a trigger starts.",
    )
    activation: str | None = Field(
        default=None,
        min_length=1,
        description="TriggerActivation of a line.",
        examples=["RisingEdge"],
    )
    delay_us: float | None = Field(
        default=None, ge=0, description="TriggerDelay, µs.", examples=[0.0]
    )
    exposure_mode: str | None = Field(
        default=None,
        min_length=1,
        description="ExposureMode: Timed (by ExposureTime) or TriggerWidth (by the line).",
        examples=["TriggerWidth"],
    )
    output_line: str | None = Field(
        default=None,
        min_length=1,
        description="Line to use as an output (LineSelector).",
        examples=["Line1"],
    )
    output_signal: str = Field(
        default="ExposureActive",
        min_length=1,
        description="Signal of that line (LineSource), to start the modulator.",
    )


class GenicamOptions(DriverOptions):
    """Configuration of a GenICam camera, applied in the order of the fields."""

    selector: CameraSelector = Field(
        default=CameraSelector(), description="Selects the camera; must match exactly one."
    )
    user_set: str = Field(
        default="", description='User set to load first: "Default", "UserSet1", …; "" for none.'
    )
    features: list[FeatureSetting] = Field(
        default_factory=list,
        description="Settings and commands to apply next, in this order: ['Name', value], "
        "['Command'], or "
        "{ feature = 'Name', value = …, optional = true }.",
    )
    trigger: TriggerOptions | None = Field(
        default=None,
        description="Trigger of an exposure; unset: as set by the camera, its user set and the "
        "features.",
        examples=[{"source": "Line0"}],
    )
    chunks: list[str] = Field(
        default_factory=list,
        max_length=16,
        description="Chunk data to add to each frame (ChunkSelector): FrameID, Timestamp, "
        "ExposureTime, …",
    )
    ptp: Literal["off", "on"] = Field(
        default="off", description="Synchronise the camera's clock with IEEE 1588."
    )
    ptp_timeout_s: Rare[float] = Field(
        default=30.0, gt=0, le=600, description="Longest time to synchronise the clock, s."
    )
    buffers: int = Field(
        default=16,
        ge=4,
        le=4096,
        description="Frames that can be buffered while this machine is busy.",
    )
    silence_s: Rare[float] = Field(
        default=1.0,
        gt=0,
        le=3600,
        description="After this long without a frame, s, a free-running camera is opened again "
        "(after ten frame "
        "periods, if that is longer), and a triggered one is asked whether it is there.",
    )
    frame_id_last: Rare[int | None] = Field(
        default=None,
        ge=1,
        description="Highest frame id of this camera, followed by the first; unset: 65535 for "
        "GigE Vision without "
        "extended ids, else they never wrap.",
        examples=[65535],
    )
