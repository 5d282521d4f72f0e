"""Frames as they come from a transport layer: copied, and not yet decoded."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from sci_stream.errors import CameraError
from sci_stream.plugins import U8, Array
from sci_stream_drivers.genicam.chunks import Chunks
from sci_stream_drivers.genicam.formats import PixelFormat, decode


class ImageFormat(NamedTuple):
    """Format of all frames of a run."""

    pixel_format: PixelFormat
    height_px: int
    width_px: int

    def check(self, code: int, height_px: int, width_px: int) -> None:
        """Raise `CameraError` if a buffer holds another format than this; ``code`` is its pixel
        format's number.
        """
        if (code, height_px, width_px) != (self.pixel_format.code, self.height_px, self.width_px):
            raise CameraError(
                "The camera sends images of another format than its features declare",
                expected=f"{self.height_px}×{self.width_px} {self.pixel_format.name}",
                got=f"{height_px}×{width_px}, pixel format {code:#010x}",
            )


class RawFrame(NamedTuple):
    """The copied bytes of one frame, not yet decoded."""

    raw: U8
    padding_bytes: int
    big_endian: bool
    frame_id: int | None
    camera_time_ns: int | None
    host_time_ns: int
    chunks: Chunks

    def counts(self, image_format: ImageFormat) -> Array:
        """Return (H, W) counts, DN."""
        return decode(
            self.raw, *image_format, padding_bytes=self.padding_bytes, big_endian=self.big_endian
        )


class Stream(Protocol):
    """The acquisition of an open camera; ``start → fetch… → stop`` any number of times."""

    def start(self) -> None:
        """Start the acquisition. Raises `CameraLost`."""
        ...

    def fetch(self) -> RawFrame | None:
        """Return the next frame, or None if there is none yet.

        Raises `CameraLost` or `CameraError`.
        """
        ...

    def stop(self, *, lost: bool) -> None:
        """Stop; frames that were not fetched are discarded. ``lost``: the camera does not respond.

        Raises exceptions of the library.
        """
        ...

    def counters(self) -> dict[str, int]:
        """Return the transport layer's own counters."""
        ...


class Connection(Protocol):
    """An open camera of a transport layer.

    ``transport`` is the type of the transport layer in GenTL: ``GEV``, ``U3V``, ``CXP``, …;
    ``has_clock``: frames have timestamps whatever the node map says.
    """

    vendor: str
    model: str
    serial: str
    name: str
    transport: str
    has_clock: bool

    @property
    def node_map(self) -> Any:
        """The camera's features: a `genicam.genapi.NodeMap`."""
        ...

    def ping(self) -> None:
        """Ask the camera for a register, without a node and without the interpreter's lock.

        Raises an exception of the library if it does not answer; returns if it cannot know.
        """
        ...

    def close(self) -> None:
        """Release everything, even of a lost camera; never raises exceptions of the library."""
        ...
