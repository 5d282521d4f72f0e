from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from sci_stream.errors import FileFormatError
from sci_stream_drivers.simulated.textures import SRGB_TO_LINEAR
from sci_stream_drivers.simulated.video import VideoScene

N = 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images 8 to 12, each of one colour: BGR (number, 2·number, 100)."""
    for i in range(8, 8 + N):
        cv2.imwrite(str(tmp_path / f"shot{i}.png"), np.full((20, 40, 3), (i, 2 * i, 100), np.uint8))
    return tmp_path


def colour(scene: VideoScene, t: float) -> np.ndarray:
    image = scene.render(t)
    assert image.shape == (16, 24, 3)
    return image[3, 5].copy()


def light(*rgb: int) -> np.ndarray:
    return SRGB_TO_LINEAR[list(rgb)]


def test_folder_plays_in_natural_order_as_linear_rgb(folder: Path) -> None:
    scene = VideoScene(str(folder), (16, 24), 1.0)
    for t in range(N):
        np.testing.assert_allclose(colour(scene, t), light(100, 2 * (8 + t), 8 + t))


def test_video_loops_and_can_restart(folder: Path) -> None:
    scene = VideoScene(str(folder), (16, 24), 1.0)
    first = [colour(scene, t) for t in range(N)]
    np.testing.assert_array_equal([colour(scene, t) for t in range(N, 3 * N)], first + first)
    np.testing.assert_array_equal(colour(scene, 0), first[0])


def test_video_larger_than_memory_is_cut(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sci_stream_drivers.simulated.video._MAX_BYTES", 3 * 3 * 16 * 24)
    scene = VideoScene(str(folder), (16, 24), 1.0)
    np.testing.assert_array_equal(colour(scene, 3), colour(scene, 0))


def test_scene_between_two_images_is_their_blend(folder: Path) -> None:
    scene = VideoScene(str(folder), (16, 24), 0.25)
    np.testing.assert_allclose(
        colour(scene, 1), 0.75 * light(100, 16, 8) + 0.25 * light(100, 18, 9)
    )


def test_glob_selects_images(folder: Path) -> None:
    scene = VideoScene(str(folder / "shot1*.png"), (16, 24), 1.0)
    np.testing.assert_allclose(colour(scene, 0), light(100, 20, 10))


def test_video_file_plays(tmp_path: Path) -> None:
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 25, (48, 32))
    for i in range(3):
        writer.write(np.full((32, 48, 3), 60 * (i + 1), np.uint8))
    writer.release()
    scene = VideoScene(str(path), (16, 24), 1.0)
    for t in range(6):
        np.testing.assert_allclose(colour(scene, t), light(*3 * [60 * (t % 3 + 1)]), atol=0.02)


def test_image_is_cropped_to_the_sensors_aspect_ratio(tmp_path: Path) -> None:
    picture = np.zeros((20, 60, 3), np.uint8)
    picture[:, 20:40] = 255
    cv2.imwrite(str(tmp_path / "wide.png"), picture)
    assert VideoScene(str(tmp_path), (16, 16), 1.0).render(0).min() == 1.0


@pytest.mark.parametrize("source", ["absent.mp4", "absent/*.png", "."])
def test_missing_video_is_one_clear_error(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileFormatError, match="was not found"):
        VideoScene(source, (16, 16), 1.0)


@pytest.mark.parametrize("name", ["clip.mp4", "picture.png"])
def test_broken_file_is_one_clear_error(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"nothing of the kind")
    with pytest.raises(FileFormatError, match=name):
        VideoScene(str(tmp_path / name), (16, 16), 1.0)


def test_flower_video_plays(data_dir: Path) -> None:
    scene = VideoScene(str(data_dir / "video" / "flower.mp4"), (64, 64), 1.0)
    image = scene.render(3.0)
    assert image.std() > 0.05
