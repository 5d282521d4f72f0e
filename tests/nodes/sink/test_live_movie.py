"""The live movie contains the snapshots it had time for, counts the rest, and never blocks."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from sci_stream.errors import StorageError
from sci_stream.files.video_file import MovieFile
from sci_stream.nodes.sink import live_movie as movie_module
from sci_stream.nodes.sink.live_movie import Movie, MovieOptions

av = pytest.importorskip("av")
OPTIONS = MovieOptions(floor_free_bytes=0)


def frames_of(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


@pytest.fixture
def held(monkeypatch) -> threading.Event:
    """Hold the encoder back at each picture until the event is set."""
    release = threading.Event()
    write = MovieFile.write

    def slow(film: MovieFile, picture: np.ndarray) -> None:
        release.wait(20)
        write(film, picture)

    monkeypatch.setattr(MovieFile, "write", slow)
    return release


def test_movie_has_every_frame(tmp_path: Path, series, held) -> None:
    held.set()
    film = Movie(tmp_path / "run.h5", MovieOptions(floor_free_bytes=0, queue=100))
    for seq in range(20):
        film.publish(series.reconstruction(seq, bayer=series.info.bayer))
    film.close()
    film.close()
    status = film.status()
    assert (status.snapshots, status.left_out, status.reason) == (20, 0, "")
    assert frames_of(tmp_path / "run.mp4") == 60


def test_slow_encoder_skips_snapshots_without_blocking(tmp_path: Path, series, held) -> None:
    film = Movie(tmp_path / "run.h5", OPTIONS)
    for seq in range(50):
        film.publish(series.reconstruction(seq))  # returns at once, or this test never ends
    held.set()
    film.close()
    status = film.status()
    assert status.snapshots + status.left_out == 50
    assert 8 <= status.snapshots <= 9, "the queued one and the one being encoded"
    assert frames_of(tmp_path / "run.mp4") == 3 * status.snapshots


def test_disk_error_ends_movie_with_reason(tmp_path: Path, series, monkeypatch) -> None:
    written = threading.Event()

    def refused(_film: MovieFile, _picture: np.ndarray) -> None:
        written.set()
        raise StorageError("the disk is gone")

    monkeypatch.setattr(MovieFile, "write", refused)
    film = Movie(tmp_path / "run.h5", OPTIONS)
    for seq in range(5):
        film.publish(series.reconstruction(seq))
    assert written.wait(20)
    film.close()
    film.publish(series.reconstruction(5))
    status = film.status()
    assert (status.snapshots, status.left_out) == (0, 6)
    assert "the disk is gone" in status.reason


def test_movie_ends_at_disk_floor_before_recording(tmp_path: Path, series, monkeypatch) -> None:
    monkeypatch.setattr(movie_module, "free_bytes", lambda _: 1000)
    film = Movie(tmp_path / "run.h5", MovieOptions(floor_free_bytes=2000))
    film.publish(series.reconstruction(0))
    film.close()
    assert "nearly full" in film.status().reason


def test_existing_movie_is_not_replaced(tmp_path: Path, series, held) -> None:
    held.set()
    (tmp_path / "run.mkv").write_text("precious")
    film = Movie(tmp_path / "run.h5", MovieOptions(suffix=".mkv", floor_free_bytes=0))
    film.publish(series.reconstruction(0))
    film.close()
    assert (tmp_path / "run.mkv").read_text() == "precious"
    assert frames_of(tmp_path / "run_001.mkv") == 3
