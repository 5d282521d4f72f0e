"""An open camera: producer, device and features, which are opened and released together."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from sci_stream.errors import CameraError, ConfigError
from sci_stream_drivers.genicam.library import attribute, library, message_of
from sci_stream_drivers.harvesters.discovery import access_of, describe_camera, select, text_of
from sci_stream_drivers.harvesters.options import Selector
from sci_stream_drivers.harvesters.stream import timestamp_frequency_hz

log = logging.getLogger(__name__)

# The log of Harvesters: a traceback for every exception that it raises or swallows, and a warning for every incomplete
# buffer; this driver reports all of them, once and in words.
_QUIET = logging.getLogger("sci_stream.harvesters_library")
_QUIET.setLevel(logging.CRITICAL)


@functools.cache
def harvesters_core() -> ModuleType:
    """Import harvesters.

    Raises
    ------
    CameraError
        If it is not installed or unusable on this machine.
    """
    library()
    try:
        core = importlib.import_module("harvesters.core")
    except ImportError as error:
        raise CameraError(
            "Cameras with a GenTL producer need the packages harvesters and genicam",
            got=error,
            hint="Install them: pip install 'sci-stream[genicam]'.",
        ) from error
    return core


class Session:
    """One `Harvester` and one `ImageAcquirer`, from `open` to `close`; starting and stopping creates no new ones.

    The files of the producers have been checked already; finding cameras takes ``discovery_s`` at most.

    Raises
    ------
    CameraError
        If the camera is missing, in use or cannot be opened.
    ConfigError
        If several cameras match the selector.
    """

    def __init__(self, files: list[Path], selector: Selector, discovery_s: float) -> None:
        core = harvesters_core()
        key = core.ParameterKey
        self._closed = False
        self._chain: list[Any] = []
        self._harvester: Any = core.Harvester(
            config=core.ParameterSet(
                {key.LOGGER: _QUIET, key.TIMEOUT_PERIOD_ON_MODULE_ENUMERATION: max(1, round(discovery_s * 1000))}
            )
        )
        self.acquirer: Any = None
        try:
            for path in files:
                self._harvester.add_file(str(path))
            self._harvester.update()
            info = select(self._harvester.device_info_list, selector, files)
            self.vendor, self.model, self.serial = (text_of(info, key) for key in ("vendor", "model", "serial"))
            self.name = f"{self.vendor} {self.model} {self.serial}".strip()
            interface = info.parent
            self.producer = Path(str(attribute(interface.parent, "path_name", "") or "")).name
            self._chain = [interface, interface.parent, interface.parent.parent]
            self.acquirer = self._opened(info)
            self.transport = str(self.acquirer.device.tl_type)
            self.has_clock = timestamp_frequency_hz(self.acquirer) > 0
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
        found = attribute(module, "node_map")
        if found is None:
            raise ConfigError(
                f"The producer of {self.name} has no features of its {what}", hint="Remove their settings."
            )
        return found

    def _opened(self, info: Any) -> Any:
        lib, core = library(), harvesters_core()
        config = core.ParameterSet({core.ParameterKey.ENABLE_AUTO_CHUNK_DATA_UPDATE: False})
        gentl = lib.gentl
        try:
            with _sigint_kept():
                acquirer = self._harvester.create(info, config=config)
        except (gentl.AccessDeniedException, gentl.ResourceInUseException, gentl.BusyException) as error:
            raise CameraError(
                f"The camera {self.name} is in use",
                expected="a camera that no other program has open",
                got=f"{access_of(info)}: {message_of(error)}",
                hint="Close the viewer or the other acquire node that uses it.",
            ) from None
        except lib.transport_errors as error:
            raise CameraError(f"The camera {describe_camera(info)} cannot be opened", got=message_of(error)) from None
        # Cameras with several streams (stereo, multi-component) deliver frames that belong together; this driver has no
        # notion of that.
        if len(acquirer.data_streams) != 1:
            raise CameraError(
                f"The camera {self.name} cannot be used", expected="one data stream", got=len(acquirer.data_streams)
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
                # Unlike destroy(), __exit__ also removes it from the list of acquirers destroyed at exit, which would
                # keep it and its buffers alive until the process ends.
                acquirer.__exit__(None, None, None)
            acquirers.remove(acquirer)  # else reset() would repeat the failing call before it finishes
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
    """Log exceptions of a lost camera and continue: during teardown the library raises any exception."""
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
