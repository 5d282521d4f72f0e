"""Masks by design, their files, and the hint that sparser ones pay."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from sci_stream.cli.masks import masks_make
from sci_stream.devices.modulators import load_patterns
from sci_stream.errors import ConfigError, StorageError
from sci_stream.files.mask_files import write_masks
from sci_stream.modulation.patterns import make_masks, sparser_masks_hint


@pytest.mark.parametrize("share", [0.25, 0.5])
@pytest.mark.parametrize("kind", ["random", "balanced", "shifting"])
def test_open_share_is_the_one_asked_for(kind: str, share: float) -> None:
    masks = make_masks(kind, 8, (90, 120), open_share=share, seed=4)
    assert masks.shape == (8, 90, 120)
    assert set(np.unique(masks)) == {0, 255}
    assert masks.mean() / 255 == pytest.approx(share, abs=0.02)
    np.testing.assert_array_equal(masks, make_masks(kind, 8, (90, 120), open_share=share, seed=4))
    assert not np.array_equal(masks, make_masks(kind, 8, (90, 120), open_share=share, seed=5))


def test_one_hot_masks_open_each_element_once() -> None:
    masks = make_masks("one-hot", 8, (64, 64), open_share=0.5)
    assert ((masks > 0).sum(0) == 1).all()


def test_balanced_masks_leave_no_pixel_blind() -> None:
    masks = make_masks("balanced", 8, (64, 64), open_share=0.25)
    assert set(np.unique((masks > 0).sum(0))) == {2}


def test_shifting_masks_move_by_an_element() -> None:
    masks = make_masks("shifting", 4, (40, 40), block=2)
    np.testing.assert_array_equal(masks[1][2:], masks[0][:-2])


def test_block_is_the_side_of_an_element() -> None:
    masks = make_masks("random", 2, (10, 11), block=3)
    np.testing.assert_array_equal(masks[:, :9, :9], masks[:, :9:3, :9:3].repeat(3, 1).repeat(3, 2))


@pytest.mark.parametrize("form", ["npy", "png"])
def test_file_of_masks_is_read_by_a_rig(form: str, tmp_path: Path) -> None:
    masks = make_masks("random", 12, (16, 24))
    path = tmp_path / ("masks.npy" if form == "npy" else "masks")
    write_masks(path, masks, form)
    np.testing.assert_array_equal(load_patterns(path), masks)


def test_forms_of_makers_hold_the_bits(tmp_path: Path) -> None:
    masks = make_masks("random", 30, (16, 24))
    write_masks(tmp_path / "masks.bin", masks, "alp")
    assert (tmp_path / "masks.bin").read_bytes() == masks.tobytes()
    write_masks(tmp_path / "dlp", masks, "dlp")
    images = [cv2.imread(str(path))[..., ::-1] for path in sorted((tmp_path / "dlp").iterdir())]
    assert len(images) == 2
    for index, mask in enumerate(masks):
        image, bit = images[index // 24], index % 24
        channel = image[..., (1, 0, 2)[bit // 8]]
        np.testing.assert_array_equal((channel >> bit % 8 & 1) * 255, mask)
    write_masks(tmp_path / "dlp", masks[:24], "dlp", replace=True)
    assert len(list((tmp_path / "dlp").iterdir())) == 1
    with pytest.raises(ConfigError, match="Unknown form"):
        write_masks(tmp_path / "x", masks, "bmp")


def test_masks_make_names_the_size_on_the_sensor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    masks_make(tmp_path / "m.npy", masks=4, height=32, width=48, block=2, mirrors_per_pixel=4.0)
    printed = capsys.readouterr()
    assert "an element is 2 mirrors wide, which is 0.5 pixels of the sensor" in printed.out
    assert "lose contrast" in printed.err
    with pytest.raises(StorageError, match="exists"):
        masks_make(tmp_path / "m.npy")


@pytest.mark.parametrize(
    ("clipped", "share", "gain"),
    [
        (0.0, 0.5, ""),
        (0.01, 0.5, ""),
        (0.15, 0.5, "about 2.5 dB"),
        (0.3, 0.5, "about 8.6 dB"),
        (0.15, 0.25, ""),
    ],
)
def test_hint_states_the_measured_gain(clipped: float, share: float, gain: str) -> None:
    hint = sparser_masks_hint(clipped, share)
    assert bool(hint) == bool(gain)
    assert gain in hint
