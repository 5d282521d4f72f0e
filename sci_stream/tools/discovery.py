"""Which cameras there are, across all installed drivers that can tell."""

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
class Found:
    """What one driver found."""

    driver: str
    producers: Sequence[FoundProducer]

    @property
    def cameras(self) -> Iterator[FoundCamera]:
        """Return its cameras, those of all interfaces."""
        return (c for producer in self.producers for interface in producer.interfaces for c in interface.cameras)


def find_cameras(places: Sequence[Path], driver: str = "") -> list[Found]:
    """Ask drivers for their cameras.

    Parameters
    ----------
    places
        Files or folders to look in; empty for where each driver looks by itself.
    driver
        Ask this one only; empty for all that can tell.

    Raises
    ------
    ConfigError
        If the driver named is not installed or cannot tell, or has nowhere to look.
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
            found.append(Found(name, loaded.find(places)))
        elif driver:
            raise ConfigError(f"The driver {driver} cannot look for cameras", hint="Its cameras are named in a rig.")
    return found


def choose(wanted: str, found: Sequence[Found]) -> tuple[str, FoundCamera]:
    """Return the one camera of this serial number, user-defined name or id, and its driver's name.

    Raises
    ------
    CameraError
        If there is none.
    ConfigError
        If there are several.
    """
    cameras = [(each.driver, camera) for each in found for camera in each.cameras]
    fitting = [each for each in cameras if wanted in (each[1].serial, each[1].user_defined_name, each[1].id)]
    if len(fitting) == 1:
        return fitting[0]
    lines = [f"\n  {c.vendor} {c.model}, serial {c.serial!r}, id {c.id!r}" for _, c in fitting or cameras]
    if fitting:
        raise ConfigError(
            f"{len(fitting)} cameras are called {wanted!r}", hint=f"Found:{''.join(lines)}\nGive the id of one."
        )
    lines += [f"\n  {p.path}: {p.problem}" for each in found for p in each.producers if p.problem]
    raise CameraError(
        f"There is no camera {wanted!r}",
        hint=f"Found:{''.join(lines) or ' none.'}\nGive the serial number, the user-defined name or the id of one.",
    )


def make_found(driver: str, camera: FoundCamera) -> Camera:
    """Make a camera that was found, not yet open: as it is, without configuring it."""
    loaded = load_driver(driver)
    return loaded(validate_options(loaded.Options, camera.options, f"the camera {camera.serial}"))
