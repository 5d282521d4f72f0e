"""Load camera drivers by name. Drivers are plug-ins; this package imports none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel

from sci_stream.config import Rig, validate_options
from sci_stream.config.sections import CameraSection, ModulatorSection
from sci_stream.errors import ConfigError, did_you_mean
from sci_stream.model import JsonObject
from sci_stream.plugin_entries import imported, plugin_entry, plugin_names
from sci_stream.ports import Camera, CameraDriver

GROUP = "sci_stream.cameras"
M = TypeVar("M", bound=BaseModel)


def load_driver(name: str) -> CameraDriver:
    """Return an installed driver.

    Raises `ConfigError` if there is none of that name, or it cannot be imported.
    """
    return cast(CameraDriver, load_entry(GROUP, name, "camera driver", "[camera] driver"))


def load_entry(group: str, name: str, what: str, key: str) -> Any:
    """Return the object that an entry point of a group names; messages say ``what`` it is and the
    ``key`` of the rig.

    Raises `ConfigError` if there is none of that name, or it cannot be imported.
    """
    if (entry := plugin_entry(group, name)) is not None:
        return imported(
            entry.load,
            f"the {what} {name!r} ({entry.value})",
            "Install its dependencies; for GenICam cameras: pip install 'sci-stream[genicam]'.",
        )
    known = plugin_names(group)
    raise ConfigError(
        f"Unknown {what} in {key}",
        expected=f"one of {', '.join(known)}" if known else "none: no installed package has any",
        got=repr(name),
        hint=did_you_mean(name, known)
        or "More devices: pip install sci-stream-cameras, sci-stream-modulators.",
    )


def make_camera(rig: Rig) -> Camera:
    """Create the rig's camera, not yet open.

    Relative paths in its options are relative to the rig file.

    Raises `ConfigError` if the driver is unknown or rejects its options.
    """
    driver = load_driver(rig.camera.driver)
    return driver(driver_options(rig, "camera", driver.Options))


def driver_options(rig: Rig, kind: Literal["camera", "modulator"], model: type[M]) -> M:
    """Return the validated options of the camera or modulator. Raises `ConfigError`."""
    section = rig.camera if kind == "camera" else rig.modulator
    where = f"{rig.source}: [{kind}.options]" if rig.source else f"[{kind}.options]"
    return validate_options(model, _resolved(section, rig.source), where)


def _resolved(section: CameraSection | ModulatorSection, source: Path | None) -> JsonObject:
    """Resolve relative paths of files next to the rig file."""
    folder = source.parent if source else Path()

    def resolved(value: Any) -> Any:
        if (
            isinstance(value, str)
            and value
            and (folder / value).exists()
            and not Path(value).is_absolute()
        ):
            return str((folder / value).resolve())
        return value

    return {
        key: [resolved(item) for item in value] if isinstance(value, list) else resolved(value)
        for key, value in section.options.items()
    }
