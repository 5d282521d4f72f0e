"""The first bytes of a recording: everything it will ever hold but the rows, made in memory."""

from __future__ import annotations

import h5py

from sci_stream.files.calibration_file import write_calibration
from sci_stream.files.hdf5 import build_image
from sci_stream.files.recording_layout import Layout, create_layout
from sci_stream.files.recording_rows import create_columns
from sci_stream.model import SeriesInfo
from sci_stream.optics.calibration import Calibration


def recording_image(info: SeriesInfo, calibration: Calibration, layout: Layout) -> bytes:
    """Return an empty recording as the bytes of its file."""

    def fill(file: h5py.File) -> None:
        create_layout(file, info, layout)
        write_calibration(file.create_group("calibration"), calibration)
        create_columns(file.create_group("rows"), info)

    return build_image(fill)
