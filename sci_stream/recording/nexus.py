"""NeXus groups of a recording: links to the data with axes, and who measured what with which
instrument.

silx, H5Web and other NeXus readers open the file with a plot. Nothing is stored twice: the data are
hard links.
"""

from __future__ import annotations

from datetime import UTC, datetime

import h5py
import numpy as np

from sci_stream.config import ExperimentSection, parse_rig
from sci_stream.errors import ConfigError
from sci_stream.model import SeriesInfo
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.layout import VIDEO_U16_STEP

_PROGRAM = "sci_stream"


def create_nexus(file: h5py.File, info: SeriesInfo, calibration: Calibration) -> None:
    """Add the group ``entry``, after everything that it links to."""
    experiment = experiment_of(info)
    entry = _group(file, "entry", "NXentry")
    file.attrs["default"] = "entry"
    entry["title"] = experiment.title or info.series
    entry["entry_identifier"] = info.series
    entry["start_time"] = datetime.fromtimestamp(info.started_ns / 1e9, UTC).isoformat()
    entry["program_name"] = _PROGRAM
    entry["program_name"].attrs["version"] = info.versions.get("sci-stream", "")
    if experiment.proposal:
        entry["experiment_identifier"] = experiment.proposal
    if experiment.operator:
        _group(entry, "user", "NXuser")["name"] = experiment.operator
    if experiment.sample:
        _group(entry, "sample", "NXsample")["name"] = experiment.sample
    _detector(entry, info, calibration, experiment)
    for name in ("video", "raw"):
        if name in file:
            _data(entry, name, file, experiment)
            entry.attrs["default"] = name


def experiment_of(info: SeriesInfo) -> ExperimentSection:
    """Return ``[experiment]`` of the recorded rig; empty where the rig cannot be read."""
    try:
        return parse_rig(info.rig_toml, overrides={}).experiment
    except ConfigError:
        return ExperimentSection()


def _group(parent: h5py.Group, name: str, kind: str) -> h5py.Group:
    group = parent.create_group(name)
    group.attrs["NX_class"] = kind
    return group


def _quantity(group: h5py.Group, name: str, value: float, units: str) -> None:
    group[name] = value
    group[name].attrs["units"] = units


def _detector(
    entry: h5py.Group, info: SeriesInfo, calibration: Calibration, experiment: ExperimentSection
) -> None:
    instrument = _group(entry, "instrument", "NXinstrument")
    instrument["name"] = info.rig
    detector = _group(instrument, "detector", "NXdetector")
    detector["description"] = (
        f"{info.camera_model}, {info.pixel_format}, snapshots coded by {info.n_frames} masks"
    )
    detector["serial_number"] = info.camera_serial
    detector["type"] = "snapshot compressive imaging camera"
    detector["bit_depth_readout"] = info.bit_depth
    if calibration.saturation_dn is not None:
        detector["saturation_value"] = calibration.saturation_dn
    if experiment.pixel_size_um is not None:
        for axis in "xy":
            _quantity(detector, f"{axis}_pixel_size", experiment.pixel_size_um, "um")
    # The operator knows the exposure better than a calibration that may have been measured with
    # another one.
    if calibration.exposure_ns is not None:
        _quantity(detector, "count_time", calibration.exposure_ns / 1e9, "s")
    if info.frame_period_ns:
        _quantity(detector, "frame_time", info.frame_period_ns / 1e9, "s")
    # A detector has one array: the sensor's counts, if they are there.
    for name in ("raw", "video"):
        if name in entry.file:
            detector["data"] = entry.file[name]
            break


def _data(entry: h5py.Group, name: str, file: h5py.File, experiment: ExperimentSection) -> None:
    data = _group(entry, name, "NXdata")
    data.attrs["signal"] = "data"
    data["data"] = node = file[name]
    if node.dtype == np.uint16 and name == "video":
        data["data_scaling_factor"] = VIDEO_U16_STEP
    axes: list[str] = [
        "."
    ]  # rows that are skipped have no time, and a live file may have more rows than frames
    if name == "video":
        axes.append("frame")
        data["frame"] = np.arange(node.shape[1])
        data["frame"].attrs["long_name"] = "frame of the snapshot"
    step = experiment.pixel_size_um or 1.0
    units = "um" if experiment.pixel_size_um else "pixel"
    for axis, size in zip("yx", node.shape[-2:], strict=True):
        axes.append(axis)
        data[axis] = np.arange(size) * step
        data[axis].attrs["units"] = units
    data.attrs["axes"] = axes
    for index, axis in enumerate(axes[1:], 1):
        data.attrs[f"{axis}_indices"] = index
    if "rows" in file:
        data["time"] = file["rows/host_time_ns"]
        data.attrs["time_indices"] = 0
