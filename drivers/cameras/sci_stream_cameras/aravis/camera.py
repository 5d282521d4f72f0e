"""GigE Vision and USB3 Vision cameras as `sci_stream.ports.Camera`."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import Counter
from collections.abc import Sequence
from ctypes import c_int, c_size_t
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from sci_stream.errors import CameraError, CameraLost, ConfigError
from sci_stream.plugins import FoundCamera, FoundProducer, unix_ns
from sci_stream_cameras.aravis.library import STATUS, SUCCESS, Aravis, AravisError, aravis
from sci_stream_cameras.interfaces import interfaces
from sci_stream_drivers.fields import Rare
from sci_stream_drivers.genicam.camera import GenicamCamera
from sci_stream_drivers.genicam.chunks import ChunkReader
from sci_stream_drivers.genicam.features import apply
from sci_stream_drivers.genicam.library import library, message_of
from sci_stream_drivers.genicam.options import CameraSelector, FeatureSetting, GenicamOptions
from sci_stream_drivers.genicam.selection import selected
from sci_stream_drivers.genicam.stream import ImageFormat, RawFrame

_TRANSPORTS = {"GigEVision": "GEV", "USB3Vision": "U3V"}
# Counters of Aravis under names of this project; others keep their own.
_COUNTERS = {"n_underruns": "underrun"}
_HINT = "Check that it is connected, powered and reachable, and that no firewall blocks UDP."
_RELEASE_S = 1.0
_releases: list[threading.Thread] = []
_PASSED_ON = (
    "n_underruns",
    "n_missing_packets",
    "n_resend_requests",
    "n_resent_packets",
    "n_error_packets",
)


class AravisOptions(GenicamOptions):
    """Options of cameras through Aravis."""

    packet_size: Rare[int] = Field(
        default=0,
        ge=0,
        le=65536,
        description="Size of the packets of a GigE Vision camera, bytes; 0: the largest that the "
        "network passes.",
    )


class AravisCamera(GenicamCamera[AravisOptions, "Device"]):
    """Any GigE Vision or USB3 Vision camera."""

    Options: ClassVar[type[AravisOptions]] = AravisOptions

    @staticmethod
    def find(places: Sequence[Path]) -> list[FoundProducer]:
        """Find cameras; see `sci_stream.ports.CameraFinder`.

        Aravis has no files of producers to search.
        """
        if places:
            return []
        return [
            FoundProducer(
                "aravis", "Aravis", "", "", interfaces(_cameras(aravis()), _TRANSPORTS), ""
            )
        ]

    def _connect(self) -> Device:
        library()
        return Device(aravis(), self._options.selector)

    def _open_stream(self, connection: Device, image: ImageFormat) -> AravisStream:
        if connection.transport == "GEV":
            connection.set_packet_size(self._options.packet_size)
        return AravisStream(connection, image, self._options, self._counts)

    def _selection(self, connection: Device) -> dict[str, Any]:
        return {
            "selector": {"serial": connection.serial}
            if connection.serial
            else {"id": connection.id}
        }


def _cameras(lib: Aravis) -> list[tuple[FoundCamera, str]]:
    """Return the cameras that Aravis finds, each with its protocol."""
    lib.call("arv_update_device_list")
    found = []
    for index in range(lib.call("arv_get_n_devices")):
        id_, vendor, model, serial, protocol = (
            lib.text(f"arv_get_device_{key}", index)
            for key in ("id", "vendor", "model", "serial_nbr", "protocol")
        )
        options = {"selector": {"serial": serial} if serial else {"id": id_}}
        found.append((FoundCamera(id_, vendor, model, serial, "", "unknown", options), protocol))
    return found


class Device:
    """An open camera: its registers behind a node map.

    Satisfies `sci_stream_drivers.genicam.stream.Connection`.

    Raises `CameraError` if the camera is missing, in use or cannot be opened; `ConfigError` if
    several cameras match the selector.
    """

    has_clock = True

    def __init__(self, lib: Aravis, selector: CameraSelector) -> None:
        self.lib = lib
        if selector.user_defined_name is not None:
            raise ConfigError(
                "Aravis does not list the names that users gave cameras",
                hint="Select by serial or id.",
            )
        camera, protocol = selected(_cameras(lib), selector, _HINT)
        # A late goodbye would end the control that is taken here. Only now: while the camera is
        # away, nothing waits.
        while _releases:
            _releases.pop().join()
        self.id, self.vendor, self.model, self.serial = (
            camera.id,
            camera.vendor,
            camera.model,
            camera.serial,
        )
        self.name = f"{self.vendor} {self.model} {self.serial}".strip()
        self.transport = _TRANSPORTS.get(protocol, protocol)
        try:
            self.handle: int | None = lib.checked("arv_open_device", camera.id.encode())
        except AravisError as error:
            raise CameraError(f"The camera {self.name} cannot be opened", got=error) from None
        try:
            if self.transport == "GEV" and not lib.call("arv_gv_device_is_controller", self.handle):
                raise CameraError(
                    f"The camera {self.name} is in use",
                    expected="a camera that no other program controls",
                    hint="Close the viewer or the other acquire node that uses it.",
                )
            self._port = _port(lib, self.handle)
            self.node_map = _node_map(lib, self.handle, self._port)
        except BaseException:
            self.close()
            raise

    def set_packet_size(self, size: int) -> None:
        """Set the size of the packets of a GigE Vision camera; 0: the largest that the network
        passes.
        """
        try:
            if size:
                self.lib.checked("arv_gv_device_set_packet_size", self.handle, size)
            else:
                self.lib.checked("arv_gv_device_auto_packet_size", self.handle)
        except AravisError as error:
            raise CameraError(f"The packet size of {self.name} cannot be set", got=error) from None

    def ping(self) -> None:
        """Read the camera's first register; see `sci_stream_drivers.genicam.stream.Connection`."""
        self._port.read(0, 4)

    def close(self) -> None:
        """Release the camera."""
        handle, self.handle = self.handle, None
        if handle is None:
            return
        # Aravis says goodbye to a lost camera for some seconds, which must not delay the end of a
        # node.
        release = threading.Thread(
            target=self.lib.call,
            args=("g_object_unref", handle),
            name="aravis-release",
            daemon=True,
        )
        release.start()
        release.join(_RELEASE_S)
        _releases.append(release)


def _port(lib: Aravis, handle: int) -> Any:
    """Return the camera's registers as a port of GenApi."""
    genapi = library().genapi

    class Registers(genapi.AbstractPort):  # type: ignore[misc, name-defined] # the library has no types
        def read(self, address: int, length: int) -> bytes:
            buffer = ctypes.create_string_buffer(length)
            self._call("arv_device_read_memory", address, length, buffer)
            return buffer.raw

        def write(self, address: int, data: bytes) -> None:
            self._call("arv_device_write_memory", address, len(data), bytes(data))

        def _call(self, name: str, *arguments: Any) -> None:
            try:
                lib.checked(name, handle, *arguments)
            except AravisError as error:
                raise genapi.RuntimeException(str(error)) from None

        def get_access_mode(self) -> Any:
            return genapi.EAccessMode.RW

    return Registers()


def _node_map(lib: Aravis, handle: int, port: Any) -> Any:
    size = c_size_t()
    address = lib.call("arv_device_get_genicam_xml", handle, ctypes.byref(size))
    node_map = library().genapi.NodeMap()
    node_map.load_xml_from_string(
        ctypes.string_at(address, size.value).decode(errors="replace").rstrip("\0")
    )
    node_map.connect(port, "Device")
    return node_map


class AravisStream:
    """The acquisition of one camera. Satisfies `sci_stream_drivers.genicam.stream.Stream`."""

    def __init__(
        self, device: Device, image: ImageFormat, options: AravisOptions, counts: Counter[str]
    ) -> None:
        self._lib = device.lib
        self._device = device
        self._format = image
        self._buffers = options.buffers
        self._counts = counts
        self._stream: int | None = None
        self._refusals: tuple[type[Exception], ...] = (
            AravisError,
            CameraError,
            ConfigError,
            *library().transport_errors,
        )
        self._chunks = ChunkReader(device.node_map, device.transport, options.chunks, counts)

    def start(self) -> None:
        """Start the acquisition. Raises `CameraLost`."""
        nodes, device = self._device.node_map, self._device
        try:
            payload = int(nodes.get_node("PayloadSize").value)
            self._stream = self._lib.checked("arv_device_create_stream", device.handle, None, None)
            for _ in range(self._buffers):
                self._lib.call(
                    "arv_stream_push_buffer",
                    self._stream,
                    self._lib.call("arv_buffer_new_allocate", payload),
                )
            self._lock(locked=True)
            apply(nodes, FeatureSetting(feature="AcquisitionStart"), device.name)
        except self._refusals as error:
            self._release()
            raise CameraLost(
                f"The camera {device.name} does not start", got=message_of(error)
            ) from None

    def _lock(self, *, locked: bool) -> None:
        setting = FeatureSetting(feature="TLParamsLocked", value=int(locked), optional=True)
        apply(self._device.node_map, setting, self._device.name)

    def fetch(self) -> RawFrame | None:
        """Return the next complete frame, or None if there is none yet."""
        buffer = self._lib.call("arv_stream_try_pop_buffer", self._stream)
        if buffer is None:
            return None
        try:
            status = self._lib.call("arv_buffer_get_status", buffer)
            if status != SUCCESS:
                self._counts["incomplete"] += 1
                name = STATUS[status] if 0 <= status < len(STATUS) else "unknown"
                self._counts[f"incomplete_{name}"] += 1
                return None
            return self._copied(buffer)
        finally:
            self._lib.call("arv_stream_push_buffer", self._stream, buffer)

    def _copied(self, buffer: int) -> RawFrame | None:
        now_ns, call = unix_ns(), self._lib.call
        size, padding, rows = c_size_t(), c_int(), c_int()
        address = call("arv_buffer_get_data", buffer, ctypes.byref(size))
        call("arv_buffer_get_image_padding", buffer, ctypes.byref(padding), ctypes.byref(rows))
        code = call("arv_buffer_get_image_pixel_format", buffer)
        self._format.check(
            code,
            call("arv_buffer_get_image_height", buffer),
            call("arv_buffer_get_image_width", buffer),
        )
        pixel_format, height_px, width_px = self._format
        if size.value < pixel_format.bytes_for(height_px, width_px, padding.value):
            self._counts["short"] += 1
            return None
        raw = np.ctypeslib.as_array((ctypes.c_uint8 * size.value).from_address(address)).copy()
        return RawFrame(
            raw=raw,
            padding_bytes=padding.value,
            big_endian=False,
            frame_id=call("arv_buffer_get_frame_id", buffer),
            camera_time_ns=call("arv_buffer_get_timestamp", buffer) or None,
            host_time_ns=now_ns,
            chunks=self._chunks.read(raw, size.value, lambda: None),
        )

    def stop(self, *, lost: bool) -> None:
        """Stop; frames that were not fetched are discarded."""
        if not lost:  # it would be asked for seconds
            with contextlib.suppress(*self._refusals):
                apply(
                    self._device.node_map,
                    FeatureSetting(feature="AcquisitionStop"),
                    self._device.name,
                )
                self._lock(locked=False)
        self._release()

    def _release(self) -> None:
        stream, self._stream = self._stream, None
        self._chunks.detach()
        if stream is not None:
            self._counts.update(_statistics(self._lib, stream))
            self._lib.call("g_object_unref", stream)

    def counters(self) -> dict[str, int]:
        """Return Aravis' own counters: buffers and packets that were missing, asked for again and
        sent again.
        """
        now = _statistics(self._lib, self._stream) if self._stream is not None else {}
        return {name: value + self._counts.get(name, 0) for name, value in now.items()}


def _statistics(lib: Aravis, stream: int) -> dict[str, int]:
    values = {}
    for index in range(lib.call("arv_stream_get_n_infos", stream)):
        name = lib.text("arv_stream_get_info_name", stream, index)
        if name in _PASSED_ON:
            value = lib.call("arv_stream_get_info_uint64", stream, index)
            values[_COUNTERS.get(name, name.removeprefix("n_"))] = value
    return {name: value for name, value in values.items() if value}
