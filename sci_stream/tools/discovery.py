"""Find cameras with all installed drivers that support it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sci_stream.config import validate_options
from sci_stream.errors import CameraError, ConfigError
from sci_stream.model import FoundCamera, FoundProducer
from sci_stream.nodes.runtime.camera_drivers import driver_names, load_driver
from sci_stream.ports import Camera, CameraFinder

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FoundDriver:
    """Cameras found by one driver; no producers for a driver without hardware."""

    driver: str
    producers: Sequence[FoundProducer]

    @property
    def cameras(self) -> Iterator[FoundCamera]:
        """Yield the cameras of all interfaces."""
        return (c for producer in self.producers for interface in producer.interfaces for c in interface.cameras)


def find_cameras(places: Sequence[Path], driver: str = "") -> list[FoundDriver]:
    """Find cameras.

    The places are files or folders to search; without any, each driver searches its own. With ``driver``, only that one
    searches.

    Raises
    ------
    ConfigError
        If the given driver is not installed, cannot find cameras, or has nothing to search.
    """
    found = []
    for name in [driver] if driver else driver_names():
        try:
            loaded = load_driver(name)
        except ConfigError as error:
            if driver:
                raise
            log.warning("%s", error)
            continue
        if isinstance(loaded, CameraFinder):
            found.append(FoundDriver(name, _producers(name, loaded, places, required=bool(driver or places))))
        elif driver:
            raise ConfigError(f"The driver {driver} cannot look for cameras", hint="Name its camera in the rig file.")
        elif not places:
            found.append(FoundDriver(name, ()))
    return found


def _producers(name: str, finder: CameraFinder, places: Sequence[Path], *, required: bool) -> Sequence[FoundProducer]:
    """Search with a driver; where it was not asked for, its failure is part of the result."""
    try:
        return finder.find(places)
    except (CameraError, ConfigError) as error:
        if required:
            raise
        return [FoundProducer("", name, "", "", (), str(error))]


def choose(query: str, found: Sequence[FoundDriver]) -> tuple[str, FoundCamera]:
    """Return the camera with this serial number, user-defined name or id, and its driver's name.

    Raises
    ------
    CameraError
        If there is no such camera.
    ConfigError
        If there are several.
    """
    cameras = [(each.driver, camera) for each in found for camera in each.cameras]
    fitting = [each for each in cameras if query in (each[1].serial, each[1].user_defined_name, each[1].id)]
    if len(fitting) == 1:
        return fitting[0]
    lines = [f"\n  {c.vendor} {c.model}, serial {c.serial!r}, id {c.id!r}" for _, c in fitting or cameras]
    if fitting:
        raise ConfigError(
            f"{len(fitting)} cameras match {query!r}", hint=f"Found:{''.join(lines)}\nGive the id of one."
        )
    lines += [f"\n  {p.path}: {p.problem}" for each in found for p in each.producers if p.problem]
    raise CameraError(
        f"There is no camera {query!r}",
        hint=f"Found:{''.join(lines) or ' none.'}\nGive the serial number, the user-defined name or the id of one.",
    )


def make_found_camera(driver: str, camera: FoundCamera) -> Camera:
    """Make a camera that was found, not open and without configuration."""
    loaded = load_driver(driver)
    return loaded(validate_options(loaded.Options, camera.options, f"the camera {camera.serial}"))
