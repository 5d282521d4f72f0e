"""Video files play in other programs, even after a kill of their writer."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from sci_stream import errors as extras
from sci_stream.errors import ConfigError, InputError, StorageError
from sci_stream.files.video_file import MovieFile

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


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_every_image_is_a_frame_in_order_and_at_its_rate(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"film{suffix}"
    with MovieFile(path, 12.5) as movie:
        for k in range(40):
            movie.write(np.full((32, 48, 3), 6 * k, np.uint8))
    levels = [frame.mean() for frame in frames_of(path)]
    assert np.allclose(levels, np.arange(40) * 6, atol=3)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert stream.average_rate == Fraction(25, 2)


def test_lossless_video_keeps_every_value(tmp_path: Path) -> None:
    for shape, form in (((48, 64, 3), "rgb24"), ((48, 64), "gray")):
        path = tmp_path / f"{form}.mkv"
        with MovieFile(path, 25, lossless=True) as movie:
            for k in range(5):
                movie.write(gradient(k, shape))
        for k, frame in enumerate(frames_of(path, form)):
            assert np.array_equal(frame, gradient(k, shape))


def test_odd_size_is_padded(tmp_path: Path) -> None:
    with MovieFile(tmp_path / "odd.mp4", 25) as movie:
        movie.write(gradient(0, (47, 63, 3)))
    (frame,) = frames_of(tmp_path / "odd.mp4")
    assert frame.shape == (48, 64, 3)


def test_video_without_images_leaves_no_file(tmp_path: Path) -> None:
    MovieFile(tmp_path / "film.mp4", 25).close()
    assert list(tmp_path.iterdir()) == []


FILM_FOR_EVER = """
    import sys
    from pathlib import Path
    import numpy as np
    from sci_stream.files.video_file import MovieFile
    movie = MovieFile(Path(sys.argv[1]), 25)
    noise = np.random.default_rng(0).integers(0, 255, (8, 64, 64, 3)).astype(np.uint8)
    for k in range(1 << 16):
        movie.write(noise[k % 8])
        print(k + 1, flush=True)
"""


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_killed_writer_leaves_video_up_to_the_last_second(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"film{suffix}"
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(FILM_FOR_EVER), str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert writer.stdout is not None
    with writer.stdout:
        while int(writer.stdout.readline()) < 137:
            pass
        writer.kill()
        written = max([137, *(int(line) for line in writer.stdout.read().splitlines())])
    writer.wait()
    played = len(frames_of(path))
    assert written - 2 * 25 <= played <= written + 1


def test_write_error_is_reported(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (128, 128, 3)).astype(np.uint8)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    movie = MovieFile(tmp_path / "film.mkv", 25, lossless=True)

    def film_on() -> None:
        for _ in range(200):
            movie.write(noise)

    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
        with pytest.raises(StorageError, match=r"film\.mkv cannot be written"):
            film_on()
        with pytest.raises(StorageError, match=r"film\.mkv cannot be finished"):
            movie.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(frames_of(tmp_path / "film.mkv")) >= 4


def test_unsupported_format_is_refused(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(InputError, match=r"format of .*film\.avi; expected a name that ends in \.mp4 or \.mkv"):
        MovieFile(tmp_path / "film.avi", 25)
    with pytest.raises(InputError, match="lossless"):
        MovieFile(tmp_path / "film.mp4", 25, lossless=True)

    def absent(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(extras.importlib, "import_module", absent)
    with pytest.raises(ConfigError, match=r'needs the library av.*pip install "sci-stream\[video\]"'):
        MovieFile(tmp_path / "film.mp4", 25)
