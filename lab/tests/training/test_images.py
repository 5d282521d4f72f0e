"""The folder of photographs: selection, skipped files, memory limit."""

from __future__ import annotations

import dataclasses
import logging
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from lab.tests.training.pictures import picture
from sci_stream.errors import ConfigError
from sci_stream_lab.training.images import load_images


def test_images_are_rgb_in_the_order_of_names(photographs: Path) -> None:
    images = load_images(photographs)
    assert images.names == ("0.png", "1.png", "2.jpg", "3.webp", "4.png")
    assert (images.unreadable, images.too_small) == ((), ())
    np.testing.assert_array_equal(images.items[1], picture(1)[..., ::-1])


def test_sub_folders_are_searched_and_other_files_ignored(photographs: Path) -> None:
    (photographs / "more").mkdir()
    assert cv2.imwrite(str(photographs / "more" / "x.PNG"), picture(9))
    (photographs / "notes.txt").write_text("not an image")
    images = load_images(photographs)
    assert "more/x.PNG" in images.names
    assert len(images.names) == 6


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n then nothing"])
def test_unreadable_image_is_skipped_logged_and_counted(
    photographs: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (photographs / "broken.png").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        images = load_images(photographs)
    assert images.unreadable == ("broken.png",)
    assert len(images.items) == 5
    assert "broken.png cannot be read as an image" in caplog.text


def test_image_with_too_many_pixels_is_skipped(
    photographs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head = bytearray((photographs / "0.png").read_bytes())
    struct.pack_into(">II", head, 16, 30_000, 30_000)
    struct.pack_into(">I", head, 29, zlib.crc32(bytes(head[12:29])))
    (photographs / "bomb.png").write_bytes(head)
    with caplog.at_level(logging.WARNING):
        assert load_images(photographs).unreadable == ("bomb.png",)
    assert "CV_IO_MAX_IMAGE_PIXELS" in caplog.text


def test_small_image_is_skipped(photographs: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert cv2.imwrite(str(photographs / "tiny.png"), picture(0, 12, 80))
    images = load_images(photographs, least_px=32)
    assert images.too_small == ("tiny.png",)
    assert "12×80" in caplog.text


def test_memory_is_bounded_by_cropping(photographs: Path) -> None:
    assert cv2.imwrite(str(photographs / "zz.png"), picture(7, 400, 600))
    whole = load_images(photographs)
    bound = 6 * 64 * 80 * 3
    images = load_images(photographs, least_px=16, memory_bytes=bound)
    assert [image.shape for image in images.items[:-1]] == [
        image.shape for image in whole.items[:-1]
    ]
    assert sum(image.nbytes for image in images.items) <= bound
    cut = images.items[-1]
    top, left = (400 - cut.shape[0]) // 2, (600 - cut.shape[1]) // 2
    np.testing.assert_array_equal(
        cut, whole.items[-1][top : top + cut.shape[0], left : left + cut.shape[1]]
    )


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere does not exist.*folder of photographs"):
        load_images(tmp_path / "nowhere")


def test_folder_without_images_error_counts_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"not a file")
    with pytest.raises(
        ConfigError, match=r"contains no usable photograph.*1 files, 1 unreadable, 0 too small"
    ):
        load_images(tmp_path, least_px=8)


def test_held_out_images_are_spread_and_not_trained_on(photographs: Path) -> None:
    training, validation = load_images(photographs).split(2)
    assert validation.names == ("1.png", "3.webp")
    assert training.names == ("0.png", "2.jpg", "4.png")


@pytest.mark.parametrize("held_out", [0, 5, 6])
def test_holding_out_all_or_none_is_refused(photographs: Path, held_out: int) -> None:
    with pytest.raises(ConfigError, match="too few photographs"):
        load_images(photographs).split(held_out)


def test_id_distinguishes_sets(photographs: Path) -> None:
    one = load_images(photographs)
    assert one.id == load_images(photographs).id
    assert one.id != dataclasses.replace(one, items=one.items[1:], names=one.names[1:]).id
    assert one.id != dataclasses.replace(one, items=tuple(255 - image for image in one.items)).id
