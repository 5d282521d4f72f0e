"""Load modulator drivers by name, and make the camera of a rig together with the modulator in front
of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sci_stream.config import Rig
from sci_stream.devices.camera_drivers import driver_options, load_entry, make_camera
from sci_stream.devices.modulated_camera import ModulatedCamera
from sci_stream.errors import ConfigError, FileFormatError
from sci_stream.files.arrays import MASKS, read_one
from sci_stream.model import Array
from sci_stream.ports import Camera, MaskModulator, ModulatorDriver
from sci_stream.recon.denoisers.plugin_code import source_of

GROUP = "sci_stream.modulators"


def make_modulator(rig: Rig) -> MaskModulator:
    """Create the rig's modulator, not yet open. Raises `ConfigError`."""
    if rig.modulator.driver is None:
        raise ConfigError(
            "The rig commands no modulator",
            expected="[modulator] driver",
            hint="See the rig guide.",
        )
    driver: ModulatorDriver = load_entry(
        GROUP, rig.modulator.driver, "modulator driver", "[modulator] driver"
    )
    return driver(driver_options(rig, "modulator", driver.Options))


def load_patterns(path: Path | None) -> Array | None:
    """Return the masks of a file or folder, (B, H, W) uint8 of 0 to 255; None without one.

    Raises `ConfigError` if it does not exist, `FileFormatError` if it holds no masks.
    """
    if path is None:
        return None
    if not path.exists():
        raise ConfigError(
            f"There are no patterns {path}", hint="To make some: sci-stream masks make."
        )
    stack = read_one(source_of(path), MASKS, "patterns")
    low = float(stack.min(initial=0))
    highest = float(stack.max(initial=0))
    if stack.ndim != 3 or low < 0 or highest > 255:
        content = f"{stack.dtype} of {stack.shape}, {low:g} to {highest:g}"
        raise FileFormatError(
            f"{path} holds no patterns", expected="(B, H, W) of 0 to 1 or to 255", got=content
        )
    return np.rint(stack * (255.0 if highest <= 1 else 1.0)).astype(np.uint8)


def make_coded_camera(rig: Rig) -> Camera:
    """Create the rig's camera, together with its modulator if the rig commands one; not yet open.

    Raises `ConfigError` if a driver is unknown or rejects its options, or there are no patterns.
    """
    camera = make_camera(rig)
    section = rig.modulator
    if not section.driver:
        return camera
    return ModulatedCamera(camera, make_modulator(rig), section, load_patterns(section.patterns))
