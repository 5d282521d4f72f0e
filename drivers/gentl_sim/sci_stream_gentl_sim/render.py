"""Render frames for the GenTL producer with the simulated camera,
with their calibration and truth.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from sci_stream.errors import CameraError, ConfigError, StorageError
from sci_stream.plugins import Array, CameraFrame
from sci_stream.recording.calibration_file import save_calibration
from sci_stream_drivers.simulated import SimulatedCamera, SimulatedOptions
from sci_stream_gentl_sim.frames import Header, write_frames

# Fraction of a snapshot's period that is exposed; the rest is for the readout of the sensor.
_EXPOSED = 0.9


@dataclass(frozen=True)
class Rendered:
    """The written files.

    ``frames`` for the producer, ``calibration`` for the rig, ``truth`` for scoring: (N, B, H, W)
    uint8 in a .npy file with the video of each frame; frame id i shows number i mod N.
    """

    frames: Path
    calibration: Path
    truth: Path


def read_options(path: Path) -> dict[str, object]:
    """Return the ``[camera.options]`` of a rig file with the simulated camera.

    Raises
    ------
    ConfigError
        If the file has none.
    """
    try:
        options = tomllib.loads(path.read_text("utf-8"))["camera"]["options"]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} does not define a scene",
            expected="a rig with [camera.options]",
            got=repr(error),
        ) from error
    return dict(options)


def render(
    options: dict[str, object], folder: Path, *, snapshots: int = 32, serial: str = "SIM0001"
) -> Rendered:
    """Render a scene with the simulated camera.

    Parameters
    ----------
    options
        Options of the simulated camera (`SimulatedOptions`). Its faults, trigger and number of
        snapshots are ignored: the GenTL camera has its own, or they are given here.
    folder
        Output folder of the three files; created if missing. Existing files are replaced.
    snapshots
        N. The GenTL camera shows them in a loop, with a scene cut at the seam.
    serial
        Serial number of the GenTL camera, for the calibration.

    Raises
    ------
    ConfigError
        If the options are invalid.
    FileFormatError
        If the scene cannot be read, or the frames do not fit the producer.
    StorageError
        If the folder cannot be written.
    """
    ours: dict[str, object] = {
        "snapshots": snapshots,
        "snapshot_rate_hz": 0,
        "loop_snapshots": 0,
        "truth": True,
    }
    rest = {key: value for key, value in options.items() if key not in {"faults", "trigger"}}
    try:
        wanted = SimulatedOptions.model_validate(rest)
        checked = SimulatedOptions.model_validate({**rest, **ours})
    except ValidationError as error:
        raise ConfigError("Invalid options of the simulated camera", got=error) from error
    rate_hz = wanted.snapshot_rate_hz or 30.0
    header = Header(
        checked.width_px, checked.height_px, snapshots, checked.bit_depth, checked.bayer,
        checked.black_dn,
        exposure_us=_EXPOSED * 1e6 / rate_hz, rate_hz=rate_hz,
    )  # fmt: skip
    rendered = Rendered(
        folder / "frames.sciframes", folder / "calibration.h5", folder / "truth.npy"
    )
    camera = SimulatedCamera(checked)
    camera.open()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        camera.start()
        shape = (snapshots, checked.n_frames, checked.height_px, checked.width_px)
        truth = np.lib.format.open_memmap(rendered.truth, "w+", np.uint8, shape)
        write_frames(
            rendered.frames, header, (_shot(camera, truth[n]).counts for n in range(snapshots))
        )
        truth.flush()
        calibration = replace(
            camera.calibration(),
            camera_serial=serial,
            exposure_ns=round(1e3 * header.exposure_us),
            gain_db=0.0,
        )
        save_calibration(rendered.calibration, calibration, overwrite=True)
    except OSError as error:
        raise StorageError(f"The folder {folder} cannot be written", got=error) from error
    finally:
        camera.close()
    return rendered


def _shot(camera: SimulatedCamera, truth: Array) -> CameraFrame:
    frame = camera.read(60.0)
    if frame is None or frame.truth is None:
        raise CameraError("The simulated camera delivered no frame")
    truth[...] = frame.truth
    return frame
