"""Recordings can be read, at the limits of every map, name, text and count. A series that could not
be read is refused when it begins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sci_stream.errors import InputError
from sci_stream.field_types import MAX_CHUNKS
from sci_stream.model import Reconstruction, SnapshotId
from sci_stream.nodes.sink.node import with_figures
from sci_stream.quantities import Column
from sci_stream.recording.columns import COLUMNS, SOLVE_QUANTITIES
from sci_stream.recording.inspection import inspect_recording, verify_segment
from sci_stream.recording.series import RecordedSeries
from sci_stream.recording.writer import RecordingWriter
from sci_stream.wire.codec import decode, encode, sendable
from tests.series_fixtures import Series, make_series

SERIES = make_series()
# With all of Unicode, and beyond each limit by one.
LABEL = st.text(max_size=257)
NAME = st.text(st.characters(exclude_characters="\0/"), min_size=1, max_size=64)
CHUNKS = st.dictionaries(NAME, st.text(max_size=65), max_size=8)
COUNT = st.sampled_from([0, 1, 2**48, 2**63 - 1])


@settings(max_examples=100, deadline=None)
@given(
    fields=st.fixed_dictionaries(
        {
            "rig": LABEL,
            "camera_model": LABEL,
            "camera_serial": LABEL,
            "pixel_format": LABEL,
            "rig_toml": st.text(st.characters(exclude_characters="\0"), max_size=300),
            "distortions": st.text(max_size=1025),
            "started_ns": COUNT,
            "frame_period_ns": st.none() | COUNT,
            "versions": st.dictionaries(NAME, st.text(max_size=129), max_size=4),
            "chunks": CHUNKS,
        }
    )
)
def test_any_series_is_refused_or_read_back(fields: dict[str, Any]) -> None:
    info = dataclasses.replace(SERIES.info, **fields)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        with contextlib.suppress(InputError):
            writer = RecordingWriter(path, info, SERIES.calibration)
            chunks = dict.fromkeys(info.chunks, 0.5)
            writer.write_raw(SERIES.snapshot(0, chunks=chunks))
            writer.close({"acquired": 1, "closed": True})
        if not path.exists():
            return
        assert set(sendable(info).chunks) == set(info.chunks)
        with RecordedSeries(path) as recording:
            assert recording.info == sendable(info)
            assert recording.finished
            row = recording.row(0)
            assert all(row[f"chunk_{name}"] == 0.5 for name in chunks)


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("chunks", {f"{number:02}".ljust(64, "é"): "µ" * 64 for number in range(MAX_CHUNKS)}),
        ("versions", {f"{number:02}".ljust(64, "é"): "µ" * 128 for number in range(64)}),
        ("rig_toml", "é" * 65536),
        ("distortions", "é" * 1024),
        ("rig", "é" * 256),
    ],
)
def test_series_at_a_limit_is_read_back(
    tmp_path: Path, series: Series, field: str, most: object
) -> None:
    info = dataclasses.replace(series.info, **{field: most})
    path = tmp_path / "run.h5"
    with RecordingWriter(path, info, series.calibration) as writer:
        writer.write_reconstruction(series.reconstruction(0))
        writer.close({"acquired": 1, "closed": True})
    assert inspect_recording(path).series == info
    assert verify_segment(path, lambda _done, _total: None) == []


@pytest.mark.parametrize(
    ("field", "beyond"),
    [
        ("chunks", {str(number): "" for number in range(MAX_CHUNKS + 1)}),
        ("chunks", {"a/b": ""}),
        ("versions", {str(number): "" for number in range(65)}),
        ("rig_toml", "x" * 65537),
        ("rig_toml", "\0"),
        ("n_frames", 0),
        ("series", "a/b"),
    ],
)
def test_series_beyond_a_limit_is_refused_at_its_start(
    tmp_path: Path, series: Series, field: str, beyond: object
) -> None:
    info = dataclasses.replace(series.info, **{field: beyond})
    with pytest.raises(InputError):
        RecordingWriter(tmp_path / "run.h5", info, series.calibration)
    assert list(tmp_path.iterdir()) == []


def test_camera_and_analyses_are_counted_together(series: Series) -> None:
    of_camera = {f"Chunk{number}": "" for number in range(MAX_CHUNKS - 1)}
    info = dataclasses.replace(series.info, chunks=of_camera)
    assert len(with_figures(info, {"speed": "m/s"}).chunks) == MAX_CHUNKS
    with pytest.raises(InputError, match=f"at most {MAX_CHUNKS} entries"):
        with_figures(info, {"speed": "m/s", "size": "m"})
    with pytest.raises(InputError, match="the same name; got Chunk3"):
        with_figures(info, {"Chunk3": ""})
    with pytest.raises(InputError, match="impossible names"):
        with_figures(info, {"m/s": ""})


def extremes(column: Column) -> list[float]:
    """Return the least and the largest values of a column, and some that most quantities have."""
    dtype = np.dtype(column.dtype)
    if dtype.kind == "f":
        return [float(np.finfo(dtype).min), 0.0, 0.5, 1.0, float(np.finfo(dtype).max)]
    limits = np.iinfo(dtype)
    return [int(limits.min), 0, 1, int(limits.max)]


def can_be_sent(solved: Reconstruction) -> bool:
    try:
        decode([bytes(frame) for frame in encode(solved)])
    except ValueError:
        return False
    return True


def test_numbers_of_a_solve_at_their_limits_are_read_back(tmp_path: Path, series: Series) -> None:
    path = tmp_path / "run.h5"
    cases: list[tuple[str, float]] = []
    with RecordingWriter(path, series.info, series.calibration) as writer:
        for quantity, column in SOLVE_QUANTITIES:
            if quantity.name == "start" or np.dtype(column.dtype).kind == "S":
                continue
            for value in {False, True} if column.is_flag else extremes(column):
                solved = series.reconstruction(len(cases))
                report = dataclasses.replace(solved.report, **{quantity.name: value})
                solved = dataclasses.replace(solved, report=report)
                if can_be_sent(solved):
                    writer.write_reconstruction(solved)
                    cases.append((column.name, value))
        writer.close({"acquired": len(cases), "closed": True})
    assert len(cases) > 2 * len(SOLVE_QUANTITIES)
    with RecordedSeries(path) as recording:
        for seq, (name, value) in enumerate(cases):
            assert recording.row(seq)[name] == pytest.approx(float(value))
            recording.segments[0].report(seq)


@pytest.mark.parametrize("count", [0, 2**31 - 1])
def test_numbers_of_a_snapshot_at_their_limits_are_read_back(
    tmp_path: Path, series: Series, count: int
) -> None:
    path = tmp_path / "run.h5"
    large = count and 2**63 - 1
    seq = count and 2**48 - 1
    snapshot = series.snapshot(
        seq,
        id=SnapshotId("run-1", count, seq),
        host_time_ns=large,
        camera_time_ns=large,
        camera_frame_id=large,
        dropped_before=count,
    )
    with RecordingWriter(path, series.info, series.calibration, first_seq=seq) as writer:
        writer.write_raw(snapshot)
        writer.close({"acquired": 1, "closed": True})
    with RecordedSeries(path) as recording:
        row = recording.row(seq)
    assert (row["epoch"], row["dropped_before"]) == (count, count)
    times = (row["host_time_ns"], row["camera_time_ns"], row["camera_frame_id"])
    assert times == (large, large, large)


def test_every_column_has_a_name_that_hdf5_can_hold() -> None:
    assert all(column.name.isidentifier() for column in COLUMNS)
