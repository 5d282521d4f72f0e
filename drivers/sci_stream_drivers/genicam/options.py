"""Options that GenICam cameras of every transport layer have in common."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from sci_stream.plugins import Value
from sci_stream_drivers.fields import DriverOptions, Rare


class CameraSelector(DriverOptions):
    """Selection of a camera: all given values must match, and exactly one camera."""

    serial: str | None = Field(None, min_length=1, examples=["12345678"])
    """Serial number."""
    user_defined_name: str | None = Field(None, min_length=1, examples=["left"])
    """Name that a user gave the camera (DeviceUserID)."""
    model: str | None = Field(None, min_length=1, examples=["acA1920-40um"])
    """Model name."""
    vendor: str | None = Field(None, min_length=1, examples=["Basler"])
    """Maker."""
    id: str | None = Field(None, min_length=1)
    """Identifier of the camera in its transport layer; unique within it."""

    @property
    def given(self) -> dict[str, str]:
        """Return the given values by name."""
        return self.model_dump(exclude_none=True)


class FeatureSetting(DriverOptions):
    """One step of the configuration: set a feature, or execute a command."""

    feature: str = Field(min_length=1)
    """Name of the feature."""
    value: Value | None = None
    """Value of the feature; none for a command."""
    optional: bool = False
    """Pass over it, saying so, if this camera does not have it or refuses it."""

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

    source: str = Field(min_length=1, examples=["Line0"])
    """TriggerSource: Line0, Line1, …, or Software."""
    selector: str = Field("FrameStart", min_length=1)
    """TriggerSelector: the action that a trigger starts."""
    activation: str | None = Field(None, min_length=1, examples=["RisingEdge"])
    """TriggerActivation of a line."""
    delay_us: float | None = Field(None, ge=0, examples=[0.0])
    """TriggerDelay, µs."""
    exposure_mode: str | None = Field(None, min_length=1, examples=["TriggerWidth"])
    """ExposureMode: Timed (by ExposureTime) or TriggerWidth (by the line)."""
    output_line: str | None = Field(None, min_length=1, examples=["Line1"])
    """Line to use as an output (LineSelector)."""
    output_signal: str = Field("ExposureActive", min_length=1)
    """Signal of that line (LineSource), to start the modulator."""


class GenicamOptions(DriverOptions):
    """Configuration of a GenICam camera, applied in the order of the fields."""

    selector: CameraSelector = CameraSelector()
    """Selects the camera; must match exactly one."""
    user_set: str = ""
    """User set to load first: "Default", "UserSet1", …; "" for none."""
    features: list[FeatureSetting] = Field(default_factory=list)
    """Settings and commands to apply next, in this order: ['Name', value], ['Command'], or {
    feature = 'Name', value = …, optional = true }."""
    trigger: TriggerOptions | None = Field(None, examples=[{"source": "Line0"}])
    """Trigger of an exposure; unset: as set by the camera, its user set and the features."""
    chunks: list[str] = Field(default_factory=list, max_length=16)
    """Chunk data to add to each frame (ChunkSelector): FrameID, Timestamp, ExposureTime, …"""
    ptp: Literal["off", "on"] = "off"
    """Synchronise the camera's clock with IEEE 1588."""
    ptp_timeout_s: Rare[float] = Field(30.0, gt=0, le=600)
    """Longest time to synchronise the clock, s."""
    buffers: int = Field(16, ge=4, le=4096)
    """Frames that can be buffered while this machine is busy."""
    silence_s: Rare[float] = Field(1.0, gt=0, le=3600)
    """After this long without a frame, s, a free-running camera is opened again (after ten frame
    periods, if that is longer), and a triggered one is asked whether it is there."""
    frame_id_last: Rare[int | None] = Field(None, ge=1, examples=[65535])
    """Highest frame id of this camera, followed by the first; unset: 65535 for GigE Vision without
    extended ids, else they never wrap."""
