"""``sci-stream cameras``: find cameras, grab frames and write them, evaluate their timing."""

from __future__ import annotations

import csv
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from sci_stream.config import validate_options
from sci_stream.devices.camera_drivers import GROUP, load_driver
from sci_stream.errors import CameraError, ConfigError, InputError
from sci_stream.file_guard import complete_output
from sci_stream.model import CameraCapabilities, CameraFrame, FoundCamera, FoundProducer, Json
from sci_stream.parameters import Value
from sci_stream.plugin_entries import plugin_names
from sci_stream.ports import Camera, CameraFinder, FeatureLister

log = logging.getLogger(__name__)


_WITHOUT_SEARCH = "Name its camera in a rig file: sci-stream config init --driver {} RIG.toml"


@dataclass(frozen=True)
class FoundDriver:
    """Cameras found by one driver; no producers for a driver that cannot search."""

    driver: str
    producers: Sequence[FoundProducer]

    @property
    def cameras(self) -> Iterator[FoundCamera]:
        """Yield the cameras of all interfaces."""
        return (
            c
            for producer in self.producers
            for interface in producer.interfaces
            for c in interface.cameras
        )


def find_cameras(places: Sequence[Path], driver: str = "") -> list[FoundDriver]:
    """Find cameras.

    The places are files or folders to search; without any, each driver searches its own. With
    ``driver``, only that one searches.

    Raises `ConfigError` if the given driver is not installed, cannot find cameras, or has nothing
    to search.
    """
    drivers = []
    for name in [driver] if driver else plugin_names(GROUP):
        try:
            loaded = load_driver(name)
        except ConfigError as error:
            if driver:
                raise
            log.warning("%s", error)
            continue
        if isinstance(loaded, CameraFinder):
            drivers.append(
                FoundDriver(name, _producers(name, loaded, places, required=bool(driver or places)))
            )
        elif driver:
            raise ConfigError(
                f"The driver {driver} cannot look for cameras", hint=_WITHOUT_SEARCH.format(driver)
            )
        elif not places:
            drivers.append(FoundDriver(name, ()))
    return drivers


def _producers(
    name: str, finder: CameraFinder, places: Sequence[Path], *, required: bool
) -> Sequence[FoundProducer]:
    """Search with a driver; where it was not asked for, its failure is part of the result."""
    try:
        return finder.find(places)
    except (CameraError, ConfigError) as error:
        if required:
            raise
        return [FoundProducer("", name, "", "", (), str(error))]


def choose(query: str, drivers: Sequence[FoundDriver]) -> tuple[str, FoundCamera]:
    """Return the camera with this serial number, user-defined name or id, and its driver's name.

    Raises `CameraError` if there is no such camera; `ConfigError` if there are several.
    """
    cameras = [(driver.driver, camera) for driver in drivers for camera in driver.cameras]
    fitting = [(name, c) for name, c in cameras if query in (c.serial, c.user_defined_name, c.id)]
    if len(fitting) == 1:
        return fitting[0]
    lines = [
        f"\n  {c.vendor} {c.model}, serial {c.serial!r}, id {c.id!r}, driver {name}"
        for name, c in fitting or cameras
    ]
    if fitting:
        names = sorted({name for name, _ in fitting})
        remedy = (
            "Give the id of one."
            if len(names) == 1
            else f"Choose a driver: --driver {' or '.join(names)}."
        )
        raise ConfigError(
            f"{len(fitting)} cameras match {query!r}", hint=f"Found:{''.join(lines)}\n{remedy}"
        )
    problems = [(driver.driver, p) for driver in drivers for p in driver.producers if p.problem]
    lines += [f"\n  driver {name}{p.path and f', {p.path}'}: {p.problem}" for name, p in problems]
    others = [driver.driver for driver in drivers if not driver.producers]
    lines += [
        f"\n  driver {name} cannot look for cameras. {_WITHOUT_SEARCH.format(name)}"
        for name in others
    ]
    raise CameraError(
        f"There is no camera {query!r}",
        hint=f"Found:{''.join(lines) or ' none.'}\nGive the serial number, the user-defined name "
        "or the id of one.",
    )


def make_found_camera(driver: str, camera: FoundCamera) -> Camera:
    """Make a camera that was found, not open and without configuration."""
    loaded = load_driver(driver)
    return loaded(validate_options(loaded.Options, camera.options, f"the camera {camera.serial}"))


def suggested_options(driver: str, query: str) -> tuple[Mapping[str, Json], Mapping[str, Json]]:
    """Return options of a rig file for a camera that is there, and examples for unset ones.

    ``query`` is its serial number, user-defined name or id.

    Raises `CameraError` if there is no such camera, or its features cannot be read; `ConfigError`
    if there are several, or the driver cannot look for cameras.
    """
    name, found = choose(query, find_cameras([], driver))
    camera = make_found_camera(name, found)
    if not isinstance(camera, FeatureLister):
        return found.options, {}
    inspection = camera.inspect()
    return inspection.suggested, {} if inspection.trigger is None else {
        "trigger": inspection.trigger
    }


# Frames stay in memory, so that writing them does not disturb the measurement.
_MAX_BYTES = 4 << 30


@dataclass(frozen=True)
class Intervals:
    """Frame intervals on one clock, s: median, standard deviation and maximum."""

    median_s: float
    deviation_s: float
    longest_s: float

    @classmethod
    def of(cls, times_ns: Sequence[int | None]) -> Intervals | None:
        """Return the intervals between timestamps; None if there are fewer than two."""
        known = np.array([stamp for stamp in times_ns if stamp is not None], np.int64)
        if known.size < 2:
            return None
        steps = np.diff(known) * 1e-9
        return cls(float(np.median(steps)), float(steps.std()), float(steps.max()))


@dataclass(frozen=True)
class GrabReport:
    """Result of a grab.

    ``rate_hz`` counts frames against the host's clock from the first to the last; ``missed`` frames
    were numbered by the camera and not delivered, in ``gaps`` places; ``counters`` are the driver's
    own; ``chunks`` those of the last frame.
    """

    frames: int
    rate_hz: float
    gaps: int
    missed: int
    repeated: int
    host: Intervals | None
    camera: Intervals | None
    clock: str
    counters: Mapping[str, int]
    chunks: Mapping[str, Value]


def grab(
    camera: Camera,
    count: int,
    *,
    timeout_s: float = 5.0,
    keep: bool = False,
    opened: Callable[[CameraCapabilities], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[GrabReport, list[CameraFrame]]:
    """Open a camera, take frames, close it.

    There are fewer frames than ``count`` if the camera ends, and ``timeout_s`` is that of each
    frame. ``keep`` returns the frames too. ``opened`` is called with the camera's capabilities,
    then ``progress`` with the number of frames so far.

    Raises `CameraError` if the camera cannot be used, is lost, or no frame arrives in time;
    `InputError` if the frames to keep exceed the memory limit.
    """
    frames: list[CameraFrame] = []
    stamps: list[tuple[int | None, int | None, int]] = []
    chunks: Mapping[str, Value] = {}
    try:
        capabilities = camera.open()
        if opened is not None:
            opened(capabilities)
        _check_memory(capabilities, count if keep else 0)
        camera.start()
        while len(stamps) < count and not camera.exhausted:
            frame = _next(camera, timeout_s, len(stamps))
            if frame is None:
                break
            stamps.append((frame.frame_id, frame.camera_time_ns, frame.host_time_ns))
            chunks = frame.chunks
            if keep:
                frames.append(frame)
            if progress is not None:
                progress(len(stamps))
        counters = camera.counters()
    finally:
        camera.stop()
        camera.close()
    return _report(capabilities, stamps, counters, chunks), frames


def _next(camera: Camera, timeout_s: float, received: int) -> CameraFrame | None:
    deadline_s = time.monotonic() + timeout_s
    while True:
        frame = camera.read(min(0.2, timeout_s))
        if frame is not None or camera.exhausted:
            return frame
        if time.monotonic() >= deadline_s:
            raise CameraError(
                f"No frame within {timeout_s:g} s after {received} frames",
                got=", ".join(f"{count} {name}" for name, count in camera.counters().items())
                or None,
                hint="The camera may wait for a trigger (check TriggerMode); --timeout waits "
                "longer.",
            )


def _check_memory(capabilities: CameraCapabilities, count: int) -> None:
    needed = (
        count
        * capabilities.height_px
        * capabilities.width_px
        * (1 if capabilities.bit_depth == 8 else 2)
    )
    if needed > _MAX_BYTES:
        raise InputError(
            "Too many frames to keep in memory",
            expected=f"at most {_MAX_BYTES >> 30} GiB",
            got=f"{needed / 2**30:.1f} GiB",
            hint="Grab fewer frames, or record a series: sci-stream run.",
        )


def _report(
    capabilities: CameraCapabilities,
    stamps: list[tuple[int | None, int | None, int]],
    counters: Mapping[str, int],
    chunks: Mapping[str, Value],
) -> GrabReport:
    ids = [frame_id for frame_id, _, _ in stamps if frame_id is not None]
    steps = [capabilities.frame_ids.missed(a, b) for a, b in itertools.pairwise(ids)]
    host_ns = [stamp for _, _, stamp in stamps]
    took_s = (host_ns[-1] - host_ns[0]) * 1e-9 if len(stamps) > 1 else 0.0
    return GrabReport(
        frames=len(stamps),
        rate_hz=(len(stamps) - 1) / took_s if took_s > 0 else 0.0,
        gaps=sum(step > 0 for step in steps),
        missed=sum(step for step in steps if step > 0),
        repeated=sum(step < 0 for step in steps),
        host=Intervals.of(host_ns),
        camera=Intervals.of([stamp for _, stamp, _ in stamps]),
        clock=capabilities.clock,
        counters=dict(counters),
        chunks=chunks,
    )


FRAME_FILES = r"\d{6,}\.tiff|frames\.csv"


def write_frames(out: Path, frames: Sequence[CameraFrame], *, replace: bool = False) -> None:
    """Write the counts of frames unchanged as ``000000.tiff`` and so on, and ``frames.csv``: ids,
    times and chunk data.

    Raises `StorageError` as `complete_output`.
    """
    chunks = sorted({name for frame in frames for name in frame.chunks})
    with complete_output(out, replace=replace, folder=FRAME_FILES) as folder:
        folder.mkdir()
        for number, frame in enumerate(frames):
            _, encoded = cv2.imencode(".tiff", frame.counts)
            (folder / f"{number:06d}.tiff").write_bytes(encoded.tobytes())
        with (folder / "frames.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(["number", "frame_id", "camera_time_ns", "host_time_ns", *chunks])
            for number, frame in enumerate(frames):
                values = [frame.chunks.get(name, "") for name in chunks]
                table.writerow(
                    [number, frame.frame_id, frame.camera_time_ns, frame.host_time_ns, *values]
                )
