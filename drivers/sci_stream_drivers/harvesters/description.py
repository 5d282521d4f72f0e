"""Capabilities of an open, configured camera."""

from __future__ import annotations

from typing import Any

from sci_stream.model import CameraCapabilities
from sci_stream_drivers.harvesters.chunks import chunk_units
from sci_stream_drivers.harvesters.formats import find_pixel_format
from sci_stream_drivers.harvesters.frame_ids import frame_ids_of
from sci_stream_drivers.harvesters.library import feature
from sci_stream_drivers.harvesters.node_map import choices_of
from sci_stream_drivers.harvesters.options import HarvestersOptions
from sci_stream_drivers.harvesters.session import Session
from sci_stream_drivers.harvesters.stream import ImageFormat, timestamp_frequency_hz

_CLOCKS = ("Timestamp", "TimestampLatchValue", "GevTimestampValue", "DeviceTimestamp")
_RATES = ("AcquisitionResultingFrameRate", "ResultingFrameRate", "AcquisitionFrameRate")


def describe(session: Session, options: HarvestersOptions, clock: str | None) -> tuple[CameraCapabilities, ImageFormat]:
    """Return the camera's capabilities, and the image format of its buffers.

    ``clock`` names the clock that the camera's clock is synchronised with, if it is.

    Raises
    ------
    CameraError
        If its pixel format is not supported.
    """
    node_map = session.node_map
    formats = node_map.get_node("PixelFormat")
    pixel_format = find_pixel_format(str(formats.value), offered=choices_of(formats))
    image = ImageFormat(pixel_format, int(node_map.get_node("Height").value), int(node_map.get_node("Width").value))
    stamped = timestamp_frequency_hz(session.acquirer) > 0 or any(node_map.has_node(name) for name in _CLOCKS)
    capabilities = CameraCapabilities(
        model=f"{session.vendor} {session.model}".strip(),
        serial=session.serial,
        height_px=image.height_px,
        width_px=image.width_px,
        pixel_format=pixel_format.name,
        bit_depth=pixel_format.bit_depth,
        bayer=pixel_format.bayer,
        frame_ids=frame_ids_of(session.transport, node_map, options.frame_id_last),
        clock=clock or ("camera" if stamped or "Timestamp" in options.chunks else "none"),
        frame_period_ns=frame_period_ns(node_map, options),
        chunks=chunk_units(node_map, options.chunks),
    )
    return capabilities, image


def frame_period_ns(node_map: Any, options: HarvestersOptions) -> int | None:
    """Return the frame period if the camera controls it; that of an external trigger is unknown."""
    if options.trigger is not None and options.trigger.software_rate_hz:
        return round(1e9 / options.trigger.software_rate_hz)
    if feature(node_map, "TriggerMode") == "On":
        return None
    read = {name: feature(node_map, name) for name in _RATES}
    if feature(node_map, "AcquisitionFrameRateEnable", True) is False:
        read["AcquisitionFrameRate"] = None  # disabled: the feature holds a rate that does not apply
    return next((round(1e9 / rate) for rate in read.values() if rate), None)
