"""GenICam cameras as `sci_stream.ports.Camera`."""

from __future__ import annotations

import logging
import time
import weakref
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from sci_stream.errors import CameraError, CameraLost
from sci_stream.model import CameraCapabilities, CameraFrame, FoundProducer, Inspection
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import Parameter, Value, checked_changes
from sci_stream_drivers.harvesters import node_map
from sci_stream_drivers.harvesters.description import describe, frame_period_ns
from sci_stream_drivers.harvesters.discovery import find_cameras
from sci_stream_drivers.harvesters.features import apply, configure
from sci_stream_drivers.harvesters.frame_ids import RestartDetector
from sci_stream_drivers.harvesters.library import library, message_of
from sci_stream_drivers.harvesters.node_map import settings
from sci_stream_drivers.harvesters.options import FeatureSetting, HarvestersOptions
from sci_stream_drivers.harvesters.producers import producer_files, usable_producers
from sci_stream_drivers.harvesters.session import Session
from sci_stream_drivers.harvesters.stream import ImageFormat, RawFrame, Stream
from sci_stream_drivers.harvesters.transport_advice import warn_about_transport

log = logging.getLogger(__name__)

# Pause between two polls for a frame, and so the largest delay that polling adds.
_NAP_S = 0.0005


@dataclass(slots=True)
class _OpenDevice:
    """An open camera; ``watch`` is renewed with each start, since frame ids may begin again."""

    session: Session
    release: weakref.finalize[Any, Any]
    capabilities: CameraCapabilities
    image_format: ImageFormat
    stream: Stream
    watch: RestartDetector


class HarvestersCamera:
    """Any camera with a GenTL producer. Implements `sci_stream.ports.Camera`, and finds cameras.

    Frames are copied out of the producer's buffers as soon as they are filled, all of them at once, and decoded one by
    one as they are read. A process can open one camera of each producer.
    """

    Options: ClassVar[type[HarvestersOptions]] = HarvestersOptions

    def __init__(self, options: HarvestersOptions) -> None:
        self._options = options
        self._files: list[Path] = []
        self._camera: _OpenDevice | None = None
        self._held: deque[RawFrame] = deque()
        self._lost: CameraLost | None = None
        self._counts: Counter[str] = Counter()
        self._running = False
        self._last_contact_s = 0.0
        self._next_trigger_s = 0.0

    # --- finding cameras

    @staticmethod
    def find(places: Sequence[Path]) -> list[FoundProducer]:
        """Find cameras; see `sci_stream.ports.CameraFinder`."""
        return find_cameras(places)

    def inspect(self) -> Inspection:
        """Describe every feature of a camera; see `sci_stream.ports.FeatureLister`."""
        if self._camera is not None:
            raise RuntimeError("inspect() connects by itself: close() the camera first")
        session = self._connected()
        try:
            configure(session.node_map, self._options, session.name)
            options = {
                "cti": [str(path) for path in self._files],
                "selector": {"serial": session.serial} if session.serial else self._options.selector.given,
                "features": node_map.present_settings(session.node_map),
            }
            return Inspection(tuple(node_map.features(session.node_map)), options)
        except library().transport_errors as error:
            raise CameraError(f"The features of {session.name} cannot be read", got=message_of(error)) from None
        finally:
            session.close()

    # --- the camera

    def open(self) -> CameraCapabilities:
        """Find the camera, open it and configure it.

        Raises
        ------
        CameraError
            If it is missing, in use, faulty, or sends an unsupported format; or the packages are not installed.
        ConfigError
            If there is no producer, several cameras match, or a feature cannot be set to its value.
        """
        if self._camera is not None:
            return self._camera.capabilities
        session = self._connected()
        # A camera that is garbage-collected without close() would remain in use until the process ends.
        release = weakref.finalize(self, session.close)
        try:
            for setting in self._options.interface_features:
                apply(session.interface_node_map, setting, f"The interface of {session.name}")
            clock = configure(session.node_map, self._options, session.name)
            for setting in self._options.stream_features:
                apply(session.stream_node_map, setting, f"The data stream of {session.name}")
            capabilities, image = describe(session, self._options, clock)
            warn_about_transport(session, self._options.buffers)
            self._counts.clear()
            chunks = tuple(self._options.chunks)
            stream = Stream(session.acquirer, image, chunks, self._counts, buffers=self._options.buffers)
        except library().transport_errors as error:
            release()
            raise CameraError(f"The camera {session.name} failed during configuration", got=message_of(error)) from None
        except BaseException:
            release()
            raise
        watch = RestartDetector(capabilities.frame_ids)
        self._camera = _OpenDevice(session, release, capabilities, image, stream, watch)
        return capabilities

    def settings(self) -> list[Parameter]:
        """Return exposure, gain and rate, as far as the camera supports them; see `sci_stream.ports.AdjustableCamera`.

        Raises
        ------
        CameraLost
            If the camera does not respond.
        """
        session = self._opened().session
        try:
            return settings(session.node_map)
        except library().transport_errors as error:
            raise CameraLost(f"The camera {session.name} does not respond", got=message_of(error)) from None

    def set(self, name: str, value: Value) -> CameraCapabilities:
        """Set one of `settings`; see `sci_stream.ports.AdjustableCamera.set`."""
        camera = self._opened()
        session = camera.session
        # Against the current range: on many cameras the range of one feature depends on the value of another.
        checked = checked_changes(self.settings(), {name: value}, session.name)
        try:
            apply(session.node_map, FeatureSetting(feature=name, value=checked[name]), session.name)
            period_ns = frame_period_ns(session.node_map, self._options)
        except library().transport_errors as error:
            raise CameraLost(f"The camera {session.name} does not respond", got=message_of(error)) from None
        camera.capabilities = replace(camera.capabilities, frame_period_ns=period_ns)
        return camera.capabilities

    def _connected(self) -> Session:
        library()
        self._files = self._files or usable_producers(
            producer_files(self._options.cti), self._options.selector.producer
        )
        return Session(self._files, self._options.selector, self._options.discovery_timeout_s)

    def calibration(self) -> Calibration | None:
        """Return None: a camera has no knowledge of the masks in front of it."""
        self._opened()
        return None

    def start(self) -> None:
        """Start delivering frames. Frame ids and the camera's clock may restart."""
        camera = self._opened()
        if self._running:
            return
        self._lost = None
        camera.watch = RestartDetector(camera.capabilities.frame_ids)
        camera.stream.start()
        self._running = True
        self._last_contact_s = self._next_trigger_s = time.monotonic()

    def trigger(self) -> None:
        """Send one software trigger.

        Raises
        ------
        ConfigError
            If the camera supports none.
        CameraLost
            If the camera does not respond.
        """
        session = self._opened().session
        try:
            apply(session.node_map, FeatureSetting(feature="TriggerSoftware"), session.name)
        except CameraError as error:
            raise CameraLost(f"The camera {session.name} does not accept a trigger", got=error.got) from None

    def read(self, timeout_s: float) -> CameraFrame | None:
        """Return the next frame, or None after the timeout; see `sci_stream.ports.Camera.read`.

        Raises
        ------
        CameraLost
            If the connection is lost, or the camera has restarted its frame counter: both end the epoch.
        CameraError
            If it sends an image of another format than announced.
        """
        if not self._running:
            raise RuntimeError("read() needs an open and started camera: call open() and start() first")
        camera = self._opened()
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._trigger_if_due()
            self._drain(camera.stream)
            if self._held:
                return self._delivered(camera, self._held.popleft())
            if self._lost is not None:
                raise self._lost
            now_s = time.monotonic()
            if now_s - self._last_contact_s > self._options.silence_s:
                self._check_connection()
                self._last_contact_s = now_s
            if now_s >= deadline_s:
                self._counts["timeouts"] += 1
                return None
            time.sleep(_NAP_S)

    def _drain(self, stream: Stream) -> None:
        """Take all filled buffers from the producer, at most as many as it can hold itself."""
        # Copied and returned before the first frame is decoded, so that the producer does not run out of buffers
        # meanwhile (docs/decisions/polling-genicam.md).
        while len(self._held) < self._options.buffers:
            try:
                frame = stream.fetch() if self._lost is None else None
            except CameraLost as error:
                self._lost = error
                return
            if frame is None:
                return
            self._held.append(frame)

    def _delivered(self, camera: _OpenDevice, frame: RawFrame) -> CameraFrame:
        self._last_contact_s = time.monotonic()
        if camera.watch.restarted(frame.frame_id, frame.camera_time_ns):
            self._counts["restarts"] += 1
            # Frames already fetched belong to the new count as well; they cannot be numbered within this epoch.
            self._counts["discarded"] += 1 + len(self._held)
            raise CameraLost(
                "The camera restarted its frame counter: it was reset and may have lost its settings",
                got=f"frame id {frame.frame_id}",
                hint="If its ids only wrap around, set frame_id_last to the highest id.",
            )
        self._counts["delivered"] += 1
        return CameraFrame(
            counts=frame.counts(camera.image_format),
            frame_id=frame.frame_id,
            camera_time_ns=frame.camera_time_ns if camera.capabilities.clock != "none" else None,
            host_time_ns=frame.host_time_ns,
            chunks=frame.chunks,
        )

    def _trigger_if_due(self) -> None:
        options = self._options.trigger
        if options is None or not options.software_rate_hz:
            return
        now_s = time.monotonic()
        if now_s >= self._next_trigger_s:
            # Missed triggers are not sent later: a camera accepts none during an exposure.
            self._next_trigger_s = max(self._next_trigger_s + 1 / options.software_rate_hz, now_s)
            self.trigger()

    def _check_connection(self) -> None:
        """Read a register: many producers do not report an unplugged camera but just deliver no more frames."""
        # Every camera has Width. Without invalidation GenApi answers from its cache and the lost camera seems present.
        node = self._opened().session.node_map.get_node("Width")
        try:
            node.node.invalidate_node()
            _ = node.value
        except library().transport_errors as error:
            raise CameraLost("The camera is lost: it does not respond", got=message_of(error)) from None

    @property
    def exhausted(self) -> bool:
        """False: a camera does not end by itself."""
        return False

    def counters(self) -> Mapping[str, int]:
        """Return the counters since `open`.

        ``delivered`` frames; ``incomplete`` buffers, reported by the producer; ``short`` buffers, refused here;
        ``underrun``, frames without a free buffer in the producer; ``timeouts``, reads without a frame;
        ``chunk_errors``, frames without the requested chunk data; ``restarts`` of the camera's frame counter, and the
        frames ``discarded`` with them.
        """
        underrun = self._camera.stream.underrun if self._camera is not None else 0
        # The count of the producer, where it reports one; not every producer does.
        return {**self._counts, "underrun": underrun} if underrun else dict(self._counts)

    def stop(self) -> None:
        """Stop; `start` may follow. Frames that were not read are discarded."""
        if self._running and self._camera is not None:
            self._running = False
            try:
                self._camera.stream.stop()
            except library().transport_errors as error:
                log.info("Stopping failed because the camera is lost: %s", message_of(error))
        self._held.clear()

    def close(self) -> None:
        """Release the camera and its producer; `open` may follow."""
        self.stop()
        if self._camera is not None:
            self._camera.release()
            self._camera = None

    def _opened(self) -> _OpenDevice:
        if self._camera is None:
            raise RuntimeError("the camera is not open: call open() first")
        return self._camera
