"""Harvesters: the one module that uses it. An open camera of a GenTL producer, and its frames.

Everything else uses ``genicam`` alone, of which Harvesters is a layer
(docs/decisions/harvesters.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from sci_stream.errors import CameraError, CameraLost, ConfigError, require_optional
from sci_stream.plugins import FoundCamera, unix_ns
from sci_stream_drivers.genicam.chunks import ChunkReader
from sci_stream_drivers.genicam.library import attribute, library, lost_if_failing, message_of
from sci_stream_drivers.genicam.options import GenicamOptions
from sci_stream_drivers.genicam.selection import selected
from sci_stream_drivers.genicam.stream import ImageFormat, RawFrame
from sci_stream_drivers.harvesters.discovery import found_camera
from sci_stream_drivers.harvesters.options import Selector

log = logging.getLogger(__name__)

# The log of Harvesters: a traceback for every exception that it raises or swallows, and a warning
# for every incomplete buffer; this driver reports all of them, once and in words.
_QUIET = logging.getLogger("sci_stream.harvesters_library")
_QUIET.setLevel(logging.CRITICAL)
# Timeout of one poll for a buffer. Zero would wait indefinitely (harvesters 1.4.3).
_ASK_S = 20e-6
# Errors of GenTL for a camera that does not answer: GC_ERR_IO, GC_ERR_TIMEOUT.
_SILENT = (-1010, -1011)


@functools.cache
def harvesters_core() -> ModuleType:
    """Import harvesters.

    Raises `ConfigError` if it is not installed or unusable on this machine.
    """
    library()
    core = require_optional("harvesters.core", "genicam", "A camera with a GenTL producer")
    for module in (core.System, core.Interface, core.Device, core.DataStream):
        _may_lack_description(module)
    return core


def _may_lack_description(module: Any) -> None:
    """Accept modules of a producer without an XML, or with a broken one: Harvesters refuses the
    camera.

    Only the camera itself needs one; here, ``node_map`` is None.
    """
    create = module._create_node_map

    def create_if_described(self: Any, **options: Any) -> Any:
        try:
            node_map = create(self, **options)
            node_map.has_node("Root")  # raises without a description
        # The library raises anything, of GenTL, GenApi and Python.
        except Exception as error:
            log.info("%s has no features: %s", module.__name__, message_of(error))
            return None
        return node_map

    module._create_node_map = create_if_described


_HINT = "Check that it is connected, powered and reachable, and that the vendor's viewer finds it."


def _candidate(info: Any) -> tuple[FoundCamera, Any]:
    path = Path(str(attribute(info.parent.parent, "path_name", "") or "an unnamed producer"))
    camera = found_camera(info, path)
    return replace(camera, access=f"{camera.access} through {path.name}"), (info, path)


class Session:
    """One `Harvester` and one `ImageAcquirer`, from `open` to `close`; starting and stopping
    creates no new ones.

    The files of the producers have been checked already; finding cameras takes ``discovery_s`` at
    most.

    Raises `CameraError` if the camera is missing, in use or cannot be opened; `ConfigError` if
    several cameras match the selector.
    """

    def __init__(self, files: list[Path], selector: Selector, discovery_s: float) -> None:
        core = harvesters_core()
        key = core.ParameterKey
        self._closed = False
        self._chain: list[Any] = []
        self._harvester: Any = core.Harvester(
            config=core.ParameterSet(
                {
                    key.LOGGER: _QUIET,
                    key.TIMEOUT_PERIOD_ON_MODULE_ENUMERATION: max(1, round(discovery_s * 1000)),
                }
            )
        )
        self.acquirer: Any = None
        try:
            for path in files:
                self._harvester.add_file(str(path))
            self._harvester.update()
            camera, (info, path) = selected(
                [_candidate(info) for info in self._harvester.device_info_list], selector, _HINT
            )
            self.vendor = camera.vendor
            self.model = camera.model
            self.serial = camera.serial
            self.name = f"{self.vendor} {self.model} {self.serial}".strip()
            self._path = path
            self.producer = path.name
            self._chain = [info.parent, info.parent.parent, info.parent.parent.parent]
            self.acquirer = self._opened(info, camera.access)
            self.transport = str(self.acquirer.device.tl_type)
            self.frequency_hz = int(attribute(self.acquirer.device, "timestamp_frequency") or 0)
            self.has_clock = self.frequency_hz > 0
        except BaseException:
            self.close()
            raise

    @property
    def node_map(self) -> Any:
        """The camera's features."""
        return self.acquirer.remote_device.node_map

    @property
    def interface_node_map(self) -> Any:
        """The features of the producer's interface."""
        return self._of_module(self.acquirer.interface, "interface")

    @property
    def stream_node_map(self) -> Any:
        """The features of the producer's data stream."""
        return self._of_module(self.acquirer.data_streams[0], "data stream")

    def _of_module(self, module: Any, what: str) -> Any:
        if module.node_map is None:
            raise ConfigError(
                f"The producer of {self.name} has no features of its {what}",
                hint="Remove their settings.",
            )
        return module.node_map

    def ping(self) -> None:
        """Read the camera's first register; see `sci_stream_drivers.genicam.stream.Connection`.

        By the producer's own functions: genicam holds the interpreter's lock until the producer
        gives up.
        """
        producer = ctypes.CDLL(self._path)
        device = int(self.acquirer.device.module._handle)
        port = ctypes.c_void_p()
        size = ctypes.c_size_t(4)
        status = producer.DevGetPort(ctypes.c_void_p(device), ctypes.byref(port))
        if status == 0:
            register = ctypes.create_string_buffer(size.value)
            status = producer.GCReadPort(port, ctypes.c_uint64(0), register, ctypes.byref(size))
        if status in _SILENT:
            raise library().gentl.IoException(f"GCReadPort: error {status}")

    def _opened(self, info: Any, access: str) -> Any:
        lib = library()
        core = harvesters_core()
        config = core.ParameterSet({core.ParameterKey.ENABLE_AUTO_CHUNK_DATA_UPDATE: False})
        gentl = lib.gentl
        try:
            with _sigint_kept():
                acquirer = self._harvester.create(info, config=config)
        except (
            gentl.AccessDeniedException,
            gentl.ResourceInUseException,
            gentl.BusyException,
        ) as error:
            raise CameraError(
                f"The camera {self.name} is in use",
                expected="a camera that no other program has open",
                got=f"{access}: {message_of(error)}",
                hint="Close the viewer or the other acquire node that uses it.",
            ) from None
        except lib.transport_errors as error:
            raise CameraError(
                f"The camera {self.name}, {access}, cannot be opened", got=message_of(error)
            ) from None
        # Cameras with several streams (stereo, multi-component) deliver frames that belong
        # together; this driver has no notion of that.
        if len(acquirer.data_streams) != 1:
            raise CameraError(
                f"The camera {self.name} cannot be used",
                expected="one data stream",
                got=len(acquirer.data_streams),
            )
        return acquirer

    def close(self) -> None:
        """Release everything, even of a lost camera; never raises exceptions of the library."""
        if self._closed:
            return
        self._closed = True
        acquirers = self._harvester.image_acquirers
        for acquirer in list(acquirers):
            with _errors_logged():
                acquirer.stop()
            with _errors_logged():
                # Unlike destroy(), __exit__ also removes it from the list of acquirers destroyed at
                # exit, which would keep it and its buffers alive until the process ends.
                acquirer.__exit__(None, None, None)
            acquirers.remove(
                acquirer
            )  # else reset() would repeat the failing call before it finishes
        closed = False
        with _errors_logged():
            self._harvester.reset()
            closed = True
        if not closed:  # a producer that remains open cannot be opened again in this process
            for module in self._chain:
                with _errors_logged():
                    module.close()
        self.acquirer = None


@contextlib.contextmanager
def _errors_logged() -> Iterator[None]:
    """Log exceptions of a lost camera and continue: during teardown the library raises any
    exception.
    """
    try:
        yield
    except Exception as error:
        log.debug("While closing: %s", message_of(error))


@contextlib.contextmanager
def _sigint_kept() -> Iterator[None]:
    """Restore the handler of SIGINT: creating an acquirer in the main thread replaces it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class HarvestersStream:
    """The running acquisition of one camera.

    A producer waits for a buffer while holding the GIL, which would block all other threads. So it
    is only polled, and waiting is done outside (docs/decisions/polling-genicam.md).

    ``counts`` counts ``incomplete``, ``short`` and ``chunk_errors``.
    """

    def __init__(
        self,
        session: Session,
        image_format: ImageFormat,
        options: GenicamOptions,
        counts: Counter[str],
    ) -> None:
        self._acquirer = acquirer = session.acquirer
        self._format = image_format
        self._counts = counts
        self._lib = library()
        self._source = acquirer.data_streams[0]
        self._frequency_hz = session.frequency_hz
        self._chunks = ChunkReader(session.node_map, session.transport, options.chunks, counts)
        self._underrun = 0
        acquirer.timeout_period_on_update_event_data_call = 0
        acquirer.add_callback(acquirer.Events.INCOMPLETE_BUFFER, _counting(counts))
        # The default of three is used up within milliseconds while another process has the core.
        acquirer.num_buffers = max(options.buffers, acquirer.min_num_buffers)

    def start(self) -> None:
        """Start the acquisition. Raises `CameraLost`."""
        try:
            # Harvesters' own thread ignores the timeout of a fetch, hangs after a lost device, and
            # its queue of one frame dropped 42 of 200 (harvesters 1.4.3).
            self._acquirer.start(run_as_thread=False)
        except self._lib.transport_errors as error:
            with contextlib.suppress(*self._lib.transport_errors):
                self._acquirer.stop()  # the stream may be running without the camera
            raise CameraLost("The camera does not start", got=message_of(error)) from None

    def fetch(self) -> RawFrame | None:
        """Return the next frame, or None if there is none yet.

        Raises `CameraLost` if the producer fails, `CameraError` for a buffer without an image of
        the announced format.
        """
        with lost_if_failing("The camera is lost"):
            # Raw: Harvesters unpacks slowly (Mono12p, 1024×1024: 89 frames/s against 424), and an
            # unknown pixel format raises without returning the buffer to the producer.
            buffer = self._acquirer.try_fetch(timeout=_ASK_S, is_raw=True)
        if buffer is None:
            return None
        try:
            return self._copied(buffer)
        finally:
            with lost_if_failing("The camera is lost: it does not accept its buffers back"):
                buffer.parent.queue_buffer(buffer)

    def stop(self, *, lost: bool) -> None:  # noqa: ARG002  # the producer finds out by itself
        """Stop; the frames in the producer's buffers are discarded.

        Raises exceptions of the library.
        """
        self._underrun += self._running_underrun()
        self._chunks.detach()
        self._acquirer.stop()

    def counters(self) -> dict[str, int]:
        """Return the frames without a free buffer in the producer, if it counts them."""
        underrun = self._underrun + (
            self._running_underrun() if self._acquirer.is_acquiring() else 0
        )
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
        chunks = self._chunks.read(memory, filled, lambda: buffer.chunk_data_info_list)
        return RawFrame(
            raw=np.frombuffer(memory, np.uint8, needed, offset).copy(),
            padding_bytes=padding,
            big_endian=attribute(buffer, "pixel_endianness")
            == self._lib.gentl.PIXELENDIANNESS_IDS.PIXELENDIANNESS_BIG,
            frame_id=_first(attribute(buffer, "frame_id"), chunks.get("FrameID")),
            camera_time_ns=_first(self._stamp_ns(buffer), chunks.get("Timestamp")),
            host_time_ns=now_ns,
            chunks=chunks,
        )

    def _check(self, buffer: Any) -> None:
        """Check that a buffer contains an image of the announced format, as far as the producer
        describes it.
        """
        ids = self._lib.gentl.PAYLOADTYPE_INFO_IDS
        payload = attribute(buffer, "payload_type", ids.PAYLOAD_TYPE_IMAGE)
        if payload not in (
            ids.PAYLOAD_TYPE_UNKNOWN,
            ids.PAYLOAD_TYPE_IMAGE,
            ids.PAYLOAD_TYPE_CHUNK_DATA,
        ):
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
        if ticks and self._frequency_hz:
            return int(ticks) * 1_000_000_000 // self._frequency_hz
        return None


def _first(*values: Any) -> int | None:
    return next((int(value) for value in values if value is not None), None)


def _counting(counts: Counter[str]) -> Any:
    """Return a callback that counts incomplete buffers, which `try_fetch` treats like timeouts."""

    class Incomplete(harvesters_core().Callback):  # type: ignore[misc] # the library has no types
        def emit(self, context: object = None) -> None:  # noqa: ARG002  # the library names it
            counts["incomplete"] += 1

    return Incomplete()
