"""Options of cameras with a GenTL producer: ``[camera.options]`` of a rig."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from sci_stream_drivers.fields import Rare
from sci_stream_drivers.genicam.options import CameraSelector, FeatureSetting, GenicamOptions


class Selector(CameraSelector):
    """Selection of a camera: all given values must match, and exactly one camera."""

    producer: str | None = Field(None, min_length=1, examples=["vendor.cti"])
    """File name of the producer to use, for a camera that several producers find."""


def _one_is_a_list(value: Any) -> Any:
    return [value] if isinstance(value, str | Path) else value


class HarvestersOptions(GenicamOptions):
    """Options of GenICam cameras with a GenTL producer."""

    cti: Annotated[list[Path], BeforeValidator(_one_is_a_list)] = Field(default_factory=list)
    """GenTL producers: .cti files, or folders of them, ~ and $NAME expanded; [] for those that
    GENICAM_GENTL64_PATH lists."""
    selector: Selector = Selector()
    """Selects the camera; must match exactly one."""
    interface_features: Rare[list[FeatureSetting]] = Field(default_factory=list)
    """Settings of the producer's interface (network card, grabber), applied before those of the
    camera; written as in features."""
    stream_features: Rare[list[FeatureSetting]] = Field(default_factory=list)
    """Settings of the producer's data stream, applied last: packet resend, buffer handling,
    transfer size; written as in features."""
    discovery_timeout_s: Rare[float] = Field(1.0, gt=0, le=60)
    """Timeout for finding cameras, s."""
