"""Traces of the live page: the video along a line and the means of a region, equal to the recorded
values.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.errors import InputError
from sci_stream.imaging.demosaic import demosaic
from sci_stream.imaging.estimated_error import error_estimate
from sci_stream.model import BayerPhase
from sci_stream.optics.calibration import Calibration
from sci_stream.web.inspection import Line, Region, error_png, pixel_values, traces
from tests.series_fixtures import Series, make_series


def decoded(data: bytes) -> tuple[dict[str, object], np.ndarray]:
    (length,) = struct.unpack_from("<I", data)
    return json.loads(data[4 : 4 + length]), np.frombuffer(data, "<f4", offset=4 + length)


def test_traces_are_the_values_of_the_video(series: Series) -> None:
    snapshots = [series.reconstruction(seq, redelivered=0) for seq in (3, 4)]
    width = snapshots[0].video.shape[2]
    header, values = decoded(traces(snapshots, Line(1, 2, width - 2, 2), Region(0, 1, 4, 3)))
    assert header["n_points"] == width - 2
    assert [snapshot["seq"] for snapshot in header["snapshots"]] == [3, 4]  # type: ignore[attr-defined, index, union-attr]
    expected = [
        part
        for snapshot in snapshots
        for part in (
            snapshot.video[:, 1:4, :4].astype("f4").mean((1, 2)),
            snapshot.video[:, 2, 1:-1].ravel(),
        )
    ]
    np.testing.assert_allclose(values, np.concatenate(expected), rtol=1e-6)


@given(st.tuples(*(st.integers(0, 7) for _ in range(4))))
def test_line_has_its_ends_and_no_gap(ends: tuple[int, int, int, int]) -> None:
    line = Line(*ends)
    y, x = np.mgrid[:8, :8]
    column, row = line.of(x[None])[0], line.of(y[None])[0]
    assert (column[0], row[0], column[-1], row[-1]) == (line.x0, line.y0, line.x1, line.y1)
    assert np.abs(np.diff(column)).max(initial=0) <= 1
    assert np.abs(np.diff(row)).max(initial=0) <= 1


def test_line_of_a_mosaic_has_no_stripes(series: Series) -> None:
    snapshot = series.reconstruction(0, redelivered=0)
    stripes = np.zeros_like(snapshot.video)
    stripes[:, ::2, ::2] = 1
    colour = replace(snapshot, video=stripes, bayer=BayerPhase.RGGB)
    header, values = decoded(traces([colour], Line(0, 0, 5, 0), None))
    assert header["n_colours"] == 3
    along = values.reshape(-1)[len(stripes) :].reshape(-1, 3)
    np.testing.assert_array_equal(
        along, np.tile([1.0, 0.0, 0.0], (len(along), 1)), "red pixels alone have light"
    )


def test_line_outside_the_picture_is_refused(series: Series) -> None:
    snapshot = series.reconstruction(0, redelivered=0)
    with pytest.raises(InputError, match="outside the picture"):
        traces([snapshot], Line(0, 0, snapshot.video.shape[2], 0), None)


@given(st.tuples(st.integers(0, 11), st.integers(0, 11), st.integers(1, 5), st.integers(1, 5)))
def test_colours_of_a_region_are_those_of_the_picture(place: tuple[int, int, int, int]) -> None:
    x, y, width, height = place
    mosaic = np.random.default_rng(0).random((1, 16, 16)).astype(np.float32)
    whole = demosaic(np.rint(mosaic * 65535).astype(np.uint16), BayerPhase.GRBG)[0] / 65535
    colour = replace(
        make_series().reconstruction(0, redelivered=0),
        video=mosaic,
        counts=None,
        bayer=BayerPhase.GRBG,
    )
    rgb = np.array(pixel_values(colour, 0, Region(x, y, width, height))["rgb"])
    np.testing.assert_allclose(
        rgb, np.moveaxis(whole[y : y + height, x : x + width], -1, 0), atol=6e-6
    )


@pytest.mark.parametrize("coloured", [False, True])
def test_estimated_error_is_large_where_the_video_is_wrong(coloured: bool) -> None:
    random = np.random.default_rng(3)
    scene = np.full((4, 64, 64), 0.4, np.float32)
    scene[:, 20:44, 20:44] = np.linspace(0.2, 0.8, 4)[:, None, None]
    masks = (random.random(scene.shape) < 0.5).astype(np.float32)
    calibration = Calibration(masks, full_scale_dn=800.0, bit_depth=12)
    counts = np.rint(800 * (masks * scene).sum(0)).astype(np.uint16)
    wrong = scene.copy()
    wrong[:, 20:44, 20:44] = 0.5  # all frames alike
    bayer = BayerPhase.RGGB if coloured else None
    shown = make_series().reconstruction(0, video=wrong, counts=counts, bayer=bayer)
    estimate = error_estimate(shown, calibration)
    inside, outside = estimate[:, 7:9, 7:9], estimate[:, :2, :2]
    actual = np.sqrt(np.mean((wrong - scene)[:, 28:36, 28:36] ** 2))
    assert 0.5 * actual < np.sqrt(np.mean(inside**2)) < 2 * actual
    assert outside.max() < 0.02
    picture = cv2.imdecode(
        np.frombuffer(error_png(shown, 0, calibration), np.uint8), cv2.IMREAD_UNCHANGED
    )
    assert picture[32, 32] > 200
    assert picture[4, 4] < 25
    with pytest.raises(InputError, match="coded snapshot was not sent"):
        error_estimate(make_series().reconstruction(0, counts=None), calibration)
