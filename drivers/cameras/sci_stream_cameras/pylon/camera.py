"""Basler cameras as `sci_stream.ports.Camera`."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sci_stream.errors import CameraError, CameraLost
from sci_stream.plugins import FoundCamera, FoundProducer, unix_ns
from sci_stream_cameras.interfaces import interfaces
from sci_stream_cameras.pylon.node_map import NodeMap, translated
from sci_stream_drivers.genicam.camera import GenicamCamera
from sci_stream_drivers.genicam.chunks import Chunks
from sci_stream_drivers.genicam.library import feature, library, lost_if_failing, message_of
from sci_stream_drivers.genicam.options import CameraSelector, GenicamOptions
from sci_stream_drivers.genicam.selection import selected
from sci_stream_drivers.genicam.stream import ImageFormat, RawFrame

_EMULATOR = "BaslerCamEmu"
_TRANSPORTS = {"BaslerGigE": "GEV", "BaslerUsb": "U3V"}
_NO_ID = 2**64 - 1
_READY_MS = 1000


class PylonCamera(GenicamCamera[GenicamOptions, "PylonDevice"]):
    """Any camera of Basler, and the emulator of pylon (``PYLON_CAMEMU=1``)."""

    Options: ClassVar[type[GenicamOptions]] = GenicamOptions

    @staticmethod
    def find(places: Sequence[Path]) -> list[FoundProducer]:
        """Find cameras; see `sci_stream.ports.CameraFinder`. pylon has no files of producers to
        search.
        """
        if places:
            return []
        cameras = [(camera, info.GetDeviceClass()) for camera, info in _cameras(_pylon())]
        return [FoundProducer("pylon", "pylon", "Basler", "", interfaces(cameras, _TRANSPORTS), "")]

    def _connect(self) -> PylonDevice:
        return PylonDevice(_pylon(), self._options.selector)

    def _open_stream(self, connection: PylonDevice, image: ImageFormat) -> PylonStream:
        return PylonStream(connection, image, self._options, self._counts)

    def trigger(self) -> None:
        """Send one software trigger once the camera is ready: it ignores others.

        Raises `CameraLost`.
        """
        device = self._opened().connection
        with lost_if_failing(f"The camera {device.name} does not respond"), translated():
            if device.camera.CanWaitForFrameTriggerReady():
                device.camera.WaitForFrameTriggerReady(
                    _READY_MS, device.pylon.TimeoutHandling_Return
                )
        super().trigger()

    def _selection(self, connection: PylonDevice) -> dict[str, Any]:
        return {"selector": {"serial": connection.serial}}


def _pylon() -> Any:
    library()
    try:
        # Warnings of its types, made errors by -W error, crash the process.
        with warnings.catch_warnings(action="ignore"):
            from pypylon import pylon  # noqa: PLC0415  # optional
    except ImportError as error:
        hint = "Install it: pip install 'sci-stream-cameras[pylon]'."
        raise CameraError(
            "Basler cameras need the package pypylon", got=error, hint=hint
        ) from error
    return pylon


def _cameras(pylon: Any) -> list[tuple[FoundCamera, Any]]:
    """Return the cameras that pylon finds, each with its description by pylon."""
    found = []
    for info in pylon.TlFactory.GetInstance().EnumerateDevices():
        serial = info.GetSerialNumber()
        texts = (
            info.GetFullName(),
            info.GetVendorName(),
            info.GetModelName(),
            serial,
            info.GetUserDefinedName(),
        )
        found.append((FoundCamera(*texts, "unknown", {"selector": {"serial": serial}}), info))
    return found


class PylonDevice:
    """An open camera. Satisfies `sci_stream_drivers.genicam.stream.Connection`."""

    def __init__(self, pylon: Any, selector: CameraSelector) -> None:
        self.pylon = pylon
        hint = "Check that it is connected and powered, and that pylon's viewer shows it."
        camera, info = selected(_cameras(pylon), selector, hint)
        self.vendor, self.model, self.serial = camera.vendor, camera.model, camera.serial
        self.name = f"{self.vendor} {self.model} {self.serial}".strip()
        kind = info.GetDeviceClass()
        self.transport, self.has_clock = _TRANSPORTS.get(kind, kind), kind != _EMULATOR
        try:
            with translated():
                self.camera = pylon.InstantCamera(pylon.TlFactory.GetInstance().CreateDevice(info))
                self.camera.Open()
                self.node_map = NodeMap(self.camera.GetNodeMap())
        except library().transport_errors as error:
            hint = "Close the viewer or the other acquire node that uses it."
            raise CameraError(
                f"The camera {self.name} cannot be opened", got=message_of(error), hint=hint
            ) from None

    def ping(self) -> None:
        """Do nothing: pylon itself reports a camera that is gone."""

    def close(self) -> None:
        """Release the camera."""
        for release in (self.camera.Close, self.camera.DestroyDevice):
            with contextlib.suppress(*library().transport_errors), translated():
                release()


class PylonStream:
    """The acquisition of one camera. Satisfies `sci_stream_drivers.genicam.stream.Stream`."""

    def __init__(
        self, device: PylonDevice, image: ImageFormat, options: GenicamOptions, counts: Counter[str]
    ) -> None:
        self._pylon, self._camera, self._name = device.pylon, device.camera, device.name
        self._format, self._chunks, self._counts = image, options.chunks, counts
        self._camera.MaxNumBuffer.Value = options.buffers
        # GigE cameras count ticks, others nanoseconds.
        self._tick_ns = 1e9 / float(feature(device.node_map, "GevTimestampTickFrequency") or 1e9)

    def start(self) -> None:
        """Start the acquisition. Raises `CameraLost`."""
        with lost_if_failing(f"The camera {self._name} does not start"), translated():
            self._camera.StartGrabbing(self._pylon.GrabStrategy_OneByOne)

    def fetch(self) -> RawFrame | None:
        """Return the next complete frame, or None if there is none yet."""
        with (
            lost_if_failing(f"The camera {self._name} is lost"),
            translated(),
            self._camera.RetrieveResult(0, self._pylon.TimeoutHandling_Return) as result,
        ):
            if result.IsValid():
                return self._copied(result)
            if self._camera.IsCameraDeviceRemoved():
                raise CameraLost(f"The camera {self._name} was unplugged")
        return None

    def _copied(self, result: Any) -> RawFrame | None:
        if not result.GrabSucceeded():
            self._counts["incomplete"] += 1
            return None
        self._format.check(
            result.GetPixelType() & 0xFFFFFFFF, result.GetHeight(), result.GetWidth()
        )
        number = result.GetBlockID()
        return RawFrame(
            raw=np.frombuffer(result.GetBuffer(), np.uint8).copy(),
            padding_bytes=result.GetPaddingX(),
            big_endian=False,
            frame_id=None if number == _NO_ID else number,
            camera_time_ns=round(result.GetTimeStamp() * self._tick_ns) or None,
            host_time_ns=unix_ns(),
            chunks=self._chunk_values(result) if self._chunks else {},
        )

    def _chunk_values(self, result: Any) -> Chunks:
        nodes = NodeMap(result.GetChunkDataNodeMap())
        values = {name: feature(nodes, f"Chunk{name}") for name in self._chunks}
        self._counts["chunk_errors"] += all(value is None for value in values.values())
        return {name: value for name, value in values.items() if value is not None}

    def stop(self, *, lost: bool) -> None:
        """Stop; frames that were not fetched are discarded."""
        del lost  # pylon does not wait for a camera that is gone
        with translated():
            self._camera.StopGrabbing()

    def counters(self) -> dict[str, int]:
        """Return no counters."""
        return {}
