"""A GenICam camera as `sci_stream.ports.Camera`, whatever its transport layer."""

from __future__ import annotations

import abc
import contextlib
import logging
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from sci_stream.errors import CameraError, CameraLost
from sci_stream.plugins import (
    Calibration,
    CameraCapabilities,
    CameraFrame,
    CameraTiming,
    CameraTrigger,
    Inspection,
    Parameter,
    Value,
    checked_changes,
)
from sci_stream_drivers.genicam import exposures, node_map
from sci_stream_drivers.genicam.chunks import chunk_units
from sci_stream_drivers.genicam.features import apply, configure
from sci_stream_drivers.genicam.formats import find_pixel_format
from sci_stream_drivers.genicam.frame_ids import CameraClock, RestartDetector, frame_ids_of
from sci_stream_drivers.genicam.library import feature, library, lost_if_failing, message_of
from sci_stream_drivers.genicam.node_map import choices_of
from sci_stream_drivers.genicam.options import FeatureSetting, GenicamOptions
from sci_stream_drivers.genicam.standard_features import (
    EXPOSURE,
    distortions,
    frame_rate_hz,
    settings,
    suggested_features,
    trigger_line,
)
from sci_stream_drivers.genicam.stream import Connection, ImageFormat, RawFrame, Stream

log = logging.getLogger(__name__)

OptionsT = TypeVar("OptionsT", bound=GenicamOptions)
ConnectionT = TypeVar("ConnectionT", bound=Connection)

# Pause between two polls for a frame, and so the largest delay that polling adds.
_NAP_S = 0.0005
# A free-running camera without a frame for this many periods is lost, or streams no more.
_SILENT_PERIODS = 10
# Until the first frame after a start, which some cameras take seconds for.
_FIRST_FRAME_S = 5.0
# A register is read within milliseconds; transport layers try for a second or two before they give
# up.
_ANSWER_S = 5.0
_CLOCKS = ("Timestamp", "TimestampLatchValue", "GevTimestampValue", "DeviceTimestamp")
# A camera that has lost them was switched off meanwhile: it answers, and streams nothing.
_WITNESSES = ("Width", "Height", "PixelFormat", "TriggerMode", "TriggerSource")


@dataclass
class _OpenDevice(Generic[ConnectionT]):
    """An open camera; ``watch`` is renewed with each start, since frame ids may begin again."""

    connection: ConnectionT
    release: weakref.finalize[Any, Any]
    capabilities: CameraCapabilities
    image_format: ImageFormat
    stream: Stream
    watch: RestartDetector
    clock: CameraClock
    silence_s: float | None = None
    """Seconds without a frame after which a free-running camera is lost; None if it waits for
    triggers."""
    witnesses: dict[str, Any] = field(default_factory=dict)
    """Values of `_WITNESSES` when it was started."""


class GenicamCamera(abc.ABC, Generic[OptionsT, ConnectionT]):
    """A camera with a GenICam description.

    Implements `sci_stream.ports.Camera`; a subclass adds a transport layer.

    Frames are copied out of the transport layer's buffers as soon as they are filled, all of them
    at once, and decoded one by one as they are read.
    """

    def __init__(self, options: OptionsT) -> None:
        self._options = options
        self._camera: _OpenDevice[ConnectionT] | None = None
        self._held = deque[RawFrame]()
        self._lost: CameraLost | None = None
        self._counts = Counter[str]()
        self._running = self._gone = self._has_frames = False
        self._last_frame_s = 0.0

    # --- the transport layer

    @abc.abstractmethod
    def _connect(self) -> ConnectionT:
        """Find the selected camera and open it. Raises `CameraError` or `ConfigError`."""

    @abc.abstractmethod
    def _open_stream(self, connection: ConnectionT, image: ImageFormat) -> Stream:
        """Prepare the acquisition of a configured camera."""

    @abc.abstractmethod
    def _selection(self, connection: ConnectionT) -> dict[str, Any]:
        """Return the options that select this camera."""

    def _prepare(self, connection: ConnectionT) -> None:
        """Configure the transport layer before the camera; nothing by default."""

    # --- the camera

    def inspect(self) -> Inspection:
        """Describe every feature of a camera; see `sci_stream.ports.FeatureLister`."""
        if self._camera is not None:
            raise RuntimeError("inspect() connects by itself: close() the camera first")
        connection = self._connect()
        try:
            configure(connection.node_map, self._options, connection.name)
            nodes = connection.node_map
            line = trigger_line(nodes)
            return Inspection(
                features=tuple(node_map.features(nodes)),
                suggested={**self._selection(connection), "features": suggested_features(nodes)},
                trigger=None if line is None else {"source": line, "activation": "RisingEdge"},
            )
        except library().transport_errors as error:
            raise CameraError(
                f"The features of {connection.name} cannot be read", got=message_of(error)
            ) from None
        finally:
            connection.close()

    def open(self) -> CameraCapabilities:
        """Find the camera, open it and configure it.

        Raises `CameraError` if it is missing, in use, faulty, or sends an unsupported format; or
        the packages are not installed; `ConfigError` if several cameras match, or a feature cannot
        be set to its value.
        """
        if self._camera is not None:
            return self._camera.capabilities
        connection = self._connect()
        # A camera that is garbage-collected without close() would remain in use until the process
        # ends.
        release = weakref.finalize(self, connection.close)
        try:
            self._prepare(connection)
            clock = configure(connection.node_map, self._options, connection.name)
            capabilities, image = self._described(connection, clock)
            self._counts.clear()
            stream = self._open_stream(connection, image)
            watch = RestartDetector(capabilities.frame_ids)
            camera = _OpenDevice(
                connection, release, capabilities, image, stream, watch, CameraClock()
            )
            self._note_timing(camera)
        except library().transport_errors as error:
            release()
            raise CameraError(
                f"The camera {connection.name} failed during configuration", got=message_of(error)
            ) from None
        except BaseException:
            release()
            raise
        self._camera = camera
        return camera.capabilities

    def _described(
        self, connection: ConnectionT, clock: str | None
    ) -> tuple[CameraCapabilities, ImageFormat]:
        """Return the capabilities of a configured camera without its period, and the image format
        of its buffers.

        ``clock`` names the clock that the camera's clock is synchronised with, if it is.
        """
        nodes = connection.node_map
        options = self._options
        formats = nodes.get_node("PixelFormat")
        pixel_format = find_pixel_format(str(formats.value), offered=choices_of(formats))
        image = ImageFormat(
            pixel_format, int(nodes.get_node("Height").value), int(nodes.get_node("Width").value)
        )
        stamped = connection.has_clock or any(nodes.has_node(name) for name in _CLOCKS)
        capabilities = CameraCapabilities(
            model=f"{connection.vendor} {connection.model}".strip(),
            serial=connection.serial,
            height_px=image.height_px,
            width_px=image.width_px,
            pixel_format=pixel_format.name,
            bit_depth=pixel_format.bit_depth,
            bayer=pixel_format.bayer,
            frame_ids=frame_ids_of(connection.transport, nodes, options.frame_id_last),
            clock=clock or ("camera" if stamped or "Timestamp" in options.chunks else "none"),
            chunks=chunk_units(nodes, options.chunks),
            distortions=tuple(map(str, distortions(nodes))),
            firmware=str(feature(nodes, "DeviceFirmwareVersion") or ""),
        )
        return capabilities, image

    def _note_timing(self, camera: _OpenDevice[ConnectionT]) -> None:
        """Read the frame period, as far as the camera controls it, and how long it may be without a
        frame.
        """
        nodes = camera.connection.node_map
        is_triggered = feature(nodes, "TriggerMode") == "On"
        rate_hz = None if is_triggered else frame_rate_hz(nodes)
        period_ns = None if rate_hz is None else round(1e9 / rate_hz)
        period_s = max((EXPOSURE.read(nodes) or 0.0) / 1e6, (period_ns or 0) / 1e9)
        camera.silence_s = (
            None if is_triggered else max(self._options.silence_s, _SILENT_PERIODS * period_s)
        )
        camera.capabilities = replace(camera.capabilities, frame_period_ns=period_ns)

    @contextlib.contextmanager
    def _answering(self) -> Iterator[tuple[_OpenDevice[ConnectionT], Any]]:
        """Provide the open camera and its features; raise `CameraLost` if it does not respond."""
        camera = self._opened()
        with lost_if_failing(f"The camera {camera.connection.name} does not respond"):
            yield camera, camera.connection.node_map

    def settings(self) -> list[Parameter]:
        """Return exposure, gain and rate, if the camera supports them; see
        `sci_stream.ports.AdjustableCamera`.
        """
        with self._answering() as (_, nodes):
            return settings(nodes)

    def set(self, name: str, value: Value) -> CameraCapabilities:
        """Set one of `settings`; see `sci_stream.ports.AdjustableCamera.set`."""
        with self._answering() as (camera, nodes):
            # Against the current range: on many cameras the range of one feature depends on the
            # value of another.
            checked = checked_changes(settings(nodes), {name: value}, camera.connection.name)
            apply(nodes, FeatureSetting(feature=name, value=checked[name]), camera.connection.name)
            self._note_timing(camera)
            return camera.capabilities

    def timing(self) -> CameraTiming:
        """Return the limits of its exposures; see `sci_stream.ports.TriggeredCamera`."""
        with self._answering() as (_, nodes):
            return exposures.timing_of(nodes)

    def trigger_now(self) -> CameraTrigger:
        """Return how exposures are started; see `sci_stream.ports.TriggeredCamera`."""
        with self._answering() as (_, nodes):
            return exposures.trigger_of(nodes)

    def arm(self, trigger: CameraTrigger) -> CameraTrigger:
        """Change the start and length of exposures; see `sci_stream.ports.TriggeredCamera`."""
        if self._running:
            raise RuntimeError("arm() while it is started: call stop() first")
        with self._answering() as (camera, nodes):
            armed = exposures.arm(nodes, trigger, self._options.trigger, camera.connection.name)
            self._note_timing(camera)
            return armed

    def calibration(self) -> Calibration | None:
        """Return None: a camera has no knowledge of the masks in front of it."""
        self._opened()
        return None

    def start(self) -> None:
        """Start delivering frames. Frame ids and the camera's clock may restart.

        Raises `CameraLost`.
        """
        camera = self._opened()
        if self._running:
            return
        self._lost = None
        camera.watch = RestartDetector(camera.capabilities.frame_ids)
        camera.clock = CameraClock()
        nodes = camera.connection.node_map
        camera.witnesses = {name: feature(nodes, name) for name in _WITNESSES}
        camera.stream.start()
        self._running = True
        self._gone = False
        self._has_frames = False
        self._last_frame_s = time.monotonic()

    def trigger(self) -> None:
        """Send one software trigger.

        Raises `ConfigError` if the camera supports none, `CameraLost`.
        """
        connection = self._opened().connection
        try:
            apply(connection.node_map, FeatureSetting(feature="TriggerSoftware"), connection.name)
        except CameraError as error:
            raise CameraLost(
                f"The camera {connection.name} does not accept a trigger", got=error.got
            ) from None

    def read(self, timeout_s: float) -> CameraFrame | None:
        """Return the next frame, or None after the timeout; see `sci_stream.ports.Camera.read`.

        A camera is lost too when it runs freely and sends nothing, or restarts its frame counter.
        An image of another format than announced is a `CameraError`.
        """
        if not self._running:
            raise RuntimeError(
                "read() needs an open and started camera: call open() and start() first"
            )
        try:
            return self._read(self._opened(), timeout_s)
        except CameraLost:
            self._gone = True
            raise

    def _read(self, camera: _OpenDevice[ConnectionT], timeout_s: float) -> CameraFrame | None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._drain(camera.stream)
            if self._held:
                return self._delivered(camera, self._held.popleft())
            if self._lost is not None:
                raise self._lost
            now_s = time.monotonic()
            self._check_silence(camera, now_s - self._last_frame_s)
            if now_s >= deadline_s:
                self._counts["timeouts"] += 1
                return None
            time.sleep(_NAP_S)

    def _drain(self, stream: Stream) -> None:
        """Take all filled buffers, at most as many as the transport layer can hold itself."""
        # Copied and returned before the first frame is decoded, so that there are always free
        # buffers meanwhile (docs/decisions/polling-genicam.md).
        while len(self._held) < self._options.buffers:
            try:
                frame = stream.fetch() if self._lost is None else None
            except CameraLost as error:
                self._lost = error
                return
            if frame is None:
                return
            self._held.append(frame)

    def _delivered(self, camera: _OpenDevice[ConnectionT], frame: RawFrame) -> CameraFrame:
        self._last_frame_s = time.monotonic()
        self._has_frames = True
        if camera.watch.restarted(frame.frame_id, frame.camera_time_ns):
            self._counts["restarts"] += 1
            # Frames already fetched belong to the new count as well; they cannot be numbered within
            # this epoch.
            self._counts["discarded"] += 1 + len(self._held)
            raise CameraLost(
                "The camera restarted its frame counter: it was reset and may have lost its "
                "settings",
                got=f"frame id {frame.frame_id}",
                hint="If its ids only wrap around, set frame_id_last to the highest id.",
            )
        self._counts["delivered"] += 1
        camera_time_ns = camera.clock.unwrapped(frame.camera_time_ns, frame.host_time_ns)
        return CameraFrame(
            counts=frame.counts(camera.image_format),
            frame_id=frame.frame_id,
            camera_time_ns=camera_time_ns if camera.capabilities.clock != "none" else None,
            host_time_ns=frame.host_time_ns,
            chunks=frame.chunks,
        )

    def _check_silence(self, camera: _OpenDevice[ConnectionT], silence_s: float) -> None:
        """Raise `CameraLost` if the camera should have sent a frame, or does not answer.

        Many transport layers do not report an unplugged camera but just deliver no more frames, and
        a camera that was switched off and on answers but streams nothing.
        """
        if camera.silence_s is not None:
            limit_s = (
                camera.silence_s if self._has_frames else max(camera.silence_s, _FIRST_FRAME_S)
            )
            if silence_s > limit_s:
                raise CameraLost(
                    "The camera sends no frames",
                    expected=f"one within {limit_s:.3g} s",
                    got=f"none for {silence_s:.3g} s",
                    hint="It runs freely, so it was unplugged, or switched off and on.",
                )
            return
        if silence_s > self._options.silence_s:
            self._ask(camera)
            self._last_frame_s = time.monotonic()

    def _ask(self, camera: _OpenDevice[ConnectionT]) -> None:
        """Read registers of a camera that waits for triggers."""
        answers: list[Exception | None] = []

        def ping() -> None:
            try:
                camera.connection.ping()
                answers.append(None)
            except library().transport_errors as error:
                answers.append(error)

        # In a thread, which is abandoned if the transport layer never returns. It must not read a
        # node meanwhile: it would hold the lock of the node map, for which this thread then waits
        # with the interpreter's lock.
        thread = threading.Thread(target=ping, name="camera-check", daemon=True)
        thread.start()
        thread.join(_ANSWER_S)
        failure = answers[0] if answers else TimeoutError(f"no answer within {_ANSWER_S:g} s")
        if failure is not None:
            raise CameraLost("The camera is lost: it does not respond", got=message_of(failure))
        nodes = camera.connection.node_map
        with lost_if_failing("The camera is lost: it does not respond"):
            # All nodes: a register behind a feature answers from its own cache if only the feature
            # is invalidated.
            nodes._invalidate_nodes()
            _ = nodes.get_node("Width").value
            present = {name: feature(nodes, name) for name in _WITNESSES}
        changed = [
            f"{name} {value}" for name, value in present.items() if value != camera.witnesses[name]
        ]
        if changed:
            raise CameraLost(
                "The camera has lost its settings: it was switched off and on, or another program "
                "changed them",
                got=", ".join(changed),
            )

    @property
    def exhausted(self) -> bool:
        """False: a camera does not end by itself."""
        return False

    def counters(self) -> Mapping[str, int]:
        """Return the counters since `open`.

        ``delivered`` frames; ``incomplete`` buffers, reported by the transport layer; ``short``
        buffers, refused here; ``underrun``, frames without a free buffer; ``timeouts``, reads
        without a frame; ``chunk_errors``, frames without the requested chunk data; ``restarts`` of
        the camera's frame counter, and the frames ``discarded`` with them. Transport layers add
        their own.
        """
        return {
            **self._counts,
            **(self._camera.stream.counters() if self._camera is not None else {}),
        }

    def stop(self) -> None:
        """Stop; `start` may follow. Frames that were not read are discarded."""
        if self._running and self._camera is not None:
            self._running = False
            try:
                self._camera.stream.stop(lost=self._gone)
            except library().transport_errors as error:
                log.info("Stopping failed because the camera is lost: %s", message_of(error))
        self._held.clear()

    def close(self) -> None:
        """Release the camera; `open` may follow."""
        self.stop()
        if self._camera is not None:
            self._camera.release()
            self._camera = None

    def _opened(self) -> _OpenDevice[ConnectionT]:
        if self._camera is None:
            raise RuntimeError("the camera is not open: call open() first")
        return self._camera
