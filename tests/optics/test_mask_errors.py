"""Errors of single masks: their text, and their effect on masks."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from sci_stream.errors import FileFormatError
from sci_stream.optics.displacement import Displacement
from sci_stream.optics.mask_errors import (
    CORRECTION_PATTERN,
    MAX_MASKS,
    NO_CORRECTION,
    MaskCorrection,
    MaskError,
    correction_length,
)
from sci_stream.optics.mask_shift import corrected_masks

ERRORS = (MaskError(0.1234567, -0.2, 0.01, 0.05), MaskError(), MaskError(gain=-0.02))


def test_no_correction_leaves_masks_as_they_are() -> None:
    phi = torch.rand(3, 8, 8)
    assert torch.equal(corrected_masks(phi, NO_CORRECTION), phi)
    assert NO_CORRECTION.to_text == ""
    assert MaskCorrection.from_text("").is_none


@pytest.mark.parametrize(
    "correction",
    [
        MaskCorrection(masks=ERRORS, black=0.003),
        MaskCorrection(Displacement((1, 0), x=(0.0, 0.0, 0.75, 0.25, 0.0)), ERRORS),
        MaskCorrection(Displacement((0, -2))),
        MaskCorrection(masks=(MaskError(9e9, -9e9, 9e9, -9e9),) * MAX_MASKS, black=-9e9),
    ],
)
def test_text_round_trip_gives_the_correction_as_it_is_applied(correction: MaskCorrection) -> None:
    text = correction.to_text
    assert re.fullmatch(CORRECTION_PATTERN, text)
    assert len(text) <= correction_length(len(correction.masks))
    assert MaskCorrection.from_text(text) == correction.rounded()
    assert MaskCorrection.from_text(text).to_text == text


@pytest.mark.parametrize("text", ["|", "|5", "|5;1,2,3", "1,0,0,2500,0", "|5;1,2,3,4;"])
def test_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(FileFormatError, match="Invalid correction"):
        MaskCorrection.from_text(text)


def test_each_mask_moves_and_brightens_by_itself() -> None:
    """Smooth masks: interpolation is exact for them to a thousandth."""
    rows, columns = torch.meshgrid(*(torch.arange(32.0),) * 2, indexing="ij")

    def wave(x_px: float = 0.0, y_px: float = 0.0, contrast: float = 1.0) -> torch.Tensor:
        return 0.5 + 0.25 * contrast * torch.sin((columns - x_px) / 2) * torch.cos(
            (rows - y_px) / 3
        )

    errors = (MaskError(0.2, -0.3), MaskError(gain=0.1), MaskError(blur_px2=0.2))
    found = corrected_masks(torch.stack([wave()] * 3), MaskCorrection(masks=errors))[:, 4:-4, 4:-4]
    blurred = wave(contrast=math.exp(-0.1 * (1 / 4 + 1 / 9)))
    for mask, expected in zip(found, (wave(0.2, -0.3), 1.1 * wave(), blurred), strict=True):
        torch.testing.assert_close(mask, expected[4:-4, 4:-4], atol=2e-3, rtol=0)


def test_long_exposed_mask_has_two_turns_and_twice_the_time() -> None:
    correction = MaskCorrection(
        masks=(MaskError(gain=1.0), MaskError(gain=0.03), MaskError(), MaskError(gain=-0.03))
    )
    assert correction.turns(4) == (2, 1, 1, 1)
    begins, durations = np.transpose(correction.frame_times(4))
    np.testing.assert_allclose(durations, [0.4, 0.206, 0.2, 0.194])
    np.testing.assert_allclose(begins, [0, 0.4, 0.606, 0.806])
    assert MaskCorrection().turns(3) == (1, 1, 1)


def test_exposed_masks_have_so_many_times_the_light() -> None:
    longer = MaskCorrection(masks=(MaskError(gain=0.5), MaskError())).exposed([2.0, 1.0])
    assert [mask.gain for mask in longer.masks] == [2.0, 0.0]
    assert [mask.gain for mask in MaskCorrection().exposed([2.0, 1.0]).masks] == [1.0, 0.0]
