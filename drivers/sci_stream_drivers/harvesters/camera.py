"""Cameras with a GenTL producer as `sci_stream.ports.Camera`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from sci_stream.plugins import FoundProducer
from sci_stream_drivers.genicam.camera import GenicamCamera
from sci_stream_drivers.genicam.features import apply
from sci_stream_drivers.genicam.stream import ImageFormat, Stream
from sci_stream_drivers.harvesters.discovery import find_cameras
from sci_stream_drivers.harvesters.options import HarvestersOptions
from sci_stream_drivers.harvesters.producers import producer_files, usable_producers
from sci_stream_drivers.harvesters.session import HarvestersStream, Session, harvesters_core
from sci_stream_drivers.harvesters.transport_advice import warn_about_transport


class HarvestersCamera(GenicamCamera[HarvestersOptions, Session]):
    """Any camera with a GenTL producer. A process can open one camera of each producer."""

    Options: ClassVar[type[HarvestersOptions]] = HarvestersOptions

    def __init__(self, options: HarvestersOptions) -> None:
        super().__init__(options)
        self._files: list[Path] = []

    @staticmethod
    def find(places: Sequence[Path]) -> list[FoundProducer]:
        """Find cameras; see `sci_stream.ports.CameraFinder`."""
        return find_cameras(places)

    def _connect(self) -> Session:
        harvesters_core()
        self._files = self._files or usable_producers(
            producer_files(self._options.cti), self._options.selector.producer
        )
        return Session(self._files, self._options.selector, self._options.discovery_timeout_s)

    def _prepare(self, connection: Session) -> None:
        for setting in self._options.interface_features:
            apply(connection.interface_node_map, setting, f"The interface of {connection.name}")

    def _open_stream(self, connection: Session, image: ImageFormat) -> Stream:
        for setting in self._options.stream_features:
            apply(connection.stream_node_map, setting, f"The data stream of {connection.name}")
        warn_about_transport(connection, self._options.buffers)
        return HarvestersStream(connection, image, self._options, self._counts)

    def _selection(self, connection: Session) -> dict[str, Any]:
        by_serial = (
            {"serial": connection.serial} if connection.serial else self._options.selector.given
        )
        return {"cti": [str(path) for path in self._files], "selector": by_serial}
