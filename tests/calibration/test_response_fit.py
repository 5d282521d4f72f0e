"""One snapshot shows whether a gamma, a black level or blurred masks are the cause."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage

from sci_stream.calibration.registration.mask_fitter import MaskFitter
from sci_stream.calibration.registration.response_fit import Cause, response_cause
from sci_stream.model import F32
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.displacement import NO_DISPLACEMENT

B, SIZE = 6, 128
PHI = np.random.default_rng(3).integers(0, 2, (B, SIZE, SIZE)).astype(np.float32)
ROWS, COLUMNS = np.mgrid[:SIZE, :SIZE]
SCENE = 0.5 + 0.4 * np.sin(COLUMNS / 19) * np.sin(ROWS / 23)
FITTER = MaskFitter(Calibration(phi=PHI, full_scale_dn=500.0), torch.device("cpu"))


def cause(phi: F32 = PHI, gamma: float = 1.0, black: float = 0.0) -> Cause:
    noise = np.random.default_rng(4).normal(0, 0.01, SCENE.shape)
    light = phi.sum(0) * SCENE
    y = np.asarray((light / B) ** gamma * B + black * light.mean() + noise, np.float32)
    valid = np.ones(y.shape, bool)
    masks = FITTER.fit(y, valid).displacement
    return response_cause(FITTER, y, valid, NO_DISPLACEMENT, masks)


def test_right_response_has_no_cause() -> None:
    assert cause().name == ""


@pytest.mark.parametrize("gamma", [0.7, 0.45])
def test_gamma_is_told(gamma: float) -> None:
    assert cause(gamma=gamma) == Cause("gamma", gamma)


def test_stray_light_is_a_black_level() -> None:
    assert cause(black=0.3).name == "black_level"


def test_blurred_masks_are_told() -> None:
    blurred = ndimage.gaussian_filter(PHI, (0, 0.8, 0.8), mode="nearest")
    assert cause(blurred).name == "masks"
