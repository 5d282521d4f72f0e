"""The folder of clips: selection, skipped files, memory limit."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from lab.tests.training.conftest import write_clip
from lab.tests.training.pictures import picture
from sci_stream.errors import ConfigError
from sci_stream_lab.training.video.clips import load_clips

PLENTY = 2**30


def test_clips_are_grey_in_the_order_of_names(clips: Path) -> None:
    found = load_clips(clips, least_px=32, memory_bytes=PLENTY)
    assert found.names == ("0.mkv", "1.mkv", "2.mkv", "3.mkv")
    assert {clip.shape for clip in found.items} == {(24, 36, 40)}
    np.testing.assert_array_equal(found.items[2][5], picture(2, 36, 64)[:, 5:45, 1])


def test_small_short_and_unreadable_clips_are_skipped_and_logged(
    clips: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_clip(clips / "low.mkv", 5, height=30)
    write_clip(clips / "short.mkv", 5, n_frames=7)
    (clips / "broken.mp4").write_bytes(b"no video")
    (clips / "notes.txt").write_text("not a clip")
    with caplog.at_level(logging.WARNING):
        found = load_clips(clips, least_px=32, memory_bytes=PLENTY)
    assert len(found.items) == 4
    assert (found.unreadable, found.too_small) == (("broken.mp4",), ("low.mkv", "short.mkv"))
    assert "low.mkv: 24 frames of 30×40 pixels, less than 8 frames of 32×32" in caplog.text


def test_folder_without_usable_clip_is_refused(clips: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere does not exist.*a folder of clips"):
        load_clips(tmp_path / "nowhere", least_px=32, memory_bytes=PLENTY)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"contains no usable clip.*got 0 files"):
        load_clips(tmp_path / "empty", least_px=32, memory_bytes=PLENTY)
    with pytest.raises(
        ConfigError, match=r"at least 8 frames of 64×64 pixels.*4 files, 0 unreadable, 4 too small"
    ):
        load_clips(clips, least_px=64, memory_bytes=PLENTY)


def test_memory_is_bounded_by_ending_clips_early(clips: Path) -> None:
    frame_bytes = 36 * 40
    found = load_clips(clips, least_px=32, memory_bytes=4 * 10 * frame_bytes)
    assert [len(clip) for clip in found.items] == [10, 10, 10, 10]


def test_held_out_clips_are_spread_and_not_trained_on(clips: Path) -> None:
    found = load_clips(clips, least_px=32, memory_bytes=PLENTY)
    training, validation = found.split(2)
    assert (training.names, validation.names) == (("0.mkv", "2.mkv"), ("1.mkv", "3.mkv"))
    with pytest.raises(ConfigError, match="too few clips"):
        found.split(4)


def test_id_distinguishes_sets(clips: Path) -> None:
    found = load_clips(clips, least_px=32, memory_bytes=PLENTY)
    assert found.id == load_clips(clips, least_px=32, memory_bytes=PLENTY).id
    assert len({found.id, *(part.id for part in found.split(2))}) == 3


def test_playlist_named_as_a_clip_opens_no_other_file(clips: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.mkv"
    write_clip(elsewhere, 9)
    (clips / "list.mp4").write_text(f"ffconcat version 1.0\nfile '{elsewhere.name}'\n")
    elsewhere.rename(clips / elsewhere.name)
    playlist = clips / "hls.mov"
    playlist.write_text(
        f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{elsewhere.name}\n#EXT-X-ENDLIST\n"
    )
    found = load_clips(clips, least_px=32, memory_bytes=PLENTY)
    assert set(found.unreadable) == {"list.mp4", "hls.mov"}
