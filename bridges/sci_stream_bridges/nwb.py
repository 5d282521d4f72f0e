"""Write recordings as Neurodata Without Borders: an `ImageSeries` with the time of each frame.

The frames are in a film beside the file, lossless, 8 bits, which the NWB file names.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from sci_stream.errors import InputError, require_optional
from sci_stream.file_guard import check_output, complete_output
from sci_stream.recording.series import RecordedSeries
from sci_stream.tools.export import ExportOptions, export


def write_nwb(
    recording: Path, out: Path, *, description: str = "", replace: bool = False
) -> tuple[Path, Path]:
    """Write a recording's video as ``out``, an NWB file, and its frames as a film of the same name.

    Parameters
    ----------
    recording
        First file of a recording that holds video and host times.
    out
        The NWB file, ``.nwb``; the film is the same name with ``.mkv``.
    description
        Of the session; by default the series and the camera.
    replace
        Existing files.

    Returns
    -------
    The paths of both files.

    Raises
    ------
    InputError
        If the recording has no video or no times, or ``out`` is no ``.nwb``.
    StorageError
        If a file exists and is not to be replaced, or cannot be written.
    ConfigError
        If pynwb is not installed.
    """
    pynwb = require_optional("pynwb", "nwb", "Writing NWB", "sci-stream-bridges")
    if out.suffix.lower() != ".nwb":
        raise InputError("The name of an NWB file ends in .nwb", got=out.name)
    check_output(out, replace=replace, sources=[recording])
    with RecordedSeries(recording) as series:
        info = series.info
    film = out.with_suffix(".mkv")
    done = export(recording, film, ExportOptions(form="ffv1", replace=replace))
    if not done.started:
        film.unlink()
        raise InputError(f"{recording} has no times of its snapshots, which NWB needs")
    session = pynwb.NWBFile(
        session_description=description or f"{info.series}, {info.camera_model}",
        identifier=info.series,
        session_start_time=datetime.fromisoformat(done.started),
    )
    device = session.create_device(
        name="camera", description=f"{info.camera_model} {info.camera_serial}"
    )
    frames = pynwb.image.ImageSeries(
        name="video",
        description=f"{info.n_frames} frames of each snapshot, reconstructed; tone as on the page",
        unit="n.a.",
        external_file=[film.name],
        starting_frame=[0],
        format="external",
        timestamps=list(done.times_s),
        device=device,
    )
    session.add_acquisition(frames)
    with (
        complete_output(out, replace=replace, sources=[recording]) as partial,
        pynwb.NWBHDF5IO(str(partial), "w") as file,
    ):
        file.write(session)
    return out, film
