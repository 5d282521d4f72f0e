"""Films play in other programs."""

from __future__ import annotations

import resource
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from sci_stream import errors as extras
from sci_stream.errors import ConfigError, StorageError
from sci_stream.files.video_output import VideoFormat, write_film

av = pytest.importorskip("av")


def gradient(k: int, shape: tuple[int, ...] = (48, 64, 3)) -> np.ndarray:
    """A smooth image that distinguishes frames and colours."""
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    planes = [(rows * 2 + k) % 256, (columns * 2) % 256, np.full(shape[:2], 10 * k % 256)]
    picture = np.stack(planes, axis=-1) if len(shape) == 3 else planes[0]
    return picture.astype(np.uint8)


def frames_of(path: Path, form: str = "rgb24") -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format=form) for frame in container.decode(video=0)]


@pytest.mark.parametrize("form", [VideoFormat.MP4, VideoFormat.MKV])
def test_every_image_is_a_frame_in_order_and_at_its_rate(tmp_path: Path, form: VideoFormat) -> None:
    write_film(
        tmp_path / "film", (np.full((32, 48, 3), 6 * k, np.uint8) for k in range(40)), 12.5, form
    )
    levels = [frame.mean() for frame in frames_of(tmp_path / "film")]
    assert np.allclose(levels, np.arange(40) * 6, atol=3)
    with av.open(str(tmp_path / "film")) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert stream.average_rate == Fraction(25, 2)


@pytest.mark.parametrize("shape", [(48, 64, 3), (48, 64), (47, 63, 3)])
def test_lossless_video_keeps_every_value(tmp_path: Path, shape: tuple[int, ...]) -> None:
    write_film(tmp_path / "film", (gradient(k, shape) for k in range(5)), 25, VideoFormat.FFV1)
    for k, frame in enumerate(frames_of(tmp_path / "film", "rgb24" if len(shape) == 3 else "gray")):
        assert np.array_equal(frame, gradient(k, shape))


def test_odd_size_is_padded(tmp_path: Path) -> None:
    write_film(tmp_path / "odd.mp4", [gradient(0, (47, 63, 3))], 25, VideoFormat.MP4)
    (frame,) = frames_of(tmp_path / "odd.mp4")
    assert frame.shape == (48, 64, 3)


def test_write_error_is_reported(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (128, 128, 3)).astype(np.uint8)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
        with pytest.raises(StorageError, match=r"film\.mkv cannot be written"):
            write_film(tmp_path / "film.mkv", [noise] * 200, 25, VideoFormat.FFV1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_missing_library_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(extras.importlib, "import_module", absent)
    with pytest.raises(
        ConfigError, match=r'needs the library av.*pip install "sci-stream\[video\]"'
    ):
        write_film(tmp_path / "film.mp4", [], 25, VideoFormat.MP4)


@pytest.mark.parametrize("shape", [(48, 64, 3), (48, 64)])
def test_mp4_has_its_index_in_front_and_tags_its_colours(tmp_path: Path, shape: tuple) -> None:
    av = pytest.importorskip("av")
    picture = np.full(shape, 180, np.uint8)
    if len(shape) == 3:
        picture[:] = (200, 30, 60)
    path = tmp_path / "film.mp4"
    write_film(path, [picture] * 3, 25, VideoFormat.MP4)
    content = path.read_bytes()
    assert content.index(b"moov") < content.index(b"mdat")
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        tags = (context.colorspace, context.color_primaries, context.color_trc, context.color_range)
        assert tags == (1, 1, 13, 1)
        shown = next(container.decode(stream)).to_ndarray(format="rgb24")
    np.testing.assert_allclose(shown[5, 5], picture[5, 5], atol=4)
