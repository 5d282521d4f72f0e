"""Colour scenes behind masks, with true colours."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from lab.tests.training.pictures import picture
from sci_stream.model import BayerPhase
from sci_stream.optics.bayer import sample_colours
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import load_ffdnet
from sci_stream.recon.settings import default_settings
from sci_stream_lab.bench.datasets import truth_of
from sci_stream_lab.bench.quality.mosaics import (
    LEAST_PX,
    MosaicQuality,
    apart,
    clips,
    mean_rows,
    measure,
    pan,
    simulated,
)

CPU = torch.device("cpu")
SETTINGS = dataclasses.replace(default_settings(CPU, "ffdnet-lite"), iterations=4)


def test_colours_of_a_simulated_scene_are_those_of_its_mosaics() -> None:
    scene = simulated("fan", snapshots=2, size_px=32)
    for snapshot, colours in zip(scene.footage.snapshots, scene.colours, strict=True):
        assert colours.shape == (8, 32, 32, 3)
        np.testing.assert_array_equal(sample_colours(colours, BayerPhase.RGGB), truth_of(snapshot))


def test_pan_moves_a_photograph_from_frame_to_frame() -> None:
    photograph = picture(0, LEAST_PX, LEAST_PX)
    scene = pan("still", photograph, (2.0, 1.0), snapshots=2, seed=0)
    first, second = scene.colours
    np.testing.assert_allclose(first[1, :-1, :-2], first[0, 1:, 2:], atol=1e-6)
    np.testing.assert_allclose(second[0, :-1, :-2], first[-1, 1:, 2:], atol=1e-6)


def test_planes_apart_are_denoised_as_grey_videos() -> None:
    weights = load_ffdnet(shipped_weights("ffdnet-lite"))
    together = FfdnetDenoiser(weights, CPU, mosaic=weights)
    scene = pan("still", picture(0, LEAST_PX, LEAST_PX), (0.0, 0.0), snapshots=1, seed=0)
    plain = measure(scene, apart(together), SETTINGS, CPU)
    assert plain == measure(scene, FfdnetDenoiser(weights, CPU), SETTINGS, CPU)
    assert plain != measure(scene, together, SETTINGS, CPU)


def test_clips_are_those_of_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "video"
    folder.mkdir()
    writer = cv2.VideoWriter(str(folder / "red.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 25, (96, 64))
    for _ in range(24):
        writer.write(np.full((64, 96, 3), (0, 0, 200), np.uint8))
    writer.release()
    monkeypatch.setenv("SCI_STREAM_DATA", str(tmp_path))
    (clip,) = clips()
    assert clip.footage.name == "red"
    assert len(clip.colours) == 3
    np.testing.assert_allclose(clip.colours[0].mean((0, 1, 2)), (0.78, 0, 0), atol=0.03)
    monkeypatch.delenv("SCI_STREAM_DATA")
    assert not list(clips())


def test_mean_rows_keep_starts_apart_and_the_worst_snapshot() -> None:
    def row(scene: str, start: str, value: float) -> MosaicQuality:
        return MosaicQuality(scene, start, *[value] * 10)

    rows = [row("a", "cold, 12", 30.0), row("a", "warm, 4", 20.0), row("b", "cold, 12", 34.0)]
    cold, warm = mean_rows("mean", rows)
    assert (cold.scene, cold.start) == ("mean", "cold, 12")
    assert cold.planes_db == cold.rgb_apart_db == cold.delta_e == 32
    assert cold.worst_db == cold.worst_apart_db == 30
    assert warm == row("mean", "warm, 4", 20.0)
    assert not list(mean_rows("mean", []))
