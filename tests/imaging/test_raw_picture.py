"""Snapshots that are only recorded are shown by their mean light."""

from __future__ import annotations

import numpy as np
import pytest

from sci_stream.imaging.raw_picture import RawPicture
from sci_stream.optics.calibration import Calibration

FRAMES = 8


def calibration_of(bayer: str | None) -> Calibration:
    phi = np.random.default_rng(0).integers(0, 2, (FRAMES, 32, 48)).astype(np.float32)
    return Calibration(phi, full_scale_dn=100.0, bayer=bayer)


@pytest.mark.parametrize("bayer", [None, "RGGB"])
def test_raw_picture_of_a_still_scene_is_the_scene(bayer: str | None) -> None:
    calibration = calibration_of(bayer)
    scene = np.full(calibration.shape, 0.25, np.float32)
    if bayer is not None:
        scene[::2, ::2] = 0.75  # its red pixels
    counts = (100.0 * calibration.phi.sum(0) * scene).astype(np.float32)
    shown = RawPicture(calibration).show(calibration.snapshot("run", 3, counts), 0.0)
    assert shown is not None
    assert shown.video.shape == calibration.phi.shape
    np.testing.assert_allclose(shown.video, np.broadcast_to(scene, shown.video.shape), atol=1e-4)
    assert (shown.id.seq, shown.report.iterations) == (3, 0)
    np.testing.assert_array_equal(shown.counts, counts)


def test_raw_pictures_are_a_few_a_second() -> None:
    calibration = calibration_of(None)
    snapshot = calibration.snapshot("run", 0, np.ones(calibration.shape, np.float32))
    picture = RawPicture(calibration)
    shown = [picture.show(snapshot, now_s) for now_s in (0.0, 0.01, 0.29, 0.31, 0.32)]
    assert [each is not None for each in shown] == [True, False, False, True, False]
