"""Fetch frames from a producer: copy them and return the buffers at once."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import numpy as np

from sci_stream.clock import unix_ns
from sci_stream.errors import CameraError, CameraLost
from sci_stream_drivers.genicam.chunks import ChunkReader
from sci_stream_drivers.genicam.library import attribute, library, message_of
from sci_stream_drivers.genicam.stream import ImageFormat, RawFrame

# Timeout of one poll for a buffer. Zero would wait indefinitely (harvesters 1.4.3).
_ASK_S = 20e-6


class HarvestersStream:
    """The running acquisition of one camera.

    A producer waits for a buffer while holding the GIL, which would block all other threads. So it is only polled, and
    waiting is done outside (docs/decisions/polling-genicam.md).

    ``acquirer`` is Harvesters' `ImageAcquirer` of an open camera. ``chunks`` are the names of the chunk data to read
    with each frame; ``counts`` counts ``incomplete``, ``short`` and ``chunk_errors``.
    """

    def __init__(
        self, acquirer: Any, image_format: ImageFormat, chunks: tuple[str, ...], counts: Counter[str], *, buffers: int
    ) -> None:
        from harvesters import core  # noqa: PLC0415  # optional

        self._acquirer = acquirer
        self._format = image_format
        self._counts = counts
        self._lib = library()
        self._source = acquirer.data_streams[0]
        self._frequency_hz = timestamp_frequency_hz(acquirer)
        self._chunks = (
            ChunkReader(acquirer.remote_device.node_map, str(acquirer.device.tl_type), chunks, counts)
            if chunks
            else None
        )
        self._underrun = 0
        acquirer.timeout_period_on_update_event_data_call = 0
        acquirer.add_callback(acquirer.Events.INCOMPLETE_BUFFER, _counting(core, counts))
        # The default of three is used up within milliseconds while another process has the core.
        acquirer.num_buffers = max(buffers, acquirer.min_num_buffers)

    def start(self) -> None:
        """Start the acquisition.

        Raises
        ------
        CameraLost
            If the camera does not start.
        """
        try:
            # Harvesters' own thread ignores the timeout of a fetch, hangs after a lost device, and its queue of one
            # frame dropped 42 of 200 (harvesters 1.4.3).
            self._acquirer.start(run_as_thread=False)
        except self._lib.transport_errors as error:
            with contextlib.suppress(*self._lib.transport_errors):
                self._acquirer.stop()  # the stream may be running without the camera
            raise CameraLost("The camera does not start", got=message_of(error)) from None

    def fetch(self) -> RawFrame | None:
        """Return the next frame, or None if there is none yet.

        Raises
        ------
        CameraLost
            If the producer fails.
        CameraError
            If a buffer contains no image of the announced format.
        """
        try:
            # Raw: Harvesters unpacks slowly (Mono12p, 1024×1024: 89 frames/s against 424), and an unknown pixel format
            # raises without returning the buffer to the producer.
            buffer = self._acquirer.try_fetch(timeout=_ASK_S, is_raw=True)
        except self._lib.transport_errors as error:
            raise CameraLost("The camera is lost", got=message_of(error)) from None
        if buffer is None:
            return None
        try:
            return self._copied(buffer)
        finally:
            try:
                buffer.parent.queue_buffer(buffer)
            except self._lib.transport_errors as error:
                raise CameraLost(
                    "The camera is lost: it does not accept its buffers back", got=message_of(error)
                ) from None

    def stop(self, *, lost: bool) -> None:  # noqa: ARG002  # the producer finds out by itself
        """Stop; the frames in the producer's buffers are discarded. Raises exceptions of the library."""
        self._underrun += self._running_underrun()
        if self._chunks is not None:
            self._chunks.detach()
        self._acquirer.stop()

    def counters(self) -> dict[str, int]:
        """Return the frames without a free buffer in the producer, if it counts them."""
        underrun = self._underrun + (self._running_underrun() if self._acquirer.is_acquiring() else 0)
        return {"underrun": underrun} if underrun else {}

    def _running_underrun(self) -> int:
        return int(attribute(self._source, "num_underrun", 0))

    def _copied(self, buffer: Any) -> RawFrame | None:
        now_ns = unix_ns()
        self._check(buffer)
        pixel_format, height_px, width_px = self._format
        padding = int(attribute(buffer, "padding_x", 0))
        offset = int(attribute(buffer, "image_offset", 0))
        needed = pixel_format.bytes_for(height_px, width_px, padding)
        filled = int(attribute(buffer, "size_filled", 0)) or needed + offset
        memory = buffer.raw_buffer
        if min(filled, len(memory)) < offset + needed:
            self._counts["short"] += 1
            return None
        chunks = {}
        if self._chunks is not None:
            chunks = self._chunks.read(buffer.raw_buffer, filled, lambda: buffer.chunk_data_info_list)
        return RawFrame(
            raw=np.frombuffer(memory, np.uint8, needed, offset).copy(),
            padding_bytes=padding,
            big_endian=attribute(buffer, "pixel_endianness") == self._lib.gentl.PIXELENDIANNESS_IDS.PIXELENDIANNESS_BIG,
            frame_id=_first(attribute(buffer, "frame_id"), chunks.get("FrameID")),
            camera_time_ns=_first(self._stamp_ns(buffer), chunks.get("Timestamp")),
            host_time_ns=now_ns,
            chunks=chunks,
        )

    def _check(self, buffer: Any) -> None:
        """Check that a buffer contains an image of the announced format, as far as the producer describes it."""
        ids = self._lib.gentl.PAYLOADTYPE_INFO_IDS
        payload = attribute(buffer, "payload_type", ids.PAYLOAD_TYPE_IMAGE)
        if payload not in (ids.PAYLOAD_TYPE_UNKNOWN, ids.PAYLOAD_TYPE_IMAGE, ids.PAYLOAD_TYPE_CHUNK_DATA):
            raise CameraError(
                "The camera sends something other than an image",
                expected="one image per buffer",
                got=f"payload type {payload}",
                hint="Select one component, without compression and multi-part transfer.",
            )
        declared = self._format
        declared.check(
            attribute(buffer, "pixel_format", 0) or declared.pixel_format.code,
            attribute(buffer, "height", 0) or declared.height_px,
            attribute(buffer, "width", 0) or declared.width_px,
        )

    def _stamp_ns(self, buffer: Any) -> int | None:
        stamp = attribute(buffer, "timestamp_ns")
        if stamp:
            return int(stamp)
        ticks = attribute(buffer, "timestamp")
        return int(ticks) * 1_000_000_000 // self._frequency_hz if ticks and self._frequency_hz else None


def timestamp_frequency_hz(acquirer: Any) -> int:
    """Return the frequency of the timestamps, Hz; 0 if the producer does not provide it."""
    return int(attribute(acquirer.device, "timestamp_frequency") or 0)


def _first(*values: Any) -> int | None:
    return next((int(value) for value in values if value is not None), None)


def _counting(core: Any, counts: Counter[str]) -> Any:
    """Return a callback that counts incomplete buffers, which `try_fetch` treats like timeouts."""

    class Incomplete(core.Callback):  # type: ignore[misc] # the library has no types
        def emit(self, context: object = None) -> None:  # noqa: ARG002  # the library names it
            counts["incomplete"] += 1

    return Incomplete()
